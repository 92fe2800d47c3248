"""A whole training program: seeds, validation, saving, resuming, early stop.

paceline run -n 2 -- examples/complete_loop.py

Run it again after it was interrupted: it goes on where it was, to the same bits.
"""

import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import paceline
from paceline.data import digits
from paceline.models.mnist import MNISTNetwork

EPOCHS, PATIENCE = 4, 2
folder = Path(sys.argv[1] if len(sys.argv) > 1 else "complete_loop")
world = paceline.init()

torch.manual_seed(1)  # what defines the problem is alike on all ranks: model and data
model = MNISTNetwork()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
batches = paceline.shard(digits.load("train"), 64, seed=1, to=torch.from_numpy)
validation = paceline.shard(digits.load("validation"), 250, shuffle=False, to=torch.from_numpy)
torch.manual_seed(1 + world.rank)  # what is drawn in training is not: dropout, augmentation


def train_epoch():
    model.train()
    total = samples = 0
    for images, labels in batches:
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()  # gradients are averaged over all ranks here
        total, samples = total + loss.item() * len(labels), samples + len(labels)
    return paceline.mean(total / samples, samples)  # over all ranks


@torch.no_grad()
def validate():
    model.eval()
    right = samples = 0
    for images, labels in validation:  # this rank's part
        right += (model(images).argmax(1) == labels).sum().item()
        samples += len(labels)
    return paceline.mean(right / samples, samples)


with paceline.keep_pace(model, optimizer, rule="bsp") as pace:
    state = pace.load(folder / "state.pace") or {"best": 0.0, "waited": 0}  # None at first
    if "scheduler" in state:
        scheduler.load_state_dict(state["scheduler"])
    paceline.print(f"{world.size} ranks, from epoch {batches.epoch + 1}")
    while batches.epoch < EPOCHS and state["waited"] < PATIENCE:
        loss = train_epoch()
        pace.average_buffers()  # BatchNorm's statistics, if the model had some
        accuracy = validate()
        scheduler.step()
        is_best = accuracy > state["best"]  # the same on all ranks, so all stop together
        state["waited"] = 0 if is_best else state["waited"] + 1
        state["best"] = max(accuracy, state["best"])
        state["scheduler"] = scheduler.state_dict()
        pace.save(folder / "state.pace", **state)  # rank 0 writes
        if is_best and world.rank == 0:
            torch.save(model.state_dict(), folder / "best.pt")
        paceline.print(f"epoch {batches.epoch}: loss {loss:.4f}, accuracy {accuracy:.4f}")

paceline.print(f"best accuracy {state['best']:.4f}; model: {folder / 'best.pt'}")
