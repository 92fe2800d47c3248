"""Training with vectors that are rounded on their way: near the exact course, in fewer bytes."""

from dataclasses import dataclass

import numpy as np
import pytest
from support.line_problem import fit, own_loop, weights

import paceline
from paceline.comm import ThreadWorld, run_world
from paceline.comm.allreduce.coded import make_sums
from paceline.comm.wire import ErrorFeedback
from paceline.errors import ConfigError
from paceline.observe import Stopwatch, read_events
from paceline.sync.interface import Contribution, StepOutcome
from paceline.sync.settings import WIRES
from paceline.sync.synchronous.message import StepMessage

LOSSY = [wire for wire in WIRES if wire != "float32"]
RULES = [
    {"name": "bsp"},
    {"name": "average", "every": 2},
    {"name": "average", "every": 3},
    {"name": "average", "every": 3, "start_after": 5},
    {"name": "diloco", "every": 2, "fragments": 2},
]
NEAR = {"bfloat16": 5e-3, "float16": 5e-4, "int8": 5e-3}
"""For weights of about 1: a wire that rounds the weights themselves misses it."""

every_wire = pytest.mark.parametrize("wire", LOSSY)
every_rule = pytest.mark.parametrize(
    "rule", RULES, ids=lambda rule: "-".join(str(value) for value in rule.values())
)


@pytest.fixture(autouse=True)
def every_rank_on_a_node_of_its_own(monkeypatch):
    """Inside a node nothing is coded."""
    plain = ThreadWorld.__init__

    def apart(self, rank, size, hub):
        plain(self, rank, size, hub)
        self.node_ranks = (rank,)

    monkeypatch.setattr(ThreadWorld, "__init__", apart)
    monkeypatch.setattr("paceline.sync.synchronous.shared.can_share", lambda *_: False)


def bytes_of(result):
    """What rank 0 sent in each step in which it sent anything."""
    events = read_events(result.run_dir / "events")
    return [e["bytes"] for e in events if e["event"] == "step" and e["rank"] == 0 and e["bytes"]]


@every_rule
def test_the_course_is_near_that_of_float32(tmp_path, rule):
    """That the ranks end equal is checked in `fit`."""
    exact = fit(tmp_path, 2, rule)
    seen = {weights(exact.model).tobytes()}
    for name in LOSSY:
        result = fit(tmp_path, 2, rule, exchange={"wire": name})
        assert weights(result.model) == pytest.approx(weights(exact.model), abs=NEAR[name])
        assert len(bytes_of(result)) == len(bytes_of(exact))
        seen.add(weights(result.model).tobytes())
    assert len(seen) == len(WIRES)  # each format rounds in its own way


@every_rule
def test_float32_is_the_course_without_a_word_about_it(tmp_path, rule):
    said = fit(tmp_path, 2, rule, exchange={"wire": "float32"})
    unsaid = fit(tmp_path, 2, rule)
    assert weights(said.model).tobytes() == weights(unsaid.model).tobytes()
    assert bytes_of(said) == bytes_of(unsaid)


@every_wire
@every_rule
def test_slices_of_unequal_length(tmp_path, rule, wire):
    exact, result = (fit(tmp_path, 3, rule, exchange={"wire": name}) for name in ("float32", wire))
    assert weights(result.model) == pytest.approx(weights(exact.model), abs=4 * NEAR[wire])


def test_what_rounding_lost_is_made_good(tmp_path, monkeypatch):
    exact = weights(fit(tmp_path, 3, "bsp").model)
    with_feedback = weights(fit(tmp_path, 3, "bsp", exchange={"wire": "int8"}).model)
    assert with_feedback == pytest.approx(exact, abs=1e-3)

    def encode_and_forget(self, vector, out, at=0):
        self._codec.encode(vector, out)

    monkeypatch.setattr(ErrorFeedback, "encode", encode_and_forget)
    without = weights(fit(tmp_path, 3, "bsp", exchange={"wire": "int8"}).model)
    assert without != pytest.approx(exact, abs=1e-3)


@every_wire
@every_rule
def test_alone_nothing_is_coded(tmp_path, rule, wire):
    plain, coded = (fit(tmp_path, 1, rule, exchange={"wire": name}) for name in ("float32", wire))
    assert weights(coded.model).tobytes() == weights(plain.model).tobytes()
    assert bytes_of(coded) == bytes_of(plain) == []
    if rule["name"] != "diloco":  # which has an outer optimizer, alone too
        assert weights(coded.model).tobytes() == weights(fit(tmp_path, 1, "bsp").model).tobytes()


