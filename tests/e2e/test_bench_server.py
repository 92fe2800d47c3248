"""`paceline bench server`: three ranks, and the naive server, for real."""

import json

import pytest


@pytest.mark.slow
def test_exchanges_of_ours_and_of_the_naive_server_are_counted(paceline, tmp_path):
    done = paceline("bench", "server", "--quick", "--rounds", "1", "--json", "rows.json")
    assert done.returncode == 0, done.stderr
    memory, rank = json.loads((tmp_path / "rows.json").read_text())
    assert memory["case"] == "1 M parameters, node memory"
    assert rank["case"] == "1 M parameters, server rank"
    for row in (memory, rank):
        assert (row["bench"], row["unit"]) == ("server", "exchanges/s")
        assert list(row["peers"]) == ["naive"]
        assert row["peers"] == memory["peers"]
        # An exchange moves 4 MB there and back: 5000 would be 40 GB/s.
        assert all(0 < rate < 5000 for rate in (row["ours"], row["peers"]["naive"]))
    assert memory["notes"] == {"ranks": 2, "naive ranks": 3}
    assert rank["notes"] == {"ranks": 3, "naive ranks": 3}
    assert "node memory" in done.stderr, "progress while it runs"
