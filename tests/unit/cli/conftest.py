"""The command, called in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from paceline.cli import main
from paceline.runtime import world


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., CompletedProcess[str]]:
    """`command("train", "mnist", "-n", "1")`: what `paceline train mnist -n 1` would say and
    return. Only what starts no ranks can be seen so."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object, **changes: str) -> CompletedProcess[str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["paceline", *map(str, words)])
            patch.setattr(sys, "path", [*sys.path])
            patch.setattr(world, "_joined", None)
            before = dict(os.environ)
            os.environ |= changes
            try:
                code = main(list(map(str, words)))
            except SystemExit as stop:  # argparse's answer to what it cannot read, and to --help
                code = int(stop.code or 0)
            finally:
                os.environ.clear()
                os.environ |= before
                _forget_modules(tmp_path)
        return CompletedProcess(words, code, *capsys.readouterr())

    return run


def _forget_modules(folder: Path) -> None:
    """The user's own: the next test writes others of the same name."""
    for name, module in [*sys.modules.items()]:
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
