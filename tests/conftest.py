"""Fixtures for all tests."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import shares
from support.ranks import TESTS, clean_environment

from paceline.launch.job import Job
from paceline.launch.job_dir import shared_memory
from paceline.launch.mpirun import find_mpirun, read_machine
from paceline.launch.mpirun_command import render_command


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share",
        type=int,
        choices=range(shares.SHARES),
        help=f"of the tests that `make test` leaves out, run this share of {shares.SHARES}",
    )
    parser.addoption(
        "--measure", metavar="NAME", help="leave what each file takes in build/tests/NAME.json"
    )


def pytest_configure(config: pytest.Config) -> None:
    # A shell without job control ignores SIGINT in what it starts in the background, and so would
    # every program that a test starts and interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    is_worker = hasattr(config, "workerinput")
    if config.option.measure and not is_worker:
        config.pluginmanager.register(Measure(config.option.measure, config.option.share))


@pytest.hookimpl(trylast=True)  # tests/clusters/conftest.py adds its marker first
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests by file as `shares.order_of` says, and leave out those of other shares."""
    record = shares.read_record()
    items.sort(key=lambda item: shares.order_of(_file_of(item.nodeid), record))
    share = config.option.share
    if share is None:
        return

    def is_wanted(item: pytest.Item) -> bool:
        marks = (mark.name for mark in item.iter_markers())
        return shares.is_left_out(marks) and shares.share_of(_file_of(item.nodeid), record) == share

    config.hook.pytest_deselected(items=[item for item in items if not is_wanted(item)])
    items[:] = [item for item in items if is_wanted(item)]


@pytest.hookimpl(optionalhook=True)  # plain pytest does without xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests that start jobs go one after the other, beside tests that do not."""
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return shares.lane_of(_file_of(nodeid))

    config.option.loadscopereorder = False
    return Lanes(config, log)


class Measure:
    """Adds up what the tests of each file take."""

    def __init__(self, name: str, share: int | None) -> None:
        self.path = shares.MEASURED / f"{name}.json"
        self.share = share
        self.files: dict[str, dict[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        kind = "rest" if shares.is_left_out(report.keywords) else "core"
        figures = self.files.setdefault(_file_of(report.nodeid), {})
        figures[kind] = round(figures.get(kind, 0.0) + report.duration, 2)

    def pytest_sessionfinish(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"share": self.share, "files": self.files}, indent=1))


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests behave alike on a laptop and inside a job."""
    for name in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def no_logging_set_up() -> Iterator[None]:
    """Who trains sets up logging for the whole process; so may fixtures that came before."""
    logger = logging.getLogger("paceline")

    def reset() -> None:
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate = True

    reset()
    yield
    reset()


@pytest.fixture
def mpirun() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`mpirun(3, "program.py", "argument")`: a program of tests/mpi/programs under real mpirun."""

    def run(
        ranks: int, program: str, *arguments: str, timeout_s: float = 60, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        path = str(TESTS / "mpi" / "programs" / program)
        job = Job(ranks, 1, (sys.executable, path, *map(str, arguments)))
        argv, extra = render_command(job, find_mpirun(), read_machine())
        with shared_memory(find_mpirun()) as place:
            return subprocess.run(
                argv,
                env=clean_environment(**place, **extra, **environment),
                capture_output=True,
                text=True,
                timeout=timeout_s,
            )

    return run


@pytest.fixture
def paceline(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`paceline("train", "mnist", "-n", "2")`: the command, as a user starts it."""

    def run(
        *arguments: str, timeout_s: float = 90, cwd: Path = tmp_path, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        command = str(Path(sys.executable).parent / "paceline")
        return subprocess.run(
            [command, *map(str, arguments)],
            env=clean_environment(**environment),
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    return run
