"""What people's training loops do, on two ranks: equal to one process, or refused with advice."""

import itertools

import numpy as np
import pytest
import torch
from support.line_problem import data, weights
from torch import nn

import paceline
from paceline.comm import SoloWorld, run_world
from paceline.errors import CheckpointError, ConfigError, DataError, PacelineError, TrainingError

mse = nn.functional.mse_loss


def network():
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    chance = np.random.default_rng(1)  # ranks that are threads share torch's
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(chance.normal(size=parameter.shape)))
    return model


def on_two(program):
    """What the program returns on each of two ranks, which must be the same."""
    first, second = run_world(2, program)
    assert first.tobytes() == second.tobytes()
    return first


def part_of(world):
    """This rank's half of the data, as one batch; all of it on one rank."""
    return [torch.from_numpy(array[world.rank :: world.size]) for array in data()]


def train(world, model, optimizer, x, y, steps=3, with_closure=True, **settings):
    losses = []
    with paceline.keep_pace(model, optimizer, world=world, **settings):
        for _ in range(steps):

            def closure():
                optimizer.zero_grad()
                loss = mse(model(x), y)
                loss.backward()
                return loss

            if with_closure:
                losses.append(float(optimizer.step(closure)))
            else:
                closure()
                optimizer.step()
    return np.append(weights(model), losses if with_closure else [])


class TestClosures:
    @pytest.mark.parametrize("search", [None, "strong_wolfe"])
    def test_lbfgs_on_two_ranks_is_lbfgs_on_the_whole_batch(self, search):
        def program(world):
            model = network()
            made = torch.optim.LBFGS(model.parameters(), max_iter=6, line_search_fn=search)
            return train(world, model, made, *part_of(world))

        assert on_two(program) == pytest.approx(program(SoloWorld()), rel=1e-3, abs=1e-4)

    @pytest.mark.parametrize("share", [True, False])
    def test_a_closure_is_what_it_stands_for(self, share):
        def program(world, with_closure=True):
            model = network()
            made = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            found = train(
                world, model, made, *part_of(world),
                with_closure=with_closure, exchange={"share": share},
            )  # fmt: skip
            return found[: found.size - 3 * with_closure]

        assert on_two(program).tobytes() == on_two(lambda w: program(w, False)).tobytes()

    def test_ranks_that_exchange_weights_have_closures_of_their_own(self):
        def program(world):
            model = network()
            made = torch.optim.LBFGS(model.parameters(), max_iter=4)
            found = train(world, model, made, *part_of(world), steps=2, rule="average", every=2)
            return found[:-2]

        first, second = (np.copy(program(SoloWorld())), on_two(program))
        assert not np.array_equal(first, second)
        assert np.isfinite(second).all()

    def test_lbfgs_on_loops_of_unequal_length_says_what_to_do(self):
        def program(world):
            model = network()
            made = torch.optim.LBFGS(model.parameters(), max_iter=2)
            return train(world, model, made, *part_of(world), steps=1 + world.rank)

        with pytest.raises(TrainingError, match=r"LBFGS needs a closure, .* paceline.shard does"):
            run_world(2, program)


class TestWhatRanksSayTogether:
    def test_the_mean_is_weighted(self):
        def program(world):
            with_none = paceline.mean(float("nan"), 0, world=world)
            return [
                paceline.mean(world.rank, world=world),
                paceline.mean(torch.tensor(world.rank + 1.0), [3, 1][world.rank], world=world),
                paceline.mean(5 if world.rank else float("nan"), world.rank, world=world),
                np.isnan(with_none),
            ]

        assert run_world(2, program) == [[0.5, 1.25, 5.0, True]] * 2

    def test_one_rank_prints(self, capsys):
        run_world(3, lambda world: paceline.print("rank", world.rank, world=world, end="!"))
        assert capsys.readouterr().out == "rank 0!"


