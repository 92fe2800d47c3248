"""BSP on parameters that the ranks of a node share: the same numbers as without sharing."""

import contextlib
import copy

import numpy as np
import pytest
import torch
from support.line_problem import BATCH, build, data, fit, weights
from torch import nn

from paceline import keep_pace, shard
from paceline.comm import SoloWorld, run_world
from paceline.errors import ConfigError, TrainingError, WorldError
from paceline.frameworks.torch import slice_optimizer as torch_slices
from paceline.frameworks.torch.loop import TorchLoop
from paceline.rules import BSP
from paceline.sync.make import make_exchange
from paceline.sync.settings import ExchangeContext
from paceline.sync.synchronous import overlap_sender as courier
from paceline.sync.synchronous.gradients import GradientExchange
from paceline.sync.synchronous.shared import SharedParametersExchange
from paceline.training.trainer import Trainer

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "adadelta": lambda p: torch.optim.Adadelta(p),
}
every_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


class Net(nn.Module):
    """Parameters of several shapes, one frozen, one that is never used, one used now and then."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 37), nn.Linear(37, 1)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(50))
        self.sometimes = nn.Parameter(torch.ones(1))
        self.calls = 0
        chance = np.random.default_rng(0)  # torch's generator is shared by the threads
        for parameter in (*self.first.parameters(), *self.second.parameters()):
            parameter.data = torch.from_numpy(chance.normal(size=parameter.shape) * 0.3).float()

    def forward(self, x):
        self.calls += 1
        out = self.second(torch.tanh(self.first(x * self.frozen)))
        return out * self.sometimes if self.calls % 3 == 0 else out


NODES = {
    "one each": [(0,), (1,)],
    "two of two": [(0, 1), (2, 3)],
    "uneven": [(0, 1, 2), (3,)],
}


def settle(world, nodes):
    """Pretend that the ranks are on these nodes."""
    if nodes is not None:
        world.node_ranks = next(ranks for ranks in nodes if world.rank in ranks)


def loop(
    make, ranks, share, clip_norm=None, groups=False, schedule=False, extra_on_last=0, nodes=None
):
    """An own loop: the weights, the optimizer's state, and what kind of exchange it had."""

    def program(world):
        settle(world, nodes)
        model = Net()
        parts = list(model.parameters())
        trained = [{"params": parts[:2]}, {"params": parts[2:], "lr": 0.003}] if groups else parts
        optimizer = make(trained)
        batches = shard(data(), BATCH, to=torch.from_numpy)
        with keep_pace(model, optimizer, clip_norm=clip_norm, exchange={"share": share}) as pace:
            kind = type(pace._exchange)
            for _ in range(2):
                for x, y in batches:
                    optimizer.zero_grad()
                    nn.functional.mse_loss(model(x), y).backward()
                    optimizer.step()
                if schedule:
                    optimizer.param_groups[0]["lr"] *= 0.5
            if world.rank == ranks - 1:
                for _ in range(extra_on_last):  # this rank's loop is longer
                    optimizer.zero_grad()
                    nn.functional.mse_loss(model(x), y).backward()
                    optimizer.step()
        state = optimizer.state_dict()["state"]
        return weights(model), state, kind

    results = run_world(ranks, program)
    assert len({result[0].tobytes() for result in results}) == 1
    return results


def assert_states_equal(some, others, **closeness):
    assert some.keys() == others.keys()
    for key, state in some.items():
        assert state.keys() == others[key].keys()
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                assert value.shape == others[key][name].shape
                np.testing.assert_allclose(value.numpy(), others[key][name].numpy(), **closeness)


@every_optimizer
@pytest.mark.parametrize(
    "settings",
    [{}, {"groups": True, "schedule": True}, {"extra_on_last": 3}],
    ids=["plain", "groups and schedule", "uneven"],
)
def test_two_ranks_give_the_same_bits(make, settings, monkeypatch):
    monkeypatch.setattr(torch_slices, "CHUNK_ELEMENTS", 64)  # several chunks, cut within parameters
    shared, plain = (loop(make, 2, share, **settings) for share in (True, False))
    assert shared[0][2] is SharedParametersExchange
    assert plain[0][2] is GradientExchange
    assert shared[0][0].tobytes() == plain[0][0].tobytes()
    for mine, theirs in zip(shared, plain, strict=True):
        assert_states_equal(mine[1], theirs[1], rtol=0, atol=0)


