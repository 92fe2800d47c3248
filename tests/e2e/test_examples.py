"""The examples run, as their first lines say."""

import re
from pathlib import Path

import pytest

from paceline.rules import RULES

EXAMPLES = Path(__file__).parents[2] / "examples"
SPECIAL = {
    "bsp.py": r"^2 equal replicas; \d+% of the time spent waiting$",
    "downpour.py": r"^[1-9]\d* pushes were [1-9]\d* updates behind the centre$",
    "easgd.py": r"^distance from the centre: (?!0\.000)\S+ at first, (?!0\.000)\S+ at last$",
    "gossip.py": r"^rank 1 for itself: val accuracy 0\.9\d+$",
}
"""What an example shows of its rule, beside the outcome."""
ELSEWHERE = {
    *("accelerate_loop.py", "fabric_loop.py", "hf_trainer.py"),
    *("from_one_node.py", "from_one_node_mpi.py"),
}
"""Those that need packages which Paceline does not (test_ecosystem_examples.py), and two that run
for too long (test_letter_example.py)."""


@pytest.mark.parametrize("name", sorted({path.name for path in EXAMPLES.glob("*.py")} - ELSEWHERE))
def test_the_scripts(paceline, name):
    script = EXAMPLES / name
    command = re.search(r"^paceline (run .*)$", script.read_text(), re.MULTILINE)[1]
    done = paceline(*command.replace(f"examples/{name}", str(script)).split())
    assert done.returncode == 0, done.stderr
    accuracies = re.findall(r"(?:accuracy|^)\s*(0\.\d+)", done.stdout, re.MULTILINE)
    losses = re.findall(r"rank .*: loss (\d\.\d+)$", done.stdout, re.MULTILINE)
    assert accuracies or losses, done.stdout
    assert all(float(figure) > 0.94 for figure in accuracies[-1:])
    assert all(float(figure) < 0.5 for figure in losses[-1:])
    assert re.search(SPECIAL.get(name, ""), done.stdout, re.MULTILINE), done.stdout


def test_there_is_an_example_of_every_rule():
    assert {f"{name}.py" for name in RULES} <= {path.name for path in EXAMPLES.glob("*.py")}


def test_the_run_file(paceline, tmp_path):
    done = paceline("train", str(EXAMPLES / "mnist.yaml"), "-n", "2")
    assert done.returncode == 0, done.stderr
    assert "target reached: val_accuracy" in done.stdout


def test_the_readme_shows_the_example_as_it_is():
    readme = (EXAMPLES.parent / "README.md").read_text()
    loop = (EXAMPLES / "own_loop.py").read_text()
    body = loop[loop.index("world = paceline.init()") :].strip()
    assert body in readme
