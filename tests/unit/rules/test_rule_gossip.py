"""Gossip keeps the sum of weights and the weighted mean, whatever happens in which order."""

import numpy as np
import pytest

from paceline.rules import Gossip

WORKERS = 5


def test_weights_add_up_to_one_and_the_mean_is_conserved():
    rule, rng = Gossip(probability=0.7), np.random.default_rng(0)
    replicas, weights = rng.normal(size=(WORKERS, 50)), np.full(WORKERS, 1.0 / WORKERS)
    mean, on_their_way = replicas.mean(axis=0), []
    for _ in range(1000):
        worker = int(rng.integers(WORKERS))
        if rule.wants_to_push(rng):
            weights[worker] = rule.split_weight(weights[worker])
            peer = rule.choose_peer(rng, worker, WORKERS)
            on_their_way.append((peer, replicas[worker].copy(), weights[worker]))
        if on_their_way and rng.random() < 0.6:  # messages overtake each other
            peer, received, weight = on_their_way.pop(int(rng.integers(len(on_their_way))))
            before = received.tobytes()
            weights[peer] = rule.merge(replicas[peer], weights[peer], received, weight)
            assert received.tobytes() == before
        total = weights.sum() + sum(weight for _, _, weight in on_their_way)
        assert total == pytest.approx(1.0, abs=1e-14)
    assert on_their_way  # some are still travelling, and count
    weighted = weights @ replicas + sum(weight * x for _, x, weight in on_their_way)
    assert weighted == pytest.approx(mean, abs=1e-13)
    assert np.ptp(replicas, axis=0).max() < 0.01  # and they have come together


def test_the_received_replica_counts_by_its_weight():
    x = np.random.default_rng(1).normal(size=(2, 70_000))
    merged = x[0].copy()
    assert Gossip().merge(merged, 0.3, x[1], 0.1) == pytest.approx(0.4)
    assert np.abs(merged - (0.3 * x[0] + 0.1 * x[1]) / 0.4).max() < 1e-14


def test_float32_stays_float32():
    x = np.zeros(3, np.float32)
    Gossip().merge(x, 0.25, np.ones(3, np.float32), 0.25)
    assert x.tolist() == [0.5] * 3


@pytest.mark.parametrize("rank", range(4))
def test_each_of_the_others_is_as_likely(rank):
    rng = np.random.default_rng(2)
    chosen = [Gossip().choose_peer(rng, rank, 4) for _ in range(3000)]
    counts = np.bincount(chosen, minlength=4)
    assert counts[rank] == 0
    assert np.delete(counts, rank) == pytest.approx(1000, abs=120)


def test_of_two_the_other_is_chosen():
    rng = np.random.default_rng(3)
    assert {Gossip().choose_peer(rng, 0, 2) for _ in range(20)} == {1}


@pytest.mark.parametrize("probability", [0.1, 0.75, 1])
def test_pushes_are_as_frequent_as_said(probability):
    rng, rule = np.random.default_rng(4), Gossip(probability=probability)
    pushes = sum(rule.wants_to_push(rng) for _ in range(4000))
    assert pushes / 4000 == pytest.approx(probability, abs=0.03 if probability < 1 else 0)


def test_half_goes_along():
    assert Gossip().split_weight(0.25) == 0.125
