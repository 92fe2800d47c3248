"""What stands on DistributedDataParallel: Join, ZeRO, hooks, averagers. What they train on the
backend equals what they train on gloo, or what is computed alone where gloo cannot."""

import threading
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as functional
from support.torch_backend_checks import run_checks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    ddp_zero_hook,
    debugging_hooks,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import (
    PostLocalSGDOptimizer,
    ZeroRedundancyOptimizer,
    _apply_optimizer_in_backward,
)
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _BufferCommHookLocation, _MixedPrecision
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from paceline.torch_backend import GroupError

warnings.simplefilter("ignore", FutureWarning)
warnings.simplefilter("ignore", DeprecationWarning)
dist.init_process_group("mpi4py", timeout=timedelta(seconds=60))
RANK, SIZE = dist.get_rank(), dist.get_world_size()
MPI, GLOO = dist.group.WORLD, dist.new_group(backend="gloo")
SMALL_MB = 0.0005
"""So small a bucket that a net has several of them."""


def net():
    torch.manual_seed(1)
    # A bias before the norm would have noise for a gradient, of which Adam makes whole steps.
    first, last = nn.Linear(8, 32, bias=False), nn.Linear(32, 4)
    return nn.Sequential(first, nn.BatchNorm1d(32), nn.ReLU(), last)


def batches(count, rank=RANK):
    numbers = torch.Generator().manual_seed(100 + rank)
    return [torch.randn(6, 8, generator=numbers) for _ in range(count)]


def ddp(group, **options):
    return DistributedDataParallel(net(), process_group=group, **options)


def hooked(group, state, hook):
    model = ddp(group, bucket_cap_mb=SMALL_MB)
    model.register_comm_hook(state, hook)
    return model


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def zero(group, model, **options):
    return ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, process_group=group, lr=0.01, **options
    )


def train(model, optimizer=None, count=5, idle=0):
    """`idle`: so many steps in the beginning change nothing."""
    for step, batch in enumerate(batches(count)):
        model(batch).square().mean().backward()
        if optimizer is not None and step >= idle:
            optimizer.step()
        model.zero_grad()
    return flat(model)


def flat(model):
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def assert_alike(tensor):
    """Every rank has the same bits."""
    others = [torch.empty_like(tensor) for _ in range(SIZE)]
    dist.all_gather(others, tensor)
    assert all(other.equal(tensor) for other in others)


def assert_as_on_gloo(program, tolerance=1e-6):
    mine = program(MPI)
    assert_close(mine, program(GLOO), tolerance)
    assert_alike(mine)


def assert_close(mine, expected, tolerance=1e-6):
    torch.testing.assert_close(mine, expected, rtol=tolerance, atol=tolerance)


def check_join_with_uneven_inputs():
    def program(group):
        model = ddp(group, bucket_cap_mb=SMALL_MB)
        with Join([model]):
            train(model, sgd(model), 3 + RANK)
        return flat(model)

    assert_as_on_gloo(program)


def check_that_join_tells_all_when_one_has_no_more():
    model = ddp(MPI)
    with (
        pytest.raises(RuntimeError, match="exhausted"),
        model.join(throw_on_early_termination=True),
    ):
        train(model, count=3 + RANK)


def check_join_with_a_zero_optimizer():
    def program(group):
        model = ddp(group)
        optimizer = zero(group, model)
        with Join([model, optimizer]):
            train(model, optimizer, 3 + RANK)
        return flat(model)

    assert_as_on_gloo(program)


def check_zero_optimizers_and_their_states():
    for as_views in (False, True):

        def program(group, as_views=as_views):
            model = ddp(group)
            optimizer = zero(group, model, parameters_as_bucket_view=as_views)
            train(model, optimizer)
            optimizer.consolidate_state_dict(to=0)
            if RANK == 0:
                state = optimizer.state_dict()
                assert sorted(state["state"]) == list(range(5))
                optimizer.load_state_dict(state)
            return flat(model)

        assert_as_on_gloo(program)


def check_zero_optimizers_that_step_in_the_backward_pass():
    """torch refuses it on gloo; there the same steps are made in the loop."""
    expected = train(model := ddp(GLOO), torch.optim.SGD(model.parameters(), lr=0.1), 7, idle=2)
    for hook in (ddp_zero_hook.hook_with_zero_step, ddp_zero_hook.hook_with_zero_step_interleaved):
        model = ddp(MPI, bucket_cap_mb=SMALL_MB)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1
        )
        model.register_comm_hook(None, hook(default_hooks.allreduce_hook, model, optimizer))
        mine = train(model, count=7)
        assert_close(mine, expected)
        assert_alike(mine)


def check_hooks_that_compress():
    def bf16_by_another_name(state, bucket):
        return default_hooks.bf16_compress_hook(state, bucket)

    exact = train(model := ddp(GLOO), sgd(model))
    for hook, tolerance in (
        (default_hooks.allreduce_hook, 1e-6),
        (default_hooks.fp16_compress_hook, 2e-3),
        (default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), 2e-3),
        (bf16_by_another_name, 2e-2),
    ):
        mine = train(model := hooked(MPI, MPI, hook), sgd(model))
        assert_close(mine, exact, tolerance)
        assert_alike(mine)


