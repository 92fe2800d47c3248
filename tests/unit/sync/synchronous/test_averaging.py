"""The rule `average` in training and in a user's loop, against references written out here."""

import threading

import numpy as np
import pytest
import torch
from support.line_problem import BATCH, SAMPLES, build, data, fit, own_loop, weights
from torch import nn

import paceline
from paceline.comm import run_world
from paceline.data import epoch_order, plan_steps
from paceline.observe import read_events
from paceline.sync.synchronous import weights as exchange_of_weights
from paceline.training.trainer import Trainer


def reference(ranks, meets, epochs=2, momentum=0.9, forget=False):
    """Local training in plain torch, and weighted averaging where `meets(step)` in an epoch."""
    inputs, targets = (torch.from_numpy(array) for array in data())
    models = [build() for _ in range(ranks)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.02, momentum=momentum) for m in models]
    plan = plan_steps(SAMPLES, ranks, BATCH)
    for epoch in range(epochs):
        order = epoch_order(SAMPLES, 1, epoch)
        samples = [0] * ranks
        for step in range(len(plan)):
            for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
                begin, end = plan.bounds(step, rank)
                rows = torch.from_numpy(order[begin:end])
                optimizer.zero_grad()
                nn.functional.mse_loss(model(inputs[rows]), targets[rows]).backward()
                optimizer.step()
                samples[rank] += end - begin
            if meets(step + 1) or step + 1 == len(plan):
                mean = sum(n * weights(m) for n, m in zip(samples, models, strict=True))
                load(models, mean / sum(samples))
                samples = [0] * ranks
                if forget:
                    for optimizer in optimizers:
                        optimizer.state.clear()
    return weights(models[0])


def load(models, vector):
    for model in models:
        at = 0
        with torch.no_grad():
            for parameter in model.parameters():
                size = parameter.numel()
                piece = vector[at : at + size].astype(np.float32)
                parameter.copy_(torch.from_numpy(piece.reshape(parameter.shape)))
                at += size


def test_once_an_epoch_is_the_distributed_epoch(tmp_path):
    result = fit(tmp_path, 3, "average")
    assert weights(result.model) == pytest.approx(reference(3, lambda step: False), abs=1e-6)
    assert [record.samples for record in result.history] == [SAMPLES] * 2


@pytest.mark.parametrize("every", [1, 2, 4])
def test_every_few_steps_is_local_sgd(tmp_path, every):
    result = fit(tmp_path, 3, {"name": "average", "every": every})
    expected = reference(3, lambda step: step % every == 0)
    assert weights(result.model) == pytest.approx(expected, abs=1e-6)


def test_how_often_changes_the_course_and_the_bytes(tmp_path):
    def bytes_sent(result):
        return sum(e["bytes"] for e in read_events(result.run_dir / "events"))

    often = fit(tmp_path, 2, {"name": "average", "every": 1})
    seldom = fit(tmp_path, 2, {"name": "average", "every": 4})
    assert weights(often.model).tolist() != weights(seldom.model).tolist()
    assert bytes_sent(often) == 4 * bytes_sent(seldom) > 0


def test_every_step_without_momentum_is_bsp(tmp_path):
    averaged = fit(tmp_path, 2, {"name": "average", "every": 1}, momentum=0.0)
    bsp = fit(tmp_path, 2, "bsp", momentum=0.0)
    assert weights(averaged.model) == pytest.approx(weights(bsp.model), abs=1e-6)


def test_one_worker_is_plain_training_bit_for_bit(tmp_path):
    for rule in ("average", {"name": "average", "every": 3}):
        alone = fit(tmp_path, 1, rule)
        assert weights(alone.model).tobytes() == weights(fit(tmp_path, 1, "bsp").model).tobytes()


def test_forgetting_the_momentum(tmp_path):
    result = fit(tmp_path, 3, {"name": "average", "every": 2, "keep_momentum": False})
    expected = reference(3, lambda step: step % 2 == 0, forget=True)
    assert weights(result.model) == pytest.approx(expected, abs=1e-6)
    kept = fit(tmp_path, 3, {"name": "average", "every": 2})
    assert weights(kept.model) != pytest.approx(weights(result.model), abs=1e-4)


