"""Another user of the machine, as far as a test needs one."""

import os
from pathlib import Path

import pytest

STRANGER = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")


def give_away(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
