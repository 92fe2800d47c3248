"""Runs whose samples are dealt, weighed, or split by what ranks can do."""

import numpy as np
import pytest
import torch
from support.line_problem import BATCH, SAMPLES, build, data, weights

from paceline import Callback
from paceline.comm import SoloWorld, run_world
from paceline.data import ArraySource, EpochRemainder
from paceline.data.sampling.split import Balance
from paceline.errors import ConfigError, DataError, Interrupted
from paceline.observe import Stopwatch
from paceline.testing import Fault, Inject
from paceline.training.loop.dealing import Dealer
from paceline.training.trainer import Trainer

COSTS = np.random.default_rng(7).lognormal(3, 0.7, SAMPLES).round()


class Recorded(ArraySource):
    """Notes which samples are taken."""

    def __init__(self, taken):
        super().__init__(*data())
        self._taken = taken

    def take(self, indices):
        self._taken.append(np.array(indices).tolist())
        return super().take(indices)


class Interrupting(Callback):
    def __init__(self, step):
        self._step = step

    def on_batch_end(self, trainer, step, logs):
        if step == self._step:
            trainer.interrupt()


def run(
    folder,
    ranks,
    rule="bsp",
    interrupt_at=None,
    nodes=None,
    epochs=2,
    callbacks=(),
    share=True,
    accumulate=1,
    **settings,
):
    """Weights (None if it was interrupted), history, and what each rank took."""
    if interrupt_at is not None:
        callbacks = [Interrupting(interrupt_at)]

    def program(world):
        if nodes == "each":
            world.node_ranks = (world.rank,)
        taken = []
        trainer = Trainer(
            build, Recorded(taken), world=world, rule=rule, epochs=epochs, loss="mse",
            progress="off", optimizer={"lr": 0.02, "momentum": 0.9}, resume="auto",
            run_dir=str(folder), callbacks=callbacks, exchange={} if share else {"share": False},
            accumulate=accumulate,
            data={"batch_size": BATCH, "prefetch": 0, **settings},
        )  # fmt: skip
        try:
            trainer.fit()
        except Interrupted:
            return None, trainer.history, taken
        return weights(trainer.replica.module), trainer.history, taken

    return run_world(ranks, program) if ranks > 1 else [program(SoloWorld())]


def samples_of(found):
    return sorted(at for _, _, taken in found for batch in taken for at in batch)


def losses(found):
    return [record.train_loss for record in found[0][1]]


DEALT = [
    {"deal": "dynamic"},
    {"deal": "dynamic", "micro_batch": 4, "cost": COSTS},
    {"deal": "dynamic", "micro_batch": 100},
]


