"""What people's training loops do, on two ranks: equal to one process, or refused with advice."""

import numpy as np
import pytest
import torch
from support.line_problem import data, weights
from torch import nn

import paceline
from paceline.comm import SoloWorld, run_world
from paceline.errors import ConfigError, TrainingError

mse = nn.functional.mse_loss


def network():
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    chance = np.random.default_rng(1)  # ranks that are threads share torch's
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(chance.normal(size=parameter.shape)))
    return model


def on_two(program):
    """What the program returns on each of two ranks, which must be the same."""
    first, second = run_world(2, program)
    assert first.tobytes() == second.tobytes()
    return first


def part_of(world):
    """This rank's half of the data, as one batch; all of it on one rank."""
    return [torch.from_numpy(array[world.rank :: world.size]) for array in data()]


def train(world, model, optimizer, x, y, steps=3, with_closure=True, **settings):
    losses = []
    with paceline.keep_pace(model, optimizer, world=world, **settings):
        for _ in range(steps):

            def closure():
                optimizer.zero_grad()
                loss = mse(model(x), y)
                loss.backward()
                return loss

            if with_closure:
                losses.append(float(optimizer.step(closure)))
            else:
                closure()
                optimizer.step()
    return np.append(weights(model), losses if with_closure else [])


class TestClosures:
    @pytest.mark.parametrize("search", [None, "strong_wolfe"])
    def test_lbfgs_on_two_ranks_is_lbfgs_on_the_whole_batch(self, search):
        def program(world):
            model = network()
            made = torch.optim.LBFGS(model.parameters(), max_iter=6, line_search_fn=search)
            return train(world, model, made, *part_of(world))

        assert on_two(program) == pytest.approx(program(SoloWorld()), rel=1e-3, abs=1e-4)

    @pytest.mark.parametrize("share", [True, False])
    def test_a_closure_is_what_it_stands_for(self, share):
        def program(world, with_closure=True):
            model = network()
            made = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            found = train(
                world, model, made, *part_of(world),
                with_closure=with_closure, exchange={"share": share},
            )  # fmt: skip
            return found[: found.size - 3 * with_closure]

        assert on_two(program).tobytes() == on_two(lambda w: program(w, False)).tobytes()

    def test_ranks_that_exchange_weights_have_closures_of_their_own(self):
        def program(world):
            model = network()
            made = torch.optim.LBFGS(model.parameters(), max_iter=4)
            found = train(world, model, made, *part_of(world), steps=2, rule="average", every=2)
            return found[:-2]

        first, second = (np.copy(program(SoloWorld())), on_two(program))
        assert not np.array_equal(first, second)
        assert np.isfinite(second).all()

    def test_lbfgs_on_loops_of_unequal_length_says_what_to_do(self):
        def program(world):
            model = network()
            made = torch.optim.LBFGS(model.parameters(), max_iter=2)
            return train(world, model, made, *part_of(world), steps=1 + world.rank)

        with pytest.raises(TrainingError, match=r"LBFGS needs a closure, .* paceline.shard does"):
            run_world(2, program)


class TestWhatRanksSayTogether:
    def test_the_mean_is_weighted(self):
        def program(world):
            with_none = paceline.mean(float("nan"), 0, world=world)
            return [
                paceline.mean(world.rank, world=world),
                paceline.mean(torch.tensor(world.rank + 1.0), [3, 1][world.rank], world=world),
                paceline.mean(5 if world.rank else float("nan"), world.rank, world=world),
                np.isnan(with_none),
            ]

        assert run_world(2, program) == [[0.5, 1.25, 5.0, True]] * 2

    def test_one_rank_prints(self, capsys):
        run_world(3, lambda world: paceline.print("rank", world.rank, world=world, end="!"))
        assert capsys.readouterr().out == "rank 0!"


class TestOfTheModel:
    def test_settings_of_the_rule_are_keywords(self):
        def program(world, rule, **settings):
            model = network()
            made = torch.optim.SGD(model.parameters(), lr=0.05)
            return train(
                world, model, made, *part_of(world), with_closure=False, rule=rule, **settings
            )

        short = on_two(lambda world: program(world, "average", every=2))
        rule = {"name": "average", "every": 2}
        assert short.tobytes() == on_two(lambda world: program(world, rule)).tobytes()
        with pytest.raises(ConfigError, match="rule bsp has no setting every"):
            program(SoloWorld(), "bsp", every=2)
        with pytest.raises(ConfigError, match="every: settings by keyword go with the name"):
            program(SoloWorld(), rule, every=2)

    def test_statistics_of_batch_norm_can_be_averaged_before_a_validation(self):
        def program(world):
            model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
            made = torch.optim.SGD(model.parameters(), lr=0.05)
            x, y = part_of(world)
            seen = []
            with paceline.keep_pace(model, made, world=world) as pace:
                for _ in range(2):
                    made.zero_grad()
                    mse(model(x + world.rank), y).backward()
                    made.step()
                    seen.append(model[1].running_mean.tolist())
                    pace.average_buffers()
                    seen.append(model[1].running_mean.tolist())
            return seen

        first, second = run_world(2, program)
        assert first[0] != second[0]
        assert first[2] != second[2]
        assert (first[1], first[3]) == (second[1], second[3])
        assert first[1] == pytest.approx(np.mean([first[0], second[0]], axis=0).tolist())


class TestHandMadeUpdates:
    """Moved parameters, and no exchange: never in silence."""

    @pytest.mark.parametrize("share", [True, False])
    @pytest.mark.parametrize("rule", ["bsp", "average", "easgd"])
    def test_they_are_refused_with_what_works(self, rule, share):
        def program(world):
            model = network()
            made = torch.optim.SGD(model.parameters(), lr=0.05)
            x, y = part_of(world)
            exchange = {"share": share} if rule == "bsp" else None
            with paceline.keep_pace(model, made, rule, world=world, exchange=exchange):
                mse(model(x), y).backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 0.05 * parameter.grad

        with pytest.raises(TrainingError, match=r"Let optimizer.step\(\) make"):
            run_world(2, program)
