"""Runs of the Trainer whose workers go at their own pace."""

import threading
import time
from itertools import chain

import numpy as np
import pytest
import torch
from torch import nn
from training_of_a_line import BATCH, SAMPLES, build, data, fit, own_loop, weights

from paceline import Callback, keep_pace, shard
from paceline.comm import SoloWorld, current_world, run_world
from paceline.errors import ConfigError, DataError, TrainingError, WorldError
from paceline.frameworks.numpy import NumpyReplica
from paceline.observe import Stopwatch, read_events
from paceline.rules import EASGD, Downpour, Gossip
from paceline.training.centre.node import NodeCentre
from paceline.training.centre.sides import Parcel
from paceline.training.exchange import Frame, Part, make_exchange
from paceline.training.trainer import Trainer

RULES = {
    "easgd": (EASGD(every=2), 3),
    "easgd with a server": (EASGD(every=2, servers=1), 4),
    "easgd with two servers": (EASGD(every=2, servers=2), 5),
    "easgd overlapped": (EASGD(every=2, overlap=True), 3),
    "easgd overlapped, with a server": (EASGD(every=2, overlap=True, servers=1), 4),
    "downpour": (Downpour(push_every=2, pull_every=3, staleness="dynsgd"), 3),
    "downpour with a server": (Downpour(servers=1, staleness="agn"), 4),
    "gossip": (Gossip(probability=0.5), 3),
}
every_rule = pytest.mark.parametrize(("rule", "ranks"), RULES.values(), ids=RULES)


class Numbers:
    """A model that trains nothing and remembers which samples it has seen."""

    def __init__(self, delay_s=0.0):
        self.seen, self._delay_s = [], delay_s

    def build(self):
        return NumpyReplica({"w": np.zeros(40)}, self._loss)

    def _loss(self, arrays, batch):
        self.seen += batch.inputs[:, 0].astype(int).tolist()
        time.sleep(self._delay_s)
        return 1.0, {"w": np.ones(40)}


def count_through(
    tmp_path, rule, ranks, epochs=3, delays=None, callbacks=None, prefetch=0, held_out=None,
    **settings,
):  # fmt: skip
    """A run over numbered samples: what each rank saw, and the result."""
    numbers = np.arange(SAMPLES, dtype=np.float64)[:, None]
    delays, callbacks = delays or [0.0] * ranks, callbacks or [()] * ranks

    def program(world):
        model = Numbers(delays[world.rank])
        result = Trainer(
            model.build, numbers, held_out, world=world, rule=rule, epochs=epochs, progress="off",
            callbacks=callbacks[world.rank], run_dir=str(tmp_path / "run"),
            data={"batch_size": BATCH, "prefetch": prefetch}, **settings,
        ).fit()  # fmt: skip
        return model.seen, result, world._hub.mail

    found = run_world(ranks, program)
    ours = [t.name for t in threading.enumerate() if t.name.startswith("paceline-")]
    assert ours == [], "a thread was left behind"
    for box in found[0][2]:
        assert box._letters == [], "a message was left unreceived"
        assert box._expected == [], "a receive was left waiting"
    return [seen for seen, _, _ in found], found[0][1]


def all_of(seen):
    return list(chain.from_iterable(seen))


@every_rule
@pytest.mark.parametrize("prefetch", [0, 3])
def test_every_sample_is_used_once_per_epoch_and_no_message_is_left(
    tmp_path, rule, ranks, prefetch
):
    seen, result = count_through(tmp_path, rule, ranks, prefetch=prefetch)
    assert sorted(all_of(seen)) == sorted(3 * list(range(SAMPLES)))
    assert [record.epoch for record in result.history] == [1, 2, 3]
    assert sum(record.samples for record in result.history) == 3 * SAMPLES
    assert all(record.train_loss == 1.0 for record in result.history)
    servers = getattr(rule, "servers", None) or 0
    assert [bool(part) for part in seen[ranks - servers :]] == [False] * servers


@every_rule
def test_a_slow_worker_does_less_and_all_end(tmp_path, rule, ranks):
    delays = [0.001, 0.03, *[0.001] * (ranks - 2)]
    seen, _ = count_through(tmp_path, rule, ranks, epochs=4, delays=delays)
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
def test_any_worker_may_stop_all(tmp_path, rule, ranks, who):
    callbacks = [[StopAt(3)] if rank == who else [] for rank in range(ranks)]
    seen, result = count_through(
        tmp_path, rule, ranks, epochs=50, delays=[0.002] * ranks, callbacks=callbacks, prefetch=2
    )
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
    numbers = np.zeros((4, 1))
    _, result = count_through(
        tmp_path,
        EASGD(every=1),
        2,
        epochs=8,
        delays=[0.001] * 2,
        validate_every=3,
        held_out=numbers,
    )
    validated = {record.epoch for record in result.history if record.val_loss is not None}
    assert {8} < validated <= {3, 6, 8}


