"""A user's own loop in pace with others, in worlds of threads."""

import numpy as np
import pytest
import torch
from torch import nn

import paceline
from paceline.comm import SoloWorld, run_world
from paceline.errors import ConfigError, ReplicaError, TrainingError, WorldError

SAMPLES = 68  # five steps of 12 and a last one of 8, the same for 1 to 4 ranks


def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(SAMPLES, 3)).astype(np.float32), rng.normal(size=(SAMPLES, 1)).astype(
        np.float32
    )


def build(seed=0):
    model = nn.Linear(3, 1)
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(size=parameter.shape)))
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def own_loop(batch_size, epochs=3, seed_of_rank=lambda rank: 0):
    """The loop of the README, as a program for each rank."""

    def program(world):
        assert paceline.init() is world
        model, optimizer = build(seed_of_rank(world.rank))
        batches = paceline.shard(data(), batch_size=batch_size, to=torch.from_numpy)
        steps = 0
        with paceline.keep_pace(model, optimizer, rule="bsp"):
            for _ in range(epochs):
                for x, y in batches:
                    optimizer.zero_grad()
                    loss = (model(x) - y).square().mean()
                    loss.backward()
                    optimizer.step()
                    steps += 1
        assert steps == epochs * len(batches)
        return weights(model)

    return program


def weights(model):
    return torch.cat([p.detach().ravel() for p in model.parameters()]).numpy().copy()


def test_many_ranks_equal_one_with_the_same_global_batch():
    [one] = run_world(1, own_loop(12))
    for ranks, batch_size in ((2, 6), (3, 4), (4, 3)):
        many = run_world(ranks, own_loop(batch_size))
        for result in many:
            assert result.tobytes() == many[0].tobytes()
        assert many[0] == pytest.approx(one, rel=1e-5)


def test_one_rank_is_the_plain_loop_bit_for_bit():
    model, optimizer = build()
    for epoch in range(3):
        order = paceline_order(epoch)
        for start in range(0, SAMPLES, 12):
            rows = order[start : start + 12]
            x, y = (torch.from_numpy(array[rows]) for array in data())
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
    [ours] = run_world(1, own_loop(12))
    assert ours.tobytes() == weights(model).tobytes()


def paceline_order(epoch):
    from paceline.data import epoch_order

    return epoch_order(SAMPLES, 1, epoch)


def test_all_ranks_start_from_rank_0():
    same = run_world(3, own_loop(4))
    other = run_world(3, own_loop(4, seed_of_rank=lambda rank: rank))
    assert [w.tobytes() for w in same] == [w.tobytes() for w in other]


def test_without_keep_pace_ranks_drift_apart():
    def program(world):
        model, optimizer = build()
        for x, y in paceline.shard(data(), 5, to=torch.from_numpy):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
        return weights(model).tobytes()

    assert len(set(run_world(2, program))) == 2


def test_epochs_differ_and_shard_every_sample_once():
    values = np.arange(40)

    def program(world):
        batches = paceline.shard(values, batch_size=3)
        return [np.concatenate(list(batches)).tolist() for _ in range(2)]

    ranks = run_world(3, program)
    epochs = [[value for rank in ranks for value in rank[epoch]] for epoch in range(2)]
    for epoch in epochs:
        assert sorted(epoch) == values.tolist()
    assert epochs[0] != epochs[1]


def test_shard_options_change_the_order():
    def orders(**options):
        return run_world(
            1, lambda world: np.concatenate(list(paceline.shard(values, 4, **options)))
        )

    values = np.arange(20)
    assert orders(shuffle=False)[0].tolist() == values.tolist()
    assert orders(seed=3)[0].tolist() != orders(seed=4)[0].tolist()


def test_loops_of_uneven_length_never_hang_and_end_equal():
    def program(world):
        model, optimizer = build()
        rng = np.random.default_rng(world.rank)
        with paceline.keep_pace(model, optimizer):
            for _ in range(3 + 5 * world.rank):
                optimizer.zero_grad()
                x = torch.from_numpy(rng.normal(size=(4, 3)).astype(np.float32))
                model(x).square().mean().backward()
                optimizer.step()
        return weights(model).tobytes()

    results = run_world(3, program)
    assert len(set(results)) == 1


def test_a_rank_that_left_has_no_weight():
    def program(world):
        model, optimizer = build()
        with paceline.keep_pace(model, optimizer):
            for _ in range(4 if world.rank == 0 else 1):
                optimizer.zero_grad()
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
        return weights(model)

    def alone(world):
        model, optimizer = build()
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        return weights(model)

    assert run_world(2, program)[1] == pytest.approx(run_world(1, alone)[0], rel=1e-6)


