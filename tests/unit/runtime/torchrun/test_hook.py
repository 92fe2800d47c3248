"""What is changed of a module when a script imports it. A stand-in: torch takes seconds to import,
and tests/mpi/test_torchrun_scripts.py has the real one."""

import importlib.util
import socket
import sys
from types import ModuleType

import pytest

from paceline.runtime.torchrun import hook as torch_hook
from paceline.runtime.torchrun.hook import (
    bind_stores_to_loopback,
    set_default_rendezvous,
    when_imported,
)

STAND_IN = """
def TCPStore(**settings):
    return settings

def _by_environment(url, **settings):
    return iter([("plain", url, settings)])

_rendezvous_handlers = {"env": _by_environment}
"""


@pytest.fixture
def name(tmp_path, monkeypatch):
    """A module that has not been imported."""
    (tmp_path / "package_of_hook").mkdir()
    (tmp_path / "package_of_hook" / "__init__.py").touch()
    (tmp_path / "package_of_hook" / "rendezvous.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(torch_hook, "_RENDEZVOUS", "package_of_hook.rendezvous")
    yield "package_of_hook.rendezvous"
    for one in ("package_of_hook", "package_of_hook.rendezvous"):
        sys.modules.pop(one, None)


def load() -> ModuleType:
    from package_of_hook import rendezvous

    return rendezvous


def test_a_module_is_changed_when_it_is_imported_by_all_who_wait_for_it(name):
    seen = []
    when_imported(name, lambda module: seen.append(("first", module.__name__)))
    when_imported(name, lambda module: seen.append(("second", module.__name__)))
    importlib.util.find_spec(name)  # to look for it is no import
    assert seen == []
    load()
    assert sorted(seen) == [("first", name), ("second", name)]
    when_imported(name, lambda module: seen.append(("late", module.__name__)))
    assert seen[2:] == [("late", name)]


def test_a_store_at_loopback_listens_there_alone(name):
    bind_stores_to_loopback()
    module = load()
    opened = module.TCPStore(host_name="localhost", port=0, is_master=True)
    with socket.socket(fileno=opened["master_listen_fd"]) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"
        port = listening.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), 5).close()
        # A second store of a process at the same port is torch's to join with the first.
        asked = {"host_name": "127.0.0.1", "port": port, "is_master": True}
        assert module.TCPStore(**asked) == asked
    opened = module.TCPStore("localhost", 0, 2, True)  # as torch did before 2.13
    with socket.socket(fileno=opened["master_listen_fd"]) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "asked",
    [
        {"host_name": "127.0.0.1", "port": 7, "is_master": False},
        {"host_name": "192.0.2.1", "port": 7, "is_master": True},
        {"host_name": "127.0.0.1", "port": 7, "is_master": True, "master_listen_fd": 5},
    ],
)
def test_other_stores_are_torchs_own(name, asked):
    bind_stores_to_loopback()
    assert load().TCPStore(**asked) == asked


def test_where_no_address_is_named_they_meet_otherwise(name, monkeypatch):
    set_default_rendezvous(lambda url, **settings: iter([("by mpi", url, settings)]))
    handle = load()._rendezvous_handlers["env"]
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert next(handle("env://", timeout=3)) == ("by mpi", "env://", {"timeout": 3})
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert next(handle("env://", timeout=3)) == ("plain", "env://", {"timeout": 3})
