"""Exchanges of asynchronous rules: overlap, wires, refusals, failures."""

import threading
import time

import numpy as np
import pytest
import torch
from support.async_runs import RULES, count_through
from support.line_problem import BATCH, build, data, fit, own_loop, weights
from torch import nn

from paceline import Callback, keep_pace, shard
from paceline.comm import current_world, run_world
from paceline.errors import ConfigError, DataError, TrainingError, WorldError
from paceline.frameworks.numpy import NumpyReplica
from paceline.observe import Stopwatch, read_events
from paceline.rules import EASGD, Downpour, Gossip
from paceline.sync.make import make_exchange
from paceline.sync.parameter_server.node_centre import NodeCentre
from paceline.sync.parameter_server.packets import EXCHANGE, EXCHANGE_SHARD
from paceline.sync.parameter_server.shard_server import ShardServer
from paceline.sync.parameter_server.worker_port import BufferedPort
from paceline.sync.settings import ExchangeContext, ExchangeSettings
from paceline.training.trainer import Trainer


@pytest.mark.parametrize("synchronous", [False, True])
def test_a_rank_alone_with_downpour_is_plain_training_but_for_rounding(tmp_path, synchronous):
    plain = fit(tmp_path, 1, "bsp").model
    for often in (1, 5):
        rule = Downpour(push_every=often, pull_every=often, synchronous=synchronous)
        assert weights(fit(tmp_path, 1, rule).model) == pytest.approx(weights(plain), rel=1e-5)


def test_bytes_are_counted_there_and_back(tmp_path):
    """8 parameters and gaps make a vector of 32 float32, 128 bytes; a head has 192."""
    fit(tmp_path, 2, EASGD(every=1), epochs=1, exchange={"servers": 1})
    events = read_events(tmp_path / "run0" / "events")
    exchange = next(event for event in events if event["event"] == "exchange")
    assert exchange["bytes"] == 192 + 128 + 128


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("rule", [EASGD(every=1), Downpour()], ids=lambda rule: rule.name)
def test_wires_round_and_shrink(tmp_path, rule, servers):
    def run(wire):
        folder = tmp_path / wire
        folder.mkdir()
        exchange = {"servers": servers, "wire": wire}
        result = fit(folder, servers + 1, rule, epochs=8, exchange=exchange)
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
        fit(tmp_path, 2, Gossip(probability=1.0), epochs=80, momentum=0.0, exchange={"wire": wire})
        for wire in ("float32", "int8")
    )
    assert weights(near.model) == pytest.approx(weights(exact.model), abs=0.1)


def test_a_wire_without_anything_sent_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing is sent\. Omit it, or set exchange.servers=1"):
        fit(tmp_path, 2, EASGD(), exchange={"wire": "int8"})


def test_a_force_that_swaps_replica_and_centre_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="the elastic force is 1 for 1 worker, expected less"):
        fit(tmp_path, 2, EASGD(beta=1.0), exchange={"servers": 1})


def test_an_own_loop_says_where_the_centre_lies(caplog):
    with caplog.at_level("INFO", logger="paceline"):
        own_loop(EASGD(every=2), ranks=2)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["rule easgd: the centre lies in the node's memory (all ranks share it)"]


def test_a_stream_is_refused(tmp_path):
    def samples():
        yield from zip(*data(), strict=True)

    with pytest.raises(DataError, match="a stream cannot be split among"):
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
        with keep_pace(model, optimizer, "easgd", exchange={"servers": 1}) as pace:
            batches = shard(data(), BATCH)
            assert len(list(batches)) == (world.rank in pace.workers) * len(batches)
            if world.rank == 1:
                optimizer.step()

    with pytest.raises(TrainingError, match=r"rank 1 is a server by exchange.servers and does"):
        run_world(2, program)


def test_two_models_have_a_centre_each():
    def program(world):
        first, second = build(), build()
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (first, second)]
        with (
            keep_pace(first, optimizers[0], EASGD(every=1), exchange={"servers": 1}),
            keep_pace(second, optimizers[1], Downpour(), exchange={"servers": 1}),
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
            Net, data(), world=world, rule=EASGD(), epochs=1, loss="mse", progress="off",
            exchange={"servers": 1}, data={"batch_size": BATCH}, run_dir=str(tmp_path / "run"),
        ).fit()  # fmt: skip

    for result in run_world(3, program):
        assert result.model.seen.item() == 3.0


