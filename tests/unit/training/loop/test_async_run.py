"""Asynchronous runs of the Trainer."""

import threading

import numpy as np
import pytest
from support.async_runs import Numbers, TakingTurns, all_of, count_through, every_rule
from support.line_problem import BATCH, SAMPLES, build, data, fit, own_loop, weights
from torch import nn

from paceline import Callback
from paceline.comm import SoloWorld, run_world
from paceline.frameworks.numpy import NumpyReplica
from paceline.observe import Stopwatch, read_events
from paceline.rules import EASGD, Downpour, Gossip
from paceline.sync.interface import Contribution
from paceline.sync.make import make_exchange
from paceline.training.trainer import Trainer


@every_rule
@pytest.mark.parametrize("prefetch", [0, 3])
def test_every_sample_is_used_once_per_epoch_and_no_message_is_left(
    tmp_path, rule, exchange, ranks, prefetch
):
    seen, result = count_through(tmp_path, rule, ranks, prefetch=prefetch, exchange=exchange)
    assert sorted(all_of(seen)) == sorted(3 * list(range(SAMPLES)))
    assert [record.epoch for record in result.history] == [1, 2, 3]
    assert sum(record.samples for record in result.history) == 3 * SAMPLES
    assert all(record.train_loss == 1.0 for record in result.history)
    servers = exchange.get("servers", 0)
    assert [bool(part) for part in seen[ranks - servers :]] == [False] * servers


@every_rule
def test_a_slow_worker_does_less_and_all_end(tmp_path, rule, exchange, ranks):
    delays = [0.001, 0.03, *[0.001] * (ranks - 2)]
    seen, _ = count_through(tmp_path, rule, ranks, epochs=4, delays=delays, exchange=exchange)
    assert sorted(all_of(seen)) == sorted(4 * list(range(SAMPLES)))
    assert 0 < len(seen[1]) < len(seen[0])


class StopAt(Callback):
    def __init__(self, step):
        self.step, self.steps = step, 0

    def on_batch_end(self, trainer, step, logs):
        self.steps += 1
        if self.steps == self.step:
            trainer.stop()


@every_rule
@pytest.mark.parametrize("who", [0, 1])
def test_any_worker_may_stop_all(tmp_path, rule, exchange, ranks, who):
    callbacks = [[StopAt(3)] if rank == who else [] for rank in range(ranks)]
    seen, result = count_through(
        tmp_path, rule, ranks, epochs=50, delays=[0.002] * ranks, callbacks=callbacks, prefetch=2,
        exchange=exchange,
    )  # fmt: skip
    assert len(all_of(seen)) < 10 * SAMPLES
    assert result.summary["stopped"] == "a callback asked for it"
    assert sum(record.samples for record in result.history) == len(all_of(seen))


def test_a_wish_to_stop_does_not_wait_for_an_exchange(tmp_path):
    callbacks = [[StopAt(3)], [], []]
    seen, _ = count_through(
        tmp_path, EASGD(every=10**6), 3, epochs=50, delays=[0.01] * 3, callbacks=callbacks
    )
    assert len(seen[0]) == 4 * BATCH  # the wish goes with the step after
    assert len(all_of(seen)) < 50 * SAMPLES / 3


def test_validation_comes_when_it_is_due(tmp_path):
    """A single worker: rank 0 sees the end of each epoch, and not of several at once."""
    _, result = count_through(
        tmp_path, EASGD(every=1), 2, epochs=8, validate_every=3, held_out=np.zeros((4, 1)),
        exchange={"servers": 1},
    )  # fmt: skip
    validated = [record.epoch for record in result.history if record.val_loss is not None]
    assert validated == [3, 6, 8]


