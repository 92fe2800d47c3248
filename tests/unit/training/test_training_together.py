"""No rank trains alone in silence: what is not exchanged in a keep_pace block is an error."""

import pytest
import torch
from support.line_problem import BATCH, build, data, weights
from torch import nn

import paceline
from paceline.comm import run_world
from paceline.errors import TrainingError


def by_hand(model, rate=0.02):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= rate * parameter.grad


def clamp(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-0.5, 0.5)


def loop(update, rule="bsp", **options):
    """Each step ends with `update(model, optimizer)`; the weights of all ranks."""

    def program(world):
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        batches = paceline.shard(data(), BATCH, to=torch.from_numpy, world=world)
        with paceline.keep_pace(model, optimizer, rule=rule, world=world, **options):
            for x, y in batches:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                update(model, optimizer)
        return weights(model)

    return run_world(2, program)


@pytest.mark.parametrize(
    ("rule", "exchange"),
    [("bsp", {}), ("bsp", {"share": False}), ("average", {}), ("easgd", {})],
)
def test_a_block_without_a_step_is_an_error(rule, exchange):
    with pytest.raises(TrainingError, match=r"Let optimizer.step\(\) make"):
        loop(lambda model, optimizer: by_hand(model), rule, exchange=exchange)


def test_parameters_that_each_rank_moves_itself_are_an_error():
    def update(model, optimizer):
        by_hand(model)
        optimizer.step()

    with pytest.raises(TrainingError, match=r"differ from rank 0's in .*weight.*not exchanged"):
        loop(update, exchange={"share": False})


def test_the_advice_for_shared_parameters_is_to_let_the_optimizer_do_it():
    def update(model, optimizer):
        optimizer.step()
        by_hand_later = [parameter.data.add_(0.1) for parameter in model.parameters()]
        assert by_hand_later

    with pytest.raises(TrainingError, match=r"Let optimizer.step\(\) make updates from gradients"):
        loop(update)


def test_the_same_change_on_all_ranks_is_fine_on_copies_of_their_own():
    def update(model, optimizer):
        optimizer.step()
        clamp(model)

    first, second = loop(update, exchange={"share": False})
    assert first.tobytes() == second.tobytes()
    assert abs(first).max() == 0.5


def test_ranks_without_a_batch_need_not_step():
    def program(world):
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        with paceline.keep_pace(model, optimizer, world=world):
            if world.rank == 0:
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
        return weights(model)

    first, second = run_world(2, program)
    assert first.tobytes() == second.tobytes()


def test_a_rejected_step_counts_in_samples(monkeypatch):
    units = []

    class Log:
        def note(self, samples, watch, unit):
            units.append(unit)

    monkeypatch.setattr("paceline.training.own_loop.pace.open_trial", lambda rank, workers: Log())

    def spoil(model, optimizer):
        next(model.parameters()).grad[:] = float("nan")
        optimizer.step()

    def program(world):
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        batches = paceline.shard(data(), 46, to=torch.from_numpy, world=world)
        with paceline.keep_pace(model, optimizer, world=world, exchange={"share": False}):
            for x, y in batches:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                spoil(model, optimizer)

    run_world(2, program)
    assert set(units) == {"samples"}
