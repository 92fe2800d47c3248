"""Arguments of torch.distributed that cannot be right."""

import pytest
import torch
import torch.distributed as dist

from paceline.torch_backend import GroupError
from paceline.torch_backend.arguments import (
    check_count,
    check_fits,
    check_multiple,
    check_split,
    kind_of,
    list_of,
    reduction_for,
    root_of,
)

THREE, SIX = torch.zeros(3), torch.zeros(6)


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (lambda: check_count(2, 3, "gather", "tensors"), "gather: 2 tensors for 3 ranks"),
        (lambda: check_fits(THREE, SIX, "scatter"), "6 x float32 does not fit in 3 x float32"),
        (lambda: check_fits(THREE, THREE.int(), "scatter"), "3 x int32 does not fit"),
        (lambda: check_multiple(SIX, THREE, 3, "all_gather"), "6 x float32 is not 3 times 3 x"),
        (lambda: check_split(SIX, [2, 3], 2), r"\[2, 3\] does not divide 6 rows among 2 ranks"),
        (lambda: check_split(SIX, [6], 2), r"\[6\] does not divide 6 rows"),
        (lambda: check_split(SIX, [], 4), "6 rows are not divisible by 4 ranks"),
        (lambda: reduction_for(None, [THREE, THREE.int()], "reduce"), "its tensors have 2 types"),
    ],
)
def test_what_does_not_fit_is_refused(check, said):
    with pytest.raises(GroupError, match=said):
        check()


def test_what_fits_is_not():
    check_count(3, 3, "gather", "tensors")
    check_fits(THREE, THREE, "scatter")
    check_multiple(SIX, THREE, 2, "all_gather")
    check_split(SIX, [2, 4], 2)
    check_split(torch.tensor(1.0), [], 1)


def test_torch_passes_one_or_several_and_maybe_options():
    options = dist.BroadcastOptions()
    options.rootRank = 2
    assert list_of(THREE) == [THREE]
    assert list_of((THREE, THREE)) == [THREE, THREE]
    assert [root_of(given) for given in (1, options, None)] == [1, 2, 0]
    assert kind_of(None) == kind_of(dist.ReduceOp.SUM) == dist.ReduceOp.RedOpType.SUM
