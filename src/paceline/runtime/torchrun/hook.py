"""Changes to the rendezvous of torch.distributed in scripts that `paceline run` runs.

Torch is not imported here: it is patched when the script imports it.
"""

from __future__ import annotations

import errno
import importlib.machinery
import importlib.util
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from paceline.runtime.torchrun.address import ADDRESS, hold_socket, loopback_of

_RENDEZVOUS = "torch.distributed.rendezvous"
_BACKLOG = 1024
_BY_PLACE = ("host_name", "port", "world_size", "is_master", "timeout")
"""The arguments that older torch passes by position."""

Rendezvous = Callable[..., Iterator[tuple[object, int, int]]]
"""A rendezvous of torch: given a URL, it yields a store, the rank and the number of ranks."""


def bind_stores_to_loopback() -> None:
    """Make stores at a loopback address listen there alone; torch's listen on every interface."""
    when_imported(_RENDEZVOUS, _replace_stores)


def set_default_rendezvous(rendezvous: Rendezvous) -> None:
    """Make env:// use `rendezvous` where MASTER_ADDR is not set, which torch refuses."""
    when_imported(_RENDEZVOUS, lambda module: _replace_environment(module, rendezvous))


def when_imported(name: str, act: Callable[[ModuleType], None]) -> None:
    """Do something to a module as soon as it is imported, or at once if it has been."""
    if name in sys.modules:
        act(sys.modules[name])
    else:
        sys.meta_path.insert(0, _ImportWatcher(name, act))


class _ImportWatcher(MetaPathFinder):
    """Waits for the import of one module, once."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name, self._act = name, act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)  # others may wait for the same
        finally:
            sys.meta_path.insert(0, self)  # somebody may only have looked for it
        if spec is not None and spec.loader is not None:
            plain = spec.loader.exec_module

            def run(module: ModuleType) -> None:
                with suppress(ValueError):
                    sys.meta_path.remove(self)
                plain(module)
                self._act(module)

            spec.loader.exec_module = run  # type: ignore[method-assign]
        return spec


def _replace_stores(module: Any) -> None:
    plain = module.TCPStore

    def open_store(*values: Any, **named: Any) -> object:
        settings = {**dict(zip(_BY_PLACE, values, strict=False)), **named}
        address = loopback_of(str(settings.get("host_name", "")))
        if not address or not settings.get("is_master") or "master_listen_fd" in settings:
            return plain(**settings)
        try:
            listening = _listen(address, settings["port"])
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return plain(**settings)  # a store of this process at this port, which is shared
        with listening:
            return plain(**settings, master_listen_fd=os.dup(listening.fileno()))

    module.TCPStore = open_store


def _replace_environment(module: ModuleType, rendezvous: Rendezvous) -> None:
    handlers = module._rendezvous_handlers
    plain = handlers["env"]

    def choose(url: str, **settings: object) -> Iterator[tuple[object, int, int]]:
        chosen: Rendezvous = plain if os.environ.get(ADDRESS) else rendezvous
        return chosen(url, **settings)

    handlers["env"] = choose


def _listen(address: str, port: int) -> socket.socket:
    listening = hold_socket(address, port)
    try:
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
