"""A step that a lost rank has half done is finished by another."""

from types import SimpleNamespace

import numpy as np
import pytest

from paceline.comm import SoloWorld
from paceline.sync.synchronous.journal import StepJournal

PIECES = [slice(10, 16), slice(0, 5)]
CHUNKS = [slice(10, 13), slice(13, 16), slice(0, 3), slice(3, 5)]
MARK = 7


@pytest.fixture
def vectors():
    return np.arange(20.0), {"m": np.zeros(20)}


@pytest.fixture
def journal(vectors):
    world, chunks = SoloWorld(), [SimpleNamespace(piece=piece) for piece in CHUNKS]
    return StepJournal(world, world, chunks, *vectors)


def test_a_rank_that_has_not_begun_has_all_to_do(journal):
    journal.begin(MARK - 1, len(CHUNKS))
    assert not journal.has_begun(0, MARK)
    journal.begin(MARK, len(CHUNKS))
    assert journal.has_begun(0, MARK)
    assert journal.rest_of(0, PIECES) == (0, PIECES)
    assert not journal.is_done(MARK)


@pytest.mark.parametrize(
    ("moved", "rest"),
    [
        (1, [slice(13, 16), slice(0, 5)]),
        (2, [slice(0, 5)]),
        (3, [slice(3, 5)]),
        (4, []),
    ],
)
@pytest.mark.parametrize("half", [False, True])
def test_what_is_left(journal, vectors, moved, rest, half):
    """With a half of the next chunk moved, which is taken back."""
    parameters, slots = vectors
    journal.begin(MARK, len(CHUNKS))
    for number, chunk in enumerate(CHUNKS[:moved]):
        journal.keep(number, chunk)
        parameters[chunk] += 100
        journal.done(number)
    before = parameters.copy()
    if half and moved < len(CHUNKS):
        chunk = CHUNKS[moved]
        journal.keep(moved, chunk)
        parameters[chunk.start], slots["m"][chunk] = -1.0, 1.0
    assert journal.rest_of(0, PIECES) == (moved, rest)
    np.testing.assert_array_equal(parameters, before)
    assert not slots["m"].any()
    assert journal.is_done(MARK) == (moved == len(CHUNKS))


def test_a_step_without_anything_to_move_is_done(journal):
    journal.begin(MARK, 0)
    assert journal.is_done(MARK)
    assert journal.rest_of(0, PIECES) == (0, [])
