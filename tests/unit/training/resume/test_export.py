"""The plain model of a run, in files that need no Paceline."""

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from support.line_problem import BATCH, data
from torch import nn

from paceline.checkpoint.store import Store
from paceline.comm import SoloWorld, run_world
from paceline.errors import CheckpointError, ConfigError, Interrupted, OutputError
from paceline.frameworks.numpy import NumpyReplica
from paceline.rules import BSP, EASGD, Average, DiLoCo, Downpour, Gossip
from paceline.training.callbacks import Callback
from paceline.training.resume.export import _to_bfloat16, export_model
from paceline.training.trainer import Trainer

FORMATS = [".safetensors", ".pt", ".npz"]
FREE = {"easgd": EASGD(every=2), "downpour": Downpour(), "gossip": Gossip()}
IN_LOCKSTEP = {
    "bsp": (BSP(), {}),
    "average": (Average(), {}),
    "average by differences": (Average(every=3), {"wire": "int8"}),
    "diloco": (DiLoCo(every=2), {}),
    "diloco in fragments": (DiLoCo(every=2, fragments=2), {}),
    "easgd at once": (EASGD(every=2, synchronous=True), {}),
}
in_lockstep = pytest.mark.parametrize(("rule", "exchange"), IN_LOCKSTEP.values(), ids=IN_LOCKSTEP)
pytestmark = pytest.mark.timeout(60)


class Odd(nn.Module):
    """Whatever a state_dict may hold, and what it may not (a buffer that is not persistent)."""

    def __init__(self, small=torch.float64):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 9), nn.BatchNorm1d(9), nn.Linear(9, 1)
        self.tied = nn.Linear(3, 9, bias=False)
        self.tied.weight = self.first.weight
        self.turned = nn.Parameter(torch.empty(3, 9).t())
        self.scale = nn.Parameter(torch.empty(9, dtype=small))
        self.frozen = nn.Parameter(torch.empty(3, dtype=small), requires_grad=False)
        self.register_buffer("passing", torch.ones(2), persistent=False)
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("nothing", torch.empty(0))
        chance = np.random.default_rng(1)  # ranks that are threads share torch's
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.from_numpy(chance.normal(size=parameter.shape)))

    def forward(self, x):
        x = self.norm(self.first(x) + self.tied(x) + x @ self.turned.t())
        return self.last(torch.tanh(x) * self.scale.float()) + self.frozen.float().sum()


class At(Callback):
    """Every rank asks for an interruption after some step of its own."""

    def __init__(self, step):
        self.step = step

    def on_batch_end(self, trainer, step, logs):
        if step == self.step:
            trainer.interrupt()


class Look(Callback):
    """Keeps what the first rank holds as its run goes on, and ends it."""

    def on_train_begin(self, trainer):
        trainer.interrupt()
        if trainer.world.rank == 0:
            centre = trainer._exchange.common_weights()
            if centre is not None:
                trainer.replica.parameters()[:] = centre
                trainer.replica.accept_parameters()
            self.seen = copied(trainer.replica.module.state_dict())
        trainer.world.barrier()  # other asynchronous workers would move the centre


def copied(state):
    return {name: tensor.clone() for name, tensor in state.items()}


def fit(folder, ranks=2, rule=None, callbacks=(), model=Odd, **settings):
    if model is not build_in_numpy:
        settings |= {"loss": "mse", "optimizer": {"lr": 0.02, "momentum": 0.9}}

    def program(world):
        trainer = Trainer(
            model, data(), world=world, rule=rule or BSP(), progress="off",
            data={"batch_size": BATCH}, run_dir=str(folder), callbacks=callbacks,
            **{"epochs": 2} | settings,
        )  # fmt: skip
        try:
            return trainer.fit()
        except Interrupted as error:
            return error

    return (run_world(ranks, program) if ranks > 1 else [program(SoloWorld())])[0]


def export(run, path, checkpoint=None, force=False):
    said = []
    exported = export_model(run, path, checkpoint, force, said.append)
    assert [file for file in path.parent.iterdir() if file.name.startswith(".")] == []
    return exported.describe(), said


def load(path):
    """With what a user without Paceline has."""
    if path.suffix == ".pt":
        return torch.load(path, weights_only=True)
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return {name: torch.from_numpy(file[name]) for name in file.files}
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    assert metadata.pop("format") == "pt"
    return tensors | {name: tensors[of] for name, of in metadata.items()}