@pytest.mark.parametrize("rule", [EASGD(every=2), Gossip()], ids=lambda rule: rule.name)
def test_a_schedule_follows_the_clock_of_the_world(tmp_path, rule):
    result = fit(tmp_path, 2, rule, epochs=10, schedule={"name": "step", "every": 3, "gamma": 0.1})
    rates = [record.learning_rate for record in result.history]
    assert rates[-1] == pytest.approx(0.02 * 0.1**3, rel=0.01)
    assert sorted(rates, reverse=True) == rates


@every_rule
def test_a_target_ends_the_run(tmp_path, rule, ranks):
    seen, result = count_through(
        tmp_path, rule, ranks, epochs=60, delays=[0.001] * ranks, stop={"target": "train_loss<=1"}
    )
    assert result.summary["stopped"].startswith("target reached: train_loss is 1.0000")
    assert len(all_of(seen)) < 30 * SAMPLES


@every_rule
def test_training_converges_and_all_ranks_have_the_result(tmp_path, rule, ranks):
    result = fit(tmp_path, ranks, rule, epochs=40, momentum=0.0)  # compares the ranks
    assert weights(result.model) == pytest.approx([1.0, -2.0, 0.5, 0.0], abs=0.25)
    assert result.history[-1].train_loss < 0.1


@every_rule
def test_an_own_loop_does_the_same(rule, ranks):
    found = own_loop(rule, ranks, epochs=40, momentum=0.0)
    assert found == pytest.approx([1.0, -2.0, 0.5, 0.0], abs=0.25)


@pytest.mark.parametrize("rule", [EASGD(), EASGD(synchronous=True), Gossip()], ids=str)
def test_a_rank_alone_is_plain_training_bit_for_bit(tmp_path, rule):
    plain, alone = (fit(tmp_path, 1, r).model for r in ("bsp", rule))
    assert weights(alone).tobytes() == weights(plain).tobytes()


@pytest.mark.parametrize("synchronous", [False, True])
def test_a_rank_alone_with_downpour_is_plain_training_but_for_rounding(tmp_path, synchronous):
    plain = fit(tmp_path, 1, "bsp").model
    for often in (1, 5):
        rule = Downpour(push_every=often, pull_every=often, synchronous=synchronous)
        assert weights(fit(tmp_path, 1, rule).model) == pytest.approx(weights(plain), rel=1e-5)


def test_validation_does_not_stop_the_workers(tmp_path):
    """Rank 0 takes half a second to validate; the other worker's steps go on meanwhile."""

    class Slow(Callback):
        def on_validation_end(self, trainer, logs):
            if len(trainer.history) < 1:
                began = time.time()
                time.sleep(0.5)
                spans.append((began, time.time()))

    spans = []
    model_delay = 0.005

    def program(world):
        model = Numbers(model_delay)
        numbers = np.arange(SAMPLES, dtype=np.float64)[:, None]
        return Trainer(
            model.build, numbers, numbers[:4], world=world, rule=EASGD(every=1), epochs=12,
            progress="off", callbacks=[Slow()], data={"batch_size": BATCH},
            run_dir=str(tmp_path / "run"),
        ).fit()  # fmt: skip

    run_world(2, program)
    begin, end = spans[0]
    events = read_events(tmp_path / "run" / "events")
    meanwhile = [e for e in events if e["event"] == "step" and begin < e["time"] < end]
    assert {event["rank"] for event in meanwhile} == {1}
    assert len(meanwhile) > 8


