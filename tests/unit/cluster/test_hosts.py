from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.cluster.hosts import Host, is_here, parse_hosts, read_hostfile, spread
from paceline.errors import LaunchError


def test_hosts_are_named_with_or_without_slots():
    assert parse_hosts("a:16, b.example") == (Host("a", 16), Host("b.example"))


def test_a_host_named_twice_takes_the_ranks_of_both():
    assert parse_hosts("a:2,b:1,a:3") == (Host("a", 5), Host("b", 1))


@pytest.mark.parametrize("text", ["", "a,,b", "a:0", "a:x", "-oProxyCommand=x", "a b", "a;b:1"])
def test_what_is_no_host_is_refused(text):
    with pytest.raises(LaunchError, match="is not a host"):
        parse_hosts(text)


@pytest.mark.parametrize("line", ["a 4", "a:4", "a slots=4", "a slots = 4 max_slots=8", "a : 4"])
def test_host_files_of_all_kinds_are_read(tmp_path: Path, line):
    path = tmp_path / "hosts"
    path.write_text(f"# two hosts\n\n{line}  # the first\nb\n")
    assert read_hostfile(path) == (Host("a", 4), Host("b"))


def test_a_machine_file_has_a_line_for_each_rank(tmp_path: Path):
    path = tmp_path / "hosts"
    path.write_text("a\na\nb\n")
    assert read_hostfile(path) == (Host("a", 2), Host("b", 1))


@pytest.mark.parametrize("text", [None, "# nobody\n", "a:4\n-x\n", b"\xff\xfe"])
def test_a_host_file_that_is_none_is_refused(tmp_path: Path, text):
    path = tmp_path / "hosts"
    if isinstance(text, bytes):
        path.write_bytes(text)
    elif text is not None:
        path.write_text(text)
    with pytest.raises(LaunchError):
        read_hostfile(path)


def test_ranks_are_spread_evenly_side_by_side():
    hosts = (Host("a", 16), Host("b", 16))
    assert spread(4, hosts) == (Host("a", 2), Host("b", 2))
    assert spread(1, hosts) == (Host("a", 1),)


@given(st.integers(1, 40), st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_every_rank_has_a_host_and_slots_are_filled_first(ranks, slots):
    hosts = [Host(f"n{i}", count) for i, count in enumerate(slots)]
    dealt = {host.name: host.slots for host in spread(ranks, hosts)}
    assert sum(dealt.values()) == ranks
    over = [dealt.get(host.name, 0) > host.slots for host in hosts]
    assert not any(over) or ranks > sum(slots)


def test_this_machine_is_known_with_and_without_its_domain():
    assert is_here("n1.cluster.edu", "n1")
    assert is_here("n1", "n1.cluster.edu")
    assert is_here("localhost", "n1")
    assert not is_here("n10", "n1")
