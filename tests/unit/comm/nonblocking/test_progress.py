"""Many operations in progress at once, driven by whichever thread waits."""

import threading
import time

import pytest

from paceline.comm.nonblocking.progress import Operation, ProgressEngine, Queue


class Gate:
    """Steps that cannot go on until it is opened."""

    def __init__(self, log=None, name=""):
        self.open, self.log, self.name = False, log if log is not None else [], name

    def steps(self):
        self.log.append(f"{self.name} starts")
        while not self.open:
            yield False
        self.log.append(f"{self.name} ends")
        return self.name


def make(steps, queue=None, timeout_s=30.0, cancels=False):
    return Operation(steps, timeout_s, lambda reason: RuntimeError(f"op: {reason}"), queue, cancels)


@pytest.fixture
def progress():
    made = ProgressEngine()
    yield made
    made.close()


def test_a_queue_keeps_its_order_and_others_run_beside_it(progress):
    log, queue = [], Queue()
    first, second, other = (Gate(log, name) for name in ("first", "second", "other"))
    works = [make(first.steps(), queue), make(second.steps(), queue), make(other.steps(), Queue())]
    for work in works:
        progress.submit(work)
    second.open = other.open = True
    assert progress.wait(works[2], 10)
    assert not works[1].over.is_set()
    assert progress.count == 2
    first.open = True
    assert progress.wait(works[1], 10)
    assert [work.result for work in works] == ["first", "second", "other"]
    assert log.index("first ends") < log.index("second starts")
    assert progress.count == 0


def test_what_nobody_waits_for_gets_on_in_the_thread(progress):
    gate = Gate()
    work = make(gate.steps())
    progress.submit(work)
    gate.open = True
    assert work.over.wait(10)


def test_many_threads_wait_and_none_is_forgotten(progress):
    def many():
        for _ in range(200):
            gate = Gate()
            gate.open = True
            progress.run(work := make(gate.steps(), Queue()))
            assert work.over.is_set()
        done.append(1)

    done = []
    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(done) == 4


def test_who_waits_may_give_up_and_the_operation_goes_on(progress):
    gate = Gate()
    work = make(gate.steps())
    progress.submit(work)
    assert not progress.wait(work, 0.05)
    gate.open = True
    assert progress.wait(work, 10)


def test_a_time_out_breaks_its_queue_alone(progress):
    queue, other = Queue(), Gate()
    other.open = True
    stuck, behind = make(Gate().steps(), queue, 0.1), make(other.steps(), queue)
    progress.submit(stuck)
    progress.submit(behind)
    assert progress.wait(behind, 10)
    assert str(stuck.error) == "op: the timeout of 0.1 s expired"
    assert "not started, because op: the timeout of 0.1 s expired" in str(behind.error)
    assert len(progress._lost) == 1  # MPI may still write to its buffers
    progress.run(beside := make(other.steps(), Queue()))
    assert beside.error is None


def test_the_time_of_one_that_waits_for_its_turn_does_not_run(progress):
    queue, slow, quick = Queue(), Gate(), Gate()
    quick.open = True
    works = [make(slow.steps(), queue), make(quick.steps(), queue, timeout_s=0.05)]
    for work in works:
        progress.submit(work)
    assert not progress.wait(works[1], 0.2)
    slow.open = True
    assert progress.wait(works[1], 10)
    assert works[1].error is None


def test_callbacks_run_in_the_order_in_which_they_were_added(progress):
    called = []
    work = make(Gate().steps(), timeout_s=0.1)
    work.when_over(lambda over: (over.when_over(lambda _: called.append(3)), called.append(1)))
    work.when_over(lambda over: called.append(2))
    progress.run(work)
    work.when_over(lambda over: called.append(4))
    assert called == [1, 2, 3, 4]


def test_what_fails_keeps_what_mpi_may_still_write_to(progress):
    def steps():
        yield False
        raise ValueError("too long")

    progress.run(work := make(steps(), Queue()))
    assert "too long" in str(work.error)
    assert progress._lost == [work]


def test_steps_that_take_back_are_closed(progress):
    closed = []

    def steps():
        try:
            while True:
                yield False
        except GeneratorExit:
            closed.append(True)
            raise

    progress.run(work := make(steps(), timeout_s=0.1, cancels=True))
    assert closed == [True]
    assert work.error is not None
    assert not progress._lost


def test_an_error_is_explained_and_kept(progress):
    def steps():
        yield True
        raise ValueError("no such rank")

    progress.run(work := make(steps()))
    assert str(work.error) == "op: ValueError: no such rank"
    assert isinstance(work.error.__cause__, ValueError)


def test_a_callback_may_wait_for_another_operation(progress):
    first, second = Gate(), Gate()
    second.open = True
    inner, heard = make(second.steps()), []

    def tell(_):
        progress.submit(inner)
        heard.append(progress.wait(inner, 5))

    outer = make(first.steps())
    outer.when_over(tell)
    progress.submit(outer)
    first.open = True
    assert progress.wait(outer, 10)
    assert heard == [True]


def test_waiting_burns_no_core(progress):
    work = make(Gate().steps())
    progress.submit(work)
    clock = time.pthread_getcpuclockid(progress._thread.ident)  # of its thread alone
    time.sleep(0.1)
    began, burnt = time.monotonic(), time.clock_gettime(clock)
    time.sleep(0.5)
    burnt, took = time.clock_gettime(clock) - burnt, time.monotonic() - began
    work.deadline_s = 0
    assert burnt < 0.3 * took


def test_an_idle_engine_does_not_poll(progress):
    gate = Gate()
    gate.open = True
    progress.submit(work := make(gate.steps()))
    assert work.over.wait(10)
    polls, poll = [], progress._poll
    progress._poll = lambda: polls.append(1) or poll()
    time.sleep(0.1)
    assert not polls
