"""Whatever is handed over as data is taken as what it is."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from paceline.data import ArraySource, DatasetSource, Stream, as_source
from paceline.errors import DataError


def count():
    yield from ((np.float32(n), n) for n in range(3))


class Again:
    """Iterable again and again, without a length."""

    def __iter__(self):
        return count()


class TorchStream(IterableDataset):
    def __iter__(self):
        return iter([torch.tensor([1.0]), torch.tensor([2.0])])

    def __len__(self):
        return 2


def test_sources_and_streams_stay_as_they_are():
    for data in (ArraySource(np.zeros(3)), DatasetSource([1]), Stream(count)):
        assert as_source(data) is data


@pytest.mark.parametrize(
    ("data", "kind", "inputs"),
    [
        ((np.arange(3), np.arange(3)), ArraySource, [0, 1]),
        ((torch.arange(3), torch.arange(3)), ArraySource, [0, 1]),
        (np.arange(3), ArraySource, [0, 1]),
        (torch.arange(3), ArraySource, [0, 1]),
        ([(0, 5), (1, 5), (2, 5)], DatasetSource, [0, 1]),
        (TensorDataset(torch.arange(3), torch.arange(3)), DatasetSource, [0, 1]),
    ],
)
def test_random_access_is_kept(data, kind, inputs):
    source = as_source(data)
    assert isinstance(source, kind)
    assert source.take(np.array([0, 1])).inputs.tolist() == inputs


def test_nested_inputs_with_targets_and_dicts_are_arrays():
    pair = as_source(({"a": np.arange(3), "b": np.arange(3)}, [7, 8, 9]))
    assert pair.take(np.array([2])).targets.tolist() == [9]
    assert as_source({"a": np.arange(3)}).take(np.array([2])).inputs["a"].tolist() == [2]


@pytest.mark.parametrize("data", [count, Again(), lambda: [(0, 0), (1, 1), (2, 2)]])
def test_iterables_and_functions_stream_in_every_epoch(data):
    stream = as_source(data)
    assert isinstance(stream, Stream)
    for _ in range(2):
        assert [target for _, target in stream.samples()] == [0, 1, 2]


def test_an_iterable_torch_dataset_streams_even_with_a_length():
    stream = as_source(TorchStream())
    assert isinstance(stream, Stream)
    batch = stream.collate(list(stream.samples()), np.arange(2))
    assert isinstance(batch.inputs, torch.Tensor)
    assert batch.inputs.tolist() == [[1], [2]]


def test_a_generator_lasts_for_one_epoch():
    stream = as_source(count())
    assert len(list(stream.samples())) == 3
    with pytest.raises(DataError, match=r"only once.*pass the function that makes it"):
        list(stream.samples())


def test_a_stream_of_numpy_samples_is_stacked_by_numpy():
    stream = as_source(count)
    batch = stream.collate(list(stream.samples()), np.arange(3))
    assert isinstance(batch.inputs, np.ndarray)
    assert batch.inputs.dtype == np.float32
    assert batch.targets.tolist() == [0, 1, 2]


def test_a_stream_that_breaks_names_the_sample():
    def broken():
        yield 1
        raise OSError("socket\nclosed")

    with pytest.raises(DataError, match=r"sample 1 of broken .*OSError: socket closed"):
        list(as_source(broken).samples())


def test_a_function_that_returns_no_samples_is_named():
    with pytest.raises(DataError, match=r"nothing.*TypeError: 'int' object is not iterable"):
        list(Stream(lambda: 7, "nothing").samples())


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (DataLoader(TensorDataset(torch.zeros(3))), r"loader\.dataset"),
        (7, "a int is not data; pass arrays"),
        (None, "a NoneType is not data; pass arrays"),
        ("digits", "a str is not data; open_data"),
        ({1, 2}, "no order"),
        ((np.zeros(3),), r"a tuple \(ndarray\) is not data"),
        ((np.zeros(3), np.zeros(3), np.zeros(3)), "a tuple .* is not data"),
        ((1, 2), r"a tuple \(int, int\) is not data"),
        (torch.utils.data.Dataset(), "has no length"),
    ],
)
def test_what_is_no_data_is_refused_with_the_remedy(data, text):
    with pytest.raises(DataError, match=text):
        as_source(data)