def test_post_local_is_bsp_until_it_starts(tmp_path):
    def losses(rule):
        events = read_events(fit(tmp_path, 2, rule).run_dir / "events")
        steps = sorted((e["step"], e["rank"], e["loss"]) for e in events if e["event"] == "step")
        return [loss for _, _, loss in steps]

    bsp = losses("bsp")
    late = losses({"name": "average", "every": 4, "start_after": 5})
    assert late[:12] == bsp[:12]  # two ranks; the sixth loss is computed before the first drift
    assert late[12:] != bsp[12:]
    never = {"name": "average", "start_after": 10**6}
    one = weights(fit(tmp_path, 2, never).model)
    assert one.tobytes() == weights(fit(tmp_path, 2, "bsp").model).tobytes()


def test_ranks_exchange_by_the_clock(tmp_path, monkeypatch):
    """By rank 1's clock its steps take longer: it brings fewer of them to an exchange."""
    now = threading.local()

    class Tick(paceline.Callback):
        def on_batch_end(self, trainer, step, logs):
            now.s = getattr(now, "s", 0.0) + (0.01, 0.015)[trainer.world.rank]

    monkeypatch.setattr(exchange_of_weights, "monotonic", lambda: getattr(now, "s", 0.0))
    result = fit(tmp_path, 2, {"name": "average", "every": "0.025s"}, callbacks=[Tick()])
    events = [e for e in read_events(result.run_dir / "events") if e["event"] == "step"]
    met = [["x" if e["bytes"] else "." for e in events if e["rank"] == rank] for rank in (0, 1)]
    # Two epochs, each of which ends with an exchange: to those of rank 0 it once brings nothing.
    assert ["".join(steps) for steps in met] == ["...x..xxx..x..x.xx", "..x.x.xx.x.x.x.x"]
    assert [record.samples for record in result.history] == [SAMPLES] * 2


def test_streams_of_uneven_length_end_together(tmp_path):
    inputs, targets = data()

    def program(world):
        length = 20 if world.rank == 0 else 80

        def samples():
            yield from zip(inputs[:length], targets[:length], strict=True)

        return Trainer(
            build, samples, world=world, rule={"name": "average", "every": 2}, epochs=2,
            loss="mse", progress="off", data={"batch_size": 4}, run_dir=str(tmp_path / "r"),
        ).fit()  # fmt: skip

    one, two = run_world(2, program)
    assert weights(one.model).tobytes() == weights(two.model).tobytes()
    assert [r.samples for r in one.history] == [r.samples for r in two.history] == [50, 50]


def test_a_rank_that_asks_to_stop_stops_all_at_the_next_exchange(tmp_path):
    class Stop(paceline.Callback):
        def on_batch_end(self, trainer, step, logs):
            if trainer.world.rank == 1 and step == 2:
                trainer.stop()

    result = fit(tmp_path, 2, {"name": "average", "every": 4}, callbacks=[Stop()], epochs=9)
    assert len(result.history) == 1
    assert result.history[0].samples == 4 * 2 * BATCH


def test_a_users_loop_averages_once_an_epoch():
    assert own_loop("average", 3) == pytest.approx(reference(3, lambda step: False), abs=1e-6)


def test_a_users_loop_averages_every_few_steps():
    expected = reference(3, lambda step: step % 2 == 0)
    assert own_loop(paceline.Average(every=2), 3) == pytest.approx(expected, abs=1e-6)


def test_a_users_loops_of_uneven_length_end_equal():
    for rule in ("average", {"name": "average", "every": 3}, {"name": "average", "start_after": 4}):

        def program(world, rule=rule):
            model = build()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
            with paceline.keep_pace(model, optimizer, rule=rule):
                for _ in range(2 + 5 * world.rank):
                    optimizer.zero_grad()
                    model(torch.ones(2, 3)).square().mean().backward()
                    optimizer.step()
            return weights(model).tobytes()

        assert len(set(run_world(3, program))) == 1