class TestOfTheModel:
    def test_settings_of_the_rule_are_keywords(self):
        def program(world, rule, **settings):
            model = network()
            made = torch.optim.SGD(model.parameters(), lr=0.05)
            return train(
                world, model, made, *part_of(world), with_closure=False, rule=rule, **settings
            )

        short = on_two(lambda world: program(world, "average", every=2))
        rule = {"name": "average", "every": 2}
        assert short.tobytes() == on_two(lambda world: program(world, rule)).tobytes()
        with pytest.raises(ConfigError, match="rule bsp has no setting every"):
            program(SoloWorld(), "bsp", every=2)
        with pytest.raises(ConfigError, match="every: settings by keyword go with the name"):
            program(SoloWorld(), rule, every=2)

    def test_statistics_of_batch_norm_can_be_averaged_before_a_validation(self):
        def program(world):
            model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
            made = torch.optim.SGD(model.parameters(), lr=0.05)
            x, y = part_of(world)
            seen = []
            with paceline.keep_pace(model, made, world=world) as pace:
                for _ in range(2):
                    made.zero_grad()
                    mse(model(x + world.rank), y).backward()
                    made.step()
                    seen.append(model[1].running_mean.tolist())
                    pace.average_buffers()
                    seen.append(model[1].running_mean.tolist())
            return seen

        first, second = run_world(2, program)
        assert first[0] != second[0]
        assert first[2] != second[2]
        assert (first[1], first[3]) == (second[1], second[3])
        assert first[1] == pytest.approx(np.mean([first[0], second[0]], axis=0).tolist())


class TestHandMadeUpdates:
    """Moved parameters, and no exchange: never in silence."""

    @pytest.mark.parametrize("share", [True, False])
    @pytest.mark.parametrize("rule", ["bsp", "average", "easgd"])
    def test_they_are_refused_with_what_works(self, rule, share):
        def program(world):
            model = network()
            made = torch.optim.SGD(model.parameters(), lr=0.05)
            x, y = part_of(world)
            exchange = {"share": share} if rule == "bsp" else None
            with paceline.keep_pace(model, made, rule, world=world, exchange=exchange):
                mse(model(x), y).backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 0.05 * parameter.grad

        with pytest.raises(TrainingError, match=r"Let optimizer.step\(\) make"):
            run_world(2, program)


class Rows(torch.utils.data.Dataset):
    def __init__(self, samples=37):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return torch.full((2,), float(index)), index


def numbers_of(batches):
    return [batch[1].tolist() for batch in batches]


