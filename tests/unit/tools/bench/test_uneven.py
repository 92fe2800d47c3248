"""`bench uneven`: its sentences, models, samplers, arithmetic and rows; what the ranks do, on ranks
that are threads."""

import argparse
import sys
import threading
from functools import cache
from importlib.util import find_spec
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from paceline.comm import run_world
from paceline.errors import ConfigError
from paceline.tools.bench import uneven, uneven_figures
from paceline.tools.bench.options import add_shared_options, default_rounds
from paceline.tools.bench.ranks import uneven as uneven_ranks
from paceline.tools.bench.ranks.uneven import CONTESTANTS, Task, contest, train
from paceline.tools.bench.ranks.uneven_models import (
    CORPORA,
    LONGEST,
    MODELS,
    VOCABULARY,
    Corpus,
    enlist,
    equal,
    lognormal,
    number_word,
    pad,
    split_sentences,
    split_span,
    topics,
)
from paceline.tools.bench.ranks.uneven_peers import SAMPLERS, SamplingTask, find_missing

needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="transformers is not installed"
)


def read(*arguments):
    parser = argparse.ArgumentParser()
    uneven.add_options(parser)
    add_shared_options(parser)
    args = parser.parse_args(arguments)
    default_rounds(args)
    return args


def facts(seconds, examples=100, **more):
    return {"seconds": seconds, "examples": examples, "steps": 10, "loss": 0.5, **more}


# Options


def test_all_of_it_is_measured_unless_some_is_named():
    args = read()
    assert (args.models, args.corpora, args.parts) == (None, None, None)
    assert (args.ranks, args.batch, args.bucketing, args.micro_batch) == ((2, 4), None, [], 1)
    assert read("--parts", "slow", "--models", "tree").parts == ["slow"]


def test_bucketing_is_set_for_each_contestant():
    given = read("--bucketing", "planned=1", "learned=0.5").bucketing
    assert dict(given) == {"planned": 1.0, "learned": 0.5}


@pytest.mark.parametrize("text", ["planned", "planned=", "planned=2", "counts=1", "planned=nan"])
def test_a_bucketing_that_is_none_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        read("--bucketing", text)
    assert f"{text!r} is not planned=X or learned=X with X from 0 to 1" in capsys.readouterr().err


def test_what_can_be_named_can_be_trained():
    assert set(uneven.MODELS) < set(MODELS)
    assert set(uneven.CORPORA) == set(CORPORA)
    assert set(uneven_figures.OURS) < set(CONTESTANTS)
    assert set(SAMPLERS) < set(CONTESTANTS)


def test_the_help_names_the_corpus(capsys):
    with pytest.raises(SystemExit):
        read("--help")
    assert "pydoc_data.topics" in capsys.readouterr().out


# Parts


def refuse():
    raise ConfigError("hosts cannot be made here: root is needed, and this is another user")


def test_where_no_hosts_can_be_made_the_part_is_left_out_and_said_so(monkeypatch, capsys):
    monkeypatch.setattr(uneven, "check_means", refuse)
    answer({"counts": facts(2.0), "dynamic": facts(1.0)}, monkeypatch)
    rows = uneven.measure(read("--quick", "--parts", "hosts", "overhead"))
    assert [row.case for row in rows] == ["equal lengths 2x4, dynamic"]
    said = "uneven: the part hosts is left out: hosts cannot be made here: root is needed"
    assert capsys.readouterr().err.startswith(said)


def test_a_part_that_was_asked_for_alone_is_not_left_out(monkeypatch):
    monkeypatch.setattr(uneven, "check_means", refuse)
    with pytest.raises(ConfigError, match="hosts cannot be made here"):
        uneven.measure(read("--quick", "--parts", "hosts"))


def test_ranks_that_two_hosts_cannot_share_are_refused_before_anything_is_measured(monkeypatch):
    told = answer({}, monkeypatch)
    with pytest.raises(ConfigError, match="--hosts-ranks 7 is not a multiple of 2 hosts"):
        uneven.measure(read("--quick", "--hosts-ranks", "4", "7"))
    assert told == []


def test_planning_is_timed_and_its_memory_measured(monkeypatch):
    monkeypatch.setattr(uneven, "PLANNED_RANKS", 16)
    (row,) = uneven.measure(read("--quick", "--rounds", "1", "--parts", "planning"))
    assert (row.case, row.unit, row.peers) == ("planning 100,000 for 16x8", "s", {})
    assert 0 < row.notes["choosing bucketing s"] < row.ours
    assert row.notes["split of a step ms"] > 0
    assert 0.8 < row.notes["peak MB"] < 1000  # the order alone has 100,000 numbers