@pytest.mark.parametrize("nodes", [None, "each"])
@pytest.mark.parametrize("dealt", DEALT, ids=["single", "longest first", "whole"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_dealt_run_takes_the_same_steps_as_a_planned_one(tmp_path, ranks, dealt, nodes):
    planned = run(tmp_path / "planned", ranks)
    found = run(tmp_path / "dealt", ranks, nodes=nodes, **dealt)
    assert samples_of(found) == sorted([*range(SAMPLES)] * 2)
    assert losses(found) == pytest.approx(losses(planned), rel=1e-4)
    np.testing.assert_allclose(found[0][0], planned[0][0], rtol=1e-4, atol=1e-5)
    assert len({after.tobytes() for after, _, _ in found}) == 1


@pytest.mark.parametrize("rule", ["average", {"name": "diloco", "every": 3}])
def test_ranks_that_train_alone_take_whole_batches(tmp_path, rule):
    found = run(tmp_path, 3, rule, deal="dynamic")
    assert samples_of(found) == sorted([*range(SAMPLES)] * 2)
    assert {len(batch) for _, _, taken in found for batch in taken} <= {BATCH, 2}  # 92 = 15 * 6 + 2
    assert [record.samples for record in found[0][1]] == [SAMPLES] * 2
    assert len({after.tobytes() for after, _, _ in found}) == 1


@pytest.mark.parametrize(
    "settings", [{"cost": COSTS, "bucketing": 0.0}, {"deal": "dynamic"}], ids=str
)
def test_accumulated_gradients_of_unequal_shares_are_those_of_larger_batches(tmp_path, settings):
    found = run(tmp_path / "small", 3, accumulate=2, **settings)
    large = run(tmp_path / "large", 1, batch_size=6 * BATCH)
    np.testing.assert_allclose(found[0][0], large[0][0], rtol=1e-4, atol=1e-5)


AVERAGE = {"name": "average", "every": 2}


@pytest.mark.parametrize("again", [3, 2])
@pytest.mark.parametrize(
    ("rule", "settings", "step"),
    [
        ("bsp", {"deal": "dynamic"}, 7),
        (AVERAGE, {"deal": "dynamic"}, 1),
        (AVERAGE, {"deal": "dynamic"}, 7),  # maybe between two epochs
        ("bsp", {"cost": COSTS, "speeds": "measured"}, 7),
        ("bsp", {"cost": "learned"}, 7),
        ("bsp", {"cost": COSTS, "tokens_per_batch": 150.0}, 7),
    ],
    ids=["dealt bsp", "dealt average", "dealt average, later", "speeds", "learned", "budget"],
)
def test_an_interrupted_run_loses_no_sample_and_takes_none_twice(
    tmp_path, rule, settings, step, again
):
    first = run(tmp_path, 3, rule, interrupt_at=step, **settings)
    assert first[0][0] is None
    second = run(tmp_path, again, rule, **settings)
    both = sorted(samples_of(first) + samples_of(second))
    assert both == sorted([*range(SAMPLES)] * 2)
    assert [record.samples for record in second[0][1]] == [SAMPLES] * 2


@pytest.mark.parametrize("dealt", [{}, {"deal": "dynamic", "micro_batch": 1}], ids=str)
def test_samples_count_by_their_weight(tmp_path, dealt):
    """In one step over everything; samples of a planned batch count alike, as their loss has it."""
    half = SAMPLES // 2
    counts = np.array([3.0] * half + [1.0] * half)
    settings = {"shuffle": False, "weight": counts, "batch_size": half, **dealt}
    found = run(tmp_path, 2, epochs=1, **settings)
    model, (x, y) = build(), map(torch.from_numpy, data())
    (torch.from_numpy(counts) * (model(x) - y)[:, 0] ** 2).sum().div(counts.sum()).backward()
    torch.optim.SGD(model.parameters(), lr=0.02).step()
    np.testing.assert_allclose(found[0][0], weights(model), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("share", [True, False])
def test_a_rank_that_becomes_slow_is_given_less_within_ten_steps(tmp_path, share):
    """Judged by samples; the delay is a hundred times what a step takes."""
    slow = Inject(Fault("delay", rank=1, step=8, seconds=0.04, steps=100))
    settings = {"speeds": "measured", "batch_size": 4}
    found = run(tmp_path, 2, callbacks=[slow], epochs=2, share=share, **settings)
    fast, slow = ([len(batch) for batch in taken] for _, _, taken in found)
    assert {a + b for a, b in zip(fast, slow, strict=True)} <= {8, 4}
    assert slow[19] < fast[19]
    assert fast[19] >= 6
    assert samples_of(found) == sorted([*range(SAMPLES)] * 2)


def test_a_rank_that_had_ended_deals_with_the_others_again(tmp_path):
    """It resumes an epoch of which nothing is left for it; numbers of the next begin alike."""
    world = SoloWorld()
    dealer = Dealer(
        world, ArraySource(np.arange(20)), by_steps=False, micro_batch=None, costs=None,
        watch=Stopwatch(), fail=lambda world, error: None,
    )  # fmt: skip
    order = {"seed": 1, "epoch": 0, "shuffle": False}
    assert dealer.begin_epoch(EpochRemainder(1, 4), 3, **order) == 5
    assert dealer.taken() == 3  # nobody has taken one since
    assert len(list(dealer.batches(3))) == 2
    assert dealer.taken() == 5
    dealer.end_epoch()
    assert dealer.taken() == 0
    dealer.begin_epoch(EpochRemainder(1, 4), 0, **order)
    assert len(list(dealer.batches(0))) == 5


def test_a_loss_that_is_not_finite_leaves_no_sample_of_a_step_uncounted(tmp_path):
    spoiled = [Inject(Fault("nan", rank=0, step=2))]
    found = run(tmp_path, 2, callbacks=spoiled, deal="dynamic", epochs=1)
    assert samples_of(found) == [*range(SAMPLES)]
    assert found[0][1][0].samples == SAMPLES


def test_learned_costs_keep_the_unit_of_a_budget(tmp_path):
    balance = Balance(COSTS, budget=200.0)
    before = balance.usual_batch_size()
    balance.learn(COSTS / COSTS.mean() + 0.5)
    assert balance.usual_batch_size() == before


def test_samples_of_varying_length_are_collated(tmp_path):
    """Padded by name, or by a function; the summary says how much of the batches was padding."""
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(n, 3)).astype(np.float32), np.float32(n)) for n in (1, 4) * 12]

    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(3, 1)

        def forward(self, x):
            return self.line(x).sum(dim=(1, 2))

    def shorten(samples):
        inputs = np.stack([x[:1] for x, _ in samples])
        return inputs, np.array([y for _, y in samples])

    def fit(collate):
        options = {"batch_size": 4, "shuffle": False, "collate": collate}
        trainer = Trainer(
            Sum, rows, world=SoloWorld(), epochs=1, loss="mse", data=options, progress="off",
            run_dir=str(tmp_path / str(collate)[:4]),
        )  # fmt: skip
        return trainer.fit().summary

    assert fit("pad")["padding"] == pytest.approx(3 / 8)
    assert "padding" not in fit(shorten)
    with pytest.raises(DataError, match="cannot be collated into a batch"):
        fit(None)
    with pytest.raises(ConfigError, match=r"data\.collate is 3, expected pad, file.py:function"):
        fit(3)


