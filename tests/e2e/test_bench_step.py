"""`paceline bench step` and `paceline bench scaling` as a user types them: every peer runs."""

import json

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def rows_of(done, path):
    assert done.returncode == 0, done.stderr
    return {row["case"]: row for row in json.loads(path.read_text())}


def test_a_step_by_each_rule_beside_its_peers(paceline, tmp_path):
    path = tmp_path / "rows.json"
    done = paceline(
        *("bench", "step", "--quick", "--networks", "linear", "--json", path), timeout_s=270
    )
    rows = rows_of(done, path)
    rules = ("bsp", "average", "diloco", "easgd", "downpour", "gossip")
    assert list(rows) == [f"linear, {rule}" for rule in rules]
    for row in rows.values():
        assert (row["bench"], row["unit"]) == ("step", "ms")
        assert set(row["peers"]) == {"one", "limit", "ddp-gloo"}
        assert min(row["ours"], *row["peers"].values()) > 0
        assert row["peers"] == rows["linear, bsp"]["peers"]
    assert rows["linear, easgd"]["notes"]["exchanges every"] == "10"
    assert rows["linear, easgd"]["notes"]["steps"] % 10 == 0
    assert "linear, gossip" in done.stdout
    assert "step: linear, 2 ranks" in done.stderr


def test_rules_and_numbers_of_ranks_can_be_chosen(paceline, tmp_path):
    path = tmp_path / "rows.json"
    done = paceline(
        *("bench", "step", "--quick", "--rounds", "1", "--networks", "linear"),
        *("--rules", "bsp", "-n", "1", "2", "--json", path),
        timeout_s=270,
    )
    assert list(rows_of(done, path)) == ["linear, bsp, 1 rank", "linear, bsp, 2 ranks"]


def test_scaling_says_where_the_time_goes(paceline, tmp_path):
    path = tmp_path / "rows.json"
    done = paceline(
        *("bench", "scaling", "--quick", "--rounds", "1", "--images", "3", "--json", path),
        timeout_s=270,
    )
    rows = rows_of(done, path)
    one, two = rows["googlenet-2b, 1 rank"], rows["googlenet-2b, 2 ranks"]
    assert (one["peers"], two["peers"]) == ({}, {"one": one["ours"]})
    for row in rows.values():
        notes = row["notes"]
        assert (notes["images"], notes["extrapolated"]) == (4, "x 1280")
        parts = [notes[part] for part in ("compute", "wait", "communication", "data")]
        assert 0.5 * row["ours"] < sum(parts) < 1.01 * row["ours"]
    assert one["notes"]["compute"] > 0.5 * one["ours"]
    assert one["notes"]["wait"] == 0
    assert two["notes"]["wait"] > 0
    assert "extrapolated" in done.stdout
    assert not list(tmp_path.glob("runs*"))