def answer(found, monkeypatch):
    """Let ranks find this for every case; gives what they were told."""
    told = []

    def run_ranks(program, ranks, settings, threads, timeout_s):
        told.append((program.partition(":")[2], ranks, settings))
        return [found] * len(settings.get("cases", settings.get("batches")))

    monkeypatch.setattr(uneven, "run_ranks", run_ranks)
    return told


def test_every_model_meets_every_corpus_and_batch(monkeypatch):
    told = answer({"counts": facts(2.0), "planned": facts(1.0)}, monkeypatch)
    rows = uneven.measure(read("--parts", "compute", "--bucketing", "planned=1"))
    assert [(name, ranks, len(settings["cases"])) for name, ranks, settings in told] == [
        ("measure", 2, 12),
        ("measure", 4, 8),
    ]
    assert told[0][2]["bucketing"] == {"planned": 1.0}
    assert rows[0].case == "lstm lognormal 2x1, planned"
    assert rows[-1].case == "tree topics 4x8, planned"
    assert len(rows) == 20


def test_a_batch_that_is_named_is_that_of_all_ranks(monkeypatch):
    told = answer({"planned": facts(1.0)}, monkeypatch)
    uneven.measure(read("--parts", "compute", "--models", "tree", "--batch", "32", "-n", "4"))
    assert told[0][2]["cases"] == [("tree", "lognormal", 32), ("tree", "topics", 32)]


def test_a_slow_rank_and_equal_sentences_are_measured_with_several_in_a_batch(monkeypatch):
    told = answer({"counts": facts(2.0), "dynamic": facts(1.0)}, monkeypatch)
    rows = uneven.measure(read("--parts", "slow", "overhead"))
    assert [(name, settings["batches"]) for name, _, settings in told] == [
        ("measure_slow", [8, 32]),
        ("measure_equal", [8, 32]),
    ]
    assert [row.case for row in rows] == [
        "one 2x slower 2x8, dynamic",
        "one 2x slower 2x32, dynamic",
        "equal lengths 2x8, dynamic",
        "equal lengths 2x32, dynamic",
    ]


# Rows and arithmetic


def test_each_way_of_ours_has_a_row_beside_the_same_peers():
    found = {
        "counts": facts(2.0, of_ideal=0.5),
        "planned": facts(1.0, of_ideal=0.96, waiting=0.02, spread=0.01, padding=0.1),
        "dynamic": facts(1.25, of_ideal=0.9),
        "ddp": facts(4.0),
    }
    planned, dynamic = uneven_figures.make_rows("lstm topics 2x8", found)
    assert (planned.case, planned.unit) == ("lstm topics 2x8, planned", "examples/s")
    assert (planned.ours, dynamic.ours) == (100.0, 80.0)
    assert planned.peers == dynamic.peers == {"counts": 50.0, "ddp": 25.0}
    assert planned.advantage("counts") == 2.0
    assert planned.notes == {
        "of ideal": 0.96,
        "waiting": 0.02,
        "spread": 0.01,
        "padding": 0.1,
        "loss": 0.5,
        "peers' of ideal": "0.50",
        "peers' loss": "0.500 0.500",
    }
    assert list(dynamic.notes) == ["of ideal", "loss", "peers' of ideal", "peers' loss"]


def test_the_ideal_is_all_work_divided_by_who_can_do_it():
    assert uneven_figures.ideal_seconds([1.0, 3.0], (), 2) == 2.0
    assert uneven_figures.ideal_seconds([1.0, 3.0], (), 64) == 2.0
    assert uneven_figures.ideal_seconds([1.0] * 4, (), 2) == 2.0
    # Of 3 seconds of usual work the slow rank does one in two seconds.
    assert uneven_figures.ideal_seconds([2.0, 2.0], (1, 2), None) == 2.0


def test_the_spread_is_that_of_steps():
    assert uneven_figures.mean_spread([[1, 1, 3], [1, 3, 1]]) == pytest.approx(1 / 3)
    assert uneven_figures.mean_spread([[0], [0]]) == 0


# Sentences


def test_lengths_are_log_normal():
    lengths = np.array(lognormal(20_000).lengths)
    assert lengths.mean() == pytest.approx(20, rel=0.03)
    assert np.log(lengths).std() == pytest.approx(0.7, rel=0.05)
    assert 1 <= lengths.min() <= lengths.max() <= LONGEST


