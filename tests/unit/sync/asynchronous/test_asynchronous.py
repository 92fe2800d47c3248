"""Asynchronous rules, step by step, in a scripted order, against references written out here.

Worker 2 is three times slower than the others. Wherever the centre lies (in the node's memory, on
one server, on two, in pieces on the workers of several nodes) the course must be the same.
"""

import numpy as np
import pytest
from support.scripted_turns import RATE, TARGETS, play

from paceline.rules import EASGD, Downpour, Gossip

SCRIPT = [0, 1, 0, 1, 2, 0, 1, 1, 0, 1, 0, 2] * 3  # 15, 15 and 6 steps
PLACES = {
    "node memory": (3, None, None),
    "a server": (4, None, 1),
    "two servers": (5, None, 2),
    "pieces on workers": (3, [(0,), (1,), (2,)], 0),
}
every_place = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)


def step(x, worker):
    return x - np.float32(RATE) * (x - TARGETS[worker])


def reference_easgd(script, force, every):
    centre, replicas = np.zeros(3, np.float32), np.zeros((3, 3), np.float32)
    steps, course = [0, 0, 0], []
    for worker in script:
        replicas[worker] = step(replicas[worker], worker)
        steps[worker] += 1
        if steps[worker] % every == 0:
            move = np.float32(force(steps[worker])) * (replicas[worker] - centre)
            replicas[worker] -= move
            centre += move
        course.append(replicas[worker].copy())
    return np.array(course), centre


def reference_downpour(script, push_every, pull_every, weigh, most=10**9, rate=1.0, momentum=0.0):
    """`weigh(steps, staleness)` is the factor of a push; rate and momentum are the centre's."""
    centre, replicas = np.zeros(3, np.float32), np.zeros((3, 3), np.float32)
    velocity = np.zeros(3, np.float32)
    bases, steps, course = replicas.copy(), np.zeros((3, 2), int), []
    updates, seen = 0, [0, 0, 0]
    for worker in script:
        replicas[worker] = step(replicas[worker], worker)
        steps[worker] += 1
        refused = False
        if steps[worker, 0] % push_every == 0:
            staleness = updates - seen[worker]
            refused = staleness > most
            if not refused:
                factor = np.float32(weigh(steps[worker, 1], staleness))
                velocity *= momentum
                velocity += factor * (bases[worker] - replicas[worker])
                centre -= np.float32(rate) * velocity
                updates, seen[worker] = updates + 1, seen[worker] + 1
            bases[worker], steps[worker, 1] = replicas[worker], 0
        if refused or steps[worker, 0] % pull_every == 0:
            bases[worker] += centre - replicas[worker]
            replicas[worker], seen[worker] = centre, updates
        course.append(replicas[worker].copy())
    return np.array(course), centre


@every_place
@pytest.mark.parametrize("every", [1, 3])
def test_easgd(place, every):
    ranks, nodes, servers = place
    rule = EASGD(every=every, beta=0.6)
    course, result = play(rule, SCRIPT, ranks, nodes, {"servers": servers})
    expected, centre = reference_easgd(SCRIPT, lambda step: 0.6 / 3, every)
    assert course == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert result == pytest.approx(centre, rel=1e-5, abs=1e-6)


def test_easgd_with_a_force_that_changes():
    rule = EASGD(every=3, force=0.5, final_force=0.1, final_after=9)
    course, result = play(rule, SCRIPT)
    expected, centre = reference_easgd(SCRIPT, lambda step: 0.5 - 0.4 * min(1, step / 9), 3)
    assert course == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert result == pytest.approx(centre, rel=1e-5, abs=1e-6)
    assert result != pytest.approx(play(EASGD(every=3, force=0.5), SCRIPT)[1], rel=1e-2)


@every_place
@pytest.mark.parametrize(
    ("settings", "weigh"),
    [
        ({}, lambda steps, staleness: 1.0),
        ({"push_every": 3, "pull_every": 3}, lambda steps, staleness: 1.0),
        ({"push_every": 3, "pull_every": 1}, lambda steps, staleness: 1.0),
        ({"push_every": 1, "pull_every": 3}, lambda steps, staleness: 1.0),
        (
            {"push_every": 3, "pull_every": 3, "staleness": "agn"},
            lambda steps, staleness: 1.0 / steps,
        ),
        ({"staleness": "dynsgd"}, lambda steps, staleness: 1.0 / (staleness + 1)),
        ({"push_every": 1, "pull_every": 3, "max_staleness": 1}, lambda steps, staleness: 1.0),
    ],
    ids=["plain", "every 3", "pulls oftener", "pushes oftener", "agn", "dynsgd", "refusing"],
)
def test_downpour(place, settings, weigh):
    ranks, nodes, servers = place
    optimizer = {"name": "momentum", "lr": 0.5, "momentum": 0.4}
    rule = Downpour(server_optimizer=optimizer, **settings)
    course, result = play(rule, SCRIPT, ranks, nodes, {"servers": servers})
    often = {key: settings.get(key, 1) for key in ("push_every", "pull_every")}
    most = settings.get("max_staleness", 10**9)
    expected, centre = reference_downpour(
        SCRIPT, **often, weigh=weigh, most=most, rate=0.5, momentum=0.4
    )
    assert course == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert result == pytest.approx(centre, rel=1e-4, abs=1e-5)


def test_the_servers_optimizer_is_the_one_that_was_asked_for():
    results = [
        tuple(play(Downpour(server_optimizer=name), SCRIPT)[1].tolist())
        for name in ("sgd", "momentum", "adagrad", "adadelta", "rmsprop", "adam")
    ]
    assert len(set(results)) == 6


@every_place
def test_what_is_not_pushed_yet_is_pushed_when_a_worker_leaves(place):
    ranks, nodes, servers = place
    rule = Downpour(push_every=100, pull_every=100)
    _, result = play(rule, SCRIPT, ranks, nodes, {"servers": servers})
    alone = [[0.0] * 3 for _ in range(3)]
    for worker in SCRIPT:
        alone[worker] = step(np.array(alone[worker], np.float32), worker)
    assert result == pytest.approx(np.sum(alone, axis=0), rel=1e-4)


@pytest.mark.parametrize("nodes", [None, [(0,), (1, 2)]], ids=["one node", "two nodes"])
def test_gossip(nodes):
    rule = Gossip(probability=0.5)
    course, result = play(rule, SCRIPT, 3, nodes)
    chances = [np.random.default_rng([0, 1, worker]) for worker in range(3)]
    replicas, weights = np.zeros((3, 3)), [1 / 3] * 3
    inboxes, expected = [[], [], []], []

    def take_in(worker):
        for sent, weight in inboxes[worker]:
            whole = weights[worker] + weight
            replicas[worker] = (weights[worker] * replicas[worker] + weight * sent) / whole
            weights[worker] = whole
        inboxes[worker].clear()

    for worker in SCRIPT:
        replicas[worker] = step(replicas[worker], worker)
        take_in(worker)
        if chances[worker].random() < 0.5:
            peer = [p for p in range(3) if p != worker][chances[worker].integers(2)]
            weights[worker] /= 2
            inboxes[peer].append((replicas[worker].copy(), weights[worker]))
        expected.append(replicas[worker].copy())
    for worker in range(3):
        take_in(worker)
    assert sum(weights) == pytest.approx(1.0)
    assert course == pytest.approx(np.array(expected), rel=1e-5, abs=1e-6)
    assert result == pytest.approx(np.average(replicas, axis=0, weights=weights), rel=1e-5)
