"""Samples of varying length: padded, packed or nested."""

import pickle
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence, unpack_sequence

from paceline.data import DatasetSource, Nest, Pack, Pad
from paceline.errors import ConfigError, DataError

WORDS = [[3, 1, 4, 1], [5], [9, 2]]
PADDED = [[3, 1, 4, 1], [5, 0, 0, 0], [9, 2, 0, 0]]
KINDS = {"list": list, "numpy": np.array, "torch": torch.tensor}


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_are_padded_to_the_longest_of_the_batch(kind):
    pad = Pad()
    padded = pad([KINDS[kind](word) for word in WORDS])
    assert type(padded) is (torch.Tensor if kind == "torch" else np.ndarray)
    assert padded.tolist() == PADDED
    assert padded.dtype == (torch.int64 if kind == "torch" else np.int64)
    assert (pad.elements, pad.padding, pad.padding_share) == (12, 5, 5 / 12)


def test_the_padding_value_is_used():
    assert Pad(-1)([[3, 1], [5]]).tolist() == [[3, 1], [5, -1]]
    assert Pad(0.5)([torch.ones(2), torch.ones(1)]).tolist() == [[1, 1], [1, 0.5]]
    assert np.isnan(Pad(float("nan"))([np.ones(2), np.ones(1)])[1, 1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("longest", "width"), [(1, 4), (4, 4), (5, 8)])
def test_lengths_are_rounded_up_to_a_multiple(kind, longest, width):
    pad = Pad(7, 4)
    samples = [KINDS[kind]([[1, 2]] * longest), KINDS[kind]([[1, 2]])]
    assert tuple(pad(samples).shape) == (2, width, 2)
    assert pad(samples)[1].tolist() == [[1, 2]] + [[7, 7]] * (width - 1)
    assert pad.padding_share == 1 - (longest + 1) / (2 * width)


def test_rounding_applies_to_batches_of_one_length():
    assert Pad(0, 4)([[1, 2, 3], [4, 5, 6]]).tolist() == [[1, 2, 3, 0], [4, 5, 6, 0]]
    assert Pad(0, 4)([([1, 2, 3], [0, 1, 0])])[1].tolist() == [[0, 1, 0, -100]]


def test_fixed_leaves_are_not_rounded():
    samples = [{"ids": [1, 2, 3], "image": np.ones((3, 2))}]
    pad = Pad(0, 4, fixed=["image"])
    batch = pad(samples)
    assert batch["ids"].shape == (1, 4)
    assert batch["image"].shape == (1, 3, 2)
    assert (pad.elements, pad.padding) == (4, 1)
    assert Pad(0, 4)(samples)["image"].shape == (1, 4, 2)
    inputs, targets = Pad(0, 4, fixed=1, fixed_targets=True)([(([1, 2], [3, 4]), [0, 1])])
    assert [leaf.shape for leaf in (*inputs, targets)] == [(1, 4), (1, 2), (1, 2)]


def test_fixed_leaves_must_exist_and_agree():
    with pytest.raises(DataError, match=r"fixed names 'img', and the inputs are a dict of 'ids'"):
        Pad(fixed=["img"])([{"ids": [1, 2]}])
    with pytest.raises(DataError, match=r"fixed names 0, and the inputs are a list of 2"):
        Pad(fixed=0)([[1, 2]])
    with pytest.raises(
        DataError, match=r"inputs\['x'\] have shape \(2,\) in one sample and \(1,\)"
    ):
        Pad(fixed="x")([{"x": [1, 2]}, {"x": [1]}])


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_one_shape_is_stacked(kind):
    make = KINDS[kind]
    pairs = [(make([[1.0, 2.0]]), make([0, 1])), (make([[3.0, 4.0]]), make([1, 0]))]
    inputs, targets = Pad()(pairs)
    assert inputs.tolist() == [[[1, 2]], [[3, 4]]]
    assert targets.tolist() == [[0, 1], [1, 0]]


def test_nests_keep_their_structure():
    Both = namedtuple("Both", "left right")
    samples = [{"ids": [1, 2], "more": Both(np.ones(n, "f4"), (n, 2.5))} for n in (1, 3)]
    batch = Pad()(samples)
    assert batch["ids"].tolist() == [[1, 2], [1, 2]]
    assert batch["more"].left.tolist() == [[1, 0, 0], [1, 1, 1]]
    assert batch["more"].right[0].tolist() == [1, 3]
    assert batch["more"].right[1].dtype == np.float32


def test_targets_are_padded_with_what_the_loss_ignores():
    pairs = [([7, 8], [1, 0]), ([9], [1])]
    assert Pad()(pairs)[1].tolist() == [[1, 0], [1, -100]]
    pad = Pad(target_padding_value=5)
    inputs, targets = pad(pairs)
    assert targets.tolist() == [[1, 0], [1, 5]]
    assert inputs.tolist() == [[7, 8], [9, 0]]
    assert (pad.elements, pad.padding) == (4, 1)  # of the inputs alone


@pytest.mark.parametrize(
    ("targets", "dtype"),
    [
        ([0, 2], np.int64),
        ([0.5, 2], np.float32),
        ([True, False], np.bool_),
        ([np.float64(1), np.float64(2)], np.float64),
        ([np.int16(1), np.int16(2)], np.int16),
    ],
)
def test_numbers_are_stacked(targets, dtype):
    _, found = Pad()([([1], targets[0]), ([1, 2], targets[1])])
    assert found.tolist() == targets
    assert found.dtype == dtype


def test_tensors_make_all_of_the_batch_tensors():
    pairs = [({"a": torch.ones(n), "b": np.ones(n)}, n) for n in (1, 2)]
    (inputs, lengths), targets = Pad(with_lengths=True)(pairs)
    assert all(isinstance(leaf, torch.Tensor) for leaf in (*inputs.values(), lengths, targets))
    assert targets.tolist() == [1, 2]
    assert targets.dtype == torch.int64
    assert Pad()([(torch.ones(n), torch.tensor(n)) for n in (1, 2)])[1].tolist() == [1, 2]
    assert isinstance(Pad()([[torch.ones(1), [1]], [torch.ones(2), [1, 2]]])[1], torch.Tensor)


def test_pairs_without_targets_are_inputs():
    assert Pad()([([1, 2], None), ([3], None)]).tolist() == [[1, 2], [3, 0]]


def test_a_list_of_two_numbers_is_a_sequence():
    assert Pad()([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
    assert Pad()([[np.int64(1), np.int64(2)], [np.int64(3)]]).tolist() == [[1, 2], [3, 0]]
    scalars = Pad()([[torch.tensor(1), torch.tensor(2)], [torch.tensor(3)]])
    assert scalars.tolist() == [[1, 2], [3, 0]]
    assert isinstance(scalars, torch.Tensor)
    inputs, targets = Pad()([(1, [2, 3]), (4, [5])])
    assert inputs.tolist() == [1, 4]
    assert targets.tolist() == [[2, 3], [5, -100]]


def test_pairs_mixed_with_others_are_refused():
    vectors = [[[1, 2]] * n for n in (3, 2)]
    for samples in (vectors, vectors[::-1]):
        with pytest.raises(DataError, match=r"some samples are .* pairs and some are not"):
            Pad()(samples)


@pytest.mark.parametrize(
    ("samples", "dtype"),
    [
        ([[1, 2], [3]], np.int64),
        ([[1.5, 2], [3]], np.float32),
        ([[1], [2.5, 1.0]], np.float32),
        ([[True], [False, True]], np.bool_),
        ([[], [1, 2]], np.int64),
        ([[], [1.5]], np.float32),
        ([[], []], np.int64),
        ([np.array([]), np.array([1, 2])], np.int64),
        ([np.zeros(0, "f4"), np.zeros(0, "f4")], np.float32),
        ([np.ones(2), np.ones(3)], np.float64),
        ([np.ones(2, "i2"), np.ones(3, "f4")], np.float32),
        ([np.ones(2, ">f4"), np.ones(3, ">f4")], np.dtype("=f4")),
        ([torch.ones(2).half(), torch.ones(3).half()], torch.float16),
        ([torch.ones(2).long(), torch.ones(3)], torch.float32),
        ([torch.zeros(0), torch.ones(3).long()], torch.int64),
        ([torch.tensor([True]), torch.tensor([True, False])], torch.bool),
    ],
)
def test_types(samples, dtype):
    padded = Pad()(samples)
    assert padded.dtype == dtype
    assert [row[: len(sample)].tolist() for row, sample in zip(padded, samples, strict=True)] == [
        list(sample) for sample in samples
    ]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_empty_sequences_are_all_padding(kind):
    make = {"numpy": np.zeros, "torch": torch.zeros}[kind]
    pad = Pad(1)
    assert pad([make((0, 2)), make((1, 2))]).tolist() == [[[1, 1]], [[0, 0]]]
    assert (pad.elements, pad.padding) == (4, 2)
    assert tuple(Pad(0, 8)([make(0), make(0)]).shape) == (2, 0)


def test_an_empty_list_has_the_axes_of_the_others():
    assert Pad()([{"x": []}, {"x": [[1, 2]]}])["x"].tolist() == [[[0, 0]], [[1, 2]]]


@pytest.mark.parametrize("collate", [Pad(), Pack(), Nest()], ids=["pad", "pack", "nest"])
@pytest.mark.parametrize("make", [np.zeros, torch.zeros])
@pytest.mark.parametrize(
    ("one", "other"), [((5, 3), (4, 2)), ((5, 3), (4,)), ((), (4,)), ((4,), ()), ((2,), (0, 3))]
)
def test_trailing_axes_must_agree(collate, make, one, other):
    def shape(axes):
        return str(axes).replace("(", r"\(").replace(")", r"\)")

    text = rf"inputs\['x'\] have shape {shape(one)} in one sample and {shape(other)} in another"
    with pytest.raises(DataError, match=text):
        collate([{"x": make(one)}, {"x": make(other)}])


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        ([{"x": [1]}, {"y": [1]}], "inputs are a dict of 'x' in one .* a dict of 'y' in another"),
        ([(1, 2, 3), (1, 2, 3, 4)], "a tuple of 3 in one .* a tuple of 4 .* not a tuple"),
        ([{"x": [1]}, [1]], "inputs are a dict of 'x' in one sample and a list of 1"),
        (["ab", "c"], "inputs are a str, expected numbers, arrays or tensors"),
        ([[1], None], r"inputs have shape \(1,\) in one sample and \(\) in another"),
        ([[1, 2, [3]]], "inputs cannot become arrays: ValueError"),
        ([torch.ones(1), "a"], "inputs cannot become arrays"),
        ([([1], [1]), ([1], None)], r"targets have shape \(1,\) in one sample and \(\)"),
    ],
)
def test_what_cannot_be_padded_is_refused(samples, text):
    with pytest.raises(DataError, match=text):
        Pad()(samples)


@pytest.mark.parametrize(
    ("value", "make"),
    [
        (-100, lambda n: np.zeros(n, np.uint8)),
        (-100, lambda n: np.zeros(n, np.bool_)),
        (0.5, lambda n: np.zeros(n, np.int64)),
        (float("nan"), lambda n: np.zeros(n, np.int32)),
        (300, lambda n: torch.zeros(n, dtype=torch.uint8)),
        (-100, lambda n: torch.zeros(n, dtype=torch.bool)),
    ],
)
def test_a_value_that_the_type_cannot_hold_is_refused(value, make):
    samples = [make(1), make(2)]
    with pytest.raises(
        DataError, match=rf"^padding_value is {value}, which .*(int|bool).* type of inputs"
    ):
        Pad(value)(samples)
    pairs = [(sample, sample) for sample in samples]
    with pytest.raises(DataError, match=r"^target_padding_value is .* the type of targets"):
        Pad(target_padding_value=value)(pairs)
    assert tuple(Pad(value)(samples[:1]).shape) == (1, 1)  # nothing to pad


@pytest.mark.parametrize("multiple", [0, -8, 1.5, True, None])
def test_bad_multiples_are_refused(multiple):
    with pytest.raises(ConfigError, match=f"pad_to_multiple_of is {multiple}, expected an int"):
        Pad(0, multiple)


def test_bad_padding_values_are_refused():
    with pytest.raises(ConfigError, match="a padding value is None, expected a number"):
        Pad(None)
    with pytest.raises(ConfigError, match="a padding value is 'x', expected a number"):
        Pad(target_padding_value="x")


def test_lengths_come_beside_the_inputs():
    (padded, lengths), targets = Pad(with_lengths=True)([([1, 2], 0), ([], 1)])
    assert padded.tolist() == [[1, 2], [0, 0]]
    assert lengths.tolist() == [2, 0]
    assert lengths.dtype == np.int64
    assert targets.tolist() == [0, 1]


def test_lengths_are_those_of_the_first_sequence():
    samples = [{"image": np.ones(4), "n": 1, "a": [1] * n, "b": [1]} for n in (2, 3)]
    (_, lengths), targets = Pad(with_lengths=True, fixed="image")(samples)
    assert lengths.tolist() == [2, 3]
    assert targets is None
    with pytest.raises(DataError, match="no input is a sequence"):
        Pad(with_lengths=True)([(1, [1])])


def test_two_inputs_alone_are_not_taken_for_targets():
    samples = [{"a": [1] * n} for n in (1, 2)]
    batch = DatasetSource(samples, collate=Pad(with_lengths=True)).take(np.array([0, 1]))
    assert batch.targets is None
    assert batch.inputs[0]["a"].tolist() == [[1, 0], [1, 1]]
    assert batch.inputs[1].tolist() == [1, 2]
    two = [(([1] * n, [2]), None) for n in (1, 2)]
    batch = DatasetSource(two, collate=Pad()).take(np.array([0, 1]))
    assert batch.targets is None
    assert batch.inputs[0].tolist() == [[1, 0], [1, 1]]


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(0, 2),
    st.booleans(),
)
def test_without_the_padding_the_samples_are_back(lengths, multiple, features, of_torch):
    tail = (features,) if features else ()
    samples = [np.random.default_rng(n).normal(size=(n, *tail)) for n in lengths]
    pad = Pad(-1, multiple, with_lengths=True)
    given = [torch.from_numpy(sample) for sample in samples] if of_torch else samples
    (padded, found), _ = pad(given)
    padded, found = np.asarray(padded), np.asarray(found)
    width = padded.shape[1]
    assert found.tolist() == lengths
    assert 0 <= width - max(lengths) < multiple
    assert width % multiple == 0
    for row, sample in zip(padded, samples, strict=True):
        assert np.array_equal(row[: len(sample)], sample)
        assert (row[len(sample) :] == -1).all()
    assert pad.elements == padded.size
    assert pad.padding == padded.size - sum(sample.size for sample in samples)
    assert pad.padding_share == (pad.padding / padded.size if padded.size else 0)