@every_optimizer
def test_three_ranks_agree_but_for_the_order_of_sums(make):
    shared, plain = (loop(make, 3, share, groups=True) for share in (True, False))
    assert shared[0][0] == pytest.approx(plain[0][0], abs=1e-6)
    assert_states_equal(shared[0][1], plain[0][1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("ranks", [2, 3])
def test_clipping_sees_the_whole_gradient(ranks):
    make = OPTIMIZERS["momentum"]
    clipped, plain = (loop(make, ranks, share, clip_norm=0.1) for share in (True, False))
    assert clipped[0][0] == pytest.approx(plain[0][0], abs=1e-6)
    assert clipped[0][0] != pytest.approx(loop(make, ranks, True)[0][0], abs=1e-3)


def test_a_state_that_was_loaded_is_gone_on_with():
    def program(world, share):
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        x, y = map(torch.from_numpy, data())
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        with keep_pace(model, optimizer, exchange={"share": share}):
            for _ in range(3):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
        return weights(model)

    shared, plain = (run_world(2, lambda w, s=share: program(w, s)) for share in (True, False))
    assert shared[0].tobytes() == plain[0].tobytes()


def test_a_node_keeps_one_copy_of_the_parameters():
    def program(world):
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with keep_pace(model, optimizer):
            inside = model.weight.data_ptr()
            optimizer.step()
        return inside, model.weight.data_ptr()

    places = run_world(3, program)
    assert len({inside for inside, _ in places}) == 1
    assert len({after for _, after in places} | {places[0][0]}) == 4


class Own(torch.optim.SGD):
    """An optimizer that Paceline does not know."""


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (lambda p: Own(p, lr=0.1), torch.float32),
        (lambda p: torch.optim.NAdam(p), torch.float32),
        (lambda p: torch.optim.SGD(p, lr=0.1), torch.bfloat16),
    ],
    ids=["own", "nadam", "bfloat16"],
)
def test_what_cannot_be_divided_is_not_shared(make, dtype):
    def program(world):
        model = build().to(dtype)
        optimizer = make(model.parameters())
        with keep_pace(model, optimizer) as pace:
            optimizer.step()
            return type(pace._exchange)

    assert run_world(2, program) == [GradientExchange] * 2


@pytest.fixture
def small_buckets(monkeypatch):
    monkeypatch.setattr(courier, "BUCKET_BYTES", 300)
    monkeypatch.setattr(torch_slices, "CHUNK_ELEMENTS", 32)