def assert_same(found, expected):
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert bits(found[name]) == bits(tensor), name


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("checkpoint", [None, "newest"])
def test_every_format_holds_the_whole_model(tmp_path, suffix, checkpoint):
    model = fit(tmp_path / "run", checkpoint_every="epoch").model
    line, said = export(tmp_path / "run", tmp_path / f"model{suffix}", checkpoint)
    found = load(tmp_path / f"model{suffix}")
    assert_same(found, model.state_dict())
    Odd().load_state_dict(found)
    origin = "the finished model" if checkpoint is None else "step 16"
    assert line == (
        f"wrote {tmp_path}/model{suffix} from {origin} of {tmp_path}/run: 124 values in 14 arrays"
    )
    assert said == []


@pytest.mark.parametrize("checkpoint", [None, "newest"])
def test_tied_weights_stay_tied(tmp_path, checkpoint):
    fit(tmp_path / "run", 1, checkpoint_every="epoch")
    export(tmp_path / "run", tmp_path / "model.pt", checkpoint)
    found = load(tmp_path / "model.pt")
    assert found["tied.weight"].data_ptr() == found["first.weight"].data_ptr()
    export(tmp_path / "run", tmp_path / "model.safetensors", checkpoint)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt", "tied.weight": "first.weight"}


@in_lockstep
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_last_checkpoint_is_the_finished_model(tmp_path, rule, exchange, ranks):
    model = fit(tmp_path / "run", ranks, rule, checkpoint_every="epoch", exchange=exchange).model
    export(tmp_path / "run", tmp_path / "model.pt", "newest")
    assert_same(load(tmp_path / "model.pt"), model.state_dict())


@in_lockstep
def test_between_exchanges_it_is_what_one_rank_would_go_on_with(tmp_path, rule, exchange):
    found = fit(tmp_path / "run", 2, rule, [At(5)], exchange=exchange)
    assert isinstance(found, Interrupted)
    line, _ = export(tmp_path / "run", tmp_path / "model.pt")
    assert "from step 6 of" in line
    look = Look()
    if rule == EASGD(every=2, synchronous=True):  # which alone has no centre
        fit(tmp_path / "run", 2, rule, [look], resume="auto", exchange=exchange)
    else:
        fit(tmp_path / "run", 1, rule, [look], resume="auto", exchange=exchange)
    assert_same(without_buffers(load(tmp_path / "model.pt")), without_buffers(look.seen))


@pytest.mark.parametrize("name", ["easgd", "downpour"])
def test_of_asynchronous_workers_it_is_the_centre(tmp_path, name):
    assert isinstance(fit(tmp_path / "run", 2, FREE[name], [At(5)]), Interrupted)
    export(tmp_path / "run", tmp_path / "model.pt")
    look = Look()
    fit(tmp_path / "run", 2, FREE[name], [look], resume="auto")
    assert_same(without_buffers(load(tmp_path / "model.pt")), without_buffers(look.seen))


def test_without_a_centre_it_is_the_consensus(tmp_path):
    assert isinstance(fit(tmp_path / "run", 2, FREE["gossip"], [At(5)]), Interrupted)
    export(tmp_path / "run", tmp_path / "model.npz")
    store = Store(tmp_path / "run" / "checkpoints")
    [name] = store.names()
    parts = [store.read(name, f"rank-{rank}") for rank in (0, 1)]
    shares = [part["exchange"]["weight"] for part in parts]
    assert sum(shares) == pytest.approx(1)
    [at] = [row[3] for row in store.read(name, "common")["layout"] if row[0] == "last.weight"]
    expected = sum(
        share * part["parameters"][at : at + 9] for share, part in zip(shares, parts, strict=True)
    )
    found = load(tmp_path / "model.npz")["last.weight"].numpy()[0]
    assert found == pytest.approx(expected, rel=1e-6)


def test_statistics_of_the_ranks_are_averaged(tmp_path):
    fit(tmp_path / "run", 3, BSP(), [At(3)])
    export(tmp_path / "run", tmp_path / "model.npz")
    store = Store(tmp_path / "run" / "checkpoints")
    [name] = store.names()
    rows = store.read(name, "common")["state"]
    [at] = [row[4] for row in rows if row[1] == "norm.running_mean"]
    means = [store.read(name, f"rank-{rank}")["buffers"][at : at + 9] for rank in range(3)]
    assert not np.array_equal(means[0], means[1])
    found = load(tmp_path / "model.npz")["norm.running_mean"].numpy()
    assert found == pytest.approx(np.mean(means, 0), abs=1e-6)