def test_counts_add_up_over_batches():
    pad = Pad()
    assert pad.padding_share == 0.0
    pad([[1, 2], [3]])
    pad([[1, 2], [3, 4]])
    assert (pad.elements, pad.padding, pad.padding_share) == (8, 1, 1 / 8)


def test_batches_that_fail_are_not_counted():
    pad = Pad()
    with pytest.raises(DataError):
        pad([([1, 2], "a"), ([3], "b")])
    assert pad.elements == 0


def test_threads_count_together():
    pad = Pad()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(pad, [WORDS] * 200))
    assert (pad.elements, pad.padding) == (2400, 1000)


@pytest.mark.parametrize(
    "collate",
    [Pad(3, 2, target_padding_value=4, with_lengths=True, fixed="a"), Pack(True), Nest()],
    ids=["pad", "pack", "nest"],
)
def test_a_copy_has_the_settings_and_counts_for_itself(collate):
    samples = [{"a": np.ones(2), "b": np.ones(n)} for n in (3, 2)]
    collate(samples)
    copy = pickle.loads(pickle.dumps(collate))
    assert copy.__getstate__() == collate.__getstate__()
    assert (copy.elements, copy.padding, copy.padding_share) == (0, 0, 0.0)
    copy(samples)
    assert (copy.elements, copy.padding) == (collate.elements, collate.padding)


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_are_packed(kind):
    make = KINDS[kind]
    pack = Pack()
    inputs, targets = pack([(make(word), number) for number, word in enumerate(WORDS)])
    assert isinstance(inputs, PackedSequence)
    assert [sequence.tolist() for sequence in unpack_sequence(inputs)] == WORDS
    assert inputs.data.dtype == torch.int64
    assert Pack()([make([0.5])]).data.dtype == Nest()([make([0.5])]).dtype
    assert Pack()([[0.5]]).data.dtype == torch.float32
    assert targets.tolist() == [0, 1, 2]
    assert isinstance(targets, torch.Tensor)
    assert (pack.elements, pack.padding, pack.padding_share) == (0, 0, 0.0)


