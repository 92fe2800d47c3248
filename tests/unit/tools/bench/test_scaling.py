"""`bench scaling`: extrapolated to 5120 images, with the split of the time."""

import numpy as np

from paceline.models import MODELS
from paceline.tools.bench import scaling
from paceline.tools.bench.ranks.scaling import random_images

SPLIT = {"compute": 1.5, "wait": 0.25, "communication": 0.125, "data": 0.125}


def epoch(images, seconds):
    return {"images": images, "seconds": seconds, "split": SPLIT}


def test_figures_are_per_5120_images():
    one, two = scaling.make_rows("vgg-32b", {1: epoch(32, 3.0), 2: epoch(64, 2.0)}, threads=1)
    assert (one.case, one.unit, one.ours) == ("vgg-32b, 1 rank", "s", 480.0)
    assert (two.case, two.ours) == ("vgg-32b, 2 ranks", 160.0)
    assert two.notes["compute"] == 120.0
    assert sum(two.notes[part] for part in SPLIT) == two.ours
    assert (two.notes["images"], two.notes["extrapolated"]) == (64, "x 80")
    assert two.notes["threads per rank"] == 1


def test_one_rank_is_the_peer_of_several():
    one, two = scaling.make_rows("vgg-32b", {1: epoch(32, 3.0), 2: epoch(64, 2.0)}, threads=1)
    assert (one.peers, two.peers) == ({}, {"one": 480.0})
    assert two.advantage("one") == 3.0
    (alone,) = scaling.make_rows("vgg-32b", {2: epoch(64, 2.0)}, threads=1)
    assert alone.peers == {}


def test_networks_are_those_of_the_table():
    assert scaling.BATCHES == {"alexnet": 128, "googlenet": 32, "vgg": 32}
    assert set(scaling.BATCHES) <= set(MODELS)


def test_every_rank_sees_the_same_images():
    first, second = random_images(2), random_images(2)
    assert first.inputs.shape == (2, 3, 224, 224)
    assert np.array_equal(first.inputs, second.inputs)
    assert np.array_equal(first.targets, second.targets)
