"""A private folder for the cache of torch.compile.

Torch's own is /tmp/torchinductor_USER. Torch makes it in every training, since its optimizers
import the compiler, and runs what it finds there: whoever makes it first can make others run code.
"""

import atexit
import os
import shutil
import socket
import tempfile
from collections.abc import MutableMapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paceline.core.private import make_folder
from paceline.runtime.torchrun.hook import when_imported

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_MODULES = ("torch._inductor.runtime.cache_dir_utils", "torch._inductor.runtime.runtime_utils")
"""Those that know the folder; the first is new in torch 2.6."""
_watched = False


def keep_compile_cache_private() -> None:
    """Make torch cache what it compiles in a private folder, made when torch needs it."""
    global _watched
    if not _watched:
        _watched = True
        for name in _MODULES:
            when_imported(name, make_private)


def make_private(module: Any, env: MutableMapping[str, str] = os.environ) -> None:
    """Set the folder; parts of torch ignore the variable and use the default alone."""
    if isinstance(module.default_cache_dir, _Folder):  # taken over from the other module
        return
    # Torch itself sets the variable when it first asks, which may have been before us.
    if env.get(VARIABLE) in (None, "", module.default_cache_dir()):
        env[VARIABLE] = str(_choose(env))
    module.default_cache_dir = _Folder(env[VARIABLE])


@dataclass(frozen=True)
class _Folder:
    path: str

    def __call__(self) -> str:
        return self.path


def _choose(env: MutableMapping[str, str]) -> Path:
    """In the user's cache; if that is not possible, a temporary folder, which this process removes.

    Nodes share homes, and what is compiled for one processor may not run on another.
    """
    caches = env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or "~").expanduser() / ".cache"
    place = Path(caches) / "paceline" / f"torchinductor-{socket.gethostname()}"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        make_folder(place)
        if os.access(place, os.W_OK | os.X_OK):
            return place
    except (OSError, RuntimeError):  # no such user
        pass
    temporary = tempfile.mkdtemp(prefix="paceline-torchinductor-")
    atexit.register(partial(shutil.rmtree, temporary, ignore_errors=True))
    return Path(temporary)