@pytest.mark.parametrize("name", CORPORA)
def test_a_corpus_is_the_same_on_every_rank_and_has_as_many_sentences_as_asked_for(name):
    first, second = CORPORA[name](50), CORPORA[name](50)
    assert first.lengths == second.lengths
    for (tokens, label), (others, same) in zip(first.sentences, second.sentences, strict=True):
        assert tokens.tolist() == others.tolist()
        assert 0 < int(tokens.min()) <= int(tokens.max()) < VOCABULARY
        assert 0 <= label == same < first.classes


def test_classes_can_be_told_apart_by_their_words():
    sentences = lognormal(2000).sentences
    own = VOCABULARY // 16
    for tokens, label in sentences:
        special = tokens[tokens <= own * 8]
        assert set(((special - 1) // own).tolist()) <= {label}


def test_topics_are_english_and_come_again_if_there_are_too_few():
    corpus = topics(5000)
    assert len(corpus.sentences) == 5000
    assert 10 < np.mean(corpus.lengths) < 30
    assert max(corpus.lengths) <= LONGEST
    assert corpus.classes > 50


def test_sentences_have_no_code():
    text = (
        'The "if" statement is\nused. See also: it.\n\n      if x:\n          y.\n\n   a ::= b.\n'
    )
    assert list(split_sentences(text)) == [
        ["The", "if", "statement", "is", "used"],
        ["See", "also", "it"],
    ]


def test_words_have_numbers_that_do_not_change_from_process_to_process():
    assert number_word("tree") == 1 + 3074318044 % (VOCABULARY - 1)  # crc32 of b"tree"


def test_equal_sentences_are_equal_in_length():
    assert set(equal(10).lengths) == {20}


# Models


def test_padding_does_not_change_what_the_lstm_makes_of_a_sentence():
    torch.manual_seed(1)
    model = MODELS["lstm"].build(8)
    sentences = lognormal(4).sentences
    together = model(pad(sentences)[0])
    alone = torch.cat([model(pad([sentence])[0]) for sentence in sentences])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_a_tree_has_every_token_once_and_the_same_shape_every_time():
    def spans(tokens, begin, end):
        if end - begin == 1:
            return [begin]
        middle = split_span(tokens, begin, end)
        assert begin < middle < end
        return spans(tokens, begin, middle) + spans(tokens, middle, end)

    for tokens, _ in lognormal(30).sentences:
        assert spans(tokens.tolist(), 0, len(tokens)) == list(range(len(tokens)))


@pytest.mark.parametrize("length", [1, 2, 40])
def test_the_tree_learns_from_sentences_of_any_length(length):
    torch.manual_seed(1)
    model = MODELS["tree"].build(3)
    tokens, classes = enlist([(torch.randint(1, VOCABULARY, (length,)), 2)])
    loss = cross_entropy(model(tokens), classes)
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and gradient.any() for gradient in gradients)


# Samplers of the peers

LENGTHS = lognormal(96).lengths
look_once = cache(find_missing)


@pytest.mark.parametrize(("ranks", "batch"), [(2, 1), (2, 8), (3, 4)])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_gives_every_sentence_to_one_rank_in_as_many_steps(name, ranks, batch):
    if name in look_once():
        pytest.skip(look_once()[name])
    samplers = [SAMPLERS[name](SamplingTask(LENGTHS, batch, rank, ranks)) for rank in range(ranks)]
    for epoch in (0, 1):
        batches = [list(sampler(epoch)) for sampler in samplers]
        assert len({len(own) for own in batches}) == 1
        seen = [place for own in batches for step in own for place in step]
        assert set(seen) == set(range(96))
        assert len(seen) < 96 + ranks * batch, "the last step may repeat some"
        assert all(step for own in batches for step in own)
    assert list(samplers[0](0)) != list(samplers[0](1)), "another order in every epoch"


@needs_transformers
def test_a_grouped_sampler_puts_similar_lengths_into_a_step():
    def spread(name):
        shares = [list(SAMPLERS[name](SamplingTask(LENGTHS, 1, rank, 2))(0)) for rank in range(2)]
        lengths = [[LENGTHS[step[0]] for step in own] for own in shares]
        return uneven_figures.mean_spread(lengths)

    assert spread("ddp-grouped") < 0.5 * spread("ddp")


def test_what_is_not_installed_is_named_with_the_remedy(monkeypatch):
    for package in ("transformers", "transformers.trainer_pt_utils", "lhotse"):
        monkeypatch.setitem(sys.modules, package, None)
    missing = find_missing()
    assert list(missing) == ["ddp-grouped", "ddp-rebalanced", "ddp-lhotse"]
    assert missing["ddp-lhotse"].endswith("; run: pip install --upgrade lhotse")
    assert missing["ddp-grouped"].endswith("; run: pip install --upgrade transformers")


def test_a_package_that_is_too_old_is_named_too(monkeypatch):
    old = ModuleType("transformers.trainer_pt_utils")
    monkeypatch.setitem(sys.modules, "transformers", ModuleType("transformers"))
    monkeypatch.setitem(sys.modules, "transformers.trainer_pt_utils", old)
    assert "cannot import name 'BatchRebalanceSampler'" in find_missing()["ddp-rebalanced"]


# What ranks do


@pytest.fixture(autouse=True)
def _one_builds_at_a_time(monkeypatch):
    """torch's random numbers are those of all threads."""
    building = threading.Lock()
    build = uneven_ranks.build_model

    def build_alone(task):
        with building:
            return build(task)

    monkeypatch.setattr(uneven_ranks, "build_model", build_alone)


def run(names, model="tree", **options):
    """Facts of these contestants, found by two ranks."""
    options = {"corpus": lognormal(24), "batch": 3, "model": MODELS[model]} | options

    def program(world):
        return contest(Task(world=world, **options), names, {"rounds": 1})

    first, second = run_world(2, program)
    assert first == second, "ranks agree on what they found"
    return first


@pytest.mark.parametrize("model", ["lstm", "tree"])
def test_each_of_ours_trains_on_every_sentence_once(model):
    names = ("counts", "planned", "learned", "speeds", "dynamic")
    found = run(names, model)
    assert list(found) == list(names)
    for one in found.values():
        assert (one["examples"], one["steps"]) == (24, 4)
        assert 0 < one["of_ideal"] <= 1
        assert 0 <= one["waiting"] < 1
        assert 0 < one["loss"] < 3
        assert ("padding" in one) == (model == "lstm")
    assert found["planned"]["spread"] < found["counts"]["spread"]
    if model == "lstm":
        assert found["dynamic"]["padding"] == 0 < found["counts"]["padding"] < 1


def test_all_contestants_learn_the_same_when_all_sentences_make_one_step():
    """A gradient is the mean over the step, whoever took which sentence."""
    found = run(("counts", "planned", "dynamic"), corpus=lognormal(8), batch=4)
    losses = [one["loss"] for one in found.values()]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)


