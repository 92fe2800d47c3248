"""`paceline bench uneven` as a user types it: every contestant trains, in every part.

What is refused, and what the figures mean, is in tests/unit/tools/bench.
"""

import json

import pytest

from paceline.errors import ConfigError
from paceline.tools.bench.hosts import check_means
from paceline.tools.bench.ranks.uneven_peers import SAMPLERS, find_missing
from paceline.tools.bench.uneven_figures import OURS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def _why_not() -> str:
    try:
        check_means()
    except ConfigError as error:
        return str(error)
    return ""


needs_hosts = pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "never")


def measure(paceline, tmp_path, *options):
    """The rows by case, and what was said meanwhile."""
    words = ("bench", "uneven", "--quick", "--rounds", "1", "--json", "rows.json", *options)
    done = paceline(*words, timeout_s=270)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    return {row["case"]: row for row in rows}, done.stderr


def test_ours_and_the_peers_train_on_sentences_of_both_corpora(paceline, tmp_path):
    rows, said = measure(paceline, tmp_path, "--parts", "compute", "-n", "2")
    missing = find_missing()
    cases = [f"{m} {c} 2x4" for m in ("lstm", "tree") for c in ("lognormal", "topics")]
    assert list(rows) == [f"{case}, {name}" for case in cases for name in OURS]
    peers = {"counts", *SAMPLERS} - set(missing)
    for case, row in rows.items():
        assert (row["bench"], row["unit"]) == ("uneven", "examples/s")
        assert set(row["peers"]) == peers
        assert min(row["ours"], *row["peers"].values()) > 0
        notes = row["notes"]
        assert 0 < notes["of ideal"] <= 1
        assert 0 <= notes["waiting"] < 1
        assert len(notes["peers' loss"].split()) == len(peers)
        losses = [notes["loss"], *map(float, notes["peers' loss"].split())]
        assert max(losses) < 1.1 * min(losses), "all have learned about the same"
        assert ("padding" in notes) == case.startswith("lstm")
    for reason in missing.values():
        assert reason in said
    planned = rows["tree lognormal 2x4, planned"]["notes"]["spread"]
    assert planned < 0.1


def test_four_ranks_take_batches_of_their_own(paceline, tmp_path):
    options = ("--models", "tree", "--corpora", "topics", "--batch", "2")
    rows, said = measure(paceline, tmp_path, "--parts", "compute", "-n", "4", *options)
    assert next(iter(rows)) == "tree topics 4x2, planned"
    assert len(rows) == len(OURS)
    assert "uneven: compute, 4 ranks" in said


def test_a_slow_rank_equal_sentences_and_planning(paceline, tmp_path):
    rows, _ = measure(paceline, tmp_path, "--parts", "slow", "overhead", "planning")
    assert list(rows) == [
        "one 2x slower 2x4, speeds",
        "one 2x slower 2x4, dynamic",
        "equal lengths 2x4, dynamic",
        "planning 100,000 for 1,024x8",
    ]
    slow = rows["one 2x slower 2x4, dynamic"]
    assert 0 < slow["notes"]["of ideal"] <= 1.05
    assert list(slow["peers"]) == ["counts"]
    dealt = rows["equal lengths 2x4, dynamic"]
    assert dealt["unit"] == "steps/s"
    assert min(dealt["ours"], dealt["peers"]["counts"]) > 0
    overhead = 100 * (dealt["peers"]["counts"] / dealt["ours"] - 1)
    assert dealt["notes"]["overhead %"] == pytest.approx(overhead, abs=0.01)
    assert rows["planning 100,000 for 1,024x8"]["notes"]["peak MB"] < 200


@needs_hosts
def test_ranks_of_two_hosts_whose_examples_sleep(paceline, tmp_path):
    rows, said = measure(paceline, tmp_path, "--parts", "hosts", "--hosts-ranks", "6")
    ours = ("planned", "dynamic", "longest")
    assert list(rows) == [f"asleep {case}, {name}" for case in ("6x1", "6x8") for name in ours]
    for row in rows.values():
        assert 0 < row["notes"]["of ideal"] <= 1
        assert list(row["peers"]) == ["counts"]
    assert rows["asleep 6x8, planned"]["notes"]["spread"] < 0.05
    assert "uneven: 2 hosts, 6 ranks" in said