def test_an_overlapped_exchange_keeps_what_the_worker_did_meanwhile():
    for rule, centre, expected in (
        (EASGD(force=0.25), 0.0, 4.0 - 0.25 * 4.0 + 1.0),
        (Downpour(), 10.0, 10.0 + 1.0),
    ):
        x = np.array([4.0])
        state = rule.init_worker(x)
        parcel, terms = BufferedPort(rule, x, state), rule.terms(1, 1, 2)
        parcel.pack(push=True, terms=terms)
        x += 1.0  # the worker goes on
        sent, c = np.empty(1), np.array([centre])
        parcel.write_push(slice(0, 1), terms, sent)
        rule.absorb(sent, c, rule.init_centre(1, np.float64), terms)
        parcel.accept_reply(slice(0, 1), sent if rule.reply_kind == "move" else c)
        parcel.unpack()
        assert x.tolist() == [expected]
        if rule.name == "downpour":  # and the step taken meanwhile will be pushed
            rule.make_push(x, state, terms, sent)
            assert sent.tolist() == [-1.0]


def test_an_overlapped_push_without_a_pull_moves_nothing_here():
    rule, x = Downpour(), np.array([4.0])
    parcel, terms = BufferedPort(rule, x, rule.init_worker(x)), rule.terms(1, 1, 2)
    parcel.pack(push=True, terms=terms)
    parcel.accept_reply(slice(0, 1), np.array([7.0]))
    parcel.unpack()
    assert x.tolist() == [7.0]
    x[:] = 1.0
    parcel.pack(push=True, terms=terms)  # no answer comes
    parcel.unpack()
    assert x.tolist() == [1.0]


