import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.launch.banners import BannerFilter

RULE = b"-" * 74 + b"\n"
ABORT = RULE + b"MPI_ABORT was invoked on rank 1 in communicator\n  Errorcode: 7\n" + RULE
EXITED = RULE + b'prterun has exited due to process rank 1 calling\n"abort".\n' + RULE + b"\0"
PRIMARY = RULE + b"Primary job  terminated normally, but 1 process\nreturned non-zero.\n" + RULE
DETECTED = RULE + b"mpirun detected that one or more processes exited\n" + RULE
KILLED = RULE + b"prterun noticed that process rank 1 exited on\nsignal 9 (Killed).\n" + RULE
NOISE = b"[n01:05766] PMIX ERROR: PMIX_ERR_UNREACH in file src/server/pmix_server.c at line 3146\n"
BANNERS = [ABORT, EXITED, PRIMARY, DETECTED, NOISE]


def through(data: bytes, failed: bool = True) -> bytes:
    banners = BannerFilter()
    return banners.feed(data) + banners.close(failed)


@pytest.mark.parametrize("banner", BANNERS)
def test_banners_are_dropped_beside_a_message(banner):
    assert through(b"rank 1 failed\n" + banner) == b"rank 1 failed\n"
    assert through(banner + b"rank 1 failed\n") == b"rank 1 failed\n"


def test_banners_that_follow_each_other_are_all_dropped():
    assert through(b"why\n" + ABORT + EXITED + PRIMARY) == b"why\n"


@pytest.mark.parametrize("banner", BANNERS)
def test_a_failed_job_that_said_nothing_else_shows_its_banners(banner):
    assert through(banner) == banner.replace(b"\0", b"")


def test_a_job_that_ended_well_shows_no_banners():
    assert through(ABORT, failed=False) == b""


def test_a_death_by_signal_is_shown_beside_other_words():
    assert through(b"a warning\n" + KILLED) == b"a warning\n" + KILLED


def test_plain_lines_pass_at_once():
    assert BannerFilter().feed(b"one\ntwo\n") == b"one\ntwo\n"


def test_a_partial_line_passes_at_a_pause():
    banners = BannerFilter()
    assert banners.feed(b"epoch 1 ...") == b""
    assert banners.pause() == b"epoch 1 ..."
    assert banners.feed(b" done\n") == b" done\n"


def test_a_rule_of_the_program_passes_at_a_pause():
    banners = BannerFilter()
    assert banners.feed(RULE + b"a table\n") == b""
    assert banners.pause() == RULE + b"a table\n"


def test_a_banner_is_held_over_a_pause_until_it_ends():
    banners = BannerFilter()
    shown = banners.feed(b"why\n" + ABORT[:100]) + banners.pause() + banners.feed(ABORT[100:])
    assert shown + banners.close(failed=True) == b"why\n"


def test_a_lone_rule_does_not_make_the_next_banner_pass():
    assert through(RULE + b"a table\n" + ABORT) == RULE + b"a table\n"


def test_a_long_block_is_not_held_back():
    lines = RULE + b"prterun\n" + b"text\n" * 50
    assert BannerFilter().feed(lines) == lines


def test_a_rank_that_quotes_a_phrase_without_rules_is_heard():
    assert through(b"MPI_ABORT was invoked by me\n") == b"MPI_ABORT was invoked by me\n"


@given(
    st.lists(st.sampled_from([b"word\n", b"", b"half a line", RULE, b"\n", b"--\n"])),
    st.lists(st.booleans(), min_size=20),
)
def test_nothing_but_banners_is_lost_or_reordered(pieces, pauses):
    banners = BannerFilter()
    shown = b""
    for piece, pause in zip(pieces, pauses, strict=False):
        shown += banners.feed(piece)
        shown += banners.pause() if pause else b""
    used = pieces[: len(pauses)]
    assert shown + banners.close(failed=True) == b"".join(used)