class TestWhatShardReturns:
    def test_is_used_as_a_loader(self):
        tqdm = pytest.importorskip("tqdm")

        def program(world):
            x, y = data()
            for batches in (
                paceline.shard((x, y), 8, world=world),
                paceline.shard(torch.utils.data.TensorDataset(*map(torch.from_numpy, (x, y))), 8),
                paceline.shard(torch.utils.data.DataLoader(Rows(len(x)), batch_size=8)),
            ):
                assert (len(batches.dataset), batches.batch_size) == (len(x), 8)
                assert [at for at, _ in enumerate(batches)] == [*range(len(batches))]
                assert len([*tqdm.tqdm(batches, disable=True)]) == len(batches) == 6

        run_world(2, program)

    def test_a_loader_keeps_collate_function_workers_and_order(self):
        def program(world):
            loader = torch.utils.data.DataLoader(
                Rows(), batch_size=4, num_workers=0,
                collate_fn=lambda rows: ("mine", torch.tensor([number for _, number in rows])),
            )  # fmt: skip
            return [batch[1].tolist() for batch in paceline.shard(loader, world=world)]

        first, second = run_world(2, program)
        assert first[0] + second[0] + first[1] + second[1] == [*range(16)]
        assert sorted(itertools.chain(*first, *second)) == [*range(37)]

    @pytest.mark.parametrize("kind", ["shuffle", "generator", "weighted", "subset"])
    def test_the_samplers_order_is_drawn_alike_on_all_ranks(self, kind):
        def program(world):
            draws = torch.utils.data
            rows = Rows()
            chosen = {
                "shuffle": {"shuffle": True},
                "generator": {"shuffle": True, "generator": torch.Generator()},
                "weighted": {"sampler": draws.WeightedRandomSampler([1.0] * 36 + [0.0], 24)},
                "subset": {"sampler": draws.SubsetRandomSampler(range(0, 36, 3))},
            }[kind]
            if "generator" in chosen:
                chosen["generator"].manual_seed(world.rank)
            before = torch.get_rng_state().tolist()
            batches = paceline.shard(draws.DataLoader(rows, batch_size=3, **chosen))
            epochs = [numbers_of(batches) for _ in range(2)]
            return epochs, len(batches), torch.get_rng_state().tolist() == before

        first, second = run_world(2, program)
        assert first[1] == len(first[0][0]) == len(second[0][0])
        for epoch in range(2):
            taken = sorted(itertools.chain(*first[0][epoch], *second[0][epoch]))
            if kind == "weighted":
                assert len(taken) == 24
                assert 36 not in taken
            else:
                assert taken == [*range(0, 36, 3)] if kind == "subset" else [*range(37)]
        assert first[0][0] != first[0][1]

    def test_the_last_samples_may_be_dropped(self):
        def program(world):
            loader = torch.utils.data.DataLoader(Rows(), batch_size=4, drop_last=True)
            return numbers_of(paceline.shard(loader))

        assert [len(batch) for rank in run_world(2, program) for batch in rank] == [4] * 8

    def test_loaders_that_cannot_be_shared_out_say_what_can(self):
        class Endless(torch.utils.data.IterableDataset):
            def __iter__(self):
                return iter(range(9))

        make, rows = torch.utils.data.DataLoader, Rows()
        sampler = torch.utils.data.BatchSampler(range(9), 3, False)
        spread = torch.utils.data.DistributedSampler(rows, 2, 0)
        for loader, advice in (
            (make(Endless()), r"pass the dataset itself: paceline.shard\(loader.dataset"),
            (make(rows, batch_sampler=sampler), "give it batch_size and, if you need one, a samp"),
            (make(rows, batch_size=None), "give it batch_size"),
            (make(rows, sampler=spread), "omit the sampler"),
        ):
            with pytest.raises(PacelineError, match=advice):
                paceline.shard(loader)
        with pytest.raises(ConfigError, match=r"for other settings pass loader.dataset"):
            paceline.shard(make(rows), batch_size=8)

    def test_training_on_a_loader_counts_its_samples(self):
        def program(world):
            model = network()
            made = torch.optim.SGD(model.parameters(), lr=0.05)
            pair = torch.utils.data.TensorDataset(*map(torch.from_numpy, data()))
            loader = torch.utils.data.DataLoader(pair, batch_size=14 // world.size)
            with paceline.keep_pace(model, made, world=world):
                for x, y in paceline.shard(loader, world=world):
                    made.zero_grad()
                    mse(model(x), y).backward()
                    made.step()
            return weights(model)

        assert on_two(program) == pytest.approx(program(SoloWorld()), rel=1e-4)


class TestDataOfTheRanks:
    def start(self, make):
        def program(world):
            model = network()
            made = torch.optim.SGD(model.parameters(), lr=0.05)
            kept = make(world)
            with paceline.keep_pace(model, made, world=world):
                model(torch.ones(1, 3)).sum().backward()
                made.step()
            return kept is not None

        return run_world(2, program)

    @pytest.mark.parametrize(
        ("make", "said"),
        [
            (lambda x, r: paceline.shard(x[: 90 + r], 4), "1 has samples 91, rank 0 samples 90. "),
            (lambda x, r: paceline.shard(x[:, : 2 + r], 4), r"samples of float32 \(3,\), rank 0"),
            (lambda x, r: paceline.shard(x + r, 4), "rank 1 has other values in its samples"),
            (lambda x, r: paceline.shard(x, 4 + r), "rank 1 has batch_size 5, rank 0 batch_size 4"),
            (lambda x, r: paceline.shard(x, 4, seed=r), "rank 1 has seed 1, rank 0 seed 0"),
            (lambda x, r: of_tensors(torch.from_numpy(x) + r), "other values in its samples"),
        ],
    )
    def test_must_be_the_same(self, make, said):
        x, _ = data()
        with pytest.raises(DataError, match=f"different data.*{said}"):
            self.start(lambda world: make(x, world.rank))

    def test_a_rank_may_have_a_shard_of_its_own(self):
        x, _ = data()

        def make(world):
            mine = [paceline.shard(x[:9], 3, world=world)] if world.rank else []
            return [*mine, paceline.shard(x, 4, world=world)]

        assert self.start(make) == [True, True]


def of_tensors(*tensors):
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*tensors), batch_size=4)
    return paceline.shard(loader)