def without_buffers(state):
    """Whoever goes on keeps its own statistics until the epoch ends."""
    return {name: tensor for name, tensor in state.items() if "running" not in name}


@pytest.mark.parametrize("checkpoint", [None, "newest"])
@pytest.mark.parametrize("rule", [BSP(), DiLoCo(every=2)], ids=["bsp", "diloco"])
def test_types_that_numpy_does_not_know(tmp_path, checkpoint, rule):
    def small():
        return Odd(torch.bfloat16)

    model = fit(tmp_path / "run", 2, rule, model=small, checkpoint_every="epoch").model
    for suffix in (".pt", ".safetensors"):
        export(tmp_path / "run", tmp_path / f"model{suffix}", checkpoint)
        assert_same(load(tmp_path / f"model{suffix}"), model.state_dict())
    with pytest.raises(ConfigError, match=r"is bfloat16, which \.npz cannot hold; choose \.safe"):
        export(tmp_path / "run", tmp_path / "model.npz", checkpoint)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["model.pt", "model.safetensors", "run"]  # and nothing half written


def test_rounding_to_bfloat16_is_that_of_torch():
    numbers = np.random.default_rng(0).integers(0, 2**32, 10_000, np.uint32).view(np.float32)
    numbers = numbers[~np.isnan(numbers)]
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, np.inf, -np.inf, 3.4e38], np.float32)
    for array in (numbers, ties):
        expected = torch.from_numpy(array).to(torch.bfloat16).view(torch.uint16).numpy()
        assert _to_bfloat16(array).tolist() == expected.tolist()
    no_numbers = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert torch.from_numpy(_to_bfloat16(no_numbers)).view(torch.bfloat16).isnan().all()


def build_in_numpy():
    def loss(arrays, batch):
        apart = batch.inputs @ arrays["w"] - batch.targets[:, 0]
        return float(np.mean(apart**2)), {"w": 2 * batch.inputs.T @ apart / len(apart)}

    return NumpyReplica({"w": np.zeros(3, np.float32)}, loss, lr=0.02)


@pytest.mark.parametrize("checkpoint", [None, "newest"])
@pytest.mark.parametrize("suffix", FORMATS)
def test_a_framework_of_ones_own(tmp_path, suffix, checkpoint):
    model = fit(tmp_path / "run", model=build_in_numpy, checkpoint_every="epoch").model
    export(tmp_path / "run", tmp_path / f"model{suffix}", checkpoint)
    path = tmp_path / f"model{suffix}"
    found = load_file(path) if suffix == ".safetensors" else load(path)
    assert_same(found, {"w": torch.from_numpy(model.arrays["w"])})
    assert model.arrays["w"].any()


def test_the_checkpoint_may_be_named(tmp_path):
    fit(tmp_path / "run", checkpoint_every=5, keep_checkpoints=9)
    for name, step in (("step-00000005", 5), ("10", 10), ("newest", 16)):
        line, _ = export(tmp_path / "run", tmp_path / "model.npz", name, force=True)
        assert f"from step {step} of" in line
    with pytest.raises(CheckpointError, match=r"no checkpoint 'step-00000007'.*step-00000005, st"):
        export(tmp_path / "run", tmp_path / "other.npz", "7")


def test_a_file_is_not_replaced_unless_asked(tmp_path):
    model = fit(tmp_path / "run").model
    (tmp_path / "model.npz").write_text("dear")
    with pytest.raises(ConfigError, match=r"model\.npz exists already; .* or add --force"):
        export(tmp_path / "run", tmp_path / "model.npz")
    assert (tmp_path / "model.npz").read_text() == "dear"
    export(tmp_path / "run", tmp_path / "model.npz", force=True)
    assert_same(load(tmp_path / "model.npz"), model.state_dict())


def test_the_source_itself_may_be_replaced(tmp_path):
    model = fit(tmp_path / "run").model
    export(tmp_path / "run", tmp_path / "run" / "model.safetensors", force=True)
    assert_same(load(tmp_path / "run" / "model.safetensors"), model.state_dict())


def make_folder(path):
    path.mkdir()
    return path


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("model.onnx", r"suffix '\.onnx', expected one of \.safetensors, \.pt, \.npz"),
        ("model", "has the suffix '', expected one of"),
        ("folder.pt", "is a directory; give the name of a file"),
    ],
)
def test_names_that_do_not_do(tmp_path, name, complaint):
    make_folder(tmp_path / "folder.pt")
    (make_folder(tmp_path / "run") / "config.yaml").write_text("")
    with pytest.raises(ConfigError, match=complaint):
        export(tmp_path / "run", tmp_path / name)