def test_the_validated_model_is_the_centre(tmp_path):
    """Midway the only worker validates the centre, and then trains on from where it was."""

    class Look(Callback):
        def on_validation_end(self, trainer, logs):
            if trainer.world.rank == 0:
                own = trainer.replica.parameters().copy()
                seen.append((trainer._exchange.centre().copy(), own, logs["val_loss"]))

    seen = []

    def program(world):
        return Trainer(
            build, data(), data(), world=world, rule=EASGD(every=3, force=0.2, servers=1),
            epochs=3, loss="mse", progress="off", callbacks=[Look()], optimizer={"lr": 0.02},
            data={"batch_size": BATCH}, run_dir=str(tmp_path / "run"),
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
def test_exchanges_leave_their_events(tmp_path, rule, ranks):
    result = fit(tmp_path, ranks, rule, epochs=4)
    events = read_events(tmp_path / "run0" / "events")
    workers = ranks - (getattr(rule, "servers", None) or 0)
    tallies = {event["rank"]: event for event in events if event["event"] == "exchanges"}
    assert sorted(tallies) == list(range(workers))
    for rank, tally in tallies.items():
        assert result.summary["exchanges"][rank]["staleness"] == tally["staleness"]
        exchanges = [e for e in events if e["event"] == "exchange" and e["rank"] == rank]
        assert tally["exchanges"] == len(exchanges)
        stale = [event["staleness"] for event in exchanges if event.get("staleness") is not None]
        assert tally["staleness"] == {str(age): stale.count(age) for age in sorted(set(stale))}
    exchanges = [event for event in events if event["event"] == "exchange"]
    if rule.name != "gossip":
        far = [event["distance"] for event in exchanges if event["distance"] is not None]
        assert far
        assert max(far) > 0
    sent = sum(event["bytes"] for event in exchanges)
    assert (sent == 0) == (rule.name != "gossip" and not rule.servers)


def test_bytes_are_counted_there_and_back(tmp_path):
    """8 parameters and gaps make a vector of 32 float32, 128 bytes; a head has 128 bytes, too."""
    fit(tmp_path, 2, EASGD(every=1, servers=1), epochs=1)
    events = read_events(tmp_path / "run0" / "events")
    exchange = next(event for event in events if event["event"] == "exchange")
    assert exchange["bytes"] == 128 + 128 + 128


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("rule", [EASGD(every=1), Downpour()], ids=lambda rule: rule.name)
def test_wires_round_and_shrink(tmp_path, rule, servers):
    settings = {key: value for key, value in vars(rule).items() if key not in ("servers", "wire")}

    def run(wire):
        folder = tmp_path / wire
        folder.mkdir()
        result = fit(
            folder, servers + 1, type(rule)(**settings, servers=servers, wire=wire), epochs=8
        )
        events = read_events(folder / "run0" / "events")
        return weights(result.model), sum(e["bytes"] for e in events if e["event"] == "exchange")

    exact, most = run("float32")  # a single worker: the order is given
    for wire, closeness in (("bfloat16", 2e-2), ("float16", 5e-3), ("int8", 5e-2)):
        near, sent = run(wire)
        assert near == pytest.approx(exact, rel=closeness, abs=closeness)
        assert near.tobytes() != exact.tobytes()
        assert sent < most


def test_gossip_in_a_wire_format(tmp_path):
    exact, near = (
        fit(tmp_path, 2, Gossip(probability=1.0, wire=wire), epochs=80, momentum=0.0)
        for wire in ("float32", "int8")
    )
    assert weights(near.model) == pytest.approx(weights(exact.model), abs=0.1)


def test_a_wire_without_anything_sent_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing is sent\. Leave it out, or set rule.servers=1"):
        fit(tmp_path, 2, EASGD(wire="int8"))


def test_a_force_that_swaps_replica_and_centre_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="the elastic force is 1 for 1 worker, expected less"):
        fit(tmp_path, 2, EASGD(beta=1.0, servers=1))


def test_an_own_loop_says_where_the_centre_lies(caplog):
    with caplog.at_level("INFO", logger="paceline"):
        own_loop(EASGD(every=2), ranks=2)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["rule easgd: the centre lies in the node's memory (all ranks share it)"]


def test_a_stream_is_refused(tmp_path):
    def samples():
        yield from zip(*data(), strict=True)

    with pytest.raises(DataError, match="a stream cannot be dealt"):
        run_world(
            2,
            lambda world: Trainer(
                build, samples, world=world, rule="easgd", loss="mse", run_dir=str(tmp_path / "r")
            ).fit(),
        )


def test_a_server_does_not_train_in_an_own_loop():
    def program(world):
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with keep_pace(model, optimizer, rule=EASGD(servers=1)) as pace:
            batches = shard(data(), BATCH)
            assert len(list(batches)) == (world.rank in pace.workers) * len(batches)
            if world.rank == 1:
                optimizer.step()

    with pytest.raises(TrainingError, match=r"rank 1 is a server by rule.servers and does not"):
        run_world(2, program)


