"""Where ranks of torch.distributed meet."""

import socket

import pytest

from paceline.cluster.hosts import Host
from paceline.errors import LaunchError
from paceline.launch import rendezvous as meeting
from paceline.launch.job import Placement
from paceline.launch.rendezvous import (
    choose_address,
    draw_port,
    read_given,
    rendezvous_env,
    reserve,
)
from paceline.runtime.torchrun import address
from paceline.runtime.torchrun.address import (
    hold_socket,
    is_chosen,
    is_held_by_rank_0,
    is_loopback_name,
)

HERE = Placement()
ELSEWHERE = Placement((Host("b", 2),), "ssh", leads_here=False)
FROM_HERE = Placement((Host("a", 1), Host("b", 1)), "ssh", leads_here=True)
OTHERS = Placement((Host("user@b", 1), Host("c", 1)), "ssh", leads_here=False)
NAMES = {
    "localhost": ["127.0.0.1"],
    "a": ["127.0.1.1"],
    "b": ["fd00::2", "10.0.0.2"],
    "c": ["10.0.0.3"],
}


@pytest.fixture(autouse=True)
def names(monkeypatch):
    """Hosts a (this one), b and c, by a table instead of the machine's."""
    for module in (meeting, address):
        monkeypatch.setattr(module, "addresses_of", lambda name: NAMES.get(name, [name]))
    ends = {"10.0.0.2": "10.0.0.1"}
    monkeypatch.setattr(meeting, "own_end", ends.__getitem__)


def can_listen(address: str, port: int) -> bool:
    """Whether a store could be opened there: it sets SO_REUSEADDR, as all of torch's do."""
    try:
        socket.create_server((address, port)).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("placement", "address"),
    [
        (HERE, "127.0.0.1"),
        (ELSEWHERE, "127.0.0.1"),  # all ranks are on that one host
        (FROM_HERE, "10.0.0.1"),  # not 127.0.1.1, which our own name stands for
        (OTHERS, "10.0.0.2"),
    ],
)
def test_the_address_is_loopback_on_one_host_and_never_between_hosts(placement, address):
    assert choose_address(placement) == address


@pytest.mark.parametrize("placement", [OTHERS, FROM_HERE])
def test_of_names_that_only_ssh_knows_nothing_is_told(monkeypatch, placement):
    monkeypatch.setattr(meeting, "addresses_of", lambda name: [])
    with rendezvous_env(placement, {}) as told:
        assert set(told.values()) == {""}
        assert not is_chosen(told)
    with rendezvous_env(placement, {"MASTER_ADDR": "10.0.0.9"}) as told:
        assert told["MASTER_ADDR"] == "10.0.0.9"


def test_here_the_port_is_held_for_a_store_and_for_nobody_else():
    with rendezvous_env(HERE, {}) as told:
        port = int(told["MASTER_PORT"])
        assert is_chosen(told)
        with (
            pytest.raises(OSError, match="in use"),
            socket.socket() as greedy,
        ):  # without SO_REUSEADDR
            greedy.bind(("127.0.0.1", port))
        with reserve("127.0.0.1", port) as again:  # as rank 0 does
            assert again == port
            assert can_listen("127.0.0.1", port)
            assert can_listen("", port)


def test_a_port_at_which_somebody_listens_is_not_to_be_had():
    with socket.create_server(("", 0)) as taken, pytest.raises(OSError, match="in use"):
        hold_socket("", taken.getsockname()[1])


def test_elsewhere_a_port_is_drawn_below_those_that_the_kernel_gives_away(tmp_path):
    with rendezvous_env(OTHERS, {}) as told:
        assert 20000 <= int(told["MASTER_PORT"]) <= 65535
    assert len({draw_port() for _ in range(20)}) > 1
    ephemeral = tmp_path / "range"
    ephemeral.write_text("20003\t60999\n")
    assert {draw_port(ephemeral) for _ in range(200)} == {20000, 20001, 20002}
    ephemeral.write_text("1024 65535\n")
    assert 20000 <= draw_port(ephemeral) <= 32767
    assert 20000 <= draw_port(tmp_path / "none") <= 32767


@pytest.mark.parametrize(
    "given",
    [
        {"MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "7"},
        {"MASTER_ADDR": "10.0.0.9"},
        {"MASTER_PORT": "7"},
    ],
)
def test_what_the_user_has_set_stays_and_the_rest_is_ours(given):
    with rendezvous_env(OTHERS, given) as told:
        assert told.items() >= given.items()
        assert told["MASTER_ADDR"]
        assert told["MASTER_PORT"]
        assert is_chosen(told) == ("MASTER_ADDR" not in given)
        assert is_held_by_rank_0(told) == ("MASTER_PORT" not in given)
        assert read_given(told) == given, "what a Paceline inside of this one takes for the user's"


def told_only(told):
    return {name: told[name] for name in ("MASTER_ADDR", "MASTER_PORT")}


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1"])
def test_loopback_between_hosts_is_refused_with_both_values(address):
    words = rf"MASTER_ADDR is {address}.* on a, b\. Unset it: an address of a is chosen"
    with (
        pytest.raises(LaunchError, match=words),
        rendezvous_env(FROM_HERE, {"MASTER_ADDR": address}),
    ):
        pass
    with rendezvous_env(HERE, {"MASTER_ADDR": address}) as told:
        assert told["MASTER_ADDR"] == address


def test_what_another_paceline_or_torchrun_around_us_has_set_is_not_the_users():
    with rendezvous_env(HERE, {}) as outer, rendezvous_env(HERE, outer) as inner:
        assert inner["MASTER_PORT"] != outer["MASTER_PORT"]
        changed = outer | {"MASTER_PORT": "7"}
        assert not is_chosen(changed)
        assert read_given(changed) == told_only(changed)
        torchrun = outer | {"TORCHELASTIC_RUN_ID": "x"}
        assert not is_chosen(torchrun)
        assert read_given(torchrun) == {}


def test_a_name_is_of_loopback_if_all_its_addresses_are():
    assert is_loopback_name("a")
    assert not is_loopback_name("b")
