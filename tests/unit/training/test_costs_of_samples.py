"""Training on samples of unequal cost: ranks get equal costs, and the mathematics is the same."""

import numpy as np
import pytest
import torch
from support.line_problem import BATCH, SAMPLES, build, data, weights

import paceline
from paceline import Callback
from paceline.comm import SoloWorld, run_world
from paceline.errors import CheckpointError, ConfigError, DataError, Interrupted
from paceline.training.trainer import Trainer

COSTS = np.random.default_rng(7).lognormal(3, 0.7, SAMPLES).round()


def seen_by_rank(world, epochs=1, **options):
    """The rows of each batch of a loop, as their numbers."""
    rows = {row.tobytes(): number for number, row in enumerate(data()[0])}
    batches = paceline.shard(data(), BATCH, world=world, **options)
    return [[[rows[row.tobytes()] for row in x] for x, _ in batches] for _ in range(epochs)], len(
        batches
    )


def test_ranks_of_a_loop_get_equal_costs_and_every_sample_once():
    found = run_world(3, lambda world: seen_by_rank(world, epochs=2, cost=COSTS))
    for epoch in range(2):
        ranks = [batches[epoch] for batches, _ in found]
        assert sorted(n for batches in ranks for batch in batches for n in batch) == [
            *range(SAMPLES)
        ]
        assert {len(batches) for batches in ranks} == {count for _, count in found} == {5}
        loads = np.array([[COSTS[batch].sum() for batch in batches] for batches in ranks])
        assert (loads.max(axis=0) / loads.mean(axis=0)).max() < 1.05
    assert len({len(batch) for batches, _ in found for batch in batches[0]}) > 1


def test_bucketing_says_how_alike_the_samples_of_a_step_are():
    def spread(bucketing):
        found = run_world(2, lambda world: seen_by_rank(world, cost=COSTS, bucketing=bucketing))
        steps = zip(*(batches[0] for batches, _ in found), strict=True)
        return np.mean([COSTS[[n for batch in step for n in batch]].std() for step in steps])

    assert spread(0.0) > 2 * spread(1.0)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_step_on_unequal_shares_is_that_of_one_process_on_all_of_them(ranks, share):
    def program(world):
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        mine = []
        batches = paceline.shard(data(), BATCH, cost=COSTS, to=torch.from_numpy, world=world)
        exchange = {"share": share}
        with paceline.keep_pace(model, optimizer, exchange=exchange, world=world):
            for x, y in batches:
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                mine.append((x, y))
        return mine, weights(model)

    found = run_world(ranks, program) if ranks > 1 else [program(SoloWorld())]
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in zip(*(mine for mine, _ in found), strict=True):
        x, y = (torch.cat([batch[part] for batch in step]) for part in (0, 1))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    for _, after in found:
        np.testing.assert_allclose(after, weights(model), rtol=1e-5, atol=1e-6)


class Interrupting(Callback):
    def on_batch_end(self, trainer, step, logs):
        if step == 2:
            trainer.interrupt()


def trained(folder, ranks, rule, cost=COSTS, epochs=2, rate=0.02, momentum=0.9, **settings):
    def program(world):
        trainer = Trainer(
            build, data(), world=world, rule=rule, epochs=epochs, loss="mse", progress="off",
            optimizer={"lr": rate, "momentum": momentum}, resume="auto", run_dir=str(folder),
            data={"batch_size": BATCH, "cost": cost}, **settings,
        )  # fmt: skip
        try:
            trainer.fit()
        except Interrupted:
            return None
        return weights(trainer.replica.module).tobytes(), trainer.history

    return run_world(ranks, program)


@pytest.mark.parametrize("rule", ["bsp", "average", "diloco"])
def test_a_run_learns_from_every_sample_once(tmp_path, rule):
    _, history = trained(tmp_path, 3, rule, epochs=40, rate=0.1, momentum=0.0)[0]
    assert [record.samples for record in history] == [SAMPLES] * 40
    assert history[-1].train_loss < 0.01


@pytest.mark.parametrize("rule", ["bsp", {"name": "average", "every": 3}], ids=str)
def test_an_interrupted_run_goes_on_with_the_same_bits(tmp_path, rule):
    whole = trained(tmp_path / "whole", 2, rule)
    assert trained(tmp_path / "run", 2, rule, callbacks=[Interrupting()]) == [None, None]
    resumed = trained(tmp_path / "run", 2, rule)
    assert [found[0] for found in resumed] == [found[0] for found in whole]


def test_other_ranks_go_on_with_the_samples_that_are_left(tmp_path):
    assert trained(tmp_path, 2, "bsp", callbacks=[Interrupting()]) == [None, None]
    _, history = trained(tmp_path, 3, "bsp")[0]
    assert [record.samples for record in history] == [SAMPLES] * 2


def test_a_run_does_not_go_on_with_other_costs(tmp_path):
    assert trained(tmp_path, 2, "bsp", callbacks=[Interrupting()]) == [None, None]
    with pytest.raises(CheckpointError, match=r"costs_of_data was .*, is "):
        trained(tmp_path, 2, "bsp", cost=COSTS + 1)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"cost": COSTS[:-1]}, DataError, f"{SAMPLES - 1} numbers, and the data {SAMPLES} samples"),
        ({"cost": -COSTS}, DataError, "expected a finite number of 0 or more"),
        ({"cost": "length"}, DataError, "have the same"),
        ({"cost": {"powr": 1}}, ConfigError, "expected: length"),
        ({"bucketing": 0.5}, ConfigError, "there is no cost to split by"),
        ({"cost": COSTS, "bucketing": 2}, ConfigError, "bucketing is 2, expected 0"),
    ],
)
def test_wrong_costs_are_refused_on_all_ranks(options, error, text):
    def program(world):
        with pytest.raises(error, match=text):
            paceline.shard(data(), BATCH, world=world, **options)

    run_world(2, program)


def test_where_costs_have_no_effect_they_are_refused(tmp_path):
    stream = {"train": lambda: iter(range(9)), "cost": [1] * 9}
    with pytest.raises(ConfigError, match="a stream is split as it comes"):
        Trainer(build, loss="mse", data=stream, world=SoloWorld(), run_dir=str(tmp_path)).fit()