def test_sentences_computed_one_by_one_give_the_same_gradient():
    whole, single = (
        run(("counts",), corpus=equal(8), batch=4, one_by_one=one)["counts"]
        for one in (False, True)
    )
    assert single["loss"] == pytest.approx(whole["loss"], rel=1e-5)
    assert single["examples"] == whole["examples"] == 8


def test_micro_batches_are_dealt_padded():
    dealt = run(("dynamic",), "lstm", micro_batch=3)["dynamic"]
    assert dealt["padding"] > 0
    assert dealt["examples"] == 24


def test_a_slow_rank_computes_everything_twice_for_the_same_gradient():
    usual = run(("counts",))["counts"]
    slow = run(("counts",), slowdown=(1, 2))["counts"]
    assert slow["loss"] == pytest.approx(usual["loss"], rel=1e-5)


def test_examples_asleep_take_what_their_tokens_take():
    corpus = Corpus([(torch.ones(10, dtype=torch.long), 0)] * 8, classes=2)
    found = run(("counts",), "length", corpus=corpus, batch=2, token_s=0.001, warm_up=corpus)[
        "counts"
    ]
    assert found["seconds"] >= 0.04
    assert found["of_ideal"] == pytest.approx(0.04 / found["seconds"])
    assert found["spread"] == 0


def test_the_best_round_counts(monkeypatch):
    rounds = iter([facts(3.0, loss=3.0), facts(1.0, loss=1.0), facts(2.0, loss=2.0)])
    monkeypatch.setattr(uneven_ranks, "train", lambda *_: next(rounds))

    def program(world):
        task = Task(world, lognormal(1), MODELS["tree"], 1)
        return contest(task, ["counts"], {"rounds": 3})

    assert run_world(1, program) == [{"counts": facts(1.0, loss=1.0)}]


def test_every_contestant_begins_with_the_same_model(monkeypatch):
    seen = []

    def look(steps, module, optimizer, meter):
        seen.append([parameter.detach().clone() for parameter in module.parameters()])
        meter.begin_step()

    monkeypatch.setattr(uneven_ranks, "_train_epoch", look)

    def program(world):
        task = Task(world, lognormal(4), MODELS["tree"], 1)
        train(task, "counts")
        train(task, "planned")

    run_world(1, program)
    first, *others = seen
    assert len(others) == 3, "two contestants, two epochs each"
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