def test_a_validation_loop_does_not_weigh_in():
    """67 samples on 2 ranks: the last step is uneven, and so are the validation's."""
    x, y = (array[:67] for array in data())

    def program(validating):
        def run(world):
            model, optimizer = build()
            train = paceline.shard((x, y), 8, to=torch.from_numpy)
            check = paceline.shard((x[:13], y[:13]), 5, to=torch.from_numpy)
            with paceline.keep_pace(model, optimizer):
                for _ in range(2):
                    for inputs, targets in train:
                        optimizer.zero_grad()
                        (model(inputs) - targets).square().mean().backward()
                        optimizer.step()
                        if validating:
                            for inputs, _ in check:
                                model(inputs)
            return weights(model).tobytes()

        return run

    assert run_world(2, program(True)) == run_world(2, program(False))


def test_gradients_weigh_by_samples_not_by_ranks():
    """Rank 0 has 3 samples in the only step, rank 1 has 2: the mean is over all five."""

    def program(world):
        model, optimizer = build()
        with paceline.keep_pace(model, optimizer):
            for x, y in paceline.shard(tuple(a[:5] for a in data()), 3, to=torch.from_numpy):
                optimizer.zero_grad()
                (model(x) - y).square().mean().backward()
                optimizer.step()
        return weights(model)

    [alone] = run_world(1, lambda world: one_step())
    assert run_world(2, program)[1] == pytest.approx(alone, rel=1e-5)


def one_step():
    model, optimizer = build()
    x, y = (torch.from_numpy(array[:5]) for array in data())
    (model(x) - y).square().mean().backward()
    optimizer.step()
    return weights(model)


def test_two_models_of_one_loop_weigh_alike():
    """The second optimizer of a step stands for the same samples as the first."""

    def program(world):
        pairs = [build(), build()]
        with (
            paceline.keep_pace(*pairs[0]),
            paceline.keep_pace(*pairs[1]),
        ):
            for x, y in paceline.shard(tuple(a[:25] for a in data()), 10, to=torch.from_numpy):
                for model, optimizer in pairs:
                    optimizer.zero_grad()
                    (model(x) - y).square().mean().backward()
                    optimizer.step()
        return [weights(model).tobytes() for model, _ in pairs]

    for first, second in run_world(2, program):
        assert first == second


def test_ranks_in_different_blocks_are_told():
    def program(world):
        pairs = [build(), build()]
        order = pairs if world.rank else pairs[::-1]
        with paceline.keep_pace(*pairs[0]), paceline.keep_pace(*pairs[1]):
            for model, optimizer in order:
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()

    with pytest.raises(WorldError, match="different keep_pace blocks"):
        run_world(2, program)


def test_a_part_of_the_world_may_have_had_a_block_of_its_own():
    """Else messages to the centre, told apart by the number of the block, would miss each other."""

    def program(world):
        part = world.split(int(world.rank == 0))
        for place in (part, world) if world.rank else (world,):
            model, optimizer = build()
            rule, exchange = {"name": "easgd", "every": 1}, {"servers": 1}
            with paceline.keep_pace(model, optimizer, rule, exchange=exchange, world=place) as pace:
                if place.rank in pace.workers:
                    model(torch.ones(1, 3)).sum().backward()
                    optimizer.step()
        return weights(model).tobytes()

    assert len(set(run_world(4, program, timeout_s=30))) == 1


def test_a_rank_that_accumulates_more_batches_weighs_more():
    x, y = (array[:12] for array in data())

    def program(world):
        model, optimizer = build()
        rows = slice(0, 8) if world.rank == 0 else slice(8, 12)
        own = paceline.shard((x[rows], y[rows]), 4, to=torch.from_numpy, world=SoloWorld())
        with paceline.keep_pace(model, optimizer):
            optimizer.zero_grad()
            for inputs, targets in own:
                ((model(inputs) - targets).square().mean() / len(own)).backward()
            optimizer.step()
        return weights(model)

    def alone(world):
        model, optimizer = build()
        (model(torch.from_numpy(x)) - torch.from_numpy(y)).square().mean().backward()
        optimizer.step()
        return weights(model)

    assert run_world(2, program)[0] == pytest.approx(run_world(1, alone)[0], rel=1e-5)


def test_the_average_is_clipped_not_each_ranks_part():
    def program(world):
        model = nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with torch.no_grad():
            model.weight.fill_(0.0)
        with paceline.keep_pace(model, optimizer, clip_norm=0.25):
            model(torch.tensor([[-9.0 if world.rank else 10.0]])).sum().backward()
            optimizer.step()
        return model.weight.item()

    assert run_world(2, program) == pytest.approx([-0.25, -0.25], rel=1e-5)


def test_a_step_weighs_what_it_is_told():
    """A mean over tokens: 1 on rank 0, 3 on rank 1."""

    def program(world):
        model = nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with torch.no_grad():
            model.weight.fill_(0.0)
        with paceline.keep_pace(model, optimizer) as pace:
            model(torch.tensor([[4.0 if world.rank else 8.0]])).sum().backward()
            pace.weigh(3 if world.rank else 1)
            optimizer.step()
            pace.check()
        return model.weight.item()

    assert run_world(2, program) == pytest.approx([-5.0, -5.0])


