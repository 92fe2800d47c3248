import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.launch.mpirun_output import HYDRA, OPEN_MPI, OutputFilter, RankDeath

RULE = b"-" * 74 + b"\n"
ABORT = RULE + b"MPI_ABORT was invoked on rank 1 in communicator\n  Errorcode: 7\n" + RULE
EXITED = RULE + b'prterun has exited due to process rank 1 calling\n"abort".\n' + RULE + b"\0"
PRIMARY = RULE + b"Primary job  terminated normally, but 1 process\nreturned non-zero.\n" + RULE
DETECTED = RULE + b"mpirun detected that one or more processes exited\n" + RULE
KILLED = RULE + b"prterun noticed that process rank 1 exited on\nsignal 9 (Killed).\n" + RULE
TOLD = (
    RULE
    + b"prterun noticed that process rank 1 with PID 7 on node n07 exited on\nsignal 9.\n"
    + RULE
)
HYDRA_RULE = b"=" * 83 + b"\n"
HYDRA_KILLED = (
    b"\n" + HYDRA_RULE + b"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
    b"=   PID 7 RUNNING AT n07\n=   EXIT CODE: 9\n=   CLEANING UP REMAINING PROCESSES\n"
    b"=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES\n" + HYDRA_RULE
    + b"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n"
    b"This typically refers to a problem with your application.\n"
    b"Please see the FAQ page for debugging suggestions\n"
)  # fmt: skip
HYDRA_ABORT = (
    b"Abort(7) on node 1 (rank 1 in comm 0): "
    b"application called MPI_Abort(MPI_COMM_WORLD, 7) - process 1\n"
)
NOISE = b"[n01:05766] PMIX ERROR: PMIX_ERR_UNREACH in file src/server/pmix_server.c at line 3146\n"
BANNERS = [ABORT, EXITED, PRIMARY, DETECTED, NOISE]


def through(data: bytes, failed: bool = True, **options) -> bytes:
    banners = OutputFilter(**options)
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


def test_a_death_by_signal_that_cannot_be_read_is_shown_beside_other_words():
    assert through(b"a warning\n" + KILLED) == b"a warning\n" + KILLED


def test_a_death_by_signal_is_told_and_not_shown():
    banners = OutputFilter()
    assert banners.feed(TOLD) + banners.close(failed=True) == b""
    assert banners.death == RankDeath(1, 7, "n07", 9)


def test_a_rank_that_dies_of_an_abort_is_no_cause():
    banners = OutputFilter()
    assert banners.feed(b"why\n" + ABORT + TOLD) + banners.close(failed=True) == b"why\n"
    assert banners.death is None


def test_the_banner_of_hydra_is_told_and_not_shown():
    banners = OutputFilter(HYDRA)
    shown = banners.feed(b"out\n" + HYDRA_KILLED[:150]) + banners.pause()
    shown += banners.feed(HYDRA_KILLED[150:]) + banners.close(failed=True)
    assert shown == b"out\n"
    assert banners.death == RankDeath(None, 7, "n07", 9)


def test_hydras_words_of_an_abort_are_dropped_beside_a_message():
    assert through(b"why\n" + HYDRA_ABORT, output_format=HYDRA) == b"why\n"
    assert through(HYDRA_ABORT, output_format=HYDRA) == HYDRA_ABORT


def test_what_is_no_banner_of_hydra_passes():
    text = b"\n\none\n\n" + HYDRA_RULE + b"a table\0\n" + HYDRA_RULE + b"\n"
    assert through(text, output_format=HYDRA) == text


def test_plain_lines_pass_at_once():
    assert OutputFilter().feed(b"one\ntwo\n") == b"one\ntwo\n"


def test_a_partial_line_passes_at_a_pause():
    banners = OutputFilter()
    assert banners.feed(b"epoch 1 ...") == b""
    assert banners.pause() == b"epoch 1 ..."
    assert banners.feed(b" done\n") == b" done\n"


def test_a_rule_of_the_program_passes_at_a_pause():
    banners = OutputFilter()
    assert banners.feed(RULE + b"a table\n") == b""
    assert banners.pause() == RULE + b"a table\n"


def test_a_banner_is_held_over_a_pause_until_it_ends():
    banners = OutputFilter()
    shown = banners.feed(b"why\n" + ABORT[:100]) + banners.pause() + banners.feed(ABORT[100:])
    assert shown + banners.close(failed=True) == b"why\n"


def test_a_rule_is_held_over_a_pause_until_more_has_come():
    banners = OutputFilter()
    assert banners.feed(RULE) + banners.pause() == b""
    assert banners.feed(b"epoch 1 ...") + banners.pause() == RULE + b"epoch 1 ..."
    assert banners.feed(RULE) + banners.pause() + banners.close(failed=False) == RULE


def test_a_lone_rule_does_not_make_the_next_banner_pass():
    assert through(RULE + b"a table\n" + ABORT) == RULE + b"a table\n"


def test_a_long_block_is_not_held_back():
    lines = RULE + b"prterun\n" + b"text\n" * 50
    assert OutputFilter().feed(lines) == lines


def test_a_rank_that_quotes_a_phrase_without_rules_is_heard():
    assert through(b"MPI_ABORT was invoked by me\n") == b"MPI_ABORT was invoked by me\n"


@given(
    st.lists(st.sampled_from([b"word\n", b"", b"half a line", RULE, HYDRA_RULE, b"\n", b"--\n"])),
    st.lists(st.booleans(), min_size=20),
    st.sampled_from([OPEN_MPI, HYDRA]),
)
def test_nothing_but_banners_is_lost_or_reordered(pieces, pauses, dialect):
    banners = OutputFilter(dialect)
    shown = b""
    for piece, pause in zip(pieces, pauses, strict=False):
        shown += banners.feed(piece)
        shown += banners.pause() if pause else b""
    used = pieces[: len(pauses)]
    assert shown + banners.close(failed=True) == b"".join(used)


@pytest.mark.parametrize(
    "line",
    [
        b"[warn] Epoll MOD(4) on fd 22 failed. Old events were 6; read change was 2 (del); "
        b"write change was 0 (none); close change was 0 (none): Bad file descriptor\n",
        b"[node1:181] setpgid(181,181) failed in parent with errno=Permission denied(13)\n",
        b"[host1:00000] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,\n",
    ],
)
def test_what_mpirun_says_in_passing_is_shown_only_if_nothing_else_explains_a_failure(line):
    banners = OutputFilter()
    assert banners.feed(line) + banners.close(failed=False) == b""
    banners = OutputFilter()
    assert banners.feed(line) + banners.close(failed=True) == line
