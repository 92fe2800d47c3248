"""Random access: arrays and map-style datasets."""

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from paceline.data import ArraySource, DatasetSource, Source
from paceline.errors import DataError

PICK = np.array([3, 0, 3])


class Squares:
    """A dataset without torch."""

    def __len__(self):
        return 5

    def __getitem__(self, number):
        if number == 4:
            raise OSError("disk on fire")
        return np.full(2, number, dtype=np.float32), number * number


def test_arrays_are_gathered_in_the_order_asked_for():
    x = np.arange(8.0).reshape(4, 2)
    batch = ArraySource(x, np.array([5, 6, 7, 8])).take(PICK)
    assert batch.inputs.tolist() == [[6, 7], [0, 1], [6, 7]]
    assert batch.targets.tolist() == [8, 5, 8]
    assert batch.samples == 3
    assert batch.indices.tolist() == [3, 0, 3]


def test_tensors_are_gathered_as_tensors():
    x = torch.arange(8).reshape(4, 2)
    batch = ArraySource(x, torch.tensor([5, 6, 7, 8])).take(PICK)
    assert isinstance(batch.inputs, torch.Tensor)
    assert batch.inputs.tolist() == [[6, 7], [0, 1], [6, 7]]
    assert batch.targets.tolist() == [8, 5, 8]


def test_nested_inputs_keep_their_structure():
    inputs = {"a": np.arange(4), "b": (torch.arange(4) * 2, np.arange(4) * 3)}
    batch = ArraySource(inputs).take(PICK)
    assert batch.inputs["a"].tolist() == [3, 0, 3]
    assert batch.inputs["b"][0].tolist() == [6, 0, 6]
    assert batch.inputs["b"][1].tolist() == [9, 0, 9]
    assert batch.targets is None


def test_transform_sees_the_gathered_inputs_only():
    source = ArraySource(np.arange(4), np.arange(4), transform=lambda x: x * 10)
    batch = source.take(PICK)
    assert batch.inputs.tolist() == [30, 0, 30]
    assert batch.targets.tolist() == [3, 0, 3]


def test_memory_maps_give_plain_arrays_and_are_not_cheap(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4))
    mapped = ArraySource(np.load(tmp_path / "x.npy", mmap_mode="r"))
    assert type(mapped.take(PICK).inputs) is np.ndarray
    assert mapped.take(PICK).inputs.tolist() == [3, 0, 3]
    assert not mapped.cheap
    assert not ArraySource(np.asarray(np.load(tmp_path / "x.npy", mmap_mode="r"))).cheap
    assert not ArraySource(np.arange(4), transform=np.negative).cheap
    assert ArraySource(np.arange(4)).cheap


def test_lengths_that_differ_are_both_named():
    with pytest.raises(DataError, match=r"mine holds arrays of 4 and of 3 samples"):
        ArraySource(np.zeros(4), np.zeros(3), name="mine")
    with pytest.raises(DataError, match=r"of 4 and of 2 samples"):
        ArraySource((np.zeros(4), np.zeros(2)))


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (np.zeros((0, 3)), "no samples"),
        (np.zeros(()), "a single number"),
        ({}, "holds no arrays"),
        ((np.zeros(3), 7), "a int is not an array"),
        ((np.zeros(3), "abc"), "a str is not an array"),
        ([[1, 2], [3]], "a list cannot become an array"),
    ],
)
def test_what_is_no_array_of_samples_is_refused(inputs, text):
    with pytest.raises(DataError, match=text):
        ArraySource(inputs)


def test_sources_are_sources():
    assert isinstance(ArraySource(np.zeros(3)), Source)
    assert isinstance(DatasetSource(Squares()), Source)
    assert not isinstance(torch.zeros(3), Source)


def test_a_dataset_without_torch_is_stacked_by_numpy():
    batch = DatasetSource(Squares()).take(PICK)
    assert isinstance(batch.inputs, np.ndarray)
    assert batch.inputs.tolist() == [[3, 3], [0, 0], [3, 3]]
    assert batch.inputs.dtype == np.float32
    assert batch.targets.tolist() == [9, 0, 9]


