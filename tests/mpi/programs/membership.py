"""A run that ranks join and leave at chosen steps: the rank that leads in the end prints what came
of it, as JSON."""

import hashlib
import json
import sys
import time
from functools import partial
from itertools import groupby

import torch
from support import tiny_problem
from torch import nn

import paceline
from paceline.errors import Interrupted
from paceline.runtime.world import is_newcomer
from paceline.testing import Fault, Inject
from paceline.training.callbacks import Callback
from paceline.training.membership.requests import Inquiry, MembershipRequest

LONGEST_S = 150.0


class Ask(Callback):
    """At these steps rank 0 asks for a change. All ranks wait until the job is ready for it."""

    def __init__(self, requests, stop_after):
        self.requests, self.stop_after = requests, stop_after
        self.sizes, self.steps, self.answers = [], [], []

    def on_batch_end(self, trainer, step, logs):
        self.sizes.append(trainer.world.size)
        self.steps.append(step)
        if step == self.stop_after:
            trainer.interrupt()
        for asked in [asked for asked in self.requests if asked["step"] <= step]:
            done = trainer.run_dir / f"asked-at-{asked['step']}"
            if done.exists():
                continue
            if trainer.world.rank == 0:
                self.ask(trainer, asked)
                done.touch()
            end = time.monotonic() + LONGEST_S
            while not done.exists() and time.monotonic() < end:
                time.sleep(0.01)

    def ask(self, trainer, asked):
        kind, count = asked["kind"], asked.get("count", 0)
        ranks = tuple(asked.get("ranks", ()))
        # To be replaced means to wait for somebody whom nobody has asked for.
        inquiry = (
            Inquiry(trainer.run_dir, MembershipRequest(kind, count, (), ranks)) if kind else None
        )
        end = time.monotonic() + LONGEST_S
        while time.monotonic() < end and not trainer._recruiter.wants_change:
            answer = inquiry and inquiry.answer()
            if answer is not None and answer.is_refused:
                self.answers.append(answer.text)
                inquiry.withdraw()
                return
            time.sleep(0.01)


def build(has_buffers):
    torch.manual_seed(3)
    between = nn.BatchNorm1d(200) if has_buffers else nn.Identity()
    return nn.Sequential(nn.Linear(6, 200), between, nn.Tanh(), nn.Linear(200, 1))


def main():
    given = json.loads(sys.argv[1])
    faults = [Fault.parse(text) for text in given.pop("faults", [])]
    if is_newcomer():  # a fault is of ranks that the run began with, or of all that join
        faults = [Fault.parse(text) for text in given.get("newcomer_faults", [])]
    given.pop("newcomer_faults", None)
    ask = Ask(given.pop("requests", []), given.pop("stop_after", 0))
    given.setdefault("optimizer", {"name": "adam", "lr": 0.01})
    trainer = paceline.Trainer(
        partial(build, given.pop("has_buffers", False)), *tiny_problem.make_data(), loss="mse",
        data={"batch_size": 5}, progress="off", callbacks=[ask, Inject(*faults)], **given,
    )  # fmt: skip
    try:
        result = trainer.fit()
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        sys.exit(stop.code)
    vector = torch.nn.utils.parameters_to_vector(result.model.parameters())
    found = {
        "parameters": hashlib.sha256(vector.detach().numpy().tobytes()).hexdigest(),
        "buffers": [buffer.tolist() for buffer in result.model.buffers()],
        "losses": [record.train_loss for record in result.history],
        "val_losses": [record.val_loss for record in result.history],
        "samples": [record.samples for record in result.history],
        "sizes": [size for size, _ in groupby(ask.sizes)],
        "steps": ask.steps,
        "answers": ask.answers,
    }
    everyone = trainer.world.allgather_values(found["parameters"])
    if trainer.world.rank == 0:
        print(json.dumps({**found, "left": trainer.world.size, "equal": len(set(everyone)) == 1}))


if __name__ == "__main__":
    main()
