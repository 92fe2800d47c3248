"""The tests that PyTorch ships for torch.distributed, on the backend mpi4py."""

import re
import sys
from datetime import date
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.ranks import run_in_group

REPOSITORY = Path(__file__).parents[2]
SCRIPT = REPOSITORY / "scripts" / "torch-own-tests"
PAGE = REPOSITORY / "docs" / "torch-own-tests.md"
A_HANDFUL = (
    "test_DistributedDataParallel_requires_grad",
    "test_all_gather_coalesced_with_empty",
    "test_all_reduce_sum_complex",
    "test_all_to_all_single_unequal_split_group",
    "test_barrier_timeout_full_group",
    "test_gather_object_subgroup",
    "test_get_backend",
    "test_monitored_barrier_wait_all_ranks",
    "test_reduce_group_product",
    "test_send_recv_any_source",
    "test_sparse_all_reduce_sum",
)

MORE = 10
"""How many others of the list join them; which ones goes by the day."""

needs_expecttest = pytest.mark.skipif(
    find_spec("expecttest") is None,
    reason="torch's tests import expecttest, which `pip install 'paceline[test]'` brings",
)


def test_a_page_tells_why_and_is_read_back(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    from torch_own_tests_page import Outcome, read_page, share_of, write_page

    gloo = {"test_a": Outcome("passed"), "test_b": Outcome("passed"), "test_c": Outcome("skipped")}
    gloo |= {"test_d": Outcome("failed", "3 != 4")}
    ours = gloo | {"test_b": Outcome("hung", "not over\n after 9 s"), "test_d": Outcome("passed")}
    page = write_page(gloo, ours, "2.13.0", 4)
    assert "**Of the 2 tests that gloo passes, mpi4py passes 1: 50.0 %.**" in page
    assert "| mpi4py | 2 | 1 | 1 |" in page
    assert "| `test_b` | hung | `not over after 9 s` |" in page
    assert "| `test_d` | failed | `3 != 4` |" in page
    of_gloo, of_ours = read_page(page)
    assert of_gloo == {"test_a": "passed", "test_b": "passed", "test_d": "failed"}
    assert of_ours == {"test_a": "passed", "test_b": "hung", "test_d": "passed"}
    assert share_of(of_gloo, of_ours) == 0.5


def listed_as_passed():
    rows = re.findall(r"^\| `(test_\w+)` \| \w+ \| passed \|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) > 100
    return rows


@needs_expecttest
@pytest.mark.timeout(460)
def test_some_of_torchs_own_tests_pass():
    """The handful, and others that change from day to day, so that each has its turn; each names
    itself where it does not pass."""
    others = [test for test in listed_as_passed() if test not in A_HANDFUL]
    first = date.today().toordinal() * MORE % len(others)
    tests = [*A_HANDFUL, *(others + others)[first : first + MORE]]
    argv = [sys.executable, SCRIPT, "--only", *tests]
    done = run_in_group(argv, timeout_s=450, TORCH_OWN_TESTS_LIMIT_S="120")  # each, and twice
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(tests)} of {len(tests)} tests passed on mpi4py" in done.stdout


@needs_expecttest
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_that_the_page_lists_as_passed_passes():
    done = run_in_group([sys.executable, SCRIPT, "--check"], timeout_s=1790)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^(\d{3}) of \1 tests passed on mpi4py$", done.stdout, re.MULTILINE)
    assert set(listed_as_passed()) >= set(A_HANDFUL)
    share = re.search(r"^the page lists ([\d.]+) % of what gloo passes", done.stdout, re.MULTILINE)
    assert float(share[1]) >= 95
