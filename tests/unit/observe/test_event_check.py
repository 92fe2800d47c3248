"""Events that prove that every sample was used once, and events that do not."""

import pytest

from paceline.observe.event_check import check_events


def generation(step, epoch=1, left=None, taken=None, lost=(), ranks=2, asynchronous=False):
    return {
        "event": "generation", "rank": 0, "step": step, "epoch": epoch, "left": left,
        "taken": taken, "lost": list(lost), "ranks": ranks, "samples_per_epoch": 20,
        "asynchronous": asynchronous, "samples": 0,
    }  # fmt: skip


def step(rank, number, samples=5, **more):
    return {"event": "step", "rank": rank, "step": number, "samples": samples, **more}


def epoch(number, at, samples=20):
    return {"event": "epoch", "rank": 0, "epoch": number, "step": at, "samples": samples}


def undisturbed():
    steps = [step(rank, number) for number in (1, 2) for rank in (0, 1)]
    return [generation(0), *steps, epoch(1, 2)]


def shrunk():
    """Rank 1 is lost after step 1; rank 0 takes the other 10 samples in steps 2 and 3."""
    later = generation(1, left=[[10, 20]], taken=[1, 1], lost=[1], ranks=1)
    steps = [step(0, 1), step(1, 1), later, step(0, 2), step(0, 3)]
    return [generation(0), *steps, epoch(1, 3)]


@pytest.mark.parametrize("events", [undisturbed(), shrunk()], ids=["undisturbed", "shrunk"])
def test_every_sample_was_used_once(events):
    assert check_events(events).problems == []


def test_how_many_ranks_were_lost_is_told():
    assert check_events(shrunk()).facts == ["1 epoch, 2 generations of the world, 1 rank lost"]


def test_the_last_step_of_a_lost_rank_may_be_missing():
    events = [event for event in shrunk() if event != step(1, 1)]
    assert check_events(events).is_whole


def test_what_a_lost_rank_did_after_the_last_exchange_does_not_count():
    """It is dealt again."""
    events = shrunk()
    events.insert(3, step(1, 1))
    assert check_events(events).is_whole


def test_a_lost_rank_may_have_been_a_step_further():
    events = [{**event, "generation": 0} for event in shrunk()[:3]]
    events += [step(1, 2, generation=0)]
    events += [{**event, "generation": 1} for event in shrunk()[3:]]
    assert check_events(events).is_whole
    assert not check_events([{**event, "generation": 1} for event in events]).is_whole


def test_what_was_done_after_the_checkpoint_that_a_run_went_on_from_does_not_count():
    ahead = [step(0, 2), step(1, 2), epoch(1, 2), step(0, 3)]
    again = generation(1, left=[[10, 20]], ranks=1)
    events = [generation(0), step(0, 1), step(1, 1), *ahead, again, step(0, 2), step(0, 3)]
    assert check_events([*events, epoch(1, 3)]).is_whole


def started_again(steps_before=(), **more):
    """From a checkpoint after step 1, in the first generation of the first start."""
    first = [generation(0), step(0, 1), step(1, 1), *steps_before]
    again = {**generation(1, left=[[10, 20]], ranks=1), "after": [7, 0], **more}
    second = [again, step(0, 2), step(0, 3), epoch(1, 3)]
    return [{**e, "start": 7} for e in first] + [{**e, "start": 9} for e in second]


def test_worlds_of_two_starts_are_told_apart():
    """The first start had lost a rank after the checkpoint, and the second has numbered its
    generations anew."""
    lost = {**generation(1, left=[[5, 20]], taken=[1, 0], lost=[1]), "generation": 1}
    events = started_again([lost, step(0, 2, generation=1)])
    found = check_events(events)
    assert found.problems == []
    assert found.facts == ["1 epoch, 2 generations of the world, 0 ranks lost, 1 time resumed"]
    assert not check_events(started_again([lost], after=[7, 1])).is_whole


def test_a_rank_may_write_a_step_before_the_leading_one_has_told_of_the_start():
    events = started_again()
    first, told, *others = events[3:]
    assert told["step"] == 2
    assert check_events([*events[:3], told, first, *others]).is_whole


def test_a_run_that_goes_on_with_as_many_ranks_keeps_its_samples_where_they_were():
    """After a rank was lost: what is left was dealt then, and not again."""
    later = generation(1, left=[[10, 20]], taken=[1, 1], lost=[1], ranks=1)
    again = {**generation(2, ranks=1), "after": [7, 1], "start": 9, "generation": 0}
    events = [generation(0), step(0, 1), step(1, 1)]
    events = [{**e, "start": 7, "generation": 0} for e in events]
    events += [{**e, "start": 7, "generation": 1} for e in (later, step(0, 2), step(0, 3))]
    events += [again, *({**e, "start": 9, "generation": 0} for e in (step(0, 3), epoch(1, 3)))]
    assert check_events(events).problems == []
    assert not check_events([e for e in events if e["step"] != 2 or "after" in e]).is_whole


WRONG = {
    "a sample twice": [*shrunk()[:-1], step(0, 3), epoch(1, 3)],
    "a sample lost": [event for event in shrunk() if event != step(0, 3)],
    "a step of a rank that lives is missing": [e for e in shrunk() if e != step(0, 1)],
    "an epoch too short": [*undisturbed()[:-1], epoch(1, 2, samples=15)],
    "an epoch missing": [*undisturbed()[:-1], epoch(2, 2)],
    "an epoch otherwise on another rank": [*undisturbed(), {**epoch(1, 2, 19), "rank": 1}],
    "places that had been used": [
        generation(0), step(0, 1), step(1, 1),
        generation(1, left=[[10, 20]], taken=[1, 1], lost=[1]), step(0, 2),
        generation(2, left=[[5, 10]], taken=[1], lost=[0]), step(0, 3), epoch(1, 3),
    ],
    "no beginning": undisturbed()[1:],
}  # fmt: skip


@pytest.mark.parametrize("events", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told(events):
    assert check_events(events).problems


def test_asynchronous_workers_are_counted_by_epochs():
    events = [generation(0, asynchronous=True), step(0, 1, 3), epoch(1, 2)]
    assert check_events(events).is_whole
    assert not check_events([*events[:-1], epoch(1, 2, samples=19)]).is_whole
