"""The examples run, as their first lines say."""

import re
from importlib.util import find_spec
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
    "own_rules.py",
}
"""Those that need packages which Paceline does not (test_ecosystem_examples.py), two that run for
too long (test_letter_example.py), and rules, which are no program (unit/sync/test_own_rules.py)."""


NEEDS = {
    "jax_flax.py": ["jax", "flax", "optax"],
    "keras_fit.py": ["keras"],
    "mpi_learn_script.py": ["keras", "h5py"],
    "pytensor_replica.py": ["pytensor"],
}
"""What pip installs for an example, beside Paceline with torch and MPI."""
ASYNCHRONOUS = ("downpour.py", "easgd.py", "gossip.py", "mpi_learn_script.py")
"""How good these become depends on who comes when; by chance it would be 0.1."""


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", sorted({path.name for path in EXAMPLES.glob("*.py")} - ELSEWHERE))
def test_the_scripts(paceline, name):
    missing = [package for package in NEEDS.get(name, ()) if find_spec(package) is None]
    if missing:
        pytest.skip(f"{name} needs: pip install {' '.join(missing)}")
    script = EXAMPLES / name
    command = re.search(r"^paceline (run .*)$", script.read_text(), re.MULTILINE)[1]
    words = command.replace(f"examples/{name}", str(script)).split()
    done = paceline(*words, timeout_s=180)
    assert done.returncode == 0, done.stderr
    accuracies = re.findall(r"(?:accuracy|^)\s*(0\.\d+)", done.stdout, re.MULTILINE)
    losses = re.findall(r"rank .*: loss (\d\.\d+)$", done.stdout, re.MULTILINE)
    assert accuracies or losses, done.stdout
    least = 0.85 if name in ASYNCHRONOUS else 0.94
    assert all(float(figure) > least for figure in accuracies[-1:]), done.stdout
    # Of one batch each, the last of an epoch, which may be a small and difficult one.
    assert not losses or min(map(float, losses)) < 0.5, done.stdout
    assert re.search(SPECIAL.get(name, ""), done.stdout, re.MULTILINE), done.stdout


JUDGE = """
model.eval()
batch = digits.load("validation").take(range(2000))
found = model(torch.from_numpy(batch.inputs)).argmax(1).numpy()
accuracy = (found == batch.targets).mean()
print(f"rank {world.rank} is right in {accuracy:.6f} of all")
"""


PART_OF = """
def part_of(part):
    batch = digits.load(part).take(range(640))
    return batch.inputs, batch.targets

"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_complete_loop_goes_on_where_it_was_interrupted(paceline, tmp_path):
    """On less data."""
    text = (EXAMPLES / "complete_loop.py").read_text()
    for part in ("train", "validation"):
        all_of_it = f'digits.load("{part}")'
        assert text.count(all_of_it) == 1
        text = text.replace(all_of_it, f'part_of("{part}")')
    text = text.replace("EPOCHS, PATIENCE", f"{PART_OF}EPOCHS, PATIENCE")
    saved = "        if is_best and world.rank == 0:\n"
    assert text.count(saved) == 1
    (tmp_path / "whole.py").write_text(text)
    stop = f"        assert batches.epoch != 2, 'stop here'\n{saved}"
    (tmp_path / "stops.py").write_text(text.replace(saved, stop))
    whole = paceline("run", "-n", "2", "--", "whole.py", "a")
    assert (whole.returncode, whole.stderr) == (0, "")
    assert len(re.findall(r"^epoch \d: loss", whole.stdout, re.MULTILINE)) == 4, "printed once"
    assert paceline("run", "-n", "2", "--", "stops.py", "b").returncode == 1
    again = paceline("run", "-n", "2", "--", "whole.py", "b")
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.splitlines()[0] == "2 ranks, from epoch 3"
    assert again.stdout.splitlines()[1:3] == whole.stdout.splitlines()[3:5]


def test_a_users_own_loop_runs_on_two_ranks(paceline, tmp_path):
    """The example of the README, cut to one epoch, and judged at the end."""
    text = (EXAMPLES / "own_loop.py").read_text()
    assert text.count("range(3)") == 1
    (tmp_path / "own_loop.py").write_text(text.replace("range(3)", "range(1)") + JUDGE)
    done = paceline("run", "-n", "2", "--", "own_loop.py")
    assert (done.returncode, done.stderr) == (0, "")
    ranks = re.findall(r"^epoch 1 on rank (\d) of 2: loss \d", done.stdout, re.MULTILINE)
    assert sorted(ranks) == ["0", "1"]
    right = re.findall(r"^rank \d is right in (\S+) of all$", done.stdout, re.MULTILINE)
    assert len(right) == 2
    assert right[0] == right[1], "they have one model"
    assert float(right[0]) > 0.85, right  # 0.95, and by chance 0.1


def test_there_is_an_example_of_every_rule():
    assert {f"{name}.py" for name in RULES} <= {path.name for path in EXAMPLES.glob("*.py")}


@pytest.mark.slow
def test_the_run_file(paceline, tmp_path):
    done = paceline("train", str(EXAMPLES / "mnist.yaml"), "-n", "2")
    assert done.returncode == 0, done.stderr
    assert "target reached: val_accuracy" in done.stdout


def test_the_readme_shows_the_example_as_it_is():
    readme = (EXAMPLES.parent / "README.md").read_text()
    loop = (EXAMPLES / "own_loop.py").read_text()
    body = loop[loop.index("world = paceline.init()") :].strip()
    assert body in readme
