"""Training with gradients that travel as thin matrices: near the exact course, in far less."""

import numpy as np
import pytest
import torch
from support.line_problem import fit, own_loop, weights
from torch import nn

import paceline
from paceline.comm import SoloWorld, ThreadWorld, run_world
from paceline.comm.allreduce.powersgd import PowerSGDAllreduce
from paceline.core.vectors import Layout
from paceline.data.builtin import digits
from paceline.frameworks.numpy import NumpyReplica
from paceline.observe import Stopwatch, read_events
from paceline.rules import BSP
from paceline.sync.interface import Contribution
from paceline.sync.make import make_exchange
from paceline.sync.settings import ExchangeContext, ExchangeSettings
from paceline.sync.synchronous.message import StepMessage
from paceline.training.trainer import Trainer

POWER = {"wire": "powersgd", "powersgd_rank": 4}


def network():
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))
    rng = np.random.default_rng(0)  # torch's generator is shared by the threads
    for parameter in model.parameters():
        parameter.data = torch.from_numpy(rng.normal(size=parameter.shape) * 0.05).float()
    return model


def train(folder, exchange, ranks=2, epochs=2):
    def program(world):
        return Trainer(
            network, digits.load("train"), digits.load("validation"), world=world, rule="bsp",
            epochs=epochs, progress="off", data={"batch_size": 64}, run_dir=str(folder),
            exchange={"share": False, **exchange}, optimizer={"lr": 0.01},
        ).fit()  # fmt: skip

    results = run_world(ranks, program) if ranks > 1 else [program(SoloWorld())]
    assert len({weights(result.model).tobytes() for result in results}) == 1
    return results[0]


def bytes_of(result):
    """What rank 0 sent in a step."""
    events = read_events(result.run_dir / "events")
    (sent,) = {e["bytes"] for e in events if e["event"] == "step" and e["rank"] == 0}
    return sent


def test_digits_are_learned_as_well_in_fewer_bytes(tmp_path):
    plain, power = (train(tmp_path / n, r) for n, r in (("plain", {}), ("power", POWER)))
    accuracy = plain.summary["val_accuracy"]
    assert accuracy > 0.88
    assert power.summary["val_accuracy"] > accuracy - 0.01
    assert weights(power.model).tobytes() != weights(plain.model).tobytes()
    head = 64
    assert bytes_of(plain) == head + 4 * (32 * 784 + 32 + 320 + 16)
    assert bytes_of(power) == head + 4 * (4 * (32 + 784) + 32 + 4 * (12 + 32) + 16)


def test_the_rank_matters_and_a_run_repeats(tmp_path):
    """The default is 4."""
    courses = [
        train(tmp_path / str(rank), {"wire": "powersgd", "powersgd_rank": rank}, epochs=1)
        for rank in (1, 4, None)
    ]
    one, four, unsaid = (weights(result.model).tobytes() for result in courses)
    assert one != four == unsaid
    assert bytes_of(courses[0]) < bytes_of(courses[1])


def test_alone_nothing_is_factored(tmp_path):
    plain, power = (train(tmp_path / n, r, 1, 1) for n, r in (("plain", {}), ("power", POWER)))
    assert weights(power.model).tobytes() == weights(plain.model).tobytes()
    assert bytes_of(power) == 0


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_model_without_large_matrices_trains_as_ever(tmp_path, ranks):
    plain, power = (
        fit(tmp_path, ranks, "bsp", exchange={"share": False, **how}) for how in ({}, POWER)
    )
    assert weights(power.model).tobytes() == weights(plain.model).tobytes()
    assert own_loop("bsp", ranks, exchange=POWER).tobytes() == own_loop("bsp", ranks).tobytes()


def test_a_users_loop_takes_it():
    rng = np.random.default_rng(5)
    inputs = rng.normal(size=(2, 30, 8, 20)).astype(np.float32)
    wanted = rng.normal(size=(20, 24)).astype(np.float32)

    def program(world):
        model = nn.Linear(20, 24, bias=False)
        model.weight.data = torch.zeros(24, 20)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        losses = []
        with paceline.keep_pace(model, optimizer, exchange=POWER):
            for x in torch.from_numpy(inputs[world.rank]):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), x @ torch.from_numpy(wanted))
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses, weights(model).tobytes()

    (losses, first), (_, second) = run_world(2, program)
    assert first == second
    assert losses[-1] < 0.5 * losses[0]


def exchange_once(parts, gradients, rank=2):
    """What each rank's replica holds after one exchange."""

    def program(world):
        replica = NumpyReplica({"w": np.zeros((20, 30)), "b": np.zeros(20)}, lambda *_: (0.0, {}))
        settings = ExchangeSettings(wire="powersgd", powersgd_rank=rank)
        exchange = make_exchange(world, replica, BSP(), ExchangeContext(settings=settings))
        vector, _ = replica.collect_gradients()
        replica.layout.gather(gradients[world.rank], vector)
        exchange.before_step(parts[world.rank], Stopwatch())
        result = [view.copy() for view in replica.layout.views(replica.collect_gradients()[0])]
        exchange.close()
        return result

    return run_world(len(parts), program)


def test_gradients_count_by_their_samples():
    rng = np.random.default_rng(1)
    gradients = [
        (np.outer(rng.normal(size=20), rng.normal(size=30)), rng.normal(size=20)) for _ in range(3)
    ]
    parts = [Contribution(8, 1.0, True), Contribution(2, 0.25, True), Contribution(0, 0.0, False)]
    for weight, bias in exchange_once(parts, gradients):
        for at, found in enumerate((weight, bias)):
            wanted = (gradients[0][at] + 0.25 * gradients[1][at]) / 1.25
            assert np.abs(found - wanted).max() < 1e-12


def test_where_nobody_gives_anything_errors_wait():
    layout = Layout.of([("w", (20, 30), "float32")])

    def program(world):
        power, message = (
            PowerSGDAllreduce(world, layout, 2),
            StepMessage(world, layout.empty_vector()),
        )
        message.vector[:] = np.random.default_rng(world.rank).normal(size=layout.size)
        message.sum_over_ranks(Contribution(8, 1.0), Stopwatch(), coded=power)
        before, sent = power.error.copy(), message.bytes_sent
        message.vector[:] = 1
        message.sum_over_ranks(Contribution(), Stopwatch(), coded=power)
        return before, power.error, message.vector, message.bytes_sent - sent

    for before, after, vector, sent in run_world(2, program):
        assert before.any()
        assert after.tobytes() == before.tobytes()
        assert not vector.any()
        assert sent == 64


def test_all_memory_is_given_back(monkeypatch):
    made, dropped = [], []
    make = ThreadWorld.make_buffer

    def note(world, size, dtype):
        buffer = make(world, size, dtype)
        made.append((world.rank, buffer.ctypes.data, size))
        return buffer

    def note_end(world, buffer):
        dropped.append((world.rank, buffer.ctypes.data, buffer.size))

    monkeypatch.setattr(ThreadWorld, "make_buffer", note)
    monkeypatch.setattr(ThreadWorld, "drop_buffer", note_end)
    exchange_once([Contribution(1, 1.0)] * 2, [(np.ones((20, 30)), np.ones(20))] * 2)
    assert len(made) == 6  # the message and two factors, on two ranks
    assert {entry for entry in dropped if entry[2]} == set(made)
