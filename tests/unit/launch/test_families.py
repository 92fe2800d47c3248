"""Who is offered an address of IPv6 must find somebody there."""

import socket
from datetime import timedelta

import pytest

from paceline.cluster.detect import detect
from paceline.launch.job import Placement
from paceline.launch.rendezvous import rendezvous_env, reserve
from paceline.runtime.torchrun import env as introduction
from paceline.runtime.torchrun.env import set_torchrun_env


def has_ipv6() -> bool:
    if not socket.has_dualstack_ipv6():
        return False
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


def is_free(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as greedy:  # without SO_REUSEADDR
        try:
            greedy.bind((address, port))
        except OSError:
            return False
    return True


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_port_for_others_is_held_in_both_families(address):
    with reserve("") as port:
        assert not is_free(address, port)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_port_for_this_machine_is_held_at_the_address_that_is_told(address):
    with rendezvous_env(Placement(), {"MASTER_ADDR": address}) as told:
        port = int(told["MASTER_PORT"])
        assert not is_free(address, port)


def test_rank_0_holds_the_port_where_its_store_will_be(monkeypatch):
    held: list[socket.socket] = []
    monkeypatch.setattr(introduction, "_held", held)
    with rendezvous_env(Placement(), {"MASTER_ADDR": "::1"}) as told:
        set_torchrun_env(detect({}), dict(told))
        assert [one.getsockname()[:2] for one in held] == [("::1", int(told["MASTER_PORT"]))]
        held[0].close()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_store_for_other_nodes_answers_in_both_families(address):
    rendezvous = pytest.importorskip("paceline.torch_backend.rendezvous")
    store = rendezvous._serve("", 1, timedelta(seconds=10))
    store.set(rendezvous._KEY, "mine")
    found, where = rendezvous._find([address], store.port, "mine", 2)
    assert found is not None
    assert where == address
