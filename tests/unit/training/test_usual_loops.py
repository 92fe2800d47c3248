"""Tools of torch that people's loops use: on two ranks as on one process with the whole batch."""

import copy

import numpy as np
import pytest
import torch
from support.line_problem import data, weights
from torch import nn
from torch.optim import lr_scheduler, swa_utils

import paceline
from paceline.comm import SoloWorld, run_world
from paceline.errors import TrainingError

mse = nn.functional.mse_loss
both_ways = pytest.mark.parametrize("share", [True, False])


def network(outputs=1):
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, outputs))
    chance = np.random.default_rng(1)  # ranks that are threads share torch's
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(chance.normal(size=parameter.shape)))
    return model


def part_of(world):
    return [torch.from_numpy(array[world.rank :: world.size]) for array in data()]


def like_one_process(program, share, rel=1e-4):
    """Two ranks end alike, and as one does with all samples."""
    first, second = run_world(2, lambda world: program(world, {"share": share}))
    assert first.tobytes() == second.tobytes()
    assert first == pytest.approx(program(SoloWorld(), None), rel=rel, abs=1e-5)


def train(world, exchange, model, optimizer, step, steps=4):
    with paceline.keep_pace(model, optimizer, world=world, exchange=exchange):
        for number in range(steps):
            optimizer.zero_grad()
            step(number)
    return weights(model)


SCHEDULERS = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, gamma=0.5),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=8),
    "cosine": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "function": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "one after another": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1), lr_scheduler.ExponentialLR(o, 0.5)], [2]
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=0.5),
}


@both_ways
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.filterwarnings("ignore:Detected call:UserWarning", "ignore:The epoch parameter")
def test_schedulers(name, share):
    def program(world, exchange):
        (x, y), model = part_of(world), network()
        made = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        plan = SCHEDULERS[name](made)

        def step(number):
            loss = mse(model(x), y)
            loss.backward()
            made.step()
            mean = paceline.mean(loss.detach(), len(x), world=world)
            plan.step(*([mean] if name == "plateau" else []))

        return np.append(train(world, exchange, model, made, step), made.param_groups[0]["lr"])

    like_one_process(program, share)


@both_ways
def test_groups_with_rates_of_their_own(share):
    def program(world, exchange):
        (x, y), model = part_of(world), network()
        first, _, last = model
        made = torch.optim.AdamW(
            [
                {"params": first.parameters(), "lr": 0.001, "weight_decay": 0.1},
                {"params": last.parameters()},
            ],
            lr=0.05,
        )

        def step(number):
            mse(model(x), y).backward()
            made.step()

        return train(world, exchange, model, made, step)

    like_one_process(program, share)


@both_ways
def test_a_mean_over_weights(share):
    def program(world, exchange):
        (x, y), model = part_of(world), network()
        made = torch.optim.SGD(model.parameters(), lr=0.05)
        mean = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.5))

        def step(number):
            mse(model(x), y).backward()
            made.step()
            mean.update_parameters(model)

        found = train(world, exchange, model, made, step)
        averaged = weights(mean.module)
        assert not np.array_equal(found, averaged)
        return averaged

    like_one_process(program, share)


@both_ways
def test_automatic_precision_and_its_scaler(share):
    def program(world, exchange):
        (x, y), model = part_of(world), network()
        made = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

        def step(number):
            with torch.autocast("cpu", torch.bfloat16):
                loss = mse(model(x).float(), y)
            scaler.scale(loss).backward()
            scaler.step(made)
            scaler.update()

        return train(world, exchange, model, made, step)

    like_one_process(program, share, rel=0.05)


@both_ways
def test_a_compiled_model(share):
    def program(world, exchange):
        (x, y), model = part_of(world), network()
        made = torch.optim.SGD(model.parameters(), lr=0.05)
        compiled = torch.compile(model, backend="eager")

        def step(number):
            mse(compiled(x), y).backward()
            made.step()

        return train(world, exchange, compiled, made, step)

    like_one_process(program, share)


@both_ways
def test_gradients_of_several_batches_in_a_step(share):
    def program(world, exchange):
        (x, y), model = part_of(world), network()
        made = torch.optim.SGD(model.parameters(), lr=0.05)
        halves = [slice(0, 22), slice(22, 44)]

        def step(number):
            for half in halves if world.size == 2 else [slice(0, 88)] * 2:
                (mse(model(x[half]), y[half]) / 2).backward()
            made.step()

        return train(world, exchange, model, made, step)

    like_one_process(program, share)


@both_ways
def test_two_models_against_each_other(share):
    """A generator and a critic, each with an optimizer and a block of its own."""

    def program(world, exchange):
        (x, _), maker, critic = part_of(world), network(3), network()
        of_maker = torch.optim.Adam(maker.parameters(), lr=0.01)
        of_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
        with (
            paceline.keep_pace(maker, of_maker, world=world, exchange=exchange),
            paceline.keep_pace(critic, of_critic, world=world, exchange=exchange),
        ):
            for _ in range(4):
                of_critic.zero_grad()
                (critic(maker(x).detach()).mean() - critic(x).mean()).backward()
                of_critic.step()
                of_maker.zero_grad()
                (-critic(maker(x)).mean()).backward()
                of_maker.step()
        return np.concatenate([weights(maker), weights(critic)])

    like_one_process(program, share, rel=1e-3)


@both_ways
def test_layers_that_are_frozen_and_thawed_between_two_blocks(share):
    def program(world, exchange):
        (x, y), model = part_of(world), network()

        def step(number):
            mse(model(x), y).backward()
            made.step()

        model[0].requires_grad_(False)
        before = copy.deepcopy(model[0].weight.data)
        made = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
        train(world, exchange, model, made, step)
        assert torch.equal(before, model[0].weight)
        model[0].requires_grad_(True)
        made = torch.optim.SGD(model.parameters(), lr=0.05)
        return train(world, exchange, model, made, step)

    like_one_process(program, share)


def test_layers_that_thaw_inside_of_a_block_are_refused_with_what_works():
    def program(world):
        (x, y), model = part_of(world), network()
        model[0].requires_grad_(False)
        made = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(number):
            model[0].requires_grad_(number > 1)
            mse(model(x), y).backward()
            made.step()

        train(world, None, model, made, step)

    with pytest.raises(TrainingError, match="begin another keep_pace block"):
        run_world(2, program)


@both_ways
def test_layers_that_are_frozen_in_a_block_rest(share):
    def program(world, exchange):
        (x, y), model = part_of(world), network()
        made = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(number):
            model[0].requires_grad_(number in (0, 3))
            mse(model(x), y).backward()
            made.step()

        return train(world, exchange, model, made, step)

    like_one_process(program, share)