def test_two_models_have_a_centre_each():
    def program(world):
        first, second = build(), build()
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (first, second)]
        with (
            keep_pace(first, optimizers[0], rule=EASGD(every=1, servers=1)),
            keep_pace(second, optimizers[1], rule=Downpour(servers=1)),
        ):
            batches = shard(data(), BATCH, to=torch.from_numpy)
            for x, y in (pair for _ in range(6) for pair in batches):
                for model, optimizer, sign in zip(
                    (first, second), optimizers, (1, -1), strict=True
                ):
                    optimizer.zero_grad()
                    nn.functional.mse_loss(model(x), sign * y).backward()
                    optimizer.step()
        return weights(first), weights(second)

    for first, second in run_world(3, program):
        assert first[:3] == pytest.approx([1.0, -2.0, 0.5], abs=0.5)
        assert second[:3] == pytest.approx([-1.0, 2.0, -0.5], abs=0.5)


def test_statistics_of_servers_do_not_count(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(3, 1)
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x):
            if self.training:
                self.seen.fill_(6.0 * current_world.get().rank)
            return self.line(x)

    def program(world):
        return Trainer(
            Net, data(), world=world, rule=EASGD(servers=1), epochs=1, loss="mse", progress="off",
            data={"batch_size": BATCH}, run_dir=str(tmp_path / "run"),
        ).fit()  # fmt: skip

    for result in run_world(3, program):
        assert result.model.seen.item() == 3.0


def test_an_overlapped_exchange_keeps_what_the_worker_did_meanwhile():
    for rule, centre, expected in (
        (EASGD(force=0.25), 0.0, 4.0 - 0.25 * 4.0 + 1.0),
        (Downpour(), 10.0, 10.0 + 1.0),
    ):
        x = np.array([4.0])
        state = rule.begin_worker(x)
        parcel, terms = Parcel(rule, x, state), rule.terms(1, 1, 2)
        parcel.pack(push=True, terms=terms)
        x += 1.0  # the worker goes on
        sent, c = np.empty(1), np.array([centre])
        parcel.give(slice(0, 1), terms, sent)
        rule.absorb(sent, c, rule.begin_centre(1, np.float64), terms)
        parcel.take(slice(0, 1), sent if rule.answers == "move" else c)
        parcel.unpack()
        assert x.tolist() == [expected]
        if rule.name == "downpour":  # and the step taken meanwhile will be pushed
            rule.outgoing(x, state, terms, sent)
            assert sent.tolist() == [-1.0]


def test_an_overlapped_push_without_a_pull_moves_nothing_here():
    rule, x = Downpour(), np.array([4.0])
    parcel, terms = Parcel(rule, x, rule.begin_worker(x)), rule.terms(1, 1, 2)
    parcel.pack(push=True, terms=terms)
    parcel.take(slice(0, 1), np.array([7.0]))
    parcel.unpack()
    assert x.tolist() == [7.0]
    x[:] = 1.0
    parcel.pack(push=True, terms=terms)  # no answer comes
    parcel.unpack()
    assert x.tolist() == [1.0]


@pytest.mark.parametrize("overlap", [False, True])
def test_overlap_goes_on_computing_while_an_exchange_travels(monkeypatch, overlap):
    meet = NodeCentre.meet

    def slow(self, *arguments):
        time.sleep(0.5)
        return meet(self, *arguments)

    monkeypatch.setattr(NodeCentre, "meet", slow)

    def program(world):
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        began = time.perf_counter()
        with keep_pace(model, optimizer, rule=EASGD(every=4, overlap=overlap)):
            for _ in range(7):  # one exchange after the fourth step, one at the end
                for parameter in model.parameters():
                    parameter.grad = torch.ones_like(parameter)
                optimizer.step()
            return time.perf_counter() - began

    quickest = min(run_world(2, program))
    assert (quickest < 0.4) == overlap


@pytest.mark.parametrize("kind", [ZeroDivisionError, WorldError])
def test_a_server_that_fails_ends_the_run(tmp_path, monkeypatch, capsys, kind):
    def broken(self, sent, centre, state, terms):
        raise kind("the centre is unwell")

    monkeypatch.setattr(EASGD, "absorb", broken)
    began = time.monotonic()
    with pytest.raises(WorldError, match="rank 2 aborted the world"):
        fit(tmp_path, 3, EASGD(servers=1, every=1))
    assert time.monotonic() - began < 10
    assert "the centre is unwell" in capsys.readouterr().err


def test_a_worker_that_fails_ends_the_others(tmp_path):
    class Unwell(Callback):
        def on_batch_end(self, trainer, step, logs):
            if trainer.world.rank == 1:
                raise ZeroDivisionError("worker one is unwell")

    began = time.monotonic()
    for name, (rule, ranks) in RULES.items():
        with pytest.raises(ZeroDivisionError, match="worker one"):
            count_through(tmp_path / name, rule, ranks, callbacks=[[Unwell()]] * ranks)
    assert time.monotonic() - began < 20


