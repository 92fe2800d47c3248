"""What `make test` leaves out is divided into shares, and four CI runs see all of it."""

import json

import pytest
from support import shares


@pytest.fixture
def record(tmp_path, monkeypatch):
    """A record of its own, and figures that runs have left."""
    monkeypatch.setattr(shares, "RECORD", tmp_path / "durations.json")
    monkeypatch.setattr(shares, "MEASURED", tmp_path / "measured")
    monkeypatch.setattr(shares, "REPOSITORY", tmp_path)
    monkeypatch.setattr(shares, "_commits_since_record", lambda: 0)
    shares.MEASURED.mkdir()
    for number in range(9):
        (tmp_path / f"{number}.py").touch()
    return shares.RECORD


def measure(share, **rest):
    files = {f"{name[1:]}.py": {"rest": seconds} for name, seconds in rest.items()}
    text = json.dumps({"share": share, "files": files})
    (shares.MEASURED / "share.json").write_text(text)
    shares.main("record")


def test_the_shares_take_turns(record):
    seen = []
    for _ in range(5):
        seen.append(shares.next_share())
        measure(seen[-1], _1=1.0)
    assert seen == [0, 1, 2, 3, 0]


def test_commits_that_nobody_recorded_count_too(record, monkeypatch):
    measure(1, _1=1.0)
    monkeypatch.setattr(shares, "_commits_since_record", lambda: 5)
    assert shares.next_share() == (1 + 1 + 5) % 4


def test_a_run_of_all_takes_no_turn(record):
    measure(2, _1=1.0)
    measure(None, _1=1.0, _2=2.0)
    assert shares.next_share() == 3


def test_a_file_keeps_its_share_and_new_ones_even_them_out(record):
    measure(None, _1=40.0, _2=30.0, _3=20.0, _4=10.0)
    first = {file: figures["share"] for file, figures in shares.read_record().items()}
    assert sorted(first.values()) == [0, 1, 2, 3]
    measure(None, _1=1.0, _5=5.0)
    second = {file: figures["share"] for file, figures in shares.read_record().items()}
    assert {file: second[file] for file in first} == first
    assert second["5.py"] == first["1.py"], "it has the least to do now"


def test_new_files_are_evened_out_lane_by_lane():
    """Clusters run beside jobs: a share with much of the one has room for the other."""
    record = {f"tests/clusters/{share}.py": {"rest": 100.0, "share": share} for share in range(3)}
    record["tests/mpi/a.py"] = {"rest": 50.0, "share": 3}
    merged = shares.merge(record, {"tests/mpi/b.py": {"rest": 9.0}})
    assert merged["tests/mpi/b.py"]["share"] == 0


def test_a_file_that_is_gone_is_forgotten(record, tmp_path):
    measure(None, _1=1.0, _2=2.0)
    (tmp_path / "1.py").unlink()
    measure(None, _2=2.0)
    assert [*shares.read_record()] == ["2.py"]


def test_what_nobody_has_measured_has_a_share_by_its_name():
    assert shares.share_of("tests/new.py", {}) in range(shares.SHARES)
    assert shares.share_of("tests/new.py", {}) == shares.share_of("tests/new.py", {})