@every_optimizer
@pytest.mark.parametrize("nodes", NODES.values(), ids=NODES)
def test_nodes_apart_share_inside_and_sum_between(make, nodes, small_buckets):
    ranks = sum(map(len, nodes))
    settings = {"groups": True, "extra_on_last": 2, "nodes": nodes}
    shared, plain = (loop(make, ranks, share, **settings) for share in (True, False))
    assert {result[2] for result in shared} == {SharedParametersExchange}
    assert shared[0][0] == pytest.approx(plain[0][0], abs=1e-6)
    for mine in shared:
        assert_states_equal(mine[1], plain[0][1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("nodes", NODES.values(), ids=NODES)
def test_clipping_sees_the_gradient_of_all_nodes(nodes, small_buckets):
    make, ranks = OPTIMIZERS["momentum"], sum(map(len, nodes))
    clipped, plain = (
        loop(make, ranks, share, clip_norm=0.1, nodes=nodes) for share in (True, False)
    )
    assert clipped[0][0] == pytest.approx(plain[0][0], abs=1e-6)


def fit_on(tmp_path, nodes, exchange=None, **settings):
    """Train with the Trainer, which lets gradients travel during backward."""
    folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
    early = []

    def program(world):
        settle(world, nodes)
        trainer = Trainer(
            Net, data(), world=world, epochs=2, loss="mse", progress="off",
            exchange=exchange or {},
            optimizer={"lr": 0.02, "momentum": 0.9}, data={"batch_size": BATCH},
            run_dir=str(folder), **settings,
        )  # fmt: skip
        result = trainer.fit()
        return weights(result.model), trainer._exchange

    original = courier.OverlapSender.hand_in_rest

    def hand_in_rest(self):
        early.append(self._handed_in)
        original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(courier.OverlapSender, "hand_in_rest", hand_in_rest)
        results = run_world(sum(map(len, nodes)), program, timeout_s=120)
    assert len({found.tobytes() for found, _ in results}) == 1
    return results[0][0], results[0][1], early


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("nodes", NODES.values(), ids=NODES)
def test_buckets_travel_while_backward_still_runs(nodes, accumulate, tmp_path, small_buckets):
    plain, exchange, _ = fit_on(tmp_path, nodes, {"share": False}, accumulate=accumulate)
    assert type(exchange) is GradientExchange
    shared, exchange, early = fit_on(tmp_path, nodes, accumulate=accumulate)
    assert type(exchange) is SharedParametersExchange
    assert shared == pytest.approx(plain, abs=1e-6)
    assert max(early) > 0
    assert exchange.bytes_sent > 0


def own_loop_on(nodes, act=lambda pace, step: None, backwards=1, **options):
    def program(world):
        settle(world, nodes)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        early = []
        with keep_pace(model, optimizer, **options) as pace:
            for step, (x, y) in enumerate(shard(data(), BATCH, to=torch.from_numpy)):
                optimizer.zero_grad()
                for _ in range(backwards):
                    nn.functional.mse_loss(model(x), y).backward()
                early.append(pace._exchange._sums._sender._handed_in)
                act(pace, step)
                optimizer.step()
        return weights(model), early

    return run_world(sum(map(len, nodes)), program)


@pytest.mark.parametrize("nodes", NODES.values(), ids=NODES)
def test_an_own_loop_overlaps_if_asked(nodes, small_buckets):
    (plain, none), (overlapped, early) = (
        own_loop_on(nodes, exchange={"overlap": overlap})[0] for overlap in (False, True)
    )
    assert overlapped.tobytes() == plain.tobytes()
    assert max(none) == 0
    assert min(early[:3]) > 0


def test_what_comes_after_gradients_have_left_is_an_error(small_buckets):
    nodes = NODES["one each"]
    with pytest.raises(TrainingError, match="several backwards"):
        own_loop_on(nodes, backwards=2, exchange={"overlap": True})
    with pytest.raises(TrainingError, match=r"before loss\.backward"):
        own_loop_on(nodes, act=lambda pace, step: pace.weigh(2.0), exchange={"overlap": True})
    own_loop_on(nodes, act=lambda pace, step: pace.weigh(2.0), backwards=2)


@pytest.mark.parametrize(
    ("rule", "wrong", "message"),
    [("average", {}, "overlap set, which has no effect"), ("bsp", {"share": False}, "omit one of")],
)
def test_overlap_where_nothing_could_is_an_error(rule, wrong, message):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(ConfigError, match=message),
        keep_pace(model, optimizer, rule, exchange={"overlap": True, **wrong}, world=SoloWorld()),
    ):
        pass


@pytest.mark.parametrize("wire", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("nodes", NODES.values(), ids=NODES)
def test_formats_of_the_wire_are_for_what_goes_between_nodes(nodes, wire, tmp_path, small_buckets):
    exact, exchange, _ = fit_on(tmp_path, nodes)
    coded, coding, _ = fit_on(tmp_path, nodes, {"wire": wire})
    assert coded.tobytes() != exact.tobytes()
    assert coded == pytest.approx(exact, abs=0.03)
    assert coding.bytes_sent < 0.8 * exchange.bytes_sent
    inside, _, _ = fit_on(tmp_path, [(0, 1)], {"wire": wire})
    assert inside.tobytes() == fit_on(tmp_path, [(0, 1)])[0].tobytes()


def test_the_state_is_whole_inside_the_block_and_what_is_loaded_counts():
    def program(world, share):
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        x, y = map(torch.from_numpy, data())

        def step():
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()

        with keep_pace(model, optimizer, exchange={"share": share}):
            step()
            step()
            saved = copy.deepcopy(optimizer.state_dict())
            step()
            optimizer.load_state_dict(copy.deepcopy(saved))
            step()
            return saved["state"], copy.deepcopy(optimizer.state_dict()["state"]), weights(model)

    shared, plain = (run_world(2, lambda w, s=share: program(w, s)) for share in (True, False))
    for mine, theirs in zip(shared, plain, strict=True):
        assert len(mine[0]) == 4
        assert_states_equal(mine[0], theirs[0], rtol=0, atol=0)
        assert_states_equal(mine[1], theirs[1], rtol=0, atol=0)
        assert mine[2].tobytes() == theirs[2].tobytes()


def test_a_block_left_by_an_error_leaves_the_model_alone():
    def program(world):
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        x, y = map(torch.from_numpy, data())
        with contextlib.suppress(KeyError), keep_pace(model, optimizer):
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            raise KeyError
        before = weights(model)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        hooks = [p._post_accumulate_grad_hooks for p in model.parameters()]
        steps = {int(state["step"]) for state in optimizer.state_dict()["state"].values()}
        optimizer.step()
        return any(hooks), steps, weights(model).tobytes() == before.tobytes()

    assert run_world(2, program) == [(False, {1}, False)] * 2


@pytest.mark.parametrize("when", ["before", "inside"])
def test_schedulers_and_hooks_of_others_go_on_working(when, recwarn):
    def program(world, share, hook):
        model, calls = Net(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x, y = map(torch.from_numpy, data())

        def make():
            return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

        scheduler = make() if when == "before" else None
        if hook:
            optimizer.register_step_post_hook(lambda *_: calls.append(1))
        with keep_pace(model, optimizer, exchange={"share": share}):
            scheduler = scheduler or make()
            for _ in range(3):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                scheduler.step()
        inside = weights(model)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()  # the user's own again
        assert weights(model).tobytes() != inside.tobytes()
        return inside.tobytes(), optimizer.param_groups[0]["lr"], len(calls)

    found = {
        (share, hook): run_world(2, lambda w, s=share, h=hook: program(w, s, h))
        for share in (True, False)
        for hook in (True, False)
    }
    assert len({result[0] for results in found.values() for result in results}) == 1
    assert {result[1] for results in found.values() for result in results} == {0.0125}
    assert {hook: results[0][2] for (_, hook), results in found.items()} == {True: 4, False: 0}
    assert not [str(warning.message) for warning in recwarn if "scheduler" in str(warning.message)]


@pytest.mark.parametrize("by", ["data", "no_grad"])
def test_parameters_changed_by_hand_are_refused(by):
    def program(world):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x, y = map(torch.from_numpy, data())
        with keep_pace(model, optimizer):
            for _ in range(2):
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                with torch.no_grad():
                    weight = model.first.weight
                    (weight.data if by == "data" else weight).mul_(0.9)

    with pytest.raises(TrainingError, match=r"share.: False"):
        run_world(2, program)


def test_too_little_memory_is_said_and_got_along_with(monkeypatch, caplog):
    def program(world):
        def none_left(nbytes, locks=1):
            raise WorldError("7 bytes are free")

        monkeypatch.setattr(world, "node_memory", none_left)
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with keep_pace(model, optimizer) as pace:
            optimizer.step()
            return type(pace._exchange)

    assert run_world(2, program) == [GradientExchange] * 2
    assert "parameters are not shared between ranks: 7 bytes are free" in caplog.text


def test_the_trainer_shares_and_accumulates(tmp_path, monkeypatch):
    shared = fit(tmp_path, 2, "bsp", accumulate=2, clip_norm=1.0)
    monkeypatch.setattr("paceline.sync.synchronous.shared.can_share", lambda *_: False)
    plain = fit(tmp_path, 2, "bsp", accumulate=2, clip_norm=1.0)
    assert weights(shared.model) == pytest.approx(weights(plain.model), abs=1e-6)


def test_models_in_other_blocks_are_told_apart():
    def program(world):
        first, second = build(), build()
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (first, second)]
        with (
            keep_pace(first, optimizers[0]),
            keep_pace(second, optimizers[1]),
        ):
            for which in (*optimizers, optimizers[world.rank]):
                for group in which.param_groups:
                    for parameter in group["params"]:
                        parameter.grad = torch.ones_like(parameter)
                which.step()

    with pytest.raises(WorldError, match="different keep_pace blocks"):
        run_world(2, program)


def test_alone_nothing_is_shared():
    model = build()
    replica = TorchLoop(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert type(make_exchange(SoloWorld(), replica, BSP(), ExchangeContext())) is GradientExchange