def check_power_sgd():
    """A matrix of full rank loses nothing; of rank 1 it still goes the same way."""
    exact = train(model := ddp(GLOO), sgd(model))
    wrapped = default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook)
    for rank, hook, tolerance in (
        (4, powerSGD_hook.powerSGD_hook, 1e-4),
        (1, powerSGD_hook.powerSGD_hook, 1e-1),
        (4, wrapped, 1e-2),
    ):
        state = powerSGD_hook.PowerSGDState(MPI, rank, start_powerSGD_iter=2)
        mine = train(model := hooked(MPI, state, hook), sgd(model))
        assert_close(mine, exact, tolerance)
        assert_alike(mine)


def check_post_local_sgd():
    """Local steps after the second, an average every second step: computed here for all ranks."""
    alone, _ = dist.new_subgroups(1)
    state = post_localSGD_hook.PostLocalSGDState(MPI, alone, start_localSGD_iter=2)
    model = hooked(MPI, state, post_localSGD_hook.post_localSGD_hook)
    averager = PeriodicModelAverager(period=2, warmup_steps=2)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    mine = train(model, PostLocalSGDOptimizer(plain, averager), 7)
    assert_alike(mine)
    assert_close(mine, _post_local_alone(7), 1e-5)


def _post_local_alone(steps):
    models = [net() for _ in range(SIZE)]
    for step in range(steps):
        for rank, model in enumerate(models):
            model.zero_grad()
            model(batches(steps, rank)[step]).square().mean().backward()
        for several in zip(*(model.parameters() for model in models), strict=True):
            gradients = [one.grad for one in several]
            if step < 2:
                gradients = [torch.stack(gradients).mean(0)] * SIZE
            with torch.no_grad():
                for one, gradient in zip(several, gradients, strict=True):
                    one -= 0.1 * gradient
                if step >= 2 and step % 2 == 0:
                    mean = torch.stack(several).mean(0)
                    for one in several:
                        one.copy_(mean)
    return flat(models[RANK])


def check_a_hook_that_does_nothing():
    mine = train(model := hooked(MPI, None, debugging_hooks.noop_hook), sgd(model))
    assert_close(mine, train(model := net(), sgd(model)))


def check_an_optimizer_that_steps_in_the_hook():
    def program(group):
        model = ddp(group)
        model._register_fused_optim(torch.optim.SGD, lr=0.1)
        return train(model)

    assert_as_on_gloo(program)


def check_half_precision_by_autocast():
    def program(group):
        model = ddp(group)
        with torch.autocast("cpu", torch.bfloat16):
            return train(model, sgd(model))

    assert_as_on_gloo(program)


def check_buffers():
    """Those of rank 0 are everybody's, or each rank's are its own, or a hook makes them."""

    def means(group, hook=None, **options):
        model = ddp(group, **options)
        if hook is not None:
            model._register_buffer_comm_hook(model, hook, _BufferCommHookLocation.POST_FORWARD)
        train(model, count=3)
        if options.get("broadcast_buffers", True) and hook is None:
            model._sync_buffers()
        return model.module[1].running_mean

    def add_up(_, buffers):
        floats = [buffer for buffer in buffers.values() if buffer.is_floating_point()]
        return [dist.all_reduce(buffer, async_op=True).get_future() for buffer in floats]

    assert_as_on_gloo(means)
    own = means(MPI, broadcast_buffers=False)
    assert_close(own, means(GLOO, broadcast_buffers=False))
    assert not own.equal(means(MPI)) or RANK == 0
    assert_alike(means(MPI, hook=add_up))


def check_what_ddp_logs():
    model = ddp(MPI)
    train(model, count=3)
    data = model._get_ddp_logging_data()
    assert (data["backend_name"], data["world_size"]) == ("mpi4py", SIZE)
    assert not data.get("has_error")


def check_a_sampler_that_divides_the_data():
    data = TensorDataset(torch.arange(5 * SIZE))
    loader = DataLoader(data, 2, sampler=DistributedSampler(data))
    mine = torch.cat([batch for (batch,) in loader])
    every = [torch.empty_like(mine) for _ in range(SIZE)]
    dist.all_gather(every, mine)
    assert sorted(torch.cat(every).tolist()) == list(range(5 * SIZE))