def test_a_budget_makes_steps_of_equal_cost(tmp_path):
    found = run(tmp_path, 2, epochs=1, cost=COSTS, tokens_per_batch=200.0)
    loads = [[COSTS[batch].sum() for batch in taken] for _, _, taken in found]
    assert len({len(own) for own in loads}) == 1
    assert samples_of(found) == [*range(SAMPLES)]
    assert np.mean(loads) == pytest.approx(200, rel=0.2)
    assert len({len(batch) for _, _, taken in found for batch in taken}) > 1


@pytest.mark.parametrize("rule", ["easgd", "gossip", "downpour"])
def test_asynchronous_workers_take_batches_of_equal_cost(tmp_path, rule):
    found = run(tmp_path, 3, rule, epochs=1, cost=COSTS)
    assert samples_of(found) == [*range(SAMPLES)]
    loads = [COSTS[batch].sum() for _, _, taken in found for batch in taken]
    plain = run(tmp_path / "plain", 3, rule, epochs=1)
    usual = [COSTS[batch].sum() for _, _, taken in plain for batch in taken]
    assert np.std(loads) < 0.7 * np.std(usual)


@pytest.mark.parametrize(
    ("rule", "settings", "text"),
    [
        ("easgd", {"deal": "dynamic"}, "workers of an asynchronous rule take the next batch"),
        ("easgd", {"cost": "learned"}, "numbered through the run"),
        ("gossip", {"tokens_per_batch": 9.0, "cost": COSTS}, "numbered through the run"),
        ("average", {"speeds": "measured"}, r"data\.speeds=measured is for rule bsp"),
        ("bsp", {"deal": "dynamic", "speeds": "measured"}, "for planned shares"),
        ("bsp", {"deal": "dynamic", "cost": "learned"}, "for planned shares"),
        ("average", {"deal": "dynamic", "cost": COSTS}, "ranks take whole batches"),
        ("bsp", {"deal": "dynamic", "padded": True, "cost": COSTS}, r"data\.padded is for planned"),
        ("bsp", {"micro_batch": 2}, r"data\.micro_batch is for rule bsp with data\.deal=dynamic"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(tmp_path, rule, settings, text):
    with pytest.raises(ConfigError, match=text):
        run(tmp_path, 2, rule, **settings)
