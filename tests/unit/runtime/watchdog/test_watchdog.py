"""Who waits for whom: what is seen of a rank, and what is made of it."""

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import numpy as np
import pytest

from paceline.cluster.identity import JOB_DIR
from paceline.comm import run_world, wait_until
from paceline.data.sampling.prefetch import prefetched
from paceline.runtime.failure import fail
from paceline.runtime.watchdog import sections as sections
from paceline.runtime.watchdog import stack as stacks
from paceline.runtime.watchdog import thread as watch
from paceline.runtime.watchdog import watched
from paceline.runtime.watchdog.sections import Tracker, own_sections
from paceline.runtime.watchdog.stack import Activity, read_activity, read_stack
from paceline.runtime.watchdog.stall_detector import (
    GOING_ON_S,
    HEARTBEAT_BYTES,
    LEFT_S,
    SILENT_S,
    Heartbeat,
    StallDetector,
    decode,
    encode,
)
from paceline.runtime.watchdog.thread import RunningClock, write_known

LIMITS = {"warning_s": 30.0, "timeout_s": 600.0}


def waits(since_s: float, **more) -> Heartbeat:
    facts = {"step": 120, "where": "train.py:9 main", **LIMITS, **more}
    return Heartbeat(state="waiting", since_s=since_s, waiting_s=since_s, **facts)


def works(since_s: float, **more) -> Heartbeat:
    facts = {"step": 120, "where": "my_data.py:45 load", **LIMITS, **more}
    return Heartbeat(state="busy", since_s=since_s, **facts)


def judge_of(
    *pulses: Heartbeat | None, now_s: float = 100.0, nodes: str | None = None
) -> StallDetector:
    """A judge since 0 s who has heard these now; of a None, nothing at all. Each rank has its own
    node, unless `nodes` are given, a letter each."""
    judge = StallDetector(nodes or [f"n0{rank}" for rank in range(len(pulses))], 0.0)
    for rank, pulse in enumerate(pulses):
        if pulse is not None:
            judge.hear(rank, pulse, now_s)
    return judge


def said(*pulses: Heartbeat | None) -> str | None:
    verdict = judge_of(*pulses).look(100.0)
    assert verdict is None or not verdict.end
    return verdict and verdict.text


def test_a_busy_rank_that_others_wait_for_is_named():
    assert said(waits(31), works(35), waits(31)) == (
        "nothing has moved for 31 s at step 120: rank 0, 2 wait for rank 1 (n01), busy in "
        "my_data.py:45 load"
    )


def test_a_rank_that_says_nothing_is_named():
    assert said(waits(31), None) == (
        "nothing has moved for 31 s at step 120: rank 0 waits for rank 1 (n01), which has not been "
        "heard of for 100 s (stopped? is its node up?)"
    )


def test_a_rank_that_was_stopped_while_it_waited_is_named():
    judge = judge_of(waits(1), waits(1), now_s=70.0)
    judge.hear(0, waits(31), 100.0)
    verdict = judge.look(100.0)
    assert verdict is not None
    assert "rank 0 waits for rank 1 (n01), which has not been heard of for 30 s" in verdict.text


def test_ranks_that_wait_for_each_other_are_told_where():
    assert said(waits(31), waits(33, where="train.py:12 main")) == (
        "nothing has moved for 31 s at step 120: all ranks wait for each other (rank 0 in "
        "train.py:9 main, rank 1 in train.py:12 main)"
    )


def test_a_rank_outside_of_any_section_is_named_too():
    outside = {"warning_s": None, "timeout_s": None, "step": None}
    assert "rank 1 (n01), busy in save.py:3 f" in said(
        waits(31), works(40, where="save.py:3 f", **outside)
    )


@pytest.mark.parametrize(
    "pulses",
    [
        (waits(29), works(29)),
        (waits(31), works(5)),
        (waits(31), works(31), works(1)),
        (works(31), works(50)),
        (waits(31, warning_s=None, timeout_s=None), works(40)),
        (Heartbeat("waiting", 120, "waiting", "x", since_s=40, waiting_s=1, **LIMITS), works(40)),
    ],
    ids=["not yet", "slow", "one moves", "all work", "outside", "worked until now"],
)
def test_these_are_no_stalls(pulses):
    assert said(*pulses) is None