def test_sequence_targets_are_packed_alike():
    inputs, targets = Pack()([(np.ones(len(word), "f4"), word) for word in WORDS])
    assert inputs.data.dtype == torch.float32
    assert targets.data.dtype == torch.int64
    assert [sequence.tolist() for sequence in unpack_sequence(targets)] == WORDS
    assert torch.equal(inputs.batch_sizes, targets.batch_sizes)
    _, one_hot = Pack(fixed_targets=True)([(word, [0, 1]) for word in WORDS])
    assert one_hot.tolist() == [[0, 1]] * 3


def test_packing_can_insist_on_order():
    with pytest.raises(RuntimeError, match="sorted"):
        Pack(enforce_sorted=True)([[1], [1, 2]])
    packed = Pack(enforce_sorted=True)([[1, 2, 3], [1, 2]])
    assert packed.sorted_indices is None
    assert pad_packed_sequence(packed, batch_first=True)[1].tolist() == [3, 2]


def test_packing_does_not_take_the_type_of_the_first():
    packed = Pack()([torch.tensor([1, 2]), torch.tensor([1.5])])
    assert packed.data.tolist() == [1, 1.5, 2]


def test_empty_sequences_cannot_be_packed():
    with pytest.raises(DataError, match=r"inputs\['x'\] hold an empty sequence.*use Pad or Nest"):
        Pack()([{"x": [1]}, {"x": []}])


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_are_nested(kind):
    make = KINDS[kind]
    nest = Nest()
    samples = [{"ids": make(word), "image": np.ones(2), "n": 1} for word in [*WORDS, []]]
    inputs = nest(samples)["ids"] if kind == "list" else nest(samples[:3])["ids"]
    assert inputs.layout == torch.jagged
    expected = [*WORDS, []] if kind == "list" else WORDS
    assert [sequence.tolist() for sequence in inputs.unbind()] == expected
    assert nest(samples[:3])["image"].is_nested
    assert Nest(fixed="image")(samples[:3])["image"].tolist() == [[1, 1]] * 3
    assert nest(samples[:3])["n"].tolist() == [1, 1, 1]
    assert (nest.elements, nest.padding, nest.padding_share) == (0, 0, 0.0)


