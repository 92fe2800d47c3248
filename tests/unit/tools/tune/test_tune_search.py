"""One trial after another."""

import pytest

from paceline.tools.tune.figures import Estimate
from paceline.tools.tune.plan import Capacity, RankSetting, plan
from paceline.tools.tune.search import Search, best_of, describe_load
from paceline.tools.tune.trial import Outcome, Stopped


def measured(ranks, rate, threads=1, status="measured", own_bytes=0):
    found = Estimate("samples", rate, rank_bytes=own_bytes)
    return Outcome(RankSetting(ranks, threads), status, found)


def search_of(rates, **options):
    """A search on 2 cores where the rate depends on the ranks, and the settings it measured."""
    tried, said = [], []

    def measure(setting, best):
        tried.append((setting.ranks, best))
        return measured(setting.ranks, rates(setting.ranks), setting.threads)

    search = Search(measure, 2, free_bytes=lambda: None, say=said.append, **options)
    return search, tried, said


def test_trials_go_on_while_more_ranks_are_quicker():
    search, tried, _ = search_of(lambda ranks: -((ranks - 9) ** 2) + 100.0)
    search.run(plan(Capacity(2, 2)))
    assert [ranks for ranks, _ in tried] == [2, 3, 4, 1, 1, 6, 9, 14]
    assert best_of(search.outcomes).setting == RankSetting(9)


def test_ranks_that_were_named_are_all():
    search, tried, _ = search_of(float, grow=False)
    search.run([RankSetting(2), RankSetting(4)])
    assert [ranks for ranks, _ in tried] == [2, 4]


def test_a_trial_is_told_the_best_so_far():
    search, tried, _ = search_of(lambda ranks: {1: 5.0, 2: 9.0, 4: 7.0}[ranks], grow=False)
    search.run([RankSetting(1), RankSetting(2), RankSetting(4)])
    assert tried == [(1, None), (2, 5.0), (4, 9.0)]


@pytest.mark.parametrize(("thorough", "count"), [(False, 3), (True, 4)])
def test_what_cannot_win_is_skipped_unless_all_is_wanted(thorough, count):
    search, tried, _ = search_of(lambda ranks: 100.0 - ranks, thorough=thorough)
    search.run([RankSetting(2), RankSetting(3), RankSetting(4), RankSetting(8)])
    assert len(tried) == count
    assert [o.status for o in search.outcomes].count("skipped") == 4 - count


def test_what_memory_cannot_hold_is_skipped():
    search = Search(
        lambda setting, best: measured(setting.ranks, 10, own_bytes=4 * 10**9),
        2,
        free_bytes=lambda: 10 * 10**9,
        say=lambda text: None,
        grow=False,
    )
    search.run([RankSetting(2), RankSetting(4)])
    assert search.outcomes[1].reason == "would take 16.0 GB, 10.0 GB are free"


def test_a_failure_does_not_end_the_others():
    def measure(setting, best):
        if setting.ranks == 2:
            return Outcome(RankSetting(2), "failed", reason="exit code 1: no luck", code=1)
        return measured(setting.ranks, 5)

    said = []
    search = Search(measure, 2, free_bytes=lambda: None, say=said.append, grow=False)
    search.run([RankSetting(2), RankSetting(1, 2)])
    assert [o.status for o in search.outcomes] == ["failed", "measured"]
    assert "".join(said) == (
        "tune: trial 1 of 2: 2 ranks x 1 thread: failed: exit code 1: no luck\n"
        "tune: trial 2 of 2: 1 rank x 2 threads: 5 samples/s\n"
    )


@pytest.mark.parametrize(("words", "tried"), [(["a", "a"], 2), (["a", "b"], 3)])
def test_settings_that_are_wrong_twice_alike_are_wrong(words, tried):
    errors = iter([*words, "c"])
    search = Search(
        lambda setting, best: Outcome(setting, "failed", code=2, errors=next(errors)),
        2,
        free_bytes=lambda: None,
        say=lambda text: None,
    )
    search.run([RankSetting(2), RankSetting(3), RankSetting(4)])
    assert len(search.outcomes) == tried


def test_an_interruption_keeps_what_was_found():
    def measure(setting, best):
        if setting.ranks == 4:
            raise Stopped(2)
        return measured(setting.ranks, 5)

    search = Search(measure, 2, free_bytes=lambda: None, say=lambda text: None)
    with pytest.raises(Stopped):
        search.run([RankSetting(2), RankSetting(4), RankSetting(1)])
    assert [o.status for o in search.outcomes] == ["measured", "interrupted"]


def test_of_those_that_are_as_good_the_smallest_is_the_best():
    assert best_of([measured(2, 98), measured(4, 100)]).setting == RankSetting(2)
    assert best_of([measured(2, 96), measured(4, 100)]).setting == RankSetting(4)
    assert best_of([measured(2, 96), measured(4, 100, status="early")]).setting == RankSetting(2)
    assert best_of([]) is None


def test_a_busy_machine_is_told_of():
    assert describe_load(0.9, 1) is None
    assert describe_load(7.9, 16) is None
    assert "load 8.0 on 16 cores" in describe_load(8.0, 16)