@pytest.mark.parametrize(
    ("name", "whole", "half"),
    [
        ("float32", 64 + 32 * 4, 64 + 16 * 4),
        ("bfloat16", 64 + 32 * 2, 64 + 16 * 2),
        ("float16", 64 + 32 * 2, 64 + 16 * 2),
        ("int8", 64 + 32 + 2 * 4, 64 + 16 + 2 * 4),
    ],
)
def test_bytes_of_an_exchange(tmp_path, name, whole, half):
    """A head of 64 bytes, then 32 elements, or 16 in a fragment; in int8 a scale per slice."""
    for rule, expected in zip(RULES, [whole] * 4 + [half], strict=True):
        sent = bytes_of(fit(tmp_path, 2, rule, epochs=1, exchange={"wire": name}))
        assert set(sent) == {expected}, rule


def travel(name, ranks, part, size=100_000):
    def program(world):
        message = StepMessage(world, np.zeros(size, np.float32), flags=3)
        message.vector[:] = np.random.default_rng(world.rank).normal(size=size)
        message.flags[:] = [1, 0, world.rank]
        sums = make_sums(world, name, [size], np.float32)
        coded = sums[0] if sums else None
        meeting = message.sum_over_ranks(part, Stopwatch(), coded=coded)
        error = np.abs(coded.far.given.error).max() if coded else 0.0
        return meeting, message.flags.tolist(), message.vector, message.bytes_sent, error

    return run_world(ranks, program)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    ("name", "factor"), [("float32", 1), ("bfloat16", 2), ("float16", 2), ("int8", 3.98)]
)
def test_a_coded_message_brings_the_same_in_fewer_bytes(name, ranks, factor):
    part = Contribution(5000, 0.5, more=True)
    exact = travel("float32", ranks, part)
    results = travel(name, ranks, part)
    for meeting, flags, vector, sent, _ in results:
        assert meeting == StepOutcome(5000 * ranks, 0.5 * ranks, True, False)
        assert flags == [ranks, 0, sum(range(ranks))]
        assert vector.tobytes() == results[0][2].tobytes()
        assert np.abs(vector - exact[0][2]).max() < 0.05 * ranks
        assert exact[0][3] / sent == pytest.approx(factor, rel=0.01)
    optimal = 2 * (ranks - 1) / ranks * (100_000 * 4 + 64)
    assert exact[0][3] == pytest.approx(optimal, abs=1)


def test_where_nobody_gives_anything_nothing_is_coded():
    for meeting, _, vector, sent, error in travel("int8", 2, Contribution(), size=5000):
        assert meeting.weight == 0
        assert not vector.any()
        assert sent == 64
        assert error == 0  # what rounding left behind still waits


def test_an_average_of_differences_keeps_the_other_settings(tmp_path):
    def course(wire="float32", **settings):
        rule = {"name": "average", **settings}
        return weights(fit(tmp_path, 2, rule, exchange={"wire": wire}).model)

    usual = {"every": 3, "start_after": 5, "keep_momentum": False}
    for change in ({}, {"every": 4}, {"start_after": 9}, {"keep_momentum": True}):
        settings = usual | change
        coded = course(**settings, wire="float16")
        assert coded == pytest.approx(course(**settings), abs=1e-3)
        assert not change or coded != pytest.approx(course(**usual), abs=3e-3)


def test_the_centre_is_made_when_workers_begin_to_train_alone(tmp_path):
    """Not at the start of the run: while gradients are averaged, all replicas move together."""

    @dataclass(frozen=True, kw_only=True)
    class Late(paceline.DiLoCo):
        start_after: int = 4

    seen = []

    class Look(paceline.Callback):
        def on_batch_end(self, trainer, step, logs):
            centre = trainer._exchange.common_weights()
            same = centre is not None and np.array_equal(centre, trainer.replica.parameters())
            seen.append((trainer.world.rank, step, centre is not None, same))

    fit(tmp_path, 2, Late(every=3), callbacks=[Look()], epochs=1, exchange={"wire": "int8"})
    for rank in range(2):
        steps = {step: (there, same) for who, step, there, same in seen if who == rank}
        assert [steps[step][0] for step in (1, 3, 4, 5)] == [False, False, True, True]
        # equal after the last common step and after an exchange, else on its way
        assert [steps[step][1] for step in (4, 5, 6, 7)] == [True, False, False, True]


def test_a_users_loop_ends_equal_and_near():
    for rule in RULES:
        exact = own_loop(rule, 2)
        for name in LOSSY:
            result = own_loop(rule, 2, exchange={"wire": name})
            assert result == pytest.approx(exact, abs=2 * NEAR[name])
            assert result.tobytes() != exact.tobytes()


@pytest.mark.parametrize("name", ["bsp", "average", "diloco"])
def test_an_unknown_format_is_named_with_the_valid_ones(tmp_path, name):
    message = "wire is 'int4', expected one of: float32, bfloat16, float16, int8"
    with pytest.raises(ConfigError, match=message):
        fit(tmp_path, 1, name, exchange={"wire": "int4"})
    with pytest.raises(ConfigError, match=message):
        own_loop(name, 1, exchange={"wire": "int4"})