def test_a_stall_is_told_once_and_its_end_once():
    judge = judge_of(waits(31), works(31))
    texts = [judge.look(100.0)]
    judge.hear(0, waits(45), 114.0)
    texts.append(judge.look(114.0))
    judge.hear(0, waits(0), 115.0)
    judge.hear(1, works(0), 115.0)
    texts += [judge.look(115.0), judge.look(115.0)]
    assert [t and t.text[:24] for t in texts] == [
        "nothing has moved for 31",
        None,
        "moving again after 45 s",
        None,
    ]


@pytest.mark.parametrize(
    ("other", "remedy"),
    [
        (works(700), "busy in my_data.py:45 load; ended (stall_timeout_s). Mend what it does"),
        (waits(700), "ended (stall_timeout_s). Every rank must make the same calls"),
        (None, "(stopped? is its node up?); ended (stall_timeout_s). Look whether its node"),
    ],
    ids=["busy", "waiting", "silent"],
)
def test_a_long_stall_ends_the_run(other, remedy):
    verdict = judge_of(waits(600), other, now_s=1000.0).look(1000.0)
    assert verdict is not None
    assert verdict.end
    assert verdict.text.startswith("nothing has moved for 600 s at step 120: ")
    assert remedy in verdict.text


@pytest.mark.parametrize(
    ("pulses", "nodes", "hung"),
    [
        ([waits(600), None], "aa", ((1, 0),)),
        ([waits(600), works(700)], "ab", ((1, 1),)),
        ([works(700), waits(600)], "ab", ((0, 0),)),
        ([waits(600), None, waits(600)], "abb", ((1, 2),)),
        ([waits(600), None, None, waits(600)], "aabb", ((1, 0), (2, 3))),
        # Its node may be lost.
        ([waits(600), None], "ab", ()),
        ([waits(600), None, None, waits(600)], "abba", ()),
        # Most are missing: this rank may be the one that is cut off.
        ([waits(600), None, None], "aaa", ()),
        # All wait: nobody knows for whom.
        ([waits(600), waits(700)], "aa", ()),
        ([waits(600), None, Heartbeat(state="left"), waits(600)], "aaaa", ()),
    ],
)
def test_who_hangs_for_certain_and_who_can_kill_it(pulses, nodes, hung):
    verdict = judge_of(*pulses, now_s=1000.0, nodes=nodes).look(1000.0)
    assert verdict is not None
    assert (verdict.end, verdict.hung) == (True, hung)


def test_if_the_others_do_not_go_on_without_it_the_run_ends():
    judge = judge_of(waits(600), None, now_s=1000.0, nodes="aa")
    found = []
    for now_s in (1000.0, 1001.0, 1000.0 + GOING_ON_S):
        judge.hear(0, waits(600 + now_s - 1000), now_s)
        found.append(judge.look(now_s))
    assert [f and (f.end, f.hung) for f in found] == [(True, ((1, 0),)), None, (True, ())]


def left_then(*pulses: Heartbeat, after_s: float) -> StallDetector:
    """Rank 1 leaves at 100 s; the others, 0 and 2 to n, say this some time later."""
    judge = judge_of(waits(1), Heartbeat(state="left"), *[works(1)] * (len(pulses) - 1))
    for rank, pulse in zip((0, *range(2, len(pulses) + 1)), pulses, strict=True):
        judge.hear(rank, pulse, 100.0 + after_s)
    return judge


def test_a_rank_that_left_while_others_wait_ends_the_run():
    for limits in (LIMITS, {"warning_s": None, "timeout_s": None}):
        judge = left_then(waits(LEFT_S, **limits), waits(LEFT_S, **limits), after_s=LEFT_S)
        verdict = judge.look(100.0 + LEFT_S)
        assert verdict is not None
        assert verdict.end
        assert verdict.text.startswith(
            "rank 1 (n01) has ended while rank 0, 2 wait for it (rank 0 in train.py:9 main, rank 2"
        )