def test_too_little_node_memory_puts_the_centre_on_the_workers(tmp_path, monkeypatch):
    def program(world):
        def none_left(nbytes, locks=1):
            raise WorldError("7 bytes are free")

        monkeypatch.setattr(world, "node_memory", none_left)
        replica = NumpyReplica({"w": np.zeros(40)}, lambda arrays, batch: (0.0, arrays))
        exchange = make_exchange(world, replica, EASGD(every=1))
        with pytest.raises(WorldError, match="7 bytes"):
            make_exchange(world, replica, EASGD(servers=0), Frame(number=1))
        exchange.leave(Stopwatch())
        return exchange.describe()

    for words in run_world(3, program):
        assert words.startswith("each worker holds a piece of the centre (the node's memory is too")


def test_alone_nothing_is_shared():
    replica = NumpyReplica({"w": np.zeros(40)}, lambda arrays, batch: (0.0, arrays))
    assert not make_exchange(SoloWorld(), replica, EASGD()).free
    assert make_exchange(SoloWorld(), replica, Downpour()).free


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


def test_a_run_that_failed_does_not_disturb_the_next(tmp_path):
    def program(world):
        class Unwell(Callback):
            def on_train_begin(self, trainer):
                raise ZeroDivisionError

        def run(name, rule=EASGD(every=1, servers=1), **settings):  # noqa: B008
            return Trainer(
                build, data(), world=world, rule=rule, epochs=3, loss="mse",
                progress="off", run_dir=str(tmp_path / name), **settings,
            ).fit()  # fmt: skip

        with pytest.raises(ZeroDivisionError):
            run("first", callbacks=[Unwell()])
        with pytest.raises(ConfigError, match="elastic force"):
            run("second", EASGD(beta=1.0, servers=1))
        return len(run("third").history)

    assert run_world(2, program) == [3, 3]


def test_a_loop_that_failed_serves_nobody():
    def program(world):
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with (
            pytest.raises(ZeroDivisionError),
            keep_pace(model, optimizer, rule=EASGD(servers=1)),
        ):
            raise ZeroDivisionError
        world.barrier()
        return [t.name for t in threading.enumerate() if t.name == "paceline-host"]

    assert run_world(2, program) == [[], []]


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


@pytest.mark.parametrize("overlap", [False, True])
def test_rounding_of_a_model_is_not_pushed(overlap):
    """A model in bfloat16 cannot hold what the centre holds; nobody trains, so nothing may move."""

    def program(world):
        model = nn.Linear(40, 40, bias=False).to(torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        rule = Downpour(overlap=overlap, server_optimizer={"name": "sgd", "lr": 0.3})
        with keep_pace(model, optimizer, rule=rule) as pace:
            start = pace._exchange.centre().copy()
            world.barrier()
            for step in range(40):
                for parameter in model.parameters():
                    parameter.grad = torch.full_like(parameter, 0.01 if step == 0 else 0.0)
                optimizer.step()
            world.barrier()
            return start, pace._exchange.centre().copy()

    for start, end in run_world(3, program):
        assert np.abs(end - start).max() < 0.02  # three pushes of 0.3 * 0.01, and their rounding


def test_the_time_split_of_a_record_is_within_its_seconds(tmp_path):
    for servers, ranks in ((None, 2), (1, 3)):
        _, result = count_through(
            tmp_path / str(servers), EASGD(every=2, servers=servers), ranks, epochs=4,
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
            exchange.after_step(Part(1, 1.0, more=True), Stopwatch())
        sent = exchange.exchanges
        exchange.leave(Stopwatch())
        return sent

    assert run_world(2, program)[0] == 0


@pytest.mark.parametrize("rule", [EASGD(servers=5), Downpour(servers=1)], ids=lambda r: r.name)
def test_servers_need_ranks(tmp_path, rule):
    with pytest.raises(ConfigError, match="so none is left to train"):
        fit(tmp_path, 1, rule)


@pytest.mark.parametrize("rule", ["average", EASGD(every=1), Gossip(probability=1.0)], ids=str)
def test_a_parameter_that_was_frozen_stays_so(rule):
    def program(world):
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with keep_pace(model, optimizer, rule=rule):
            model[0].requires_grad_(True)
            for x, y in shard(data(), BATCH, to=torch.from_numpy):
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()

    with pytest.raises(TrainingError, match="was frozen when training began"):
        run_world(2, program)
