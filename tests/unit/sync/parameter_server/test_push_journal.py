"""A push that a lost worker has half done is finished by another."""

import numpy as np
import pytest

from paceline.comm import SoloWorld
from paceline.rules import PushTerms
from paceline.sync.parameter_server.push_journal import PushJournal

PIECES = [slice(0, 4), slice(4, 8), slice(8, 10)]


@pytest.fixture
def centre():
    return np.arange(10, dtype=np.float32)


@pytest.fixture
def journal(centre):
    states = [{"t": np.array([5.0]), "m": np.zeros(p.stop - p.start)} for p in PIECES]
    made = PushJournal(SoloWorld(), centre, PIECES, states)
    made.states = states
    return made


def test_a_half_changed_chunk_is_put_back(journal, centre):
    before = centre.copy()
    journal.begin(0, 1, PushTerms())
    journal.keep(0, 0, 1)
    centre[4:6] = 99
    journal.states[1]["t"][0], journal.states[1]["m"][:] = 7.0, 3.0
    journal.mend(1)
    np.testing.assert_array_equal(centre, before)
    assert journal.states[1]["t"][0] == 5.0
    assert not journal.states[1]["m"].any()


def test_a_chunk_that_was_changed_stays(journal, centre):
    journal.begin(0, 1, PushTerms())
    journal.keep(0, 0, 1)
    centre[4:8] = 99
    journal.done(0, 0, 1)
    journal.mend(1)
    assert (centre[4:8] == 99).all()


def test_what_is_left_of_a_push_is_known(journal):
    journal.begin(0, 3, PushTerms(force=0.5, steps=4))
    assert journal.unfinished(0, pushes=2) is None, "the ledger does not know of it"
    assert journal.unfinished(0, pushes=3) == (0, PushTerms(force=0.5, steps=4))
    for done, index in enumerate((1, 2, 0)):
        journal.keep(0, done, index)
        assert journal.unfinished(0, pushes=3)[0] == done
        journal.done(0, done, index)
    assert journal.unfinished(0, pushes=3) is None