def test_check_finds_parameters_that_differ():
    def program(world):
        model, optimizer = build()
        with paceline.keep_pace(model, optimizer, exchange={"share": False}) as pace:
            with torch.no_grad():
                model.bias += world.rank
            pace.check()

    with pytest.raises(ReplicaError, match="parameters on rank 1 differ"):
        run_world(2, program)


@pytest.mark.parametrize(
    ("rule", "exchange"), [("bsp", {}), ("average", {}), ("easgd", {"servers": 1})]
)
@pytest.mark.parametrize("idle", [True, False])
def test_a_rank_that_took_no_step_is_told_of(caplog, rule, exchange, idle):
    def program(world):
        model, optimizer = build()
        with paceline.keep_pace(model, optimizer, rule=rule, exchange=exchange) as pace:
            if world.rank not in pace.workers or (idle and world.rank == 1):
                return
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(4, 3)).sum().backward()
                optimizer.step()

    with caplog.at_level("WARNING", "paceline.training"):
        run_world(3, program)
    said = [record.message for record in caplog.records if "no step" in record.message]
    assert said == ["rank 1 took no step, and others up to 2: did it get no batch?"] * idle


@pytest.mark.parametrize(
    ("rule", "exchange"),
    [("bsp", {}), ("bsp", {"share": False}), ("average", {}), ("easgd", {})],
)
def test_parameters_that_are_moved_elsewhere_are_told(rule, exchange):
    """torch.nn.utils.vector_to_parameters does so; nothing would reach the others any more."""

    def program(world):
        model, optimizer = build()
        x = torch.ones(4, 3)
        with paceline.keep_pace(model, optimizer, rule=rule, exchange=exchange):
            for _ in range(3):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
                if world.rank == 1:
                    model.weight.data = model.weight.data.clone()

    with pytest.raises(TrainingError, match=r"parameter 'weight' was moved to other memory"):
        run_world(2, program)


def test_afterwards_parameters_have_memory_of_their_own():
    def program(world):
        model, optimizer = build()
        with paceline.keep_pace(model, optimizer):
            optimizer.step()
        return model.weight.untyped_storage().nbytes() == model.weight.nbytes

    assert run_world(2, program) == [True, True]


def test_batch_norm_statistics_are_equal_afterwards():
    def program(world):
        model = nn.BatchNorm1d(3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with paceline.keep_pace(model, optimizer):
            for x, _ in paceline.shard(data(), 5, to=torch.from_numpy):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        return model.running_mean.numpy().tobytes()

    assert len(set(run_world(3, program))) == 1


def test_after_the_block_steps_are_the_users_own():
    def program(world):
        model, optimizer = build()
        with paceline.keep_pace(model, optimizer):
            optimizer.step()
        optimizer.zero_grad()
        (model(torch.ones(1, 3)).sum() * world.rank).backward()
        optimizer.step()
        return weights(model).tobytes()

    assert len(set(run_world(2, program))) == 2


def test_an_exception_in_the_block_reaches_the_caller_and_wakes_the_others():
    def program(world):
        model, optimizer = build()
        with paceline.keep_pace(model, optimizer):
            if world.rank == 1:
                raise ArithmeticError("no luck")
            model(torch.ones(1, 3)).sum().backward()
            with pytest.raises(WorldError, match="no luck"):
                optimizer.step()

    with pytest.raises(ArithmeticError, match="no luck"):
        run_world(2, program)


def test_parameters_outside_the_model_are_refused():
    def program(world):
        model, _ = build()
        stray = nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.SGD([*model.parameters(), stray], lr=0.1)
        with paceline.keep_pace(model, optimizer):
            pass

    with pytest.raises(ReplicaError, match="1 parameters in group 0"):
        run_world(2, program)


def test_an_optimizer_state_that_differs_is_refused():
    def program(world):
        model, optimizer = build()
        if world.rank == 1:
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        with paceline.keep_pace(model, optimizer):
            pass

    with pytest.raises(ReplicaError, match=r"optimizers differ: rank 1 has SGD\(.*state"):
        run_world(2, program)


@pytest.mark.parametrize(
    "other",
    [
        lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.05),
    ],
)
def test_optimizers_that_differ_are_refused(other):
    def program(world):
        model, optimizer = build()
        if world.rank == 1:
            optimizer = other(model.parameters())
        with paceline.keep_pace(model, optimizer):
            pass

    with pytest.raises(ReplicaError, match=r"rank 1 has .*, rank 0 has SGD"):
        run_world(2, program)


def test_a_batch_size_of_nothing_is_refused_at_once():
    with pytest.raises(ConfigError, match="batch_size is 0"):
        paceline.shard(data(), 0, world=SoloWorld())


def test_time_is_split():
    def program(world):
        model, optimizer = build()
        with paceline.keep_pace(model, optimizer) as pace:
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            return pace.time()

    for split in run_world(2, program):
        assert min(split.compute, split.wait, split.communication) > 0
