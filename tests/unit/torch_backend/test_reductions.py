"""torch's reductions in the types that MPI knows."""

import pytest
import torch
from torch.distributed import ReduceOp

from paceline.errors import WorldError
from paceline.torch_backend.reductions import Reduction


def test_numbers_that_mpi_knows_are_not_copied():
    tensor = torch.arange(4.0).reshape(2, 2)
    operand = Reduction(ReduceOp.SUM, tensor.dtype, "sum").operand(tensor)
    operand.array[0] = 7
    assert tensor[0, 0] == 7


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_narrow_numbers_are_added_up_as_float32_and_rounded_once(dtype):
    tensor = torch.ones(2, dtype=dtype)
    operand = Reduction(ReduceOp.SUM, dtype, "sum").operand(tensor)
    assert operand.array.dtype == "float32"
    operand.array += 1.0
    assert tensor.float().tolist() == [1, 1]
    operand.copy_back()
    assert tensor.float().tolist() == [2, 2]


def test_what_has_gaps_gets_its_result_back():
    grid = torch.zeros(2, 4)
    operand = Reduction(ReduceOp.SUM, grid.dtype, "sum").operand(grid[:, ::2])
    operand.array[:] = 3
    operand.copy_back()
    assert grid.tolist() == [[3, 0, 3, 0]] * 2


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64])
def test_averages_of_integers_go_towards_zero(dtype):
    numbers = torch.tensor([7, -7, 6, -6, 0], dtype=dtype)
    Reduction(ReduceOp.AVG, dtype, "mean").finish(numbers, 3)
    assert numbers.tolist() == [2, -2, 2, -2, 0]


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (ReduceOp.BAND, torch.float32),
        (ReduceOp.AVG, torch.bool),
        (ReduceOp.MAX, torch.complex64),
    ],
)
def test_what_means_nothing_is_refused(op, dtype):
    with pytest.raises(WorldError, match=r"sum: .* is undefined for"):
        Reduction(op, dtype, "sum")


def test_truth_is_added_up_as_bits():
    assert Reduction(ReduceOp.SUM, torch.bool, "sum").how == "or"
    assert Reduction(ReduceOp.PRODUCT, torch.bool, "sum").how == "and"
    assert Reduction(ReduceOp.BXOR, torch.bool, "sum").how == "xor"
