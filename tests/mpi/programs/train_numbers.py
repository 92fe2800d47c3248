"""Train a small network without dropout on the digits, and tell losses and parameters."""

import torch
from torch import nn

import paceline
from paceline.data.builtin import digits
from paceline.observe import read_events


def network():
    return nn.Sequential(
        nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(8 * 36, 10)
    )


class StopAt(paceline.Callback):
    def on_batch_end(self, trainer, step, logs):
        if step == 50:
            trainer.stop()


def train(world, run_dir, batch_size, rule):
    """What came of it, and the parameters, which must be the same on every rank."""
    result = paceline.Trainer(
        network,
        digits.load("train"),
        digits.load("validation"),
        epochs=1,
        rule=rule,
        data={"batch_size": batch_size},
        run_dir=run_dir,
        callbacks=[StopAt()],
    ).fit()
    bits = world.allgather_values(
        b"".join(p.detach().numpy().tobytes() for p in result.model.parameters())
    )
    assert len(set(bits)) == 1, "replicas differ"
    assert torch.get_num_threads() == 1  # or sums may have another order
    if world.rank != 0:
        return None
    return {
        "losses": read_losses(result.run_dir),
        "parameters": bits[0].hex(),
        "val_loss": result.summary["val_loss"],
    }


def read_losses(run_dir):
    """The mean of all ranks' samples, by step."""
    steps: dict[int, list[tuple[float, int]]] = {}
    for event in read_events(run_dir / "events"):
        if event["event"] == "step":
            steps.setdefault(event["step"], []).append((event["loss"], event["samples"]))
    return [
        sum(loss * n for loss, n in parts) / sum(n for _, n in parts)
        for _, parts in sorted(steps.items())
    ]