def test_a_torch_dataset_gives_tensors():
    data = TensorDataset(torch.arange(8.0).reshape(4, 2), torch.arange(4))
    for dataset in (data, Subset(data, [0, 1, 2, 3])):
        batch = DatasetSource(dataset).take(PICK)
        assert isinstance(batch.inputs, torch.Tensor)
        assert batch.inputs.tolist() == [[6, 7], [0, 1], [6, 7]]
        assert batch.targets.tolist() == [3, 0, 3]


def test_a_torch_dataset_of_numpy_samples_gives_tensors():
    class Dataset(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, number):
            return np.full(2, number), number

    batch = DatasetSource(Dataset()).take(PICK)
    assert isinstance(batch.inputs, torch.Tensor)
    assert batch.targets.tolist() == [3, 0, 3]


def test_samples_that_are_no_pair_are_inputs():
    data = [{"ids": np.array([n, n]), "more": (n, 2 * n)} for n in range(4)]
    batch = DatasetSource(data).take(PICK)
    assert batch.inputs["ids"].tolist() == [[3, 3], [0, 0], [3, 3]]
    assert batch.inputs["more"][1].tolist() == [6, 0, 6]
    assert batch.targets is None
    assert DatasetSource([(n, None) for n in range(4)]).take(PICK).targets is None


def test_an_own_collate_is_used():
    sentences = ["a", "bb", "ccc", "dddd"]
    batch = DatasetSource(sentences, collate=lambda items: (items, len(items))).take(PICK)
    assert batch.inputs == ["dddd", "a", "dddd"]
    assert batch.targets == 3
    assert batch.samples == 3


def test_many_samples_are_read_at_once_where_the_dataset_can():
    calls = []

    class Bulk(Squares):
        def __getitems__(self, numbers):
            calls.append(numbers)
            return [(number, -number) for number in numbers]

    assert DatasetSource(Bulk()).take(PICK).targets.tolist() == [-3, 0, -3]
    assert calls == [[3, 0, 3]]


def test_a_sample_that_cannot_be_read_is_named_with_its_cause():
    with pytest.raises(DataError, match=r"sample 4 of Squares .*OSError: disk on fire"):
        DatasetSource(Squares()).take(np.array([0, 4, 1]))

    class Bulk(Squares):
        def __getitems__(self, numbers):
            raise OSError("no such table")

    with pytest.raises(DataError, match=r"samples 0, 4 of Bulk .*no such table"):
        DatasetSource(Bulk()).take(np.array([0, 4]))


@pytest.mark.parametrize("make", [np.zeros, torch.zeros])
def test_samples_of_several_shapes_are_refused_by_number(make):
    data = [(make(2), 0), (make(3), 0)]
    with pytest.raises(DataError, match=r"samples 0, 1 of list cannot be collated"):
        DatasetSource(data).take(np.array([0, 1]))


def test_pairs_mixed_with_others_are_refused():
    with pytest.raises(DataError, match=r"some samples are .* pairs and some are not"):
        DatasetSource([(1, 2), 3]).take(np.array([0, 1]))


def test_objects_that_numpy_cannot_stack_are_refused():
    with pytest.raises(DataError, match="object cannot be stacked by numpy"):
        DatasetSource([object()]).take(np.array([0]))


def test_a_dataset_needs_a_length_and_samples():
    class Endless(torch.utils.data.Dataset):
        pass

    with pytest.raises(DataError, match="Endless has no length"):
        DatasetSource(Endless())
    with pytest.raises(DataError, match="no samples"):
        DatasetSource([])


def test_a_batch_of_a_view_copies_no_more_than_the_batch():
    """All of it would be 80 GB."""
    source = ArraySource(np.broadcast_to(np.arange(1000.0), (10**7, 1000)))
    batch = source.take(np.array([5, 10**7 - 1]))
    assert batch.inputs.tolist() == [np.arange(1000.0).tolist()] * 2
