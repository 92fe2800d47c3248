"""The examples run, as their first lines say."""

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_the_scripts(paceline, name):
    script = EXAMPLES / name
    command = re.search(r"^paceline (run .*)$", script.read_text(), re.MULTILINE)[1]
    done = paceline(*command.replace(f"examples/{name}", str(script)).split())
    assert done.returncode == 0, done.stderr
    figures = re.findall(r"(?:loss|accuracy|^)\s*(0\.\d+)", done.stdout, re.MULTILINE)
    assert figures, done.stdout
    assert float(figures[-1]) > 0.94 or "loss" in done.stdout


def test_the_run_file(paceline, tmp_path):
    done = paceline("train", str(EXAMPLES / "mnist.yaml"), "-n", "2")
    assert done.returncode == 0, done.stderr
    assert "target reached: val_accuracy" in done.stdout


def test_the_readme_shows_the_example_as_it_is():
    readme = (EXAMPLES.parent / "README.md").read_text()
    loop = (EXAMPLES / "own_loop.py").read_text()
    body = loop[loop.index("world = paceline.init()") :].strip()
    assert body in readme