def test_a_torch_model_is_none_of_keras(tmp_path):
    fit(tmp_path / "run", epochs=1)
    with pytest.raises(
        ConfigError, match=r"this run's model is not one of Keras; choose \.safetens"
    ):
        export(tmp_path / "run", tmp_path / "model.keras")
    assert not list(tmp_path.glob("*model.keras*"))


def test_what_is_not_a_run(tmp_path):
    with pytest.raises(ConfigError, match="nowhere is not a run directory: it is no directory"):
        export(tmp_path / "nowhere", tmp_path / "model.pt")
    with pytest.raises(ConfigError, match=r"is not a run directory: it has no config.yaml"):
        export(make_folder(tmp_path / "empty"), tmp_path / "model.pt")


def test_a_place_that_cannot_be_written(tmp_path):
    fit(tmp_path / "run", epochs=1)
    with pytest.raises(OutputError, match=r"missing/model\.pt cannot be written: No such file"):
        export_model(tmp_path / "run", tmp_path / "missing" / "model.pt", None, False, print)


def test_a_run_that_has_saved_nothing(tmp_path):
    (make_folder(tmp_path / "run") / "config.yaml").write_text("")
    with pytest.raises(CheckpointError, match=r"no finished model. Let the run end, or"):
        export(tmp_path / "run", tmp_path / "model.pt")
    fit(tmp_path / "other", epochs=1)
    with pytest.raises(CheckpointError, match="and a finished model: leave --checkpoint out"):
        export(tmp_path / "other", tmp_path / "model.pt", "newest")


@pytest.mark.parametrize("model", [Odd, build_in_numpy], ids=["safetensors", "npz"])
@pytest.mark.parametrize("keep", [0, 5, 0.5, 0.99])
def test_a_torn_model_is_told_of(tmp_path, model, keep):
    fit(tmp_path / "run", 1, model=model, epochs=1)
    [saved] = (tmp_path / "run").glob("model.*")
    whole = saved.read_bytes()
    saved.write_bytes(whole[: keep if keep in (0, 5) else int(keep * len(whole))])
    with pytest.raises(CheckpointError, match=r"is damaged: .* Export a checkpoint instead"):
        export(tmp_path / "run", tmp_path / "model.pt")
    assert not (tmp_path / "model.pt").exists()


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    fit(tmp_path / "run", checkpoint_every=5)
    newest = tmp_path / "run" / "checkpoints" / "step-00000016" / "common.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    line, said = export(tmp_path / "run", tmp_path / "model.pt", "newest")
    assert "from step 15 of" in line
    assert "step-00000016 is damaged" in said[0]
    with pytest.raises(CheckpointError, match="step-00000016 is damaged"):
        export(tmp_path / "run", tmp_path / "other.pt", "16")


def test_what_no_vector_holds_is_named(tmp_path):
    class Changed(Odd):
        """Its state_dict holds something that is no buffer."""

        def get_extra_state(self):
            return torch.ones(2)

        def set_extra_state(self, state):
            pass

    fit(tmp_path / "run", 1, model=Changed, checkpoint_every="epoch")
    with pytest.raises(CheckpointError, match="'_extra_state' is no parameter or buffer"):
        export(tmp_path / "run", tmp_path / "model.pt", "newest")


def test_parts_that_do_not_fit_are_told_of(tmp_path, monkeypatch):
    fit(tmp_path / "run", checkpoint_every="epoch")
    read = Store.read

    def shorter(store, name, part):
        tree = read(store, name, part)
        return tree | ({"parameters": tree["parameters"][:20]} if part == "common" else {})

    monkeypatch.setattr(Store, "read", shorter)
    with pytest.raises(CheckpointError, match="its parts do not fit together"):
        export(tmp_path / "run", tmp_path / "model.pt", "newest")


def test_a_checkpoint_of_an_older_version_is_refused(tmp_path, monkeypatch):
    fit(tmp_path / "run", checkpoint_every="epoch")
    read = Store.read

    def older(store, name, part):
        return {key: value for key, value in read(store, name, part).items() if key != "layout"}

    monkeypatch.setattr(Store, "read", older)
    with pytest.raises(CheckpointError, match=r"an older version wrote it. Resume the run"):
        export(tmp_path / "run", tmp_path / "model.pt", "newest")
