"""Nodes with GPUs, as the files of a driver show them."""

from __future__ import annotations

from pathlib import Path


def a_node(root: Path, known: int = 0, files: int = 0) -> Path:
    """A tree with so many GPUs in /proc and so many device files."""
    for number in range(known):
        (root / f"proc/driver/nvidia/gpus/0000:{number:02d}:00.0").mkdir(parents=True)
    (root / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{number}" for number in range(files))):
        if files:
            (root / "dev" / name).touch()
    return root