def check_collectives_with_gradients():
    """Each has the gradient of what all ranks make of this rank's numbers.

    The group is named: torch's default is the one that was there when it imported them.
    """
    numbers = torch.arange(3.0 * SIZE) + RANK
    weight = RANK + 1.0
    weights = SIZE * (SIZE + 1) / 2
    pieces = [torch.empty(3) for _ in range(SIZE)]
    for collective, expected in (
        (lambda x: functional.all_reduce(x, group=MPI), weights),
        (lambda x: torch.stack(functional.all_gather(x, MPI)), weights),
        (lambda x: functional.broadcast(x.clone(), 0, MPI), weights if RANK == 0 else 0.0),
        (lambda x: functional.reduce(x.clone(), 0, group=MPI), 1.0),
        (lambda x: torch.stack(functional.gather(x, 0, MPI)), 1.0),
        (lambda x: functional.reduce_scatter(pieces[0], list(x.split(3)), group=MPI), None),
        (lambda x: torch.stack(functional.all_to_all(pieces, list(x.split(3)), MPI)), None),
        (lambda x: functional.all_to_all_single(torch.empty(3 * SIZE), x, group=MPI), None),
    ):
        leaf = numbers.clone().requires_grad_()
        (collective(leaf).sum() * weight).backward()
        if expected is None:  # piece i went to rank i, which gave it its weight
            wanted = torch.arange(1.0, SIZE + 1).repeat_interleave(3)
        else:
            wanted = torch.full((3 * SIZE,), expected)
        assert_close(leaf.grad, wanted)


class NormOverRanks(nn.BatchNorm1d):
    """What SyncBatchNorm does, which torch refuses on CPUs; docs/torch-backend.md names it."""

    def forward(self, batch):
        if not self.training:
            return super().forward(batch)
        count = torch.full_like(batch[0], len(batch))
        sums = torch.stack([batch.sum(0), batch.square().sum(0), count])
        total, squares, count = functional.all_reduce(sums, group=dist.group.WORLD)
        mean = total / count
        deviation = (squares / count - mean.square() + self.eps).sqrt()
        return (batch - mean) / deviation * self.weight + self.bias


def check_batch_norm_over_all_ranks():
    """Gradients are those of one rank that has all batches."""
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(NormOverRanks(8), nn.Linear(8, 2)))
    model(batches(1)[0]).square().sum().backward()
    alone = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 2))
    alone.load_state_dict(model.module.state_dict())
    everything = torch.cat([batches(1, rank)[0] for rank in range(SIZE)])
    alone(everything).square().sum().backward()
    for mine, expected in zip(model.parameters(), alone.parameters(), strict=True):
        assert_close(mine.grad * SIZE, expected.grad, 1e-4)


def check_that_a_callback_added_late_is_one_all_the_same():
    """What it starts must use one communicator on all ranks, though only some add it late."""

    def add_up_again(future):
        assert threading.current_thread() is not threading.main_thread()
        return dist.all_reduce(future.value(), async_op=True).get_future().wait()[0]

    future = dist.all_reduce(torch.ones(5), async_op=True).get_future()
    first = future.then(lambda one: one.value()[0])
    if RANK % 2:
        first.wait()
    second = first.then(add_up_again)
    between = torch.ones(7)
    dist.all_reduce(between)
    assert_close(second.wait(), torch.full((5,), float(SIZE**2)))
    assert_close(between, torch.full((7,), float(SIZE)))


def check_that_a_callback_that_fails_is_heard():
    def fail(_):
        raise KeyError("lost")

    future = dist.all_reduce(torch.ones(5), async_op=True).get_future()
    with pytest.raises(GroupError, match="a callback failed with KeyError: 'lost'"):
        future.then(fail).then(lambda failed: failed.value()).wait()


def check_that_a_tensor_may_be_resized_afterwards():
    tensors = [torch.full((6,), float(RANK)), torch.arange(6)]
    dist.all_reduce(tensors[0])
    dist.all_reduce(tensors[1], dist.ReduceOp.AVG)
    dist.broadcast(tensors[1], 0)
    for tensor in tensors:
        tensor.resize_(1000)
        assert tensor.shape == (1000,)


def check_what_torch_refuses():
    """docs/torch-backend.md lists these, with the reasons; what works one day is to leave it."""
    with pytest.raises(TypeError, match="BF16"):
        hooked(MPI, MPI, default_hooks.bf16_compress_hook)
    with pytest.raises(ValueError, match="only work with GPU"):
        DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(net()))
    with pytest.raises(ValueError, match="to be on GPU"):
        nn.SyncBatchNorm(8)(batches(1)[0])
    with pytest.raises(RuntimeError, match="support events"):
        train(ddp(MPI, mixed_precision=_MixedPrecision(param_dtype=torch.bfloat16)))
    in_backward = net()
    _apply_optimizer_in_backward(torch.optim.SGD, in_backward.parameters(), {"lr": 0.1})
    with pytest.raises(RuntimeError, match="accelerator"):
        train(DistributedDataParallel(in_backward))
    state = powerSGD_hook.PowerSGDState(MPI, start_powerSGD_iter=2)
    with pytest.raises(AssertionError):
        train(hooked(MPI, state, powerSGD_hook.batched_powerSGD_hook))
    with pytest.raises(RuntimeError, match="index"):
        train(hooked(MPI, MPI, quantization_hooks.quantization_pertensor_hook))
    built_in = ddp(MPI)
    built_in._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    with pytest.raises(RuntimeError, match="TensorList"):
        train(built_in)


FOUND = run_checks(dict(globals()))