def test_nested_targets_can_be_compared_with_nested_outputs():
    inputs, targets = Nest()([(torch.ones(n, 2), torch.zeros(n, 2)) for n in (3, 1)])
    errors = (inputs - targets) ** 2
    assert errors.values().tolist() == [[1, 1]] * 4
    _, other = Nest()([(torch.ones(n, 2), torch.zeros(n + 1, 2)) for n in (3, 1)])
    assert [len(part) for part in other.unbind()] == [4, 2]
    assert Nest()([([1, 2], 5), ([3], 6)])[1].tolist() == [5, 6]


class Sentences(torch.utils.data.Dataset):
    """Pairs of a sentence and its label."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return len(WORDS)

    def __getitem__(self, number):
        return self.make(WORDS[number]), number


@pytest.mark.parametrize(("make", "kind"), [(torch.tensor, torch.Tensor), (np.array, np.ndarray)])
def test_batches_of_a_dataset_are_padded(make, kind):
    pad = Pad()
    batch = DatasetSource(Sentences(make), collate=pad).take(np.array([2, 1]))
    assert type(batch.inputs) is type(batch.targets) is kind
    assert batch.inputs.tolist() == [[9, 2], [5, 0]]
    assert batch.targets.tolist() == [2, 1]
    assert batch.samples == 2
    assert pad.padding_share == 1 / 4
    halves = batch.split(2)
    assert [half.inputs.tolist() for half in halves] == [[[9, 2]], [[5, 0]]]


def test_batches_of_a_dataset_are_packed_and_nested():
    indices = np.array([2, 1])
    packed = DatasetSource(Sentences(torch.tensor), collate=Pack()).take(indices)
    assert [part.tolist() for part in unpack_sequence(packed.inputs)] == [[9, 2], [5]]
    nested = DatasetSource(Sentences(np.array), collate=Nest()).take(indices)
    assert [part.tolist() for part in nested.inputs.unbind()] == [[9, 2], [5]]
    assert packed.targets.tolist() == nested.targets.tolist() == [2, 1]


def test_samples_that_do_not_fit_are_named():
    data = [np.zeros((2, 3)), np.zeros((2, 4))]
    with pytest.raises(DataError, match=r"samples 1, 0 of list .*\(2, 4\) in one .*\(2, 3\) in an"):
        DatasetSource(data, collate=Pad()).take(np.array([1, 0]))