@pytest.mark.parametrize(
    ("pulses", "after_s"),
    [
        ((waits(4.9), waits(9)), LEFT_S),
        ((waits(9), works(9)), LEFT_S),
        ((waits(20), waits(20)), 0.5),
    ],
    ids=["not yet", "another one works", "said before it left"],
)
def test_who_has_left_may_not_be_missed(pulses, after_s):
    assert left_then(*pulses, after_s=after_s).look(100.0 + after_s) is None


def test_a_rank_that_has_left_says_nothing_new():
    judge = left_then(waits(LEFT_S), after_s=LEFT_S)
    judge.hear(1, Heartbeat(state="left"), 100.0 + LEFT_S)
    assert judge.look(100.0 + LEFT_S) is not None


def test_the_last_one_is_the_last_when_others_left_or_are_silent():
    judge = judge_of(works(0), Heartbeat(state="left"), works(0))
    assert not judge.is_last(0, 100.0)
    assert judge.is_last(0, 100.0 + SILENT_S)
    judge.hear(2, Heartbeat(state="left"), 100.0)
    assert judge.is_last(0, 100.0)


def test_of_many_ranks_a_few_are_named():
    text = said(*[waits(31)] * 20, *[works(31)] * 10)
    assert "rank 0, 1, 2, 3, 4, 5 and 14 more wait for rank 20 (n020), busy" in text
    assert text.endswith("and for 4 more")


@pytest.mark.parametrize("where", ["", "a.py:3 f", "\U0001f600" * 300, '"\\\0' * 100, "\udce4.py"])
def test_a_pulse_fits_and_comes_back(where):
    pulse = waits(31.5, where=where, progress=10**15, timeout_s=float("inf"))
    room = np.zeros(HEARTBEAT_BYTES, np.uint8)
    encode(pulse, room)
    got = decode(room)
    assert got.timeout_s == float("inf")
    assert got.since_s == 31.5
    assert got.where == where[:100].replace("\udce4", "?")


def test_time_in_which_a_process_was_stopped_does_not_count():
    times = iter([0.0, 1.0, 3601.0, 3602.0])
    clock = RunningClock(lambda: next(times))
    assert [clock.tick(3.0) for _ in range(3)] == [1.0, 4.0, 5.0]


