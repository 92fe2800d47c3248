"""docs/torch-own-tests.md: the outcomes of PyTorch's own tests as a page, and back."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_OWN_WORDS = (
    "It asks for a sentence of gloo's on the ranks that came in time. Ours tells them with words "
    "of its own that ranks are missing; rank 0 names them, as the test wants it."
)
REASONS = {
    "test_monitored_barrier_failure_order": _OWN_WORDS,
    "test_monitored_barrier_gloo": _OWN_WORDS,
}
"""Why a test does not pass on mpi4py, where its own message does not say it."""
LIVELY = {"passed", "failed", "hung", "crashed"}

_HEAD = """\
# PyTorch's own tests on MPI

PyTorch's wheels bring along the tests of `torch.distributed`, in
`torch.testing._internal.distributed.distributed_test`. `scripts/torch-own-tests` runs all of them
on gloo and on [the backend mpi4py](torch-backend.md), and wrote this page.
`scripts/torch-own-tests --check` fails if a test that is listed here as passed on mpi4py does not
pass any more.

**Of the {gloo} tests that gloo passes, mpi4py passes {both}: {share:.1f} %.** That is with torch
{version} and {ranks} ranks, on one machine without GPUs.

| | passed | failed | skipped |
|---|---|---|---|
{totals}

## How they are run
- Both backends run in the same harness: `mpirun -n {ranks}`, for each test a group of its own with
  a `file://` store, the time-outs of torch's own harness, and at most four minutes per test. What
  does not pass beside others is tried once more with ranks of its own, and that counts.
- torch opens many tests by the name of the backend. For mpi4py this name is "gloo" while the tests
  are loaded, and a test that asks for gloo (`init_process_group`, `new_group`) gets mpi4py. The
  tests of the name itself get the true one.
- `dist.monitored_barrier` refuses all backends but gloo, by name. On mpi4py
  `paceline.torch_backend.monitored_barrier` stands in its place.
- The tests of `all_to_all` on CPUs, which torch keeps for its own MPI backend, run on both.
- The tests of groups, which torch skips below 8 ranks, run on both: they use ranks 1 and 2.
- The ranks of a test wait for each other for up to 60 s instead of 10, since the machine may be
  busy.
- Tests that ask the profiler for the marks of a backend do so for those on a list of torch's.
  mpi4py is not on it and leaves no such marks; the rest of these tests counts.
"""


@dataclass(frozen=True)
class Outcome:
    """What became of a test: passed, skipped, failed, hung or crashed; and why."""

    kind: str
    reason: str = ""
    seconds: float = 0.0


Outcomes = Mapping[str, Outcome]


def share_of(gloo: Mapping[str, str], ours: Mapping[str, str]) -> float:
    """Which part of what gloo passes is passed.

    >>> share_of({"a": "passed", "b": "passed", "c": "failed"}, {"a": "passed", "b": "failed"})
    0.5
    """
    passed = [test for test, kind in gloo.items() if kind == "passed"]
    return sum(ours.get(test) == "passed" for test in passed) / len(passed)


def write_page(gloo: Outcomes, ours: Outcomes, version: str, ranks: int) -> str:
    """The whole page."""
    passed = {test for test, outcome in gloo.items() if outcome.kind == "passed"}
    both = {test for test in passed if ours[test].kind == "passed"}
    head = _HEAD.format(
        gloo=len(passed),
        both=len(both),
        share=100 * len(both) / len(passed),
        version=version,
        ranks=ranks,
        totals="\n".join([_totals("gloo", gloo), _totals("mpi4py", ours)]),
    )
    more = [test for test in ours if ours[test].kind == "passed" and test not in passed]
    lost = [test for test in ours if ours[test].kind != "passed" and gloo[test].kind in LIVELY]
    parts = [
        head,
        _reasons("Not passed on mpi4py", lost, ours),
        _reasons("Passed on mpi4py, but not on gloo", more, gloo),
        _skipped([test for test in ours if gloo[test].kind == ours[test].kind == "skipped"], ours),
        _all_that_ran(gloo, ours),
    ]
    return "\n".join(parts)


def read_page(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """By test what became of it on gloo and on mpi4py, of those that the last table lists."""
    rows = re.findall(r"^\| `(test_\w+)` \| (\w+) \| (\w+) \|$", text, re.MULTILINE)
    return {test: kind for test, kind, _ in rows}, {test: kind for test, _, kind in rows}


def _totals(backend: str, outcomes: Outcomes) -> str:
    kinds = [outcome.kind for outcome in outcomes.values()]
    passed, skipped = kinds.count("passed"), kinds.count("skipped")
    return f"| {backend} | {passed} | {len(kinds) - passed - skipped} | {skipped} |"


def _reasons(title: str, tests: Sequence[str], outcomes: Outcomes) -> str:
    lines = [f"| `{test}` | {outcomes[test].kind} | {_reason(test, outcomes)} |" for test in tests]
    body = ["| test | | why |", "|---|---|---|", *lines] if lines else ["None."]
    return "\n".join([f"## {title}", *body, ""])


def _reason(test: str, outcomes: Outcomes) -> str:
    """The known reason, else the message of the test in one line."""
    told = " ".join(outcomes[test].reason.split())
    return REASONS.get(test) or f"`{told[:300].replace('|', '/').replace('`', chr(39))}`"


def _skipped(tests: Sequence[str], outcomes: Outcomes) -> str:
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for test in tests:
        by_reason[outcomes[test].reason].append(test)
    rows = sorted(by_reason.items(), key=lambda row: (-len(row[1]), row[0]))
    lines = [
        f"| {reason} | {len(names)} | {', '.join(f'`{name}`' for name in names)} |"
        for reason, names in rows
    ]
    note = "By torch itself, and on gloo, too. A link stands for torch's own issue about the test."
    return "\n".join(["## Skipped", note, "", "| why | | tests |", "|---|---|---|", *lines, ""])


def _all_that_ran(gloo: Outcomes, ours: Outcomes) -> str:
    lines = [
        f"| `{test}` | {gloo[test].kind} | {ours[test].kind} |"
        for test in ours
        if LIVELY & {gloo[test].kind, ours[test].kind}
    ]
    return "\n".join(["## All that ran", "| test | gloo | mpi4py |", "|---|---|---|", *lines, ""])