@pytest.mark.parametrize("rule", [EASGD(every=2), Gossip()], ids=lambda rule: rule.name)
def test_a_schedule_follows_the_clock_of_the_world(tmp_path, rule):
    followed = []

    class Follow(Callback):
        def on_batch_begin(self, trainer, step):
            self.expected = 0.02 * 0.1 ** (trainer.clock.epochs // 3)

        def on_batch_end(self, trainer, step, logs):
            followed.append(trainer.replica.learning_rate == pytest.approx(self.expected))

    schedule = {"name": "step", "every": 3, "gamma": 0.1}
    result = fit(tmp_path, 2, rule, epochs=10, schedule=schedule, callbacks_of=lambda: [Follow()])
    rates = [record.learning_rate for record in result.history]
    assert rates == pytest.approx([0.02 * 0.1 ** ((epoch - 1) // 3) for epoch in range(1, 11)])
    assert all(followed)
    assert len(followed) == 10 * -(-SAMPLES // BATCH)


@every_rule
def test_a_target_ends_the_run(tmp_path, rule, exchange, ranks):
    seen, result = count_through(
        tmp_path, rule, ranks, epochs=60, delays=[0.001] * ranks, stop={"target": "train_loss<=1"},
        exchange=exchange,
    )  # fmt: skip
    assert result.summary["stopped"].startswith("target reached: train_loss is 1.0000")
    assert len(all_of(seen)) < 30 * SAMPLES


@every_rule
def test_training_converges_and_all_ranks_have_the_result(tmp_path, rule, exchange, ranks):
    """`fit` compares the ranks."""
    in_turns = TakingTurns(ranks - exchange.get("servers", 0))
    result = fit(
        tmp_path, ranks, rule, epochs=40, momentum=0.0, exchange=exchange, callbacks=[in_turns]
    )
    assert weights(result.model) == pytest.approx([1.0, -2.0, 0.5, 0.0], abs=0.25)
    assert result.history[-1].train_loss < 0.1


@every_rule
def test_an_own_loop_does_the_same(rule, exchange, ranks):
    found = own_loop(rule, ranks, epochs=40, momentum=0.0, begin_together=True, exchange=exchange)
    assert found == pytest.approx([1.0, -2.0, 0.5, 0.0], abs=0.25)


@pytest.mark.parametrize("rule", [EASGD(), EASGD(synchronous=True), Gossip()], ids=str)
def test_a_rank_alone_is_plain_training_bit_for_bit(tmp_path, rule):
    plain, alone = (fit(tmp_path, 1, r).model for r in ("bsp", rule))
    assert weights(alone).tobytes() == weights(plain).tobytes()


def test_validation_does_not_stop_the_workers(tmp_path):
    """Rank 0's first validation ends only when the other worker has taken 20 steps meanwhile."""

    class Slow(Callback):
        def on_validation_end(self, trainer, logs):
            if trainer.world.rank == 0 and not validating.is_set():
                validating.set()
                ended_meanwhile.append(enough.wait(60))

        def on_batch_end(self, trainer, step, logs):
            if trainer.world.rank == 1 and validating.is_set():
                steps.append(step)
                if len(steps) == 20:
                    enough.set()

    validating, enough = threading.Event(), threading.Event()
    steps, ended_meanwhile = [], []
    callbacks = [[Slow()], [Slow()]]
    count_through(tmp_path, EASGD(every=1), 2, 12, callbacks=callbacks, held_out=np.zeros((4, 1)))
    assert ended_meanwhile == [True]


def test_the_validated_model_is_the_centre(tmp_path):
    """Midway the only worker validates the centre, and then trains on from where it was."""

    class Look(Callback):
        def on_validation_end(self, trainer, logs):
            if trainer.world.rank == 0:
                own = trainer.replica.parameters().copy()
                seen.append((trainer._exchange.common_weights().copy(), own, logs["val_loss"]))

    seen = []

    def program(world):
        return Trainer(
            build, data(), data(), world=world, rule=EASGD(every=3, force=0.2),
            exchange={"servers": 1}, epochs=3, loss="mse", progress="off", callbacks=[Look()],
            optimizer={"lr": 0.02}, data={"batch_size": BATCH}, run_dir=str(tmp_path / "run"),
        ).fit()  # fmt: skip

    result = run_world(2, program)[0]
    assert len(seen) == len(result.history) == 3
    inputs, targets = data()
    for centre, own, val_loss in seen:
        line, offset = centre[:3, None], centre[16]
        assert np.mean((inputs @ line + offset - targets) ** 2) == pytest.approx(val_loss, rel=1e-4)
        if centre is not seen[-1][0]:
            assert np.abs(own - centre).max() > 1e-3
    last = seen[-1][0]
    assert weights(result.model) == pytest.approx([*last[:3], last[16]])


@every_rule
def test_exchanges_leave_their_events(tmp_path, rule, exchange, ranks):
    result = fit(tmp_path, ranks, rule, epochs=4, exchange=exchange)
    events = read_events(tmp_path / "run0" / "events")
    servers = exchange.get("servers", 0)
    tallies = {event["rank"]: event for event in events if event["event"] == "exchanges"}
    assert sorted(tallies) == list(range(ranks - servers))
    for rank, exchange_stats in tallies.items():
        assert result.summary["exchanges"][rank]["staleness"] == exchange_stats["staleness"]
        exchanges = [e for e in events if e["event"] == "exchange" and e["rank"] == rank]
        assert exchange_stats["exchanges"] == len(exchanges)
        stale = [event["staleness"] for event in exchanges if event.get("staleness") is not None]
        assert exchange_stats["staleness"] == {
            str(age): stale.count(age) for age in sorted(set(stale))
        }
    exchanges = [event for event in events if event["event"] == "exchange"]
    if rule.name != "gossip":
        far = [event["distance"] for event in exchanges if event["distance"] is not None]
        assert far
        assert max(far) > 0
    sent = sum(event["bytes"] for event in exchanges)
    assert (sent == 0) == (rule.name != "gossip" and not servers)


def test_alone_nothing_is_shared():
    replica = NumpyReplica({"w": np.zeros(40)}, lambda arrays, batch: (0.0, arrays))
    assert not make_exchange(SoloWorld(), replica, EASGD()).asynchronous
    assert make_exchange(SoloWorld(), replica, Downpour()).asynchronous


@pytest.mark.parametrize("seed", range(12))
def test_short_epochs_have_their_records(tmp_path, seed):
    """Epochs of a few samples pass while rank 0 looks away; each still has a record of its size."""
    chance = np.random.default_rng(seed)
    samples, ranks = int(chance.integers(3, 40)), int(chance.integers(2, 4))
    epochs, every = int(chance.integers(1, 7)), int(chance.integers(1, 4))
    numbers = np.arange(samples, dtype=np.float64)[:, None]
    delays, batch = chance.uniform(0, 0.004, ranks), int(chance.integers(1, 9))

    def program(world):
        model = Numbers(delays[world.rank])
        return Trainer(
            model.build, numbers, numbers[:3], world=world, rule=EASGD(every=every),
            epochs=epochs, progress="off", run_dir=str(tmp_path / "run"),
            data={"batch_size": batch},
        ).fit()  # fmt: skip

    history = run_world(ranks, program)[0].history
    assert [record.epoch for record in history] == list(range(1, epochs + 1))
    assert [record.samples for record in history] == [samples] * epochs
    assert history[-1].val_loss is not None


class StopAfterEpoch(Callback):
    def on_epoch_end(self, trainer, epoch, logs):
        trainer.stop()


@pytest.mark.parametrize("rule", [EASGD(every=1), Downpour(), Gossip()], ids=lambda r: r.name)
def test_a_run_that_is_stopped_still_tells_what_it_reached(tmp_path, rule):
    _, result = count_through(
        tmp_path, rule, 2, epochs=9, delays=[0.001] * 2, callbacks=[[StopAfterEpoch()], []],
        validate_every=5, held_out=np.zeros((4, 1)),
    )  # fmt: skip
    assert len(result.history) < 9
    assert result.history[-1].val_loss is not None
    assert result.summary["val_loss"] is not None


def test_a_validation_is_not_missed_when_epochs_pass_in_jumps(tmp_path):
    _, result = count_through(
        tmp_path, EASGD(every=1), 2, 24, [0.03, 0.0005], validate_every=2,
        held_out=np.zeros((4, 1)),
    )  # fmt: skip
    assert sum(record.val_loss is not None for record in result.history) >= 3


@pytest.mark.parametrize(
    "rule",
    [EASGD(every=100), Downpour(push_every=20, pull_every=20), Gossip()],
    ids=lambda r: r.name,
)
def test_a_warmup_rises_from_the_first_step_on(tmp_path, rule):
    class Rates(Callback):
        def on_batch_begin(self, trainer, step):
            self.rates = [*getattr(self, "rates", []), trainer.replica.learning_rate]

    watching = [Rates(), Rates()]
    count_through(
        tmp_path, rule, 2, epochs=2, delays=[0.001] * 2, callbacks=[[w] for w in watching],
        schedule={"warmup": 1},
    )  # fmt: skip
    for rates in (w.rates for w in watching):
        assert sum(rate == 0.0 for rate in rates) <= 2  # seen before the first step sets it
        assert len({*rates[:8]}) > 4


def test_a_last_sample_is_not_left_alone(tmp_path):
    """Batch normalisation cannot train on one sample."""
    inputs = np.random.default_rng(0).normal(size=(65, 3)).astype(np.float32)

    def net():
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def program(world):
        return Trainer(
            net, (inputs, inputs[:, :1]), world=world, rule=EASGD(every=2), epochs=2, loss="mse",
            progress="off", data={"batch_size": 16}, run_dir=str(tmp_path / "run"),
        ).fit()  # fmt: skip

    assert run_world(3, program)[0].history[-1].samples == 65


def test_the_time_split_of_a_record_is_within_its_seconds(tmp_path):
    for exchange, ranks in (({}, 2), ({"servers": 1}, 3)):
        _, result = count_through(
            tmp_path / str(ranks), EASGD(every=2), ranks, epochs=4, exchange=exchange,
            delays=[0.005] * ranks, held_out=np.zeros((4, 1)),
        )  # fmt: skip
        for record in result.history:
            assert record.time.total < record.seconds * 1.1 + 0.05


def test_a_slow_worker_does_not_hoard_batches(tmp_path):
    delays = [0.001, 0.001, 0.03]
    seen, _ = count_through(tmp_path, EASGD(every=1000), 3, epochs=6, delays=delays)
    assert len(seen[2]) <= 19 * BATCH


def test_gossip_keeps_a_weight_that_has_become_tiny():
    def program(world):
        replica = NumpyReplica({"w": np.zeros(4)}, lambda arrays, batch: (0.0, arrays))
        exchange = make_exchange(world, replica, Gossip(probability=1.0))
        if world.rank == 0:
            exchange._weight = 2.0**-101
            exchange.after_step(Contribution(1, 1.0, more=True), Stopwatch())
        sent = exchange.exchanges
        exchange.leave(Stopwatch())
        return sent

    assert run_world(2, program)[0] == 0
