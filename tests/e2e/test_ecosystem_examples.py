"""Lightning Fabric, accelerate and the Trainer of transformers train on the mpi4py backend."""

import importlib.util
import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDS = {
    "accelerate_loop.py": ["accelerate"],
    "fabric_loop.py": ["lightning-fabric"],
    "hf_trainer.py": ["transformers", "accelerate"],
}
"""What pip installs for an example, beside Paceline."""
OUTCOME = re.compile(
    r"^rank (\d) of 2 over (\S+), (\d+) batches per epoch: loss (\d\.\d{6})$", re.MULTILINE
)


def is_missing(package: str) -> bool:
    """Whether it is not installed; importing it to find out would take seconds."""
    return importlib.util.find_spec(package.replace("-", "_")) is None


@pytest.fixture(params=NEEDS)
def outcome(request, paceline):
    """An example's name, and what two ranks print when they run it."""
    missing = [package for package in NEEDS[request.param] if is_missing(package)]
    if missing:
        pytest.skip(f"{request.param} needs: pip install {' '.join(missing)}")
    script = str(EXAMPLES / request.param)
    done = paceline("run", "-n", "2", "--", script, timeout_s=240, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    return request.param, done.stdout


def test_two_ranks_train_one_model_over_mpi(outcome):
    name, told = outcome
    outcomes = sorted(OUTCOME.findall(told))
    assert [rank for rank, *_ in outcomes] == ["0", "1"], told
    _, backends, batches, losses = zip(*outcomes, strict=True)
    assert backends == ("mpi4py", "mpi4py"), told
    # Half of 10,000 images each, by 64. With all of them each rank would train for itself, and
    # seeded alike both would come to the same figure.
    assert batches == ("79", "79"), told
    # Each rank judges its own weights by all validation images: 2.3 untrained, and the same
    # figure on both only if they took the same steps on their different shares.
    assert losses[0] == losses[1], told
    assert float(losses[0]) < 0.3, told
    if name == "hf_trainer.py":  # the Trainer's own figure comes from both ranks' shares
        shared = float(re.search(r"'eval_loss': '?(\d\.\d+)", told)[1])
        assert shared == pytest.approx(float(losses[0]), rel=1e-2), told
