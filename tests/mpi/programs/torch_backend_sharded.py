"""What torch builds on meshes of ranks: sharded tensors and models, pipelines, checkpoints.

Each gives what one rank computes alone. Needs 4 ranks.
"""

import sys
import warnings
from collections import OrderedDict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from support.torch_backend_checks import run_checks
from torch import nn
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import (
    HierarchicalModelAverager,
)
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import paceline.torch_backend  # noqa: F401

warnings.simplefilter("ignore", FutureWarning)
dist.init_process_group("mpi4py", timeout=timedelta(seconds=60))
RANK, SIZE = dist.get_rank(), dist.get_world_size()
LINE = init_device_mesh("cpu", (SIZE,))
SQUARE = init_device_mesh("cpu", (2, SIZE // 2), mesh_dim_names=("outer", "inner"))
STEPS = 3


def net(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5))


def batches(rank=RANK, count=STEPS):
    numbers = torch.Generator().manual_seed(100 + rank)
    return [torch.randn(6, 8, generator=numbers) for _ in range(count)]


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def train(model, rank=RANK):
    optimizer = adam(model)
    for batch in batches(rank):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def trained_alone(ranks=SIZE):
    """The net after the same steps, on the batches of so many ranks together."""
    model = net()
    optimizer = adam(model)
    for several in zip(*(batches(rank) for rank in range(ranks)), strict=True):
        model(torch.cat(several)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return flat(model)


def flat(model):
    return torch.cat([whole(parameter).detach().reshape(-1) for parameter in model.parameters()])


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def assert_close(mine, expected, tolerance=1e-5):
    torch.testing.assert_close(mine, expected, rtol=tolerance, atol=tolerance)


def check_meshes_and_their_groups():
    row, column = divmod(RANK, 2)
    for name, expected in (("outer", 2 * column + 2), ("inner", 4 * row + 1)):
        number = torch.tensor([float(RANK)])
        dist.all_reduce(number, group=SQUARE.get_group(name))
        assert number.item() == expected
    assert SQUARE.get_coordinate() == (row, column)


def check_functional_collectives():
    """They find the group by its name, in C++."""
    mine, total = torch.arange(4.0) * (RANK + 1), SIZE * (SIZE + 1) / 2
    several = mine.repeat(SIZE)
    summed = torch.arange(4.0) * total
    group = dist.group.WORLD
    assert_close(functional.all_reduce(mine, "sum", group) + 0, summed)
    column = SQUARE["outer"].get_group()  # this rank, and the one 2 before or behind it
    assert_close(functional.all_reduce(mine, "avg", column) + 0, torch.arange(4.0) * (RANK % 2 + 2))
    assert_close(functional.reduce_scatter_tensor(several, "sum", 0, group) + 0, summed)
    assert_close(functional.broadcast(mine, 1, group) + 0, torch.arange(4.0) * 2)
    gathered = torch.cat([torch.arange(4.0) * (rank + 1) for rank in range(SIZE)])
    assert_close(functional.all_gather_tensor(mine, 0, group) + 0, gathered)
    assert_close(functional.all_to_all_single(several, None, None, group) + 0, gathered)
    pair = [mine, mine * 2]
    sums = functional.all_reduce_coalesced(pair, "sum", group)
    gathers = functional.all_gather_into_tensor_coalesced(pair, group)
    for factor, one_sum, one_gather in zip((1, 2), sums, gathers, strict=True):
        assert_close(one_sum + 0, summed * factor)
        assert_close(one_gather + 0, gathered * factor)


def check_tensors_in_shards():
    torch.manual_seed(0)
    left, right = torch.randn(6, 5), torch.randn(5, 7)
    rows = distribute_tensor(left, LINE, [Shard(0)])
    assert_close((rows @ distribute_tensor(right, LINE, [Replicate()])).full_tensor(), left @ right)
    columns = rows.redistribute(LINE, [Shard(1)])
    product = columns @ distribute_tensor(right, LINE, [Shard(0)])
    assert_close(product.redistribute(LINE, [Shard(1)]).full_tensor(), left @ right)
    both = distribute_tensor(left, SQUARE, [Shard(0), Shard(1)])
    assert_close(both.redistribute(SQUARE, [Replicate(), Shard(0)]).full_tensor(), left)
    parts = DTensor.from_local(torch.full((4,), float(RANK)), LINE, [Partial()])
    assert_close(parts.redistribute(LINE, [Shard(0)]).full_tensor(), torch.full((4,), 6.0))


def check_fully_sharded_models():
    expected = trained_alone()
    for mesh in (LINE, SQUARE):  # on the square: shards inside, copies outside
        model = net()
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        assert_close(flat(train(model)), expected)
    half = fully_shard(net(), mesh=LINE, mp_policy=MixedPrecisionPolicy(torch.bfloat16))
    assert_close(flat(train(half)), expected, 3e-2)


def check_fully_sharded_models_of_before():
    model = FullyShardedDataParallel(net(), device_id=torch.device("cpu"), use_orig_params=True)
    train(model)
    with FullyShardedDataParallel.summon_full_params(model):
        assert_close(flat(model), trained_alone())


def check_tensor_parallel_models():
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(net(), LINE, plan)
    assert_close(flat(train(model, rank=0)), trained_alone(1))
    both = fully_shard(parallelize_module(net(), SQUARE["inner"], plan), mesh=SQUARE["outer"])
    assert_close(flat(train(both, rank=RANK // 2)), trained_alone(2))


def check_sequence_parallel_models():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8))
    batch = torch.randn(2, 4 * SIZE, 8)
    expected = plain(batch).chunk(SIZE, 1)[RANK].detach()
    plan = {
        "0": SequenceParallel(),
        "1": ColwiseParallel(input_layouts=Shard(1)),
        "2": RowwiseParallel(output_layouts=Shard(1)),
    }
    model = parallelize_module(plain, LINE, plan)
    result = model(batch.chunk(SIZE, 1)[RANK])
    assert_close(result, expected)
    result.sum().backward()
    assert whole(plain[1].weight.grad).isfinite().all()


def check_pipelines():
    """Two stages on two ranks, twice; the loss is that of the whole net."""
    model, group = net(), SQUARE["inner"].get_group()
    stage = RANK % 2
    batch = torch.cat(batches(0, 4))
    pieces = batch.chunk(4)
    expected = torch.stack([model(piece).square().mean() for piece in pieces]).sum().item()
    for schedule in (ScheduleGPipe, Schedule1F1B):
        part = net()[:2] if stage == 0 else net()[2:]
        runner = schedule(
            PipelineStage(part, stage, 2, torch.device("cpu"), group=group),
            4,
            loss_fn=lambda output, target: (output - target).square().mean(),
        )
        losses = []
        if stage == 0:
            runner.step(batch)
        else:
            runner.step(target=torch.zeros(len(batch), 5), losses=losses)
            assert_close(sum(loss.item() for loss in losses), expected)
        assert all(parameter.grad.abs().sum() > 0 for parameter in part.parameters())


def check_checkpoints():
    folder = Path(sys.argv[1])
    model = fully_shard(net(), mesh=LINE)
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder / "plain")
    group = dist.new_group()  # its thread must not interfere with ours
    later = checkpoint.async_save(
        {"model": model.state_dict()}, checkpoint_id=folder / "later", process_group=group
    )
    train(net())
    later.result()
    for name in ("plain", "later"):
        other = fully_shard(net(seed=2), mesh=LINE)
        state = {"model": other.state_dict()}
        checkpoint.load(state, checkpoint_id=folder / name)
        other.load_state_dict(state["model"])
        assert flat(other).equal(flat(net()))


def check_states_that_one_rank_has():
    model = fully_shard(net(seed=2), mesh=LINE)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, net().state_dict() if RANK == 0 else {}, options=options)
    assert flat(model).equal(flat(net()))


def check_averages_of_pairs_and_of_all():
    """Pairs at every second step, all at every fourth; between the steps each rank drifts away."""
    model = net(seed=RANK)
    model(batches()[0]).sum().backward()  # what has no gradient is not averaged
    averager = HierarchicalModelAverager(OrderedDict([(2, 2), (4, SIZE)]), warmup_steps=0)
    expected = torch.stack([flat(net(seed=rank)) for rank in range(SIZE)])
    for step in range(5):
        averager.average_parameters(list(model.parameters()))
        if step % 2 == 0:
            together = SIZE if step % 4 == 0 else 2
            means = expected.view(-1, together, expected.shape[1]).mean(1)
            expected = means.repeat_interleave(together, 0)
        assert_close(flat(model), expected[RANK])
        for parameter in model.parameters():
            parameter.data += RANK
        expected += torch.arange(SIZE).unsqueeze(1)


FOUND = run_checks(dict(globals()))
