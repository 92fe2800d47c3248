"""Rendezvous without addresses."""

import socket
from datetime import timedelta

import pytest

from paceline.cluster.network import interface_of, outside_addresses, own_end
from paceline.comm import SoloWorld
from paceline.errors import LaunchError
from paceline.torch_backend import rendezvous
from paceline.torch_backend.rendezvous import _KEY, _check_reached, _find, _serve, check_claim

INTERFACES = {"lo": ["127.0.0.1", "::1"], "eth0": ["fe80::1", "fd00::2", "10.0.0.1"]}


def test_a_rank_that_mpi_does_not_know_is_refused():
    check_claim("mpi4py://", SoloWorld())
    check_claim("mpi4py://?rank=0&world_size=1", SoloWorld())
    with pytest.raises(LaunchError, match="world_size=4, but in MPI it is 1"):
        check_claim("mpi4py://?rank=0&world_size=4", SoloWorld())


def test_loopback_is_never_an_address_for_others():
    assert outside_addresses(INTERFACES) == ["10.0.0.1", "fd00::2"]
    assert interface_of("10.0.0.1", INTERFACES) == "eth0"
    assert interface_of("10.0.0.9", INTERFACES) == ""


def test_only_who_shows_the_token_is_rank_0(monkeypatch):
    monkeypatch.setattr(rendezvous, "_CONNECT_S", 1.0)
    store = _serve("127.0.0.1", 1, timedelta(seconds=10))
    store.set(_KEY, "mine")
    with socket.create_server(("127.0.0.1", 0)) as stranger:  # answers nothing
        assert _find(["127.0.0.1"], stranger.getsockname()[1], "mine", 2) == (None, "")
    assert _find(["127.0.0.1"], store.port, "another's", 2) == (None, "")
    found, address = _find(["::1", "127.0.0.1"], store.port, "mine", 2)
    assert found is not None
    assert address in ("::1", "127.0.0.1")


def test_the_own_end_of_a_way():
    assert own_end("127.0.0.1") == "127.0.0.1"


def test_who_cannot_reach_rank_0_is_named_with_what_was_tried():
    with pytest.raises(LaunchError, match=r"rank 1 cannot reach rank 0 .*\(10\.0\.0\.1\)"):
        _check_reached(["10.0.0.1", ""], ["10.0.0.1"])