@contextmanager
def a_thread(work: Callable[[], object]) -> Iterator[int]:
    """A thread that does something for ever, as far as the test is concerned."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert thread.ident is not None
    yield thread.ident


def look_until(thread: int, function: str, state: str) -> Activity:
    """What the thread does once it has come to that; or what it does after a long time."""
    end = time.monotonic() + 30
    while True:
        doing = read_activity(thread)
        there = doing.where.endswith(f" {function}") and doing.state == state
        if there or time.monotonic() > end:
            return doing
        time.sleep(0.01)


def test_a_rank_that_receives_waits():
    gate = threading.Event()

    def program(world):
        if world.rank == 0:
            seen.put(threading.get_ident())
            wait_until(world.irecv(np.zeros(1)).done)
        else:
            gate.wait(60)
            world.isend(np.zeros(1), 0)

    seen: queue.SimpleQueue[int] = queue.SimpleQueue()
    with a_thread(lambda: run_world(2, program)):
        rank_0 = seen.get(timeout=30)
        doing = look_until(rank_0, "program", "waiting")
        again = read_activity(rank_0)
        gate.set()
    assert doing.state == "waiting"
    assert doing.where.startswith("test_watchdog.py:")
    assert doing.where.endswith(" program")
    assert doing.call is not None
    assert doing.call is again.call


def test_a_rank_in_its_own_code_is_busy_there():
    gate = threading.Event()

    def load():
        gate.wait(60)

    with a_thread(load) as thread:
        doing = look_until(thread, "load", "busy")
        gate.set()
    assert doing.state == "busy"
    assert doing.where.startswith("test_watchdog.py:")
    assert doing.where.endswith(" load")


def test_a_rank_that_waits_for_its_batch_is_busy_where_the_batch_is_made():
    gate = threading.Event()

    def load():
        gate.wait(60)
        yield 1

    with a_thread(lambda: list(prefetched(load, 1))) as thread:
        doing = look_until(thread, "load", "busy")
        gate.set()
    assert doing.state == "busy"
    assert doing.where.endswith(" load")


def test_a_rank_that_waits_for_the_overlap_sender_waits(monkeypatch):
    """Trainers wait for a thread of ours that talks; here this file is what trains."""
    monkeypatch.setattr(stacks, "_STEPPING", __file__)
    gate = threading.Semaphore(0)

    def wait_for_bucket():
        gate.acquire()

    with a_thread(wait_for_bucket) as thread:
        doing = look_until(thread, "wait_for_bucket", "waiting")
        gate.release()
    assert doing.state == "waiting"
    assert doing.where.endswith(" wait_for_bucket")


@pytest.fixture
def in_a_watched_process(monkeypatch):
    monkeypatch.setattr(own_sections, "are_watched", True)


@pytest.mark.usefixtures("in_a_watched_process")
def test_progress_is_what_counts_in_a_section():
    tracker, count = Tracker(), 5
    assert tracker.look(0.0).warning_s is None
    with watched(lambda: (count, 10 * count), 30, 600):
        first = tracker.look(1.0)
        later = tracker.look(8.0)
        count = 6
        moved = tracker.look(9.0)
    outside = tracker.look(10.0)
    assert (first.since_s, first.step, first.warning_s, first.timeout_s) == (0.0, 50, 30, 600)
    assert (later.since_s, later.step) == (7.0, 50)
    assert (moved.since_s, moved.step) == (0.0, 60)
    assert (outside.since_s, outside.step, outside.warning_s) == (0.0, 60, None)
    assert tracker.look(15.0).since_s == 5.0


@pytest.mark.usefixtures("in_a_watched_process")
def test_the_inner_section_counts():
    tracker = Tracker()
    with watched(lambda: (1, 1), 30, 600):
        with watched(lambda: (1, 2), 3, 6):
            assert tracker.look(0.0).warning_s == 3
        assert tracker.look(1.0).warning_s == 30


@pytest.mark.usefixtures("in_a_watched_process")
def test_to_enter_a_section_or_to_leave_it_is_to_get_on():
    tracker = Tracker()
    since = [tracker.look(0.0).since_s]
    with watched(lambda: (0, 0), 30, 600):
        since.append(tracker.look(10.0).since_s)
    since.append(tracker.look(20.0).since_s)
    with watched(lambda: (0, 0), 30, 600):
        pass
    since.append(tracker.look(30.0).since_s)
    assert since == [0.0, 0.0, 0.0, 0.0]


@pytest.mark.usefixtures("in_a_watched_process")
def test_a_count_that_fails_because_its_section_ends_harms_nobody():
    tracker = Tracker()

    def count() -> tuple[int, int]:
        section.__exit__(None, None, None)
        raise ValueError("closed")

    section = watched(count, 30, 600)
    section.__enter__()
    assert tracker.look(0.0).progress == 0
    with (
        watched(lambda: (1 // 0, 0), 30, 600),
        pytest.raises(ZeroDivisionError),
    ):
        tracker.look(1.0)


def doing(monkeypatch, state: str, call: object = None) -> None:
    monkeypatch.setattr(sections, "read_activity", lambda thread: Activity(state, "here", call))


def test_outside_of_sections_only_the_same_call_is_the_same_wait(monkeypatch):
    tracker, one, another = Tracker(), object(), object()
    waited = []
    for now_s, state, call in [
        (0.0, "busy", None),
        (1.0, "waiting", one),
        (4.0, "waiting", one),
        (5.0, "waiting", another),
        (7.0, "waiting", another),
        (8.0, "busy", None),
        (9.0, "waiting", another),
    ]:
        doing(monkeypatch, state, call)
        waited.append(tracker.look(now_s).waiting_s)
    assert waited == [0.0, 0.0, 3.0, 0.0, 2.0, 0.0, 0.0]


@pytest.mark.usefixtures("in_a_watched_process")
def test_in_a_section_calls_without_progress_are_one_wait(monkeypatch):
    tracker = Tracker()
    with watched(lambda: (1, 1), 30, 600):
        for now_s in (0.0, 20.0, 40.0):
            doing(monkeypatch, "waiting", object())
            assert tracker.look(now_s).waiting_s == now_s


def test_a_process_that_is_not_watched_keeps_no_sections():
    with watched(lambda: (1, 1), 30, 600):
        assert own_sections.entered == []


@pytest.mark.usefixtures("in_a_watched_process")
def test_ranks_that_are_threads_are_not_watched():
    def program(world):
        with watched(lambda: (1, 1), 30, 600):
            return len(own_sections.entered)

    assert run_world(2, program) == [0, 0]


def test_what_is_known_is_left_in_the_jobs_folder(tmp_path, monkeypatch):
    monkeypatch.setenv(JOB_DIR, str(tmp_path))
    write_known(judge_of(waits(1), works(1)).known())
    assert json.loads((tmp_path / "heartbeats.json").read_text()) == {
        "0": {"node": "n00", "step": 120, "state": "waiting", "where": "train.py:9 main"},
        "1": {"node": "n01", "step": 120, "state": "busy", "where": "my_data.py:45 load"},
    }
    assert [file.name for file in tmp_path.iterdir()] == ["heartbeats.json"]


@pytest.mark.parametrize("folder", ["", "gone"])
def test_without_a_folder_nothing_is_left(folder, tmp_path, monkeypatch):
    monkeypatch.setenv(JOB_DIR, folder and str(tmp_path / folder))
    monkeypatch.chdir(tmp_path)
    write_known({})
    assert list(tmp_path.iterdir()) == []


def start(world) -> watch.RankWatch:
    """The watch of a rank of threads, as `start_watch` makes it for one of MPI."""
    line, nodes, end = world.split(0), world.allgather_values(world.node), pytest.fail
    kinds = [watch.Rank0Watch, watch.Rank1Deputy]
    made = kinds[world.rank](line, nodes, end) if world.rank < 2 else watch.HeartbeatSender(line)
    made.start()
    return made


@pytest.mark.timeout(60)
def test_ranks_leave_together_at_once(monkeypatch):
    """They do not wait for their next beat, which would come in an hour."""
    monkeypatch.setattr(watch, "beat_s", lambda ranks, warning_s: 3600.0)
    monkeypatch.setattr(watch, "_GOODBYE_S", 3600.0)

    def program(world):
        mine = start(world)
        world.barrier()
        mine.leave()
        return mine._thread.is_alive()

    assert run_world(3, program) == [False] * 3


@pytest.mark.timeout(30)
@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_watch_that_fails_says_so_once_and_holds_nobody_up(broken, caplog, monkeypatch):
    def program(world):
        monkeypatch.setattr(watch, "_SHORTEST_BEAT_S", 0.01)
        monkeypatch.setattr(watch, "_BEAT_S", 0.01)
        mine = start(world)
        if world.rank == broken:
            mine._tracker.look = lambda now_s: 1 // 0
            mine._thread.join(10)
            assert not mine._thread.is_alive()
        world.barrier()
        mine.leave()

    run_world(3, program)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert warnings[0].startswith("stalls are no longer watched for: ZeroDivisionError")


@pytest.mark.timeout(30)
def test_a_rank_that_fails_says_and_judges_nothing_more(monkeypatch):
    monkeypatch.setattr(watch, "_BEAT_S", 0.01)

    def program(world):
        mine = start(world)
        world.barrier()
        if world.rank == 1:
            monkeypatch.setattr(watch, "_watch", mine)
            with pytest.raises(SystemExit):
                fail(Failing(), ValueError("rank is unwell"))
            mine._thread.join(5)
        alive = mine._thread.is_alive()
        world.barrier()
        mine.leave()
        return alive

    assert run_world(2, program) == [True, False]


class Failing:
    """A rank that ends alone."""

    rank, size, node = 0, 1, "here"

    def abort(self, code: int = 1) -> NoReturn:
        raise SystemExit(code)


def test_a_stack_is_read_from_the_inside_out_and_to_its_end():
    def inner():
        return read_stack(threading.get_ident())

    names = [frame.f_code.co_name for frame in inner()]
    assert names[:3] == [
        "read_stack",
        "inner",
        "test_a_stack_is_read_from_the_inside_out_and_to_its_end",
    ]
    assert names[-1] in ("<module>", "_bootstrap", "_run_code", "_run_module_as_main")
    assert read_stack(-1) == []