def take_steps(world, overlap, number, then=lambda: None):
    """So many steps of a loop that exchanges after its fourth, and something after each."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with keep_pace(model, optimizer, rule=EASGD(every=4), exchange={"overlap": overlap}):
        for _ in range(number):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            then()


def test_overlap_goes_on_computing_while_an_exchange_travels(monkeypatch):
    """No exchange gets there before both ranks have taken three steps more."""
    meet, computed, arrived = NodeCentre.push_pull, threading.Barrier(2), threading.Event()

    def late(self, *arguments):
        assert arrived.wait(30), "the exchange held up the steps"
        return meet(self, *arguments)

    monkeypatch.setattr(NodeCentre, "push_pull", late)

    def program(world):
        steps = iter(range(1, 8))

        def then():
            if next(steps) == 7:
                computed.wait(30)
                arrived.set()

        take_steps(world, True, 7, then)

    run_world(2, program)
    assert arrived.is_set()


def test_without_overlap_a_step_ends_after_its_exchange(monkeypatch):
    meet, under_way, met = NodeCentre.push_pull, [], []

    def noted(self, *arguments):
        rank = threading.current_thread().name
        under_way.append(rank)
        news = meet(self, *arguments)
        time.sleep(0.01)
        under_way.remove(rank)
        met.append(rank)
        return news

    monkeypatch.setattr(NodeCentre, "push_pull", noted)

    def program(world):
        rank = threading.current_thread().name
        seen = []
        take_steps(world, False, 7, lambda: seen.append((rank in under_way, met.count(rank))))
        return seen

    for seen in run_world(2, program):
        assert seen == [(False, 0)] * 3 + [(False, 1)] * 4


@pytest.mark.parametrize("kind", [ZeroDivisionError, WorldError])
def test_a_server_that_fails_ends_the_run(tmp_path, monkeypatch, capsys, kind):
    def broken(self, sent, centre, state, terms):
        raise kind("the centre is unwell")

    monkeypatch.setattr(EASGD, "absorb", broken)
    began = time.monotonic()
    with pytest.raises(WorldError, match="rank 2 aborted the world"):
        fit(tmp_path, 3, EASGD(every=1), exchange={"servers": 1})
    assert time.monotonic() - began < 60
    assert "the centre is unwell" in capsys.readouterr().err


def test_a_worker_that_fails_ends_the_others(tmp_path):
    class Unwell(Callback):
        def on_batch_end(self, trainer, step, logs):
            if trainer.world.rank == 1:
                raise ZeroDivisionError("worker one is unwell")

    began = time.monotonic()
    for name, (rule, exchange, ranks) in RULES.items():
        unwell = [[Unwell()]] * ranks
        with pytest.raises(ZeroDivisionError, match="worker one"):
            count_through(tmp_path / name, rule, ranks, callbacks=unwell, exchange=exchange)
    assert time.monotonic() - began < 100


def test_too_little_node_memory_puts_the_centre_on_the_workers(tmp_path, monkeypatch):
    def program(world):
        def none_left(nbytes, locks=1):
            raise WorldError("7 bytes are free")

        monkeypatch.setattr(world, "node_memory", none_left)
        replica = NumpyReplica({"w": np.zeros(40)}, lambda arrays, batch: (0.0, arrays))
        exchange = make_exchange(world, replica, EASGD(every=1))
        context = ExchangeContext(1, ExchangeSettings(servers=0))
        with pytest.raises(WorldError, match="7 bytes"):
            make_exchange(world, replica, EASGD(), context)
        exchange.leave(Stopwatch())
        return exchange.describe()

    for words in run_world(3, program):
        assert words.startswith("each worker holds a piece of the centre (the node's memory is too")


def test_a_run_that_failed_does_not_disturb_the_next(tmp_path):
    def program(world):
        class Unwell(Callback):
            def on_train_begin(self, trainer):
                raise ZeroDivisionError

        def run(name, rule=EASGD(every=1), **settings):  # noqa: B008
            return Trainer(
                build, data(), world=world, rule=rule, epochs=3, loss="mse",
                exchange={"servers": 1}, progress="off", run_dir=str(tmp_path / name), **settings,
            ).fit()  # fmt: skip

        with pytest.raises(ZeroDivisionError):
            run("first", callbacks=[Unwell()])
        with pytest.raises(ConfigError, match="elastic force"):
            run("second", EASGD(beta=1.0))
        return len(run("third").history)

    assert run_world(2, program) == [3, 3]


def test_a_loop_that_failed_serves_nobody():
    def program(world):
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with (
            pytest.raises(ZeroDivisionError),
            keep_pace(model, optimizer, "easgd", exchange={"servers": 1}),
        ):
            raise ZeroDivisionError
        world.barrier()
        return [t.name for t in threading.enumerate() if t.name == "paceline-server"]

    assert run_world(2, program) == [[], []]


@pytest.mark.parametrize("overlap", [False, True])
def test_rounding_of_a_model_is_not_pushed(overlap):
    """A model in bfloat16 cannot hold what the centre holds; nobody trains, so nothing may move."""

    def program(world):
        model = nn.Linear(40, 40, bias=False).to(torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        rule = Downpour(server_optimizer={"name": "sgd", "lr": 0.3})
        with keep_pace(model, optimizer, rule=rule, exchange={"overlap": overlap}) as pace:
            start = pace._exchange.common_weights().copy()
            world.barrier()
            for step in range(40):
                for parameter in model.parameters():
                    parameter.grad = torch.full_like(parameter, 0.01 if step == 0 else 0.0)
                optimizer.step()
            world.barrier()
            return start, pace._exchange.common_weights().copy()

    for start, end in run_world(3, program):
        assert np.abs(end - start).max() < 0.02  # three pushes of 0.3 * 0.01, and their rounding


@pytest.mark.parametrize(("rule", "servers"), [("easgd", 5), ("downpour", 1)])
def test_servers_need_ranks(tmp_path, rule, servers):
    with pytest.raises(ConfigError, match="so none is left to train"):
        fit(tmp_path, 1, rule, exchange={"servers": servers})


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


@pytest.mark.parametrize("nodes", [None, "apart"])
def test_an_exchange_under_way_ends_with_the_rank_that_gives_up(monkeypatch, nodes):
    """Its thread would wait for a host that serves nobody any more, and keep the process alive."""
    answer = ShardServer._answer

    def silent(self, worker):
        kind = self._requests[worker].asked()[0]
        return None if kind in (EXCHANGE, EXCHANGE_SHARD) else answer(self, worker)

    monkeypatch.setattr(ShardServer, "_answer", silent)

    def program(world):
        if nodes:
            world.node_ranks = (world.rank,)
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rule, exchange = EASGD(every=1), {"overlap": True, "servers": 0 if nodes else 1}
        try:
            with keep_pace(model, optimizer, rule, exchange=exchange, world=world) as pace:
                if world.rank in pace.workers:
                    optimizer.step()
                raise ZeroDivisionError
        except ZeroDivisionError:
            world.barrier()
        return [t.name for t in threading.enumerate() if t.name.startswith("paceline-")]

    assert run_world(2, program, timeout_s=10) == [[], []]
