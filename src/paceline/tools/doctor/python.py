"""Python and the packages that training needs."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.launch.preflight.node_info import NodeInfo
from paceline.tools.doctor.check import Check

OLDEST_PYTHON = (3, 11)


def check_python(facts: NodeInfo) -> Iterator[Check]:
    seen = f"{facts.python} at {facts.executable}"
    numbers = tuple(int(part) for part in facts.python.split(".")[:2] if part.isdigit())
    if numbers < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        yield Check(
            "Python",
            "fail",
            f"{seen}; {oldest} is the oldest that Paceline runs on",
            f"Make an environment with Python {oldest} or newer.",
        )
    else:
        yield Check("Python", "ok", seen)


def check_paceline(facts: NodeInfo) -> Iterator[Check]:
    if facts.paceline:
        yield Check("Paceline", "ok", f"{facts.paceline} (source {facts.digest})")
    else:
        yield Check(
            "Paceline",
            "warn",
            f"not installed, only on the path (source {facts.digest})",
            "Install it, so that every rank finds it: pip install paceline",
        )


def check_frameworks(facts: NodeInfo) -> Iterator[Check]:
    if facts.torch is None:
        yield Check(
            "torch",
            "warn",
            "not installed: models of PyTorch cannot be trained",
            "pip install 'paceline[torch]', or train a model of another framework.",
        )
    else:
        yield Check("torch", "ok", facts.torch)
    if facts.numpy is None:
        yield Check("numpy", "fail", "not installed", "pip install numpy")
    else:
        yield Check("numpy", "ok", facts.numpy)


PYTHON_CHECKS = (check_python, check_paceline, check_frameworks)