class TestSavingALoop:
    """Interrupted anywhere, the loop goes on to the same bits."""

    EPOCHS = 3

    def loop(self, path, kind="arrays", share=True, stop_after=None, ranks=2, **settings):
        """The weights after all epochs; or None, saved after so many steps."""

        def program(world):
            model = nn.Sequential(network(), nn.BatchNorm1d(1), nn.Dropout(0.2))
            made = torch.optim.Adam(model.parameters(), lr=0.01)
            plan = torch.optim.lr_scheduler.StepLR(made, 1, gamma=0.5)
            batches = self.shard_of(kind, world)
            steps = 0
            exchange = {"share": share}
            with paceline.keep_pace(
                model, made, world=world, exchange=exchange, **settings
            ) as pace:
                if (found := pace.load(path)) is not None:
                    steps = found["steps"]
                    plan.load_state_dict(found["plan"])
                for _ in range(batches.epoch, self.EPOCHS):
                    for x, y in batches:
                        made.zero_grad()
                        mse(model[:2](x), y).backward()
                        made.step()
                        steps += 1
                        if steps == stop_after:
                            pace.save(path, steps=steps, plan=plan.state_dict())
                            return None
                    plan.step()
            return np.append(weights(model), [steps, *model[1].running_mean.tolist()])

        return run_world(ranks, program) if ranks > 1 else [program(SoloWorld())]

    def shard_of(self, kind, world):
        if kind == "arrays":
            return paceline.shard(data(), 8, to=torch.from_numpy, world=world)
        pair = torch.utils.data.TensorDataset(*map(torch.from_numpy, data()))
        loader = torch.utils.data.DataLoader(pair, batch_size=8, shuffle=True)
        return paceline.shard(loader, world=world)

    @pytest.mark.parametrize("stop_after", [3, 6, 7])
    @pytest.mark.parametrize(("kind", "share"), [("arrays", True), ("loader", False)])
    def test_it_goes_on_to_the_same_bits(self, tmp_path, kind, share, stop_after):
        whole = self.loop(tmp_path / "none", kind, share)
        path = tmp_path / "deep" / "state"
        assert self.loop(path, kind, share, stop_after) == [None, None]
        assert self.loop(path, kind, share)[0].tobytes() == whole[0].tobytes()

    def test_a_loop_that_is_done_has_no_step_to_take(self, tmp_path):
        path = tmp_path / "state"
        self.loop(path, stop_after=len(data()[0]) // 16 * self.EPOCHS + self.EPOCHS)
        before = self.loop(path)[0].tobytes()
        self.EPOCHS = 0
        assert self.loop(path)[0].tobytes() == before

    def test_other_models_loops_and_rules_are_refused(self, tmp_path):
        path = tmp_path / "state"
        self.loop(path, stop_after=2)
        with pytest.raises(CheckpointError, match="within an epoch, by another number of ranks"):
            self.loop(path, ranks=1)
        with pytest.raises(ConfigError, match=r"pace.load is for rule bsp, .* rule is average"):
            self.loop(path, rule="average", share=True)
        self.shard_of = lambda kind, world: [paceline.shard(data(), 8, world=world)] and Empty()
        with pytest.raises(CheckpointError, match="1 shards of data, and this one has made 0"):
            self.loop(path)
        path.write_bytes(b"no")
        with pytest.raises(CheckpointError, match=r"is not what pace.save wrote"):
            self.loop(path)


class Empty(list):
    epoch = 0
