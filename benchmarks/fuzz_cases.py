"""Cases of fuzz_inputs.py: files of every kind that Paceline reads, damaged; settings made odd.

Each case is a function of a generator of random numbers and of a folder with whole files. It
damages a copy and reads that as a run would. A PacelineError is what is wanted; any other exception
is a finding.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.cli import _make_parser
from paceline.cli.train_settings import read_levels
from paceline.comm import SoloWorld
from paceline.config.optimizer import OptimizerConfig
from paceline.config.reading import read_config
from paceline.config.run import RunConfig
from paceline.data import open_data
from paceline.errors import Interrupted
from paceline.frameworks.model_files import read_model
from paceline.frameworks.registry import load_file, make_replica
from paceline.frameworks.torch.model_files import load_weights
from paceline.rules import RULES
from paceline.training.callbacks import Callback
from paceline.training.trainer import Trainer

SAMPLES = 20
OPTIMIZERS = ["sgd", "adam", "adamw", "rmsprop", "adafactor", "rprop", "asgd"]
DATA = ["d.npz", "x.npy", "d.csv", "d.parquet", "d.h5", "d.tar", "images", "d.list"]
MODELS = ["model.pt", "model.pt2", "model.keras", "arch.json"]
WEIGHTS = ["w.pt", "w.safetensors"]
KEYS = [
    *(f"data.{name}" for name in ("batch_size", "prefetch", "loaders", "keys", "cache_limit")),
    *("epochs", "seed", "accumulate", "clip_norm", "threads", "stall_warning_s", "max_time"),
    *("checkpoint_every", "keep_checkpoints", "max_rejected", "progress", "precision", "loss"),
    *("optimizer", "optimizer.name", "optimizer.lr", "optimizer.momentum", "optimizer.betas"),
    *("optimizer.weight_decay", "optimizer.nesterov", "optimizer.eps", "optimizer.foreach"),
    *("schedule", "schedule.name", "schedule.warmup", "schedule.at", "schedule.every"),
    *("schedule.gamma", "schedule.floor", "stop.patience", "stop.target", "rule", "rule.name"),
    *("rule.every", "rule.force", "rule.fragments", "rule.probability", "rule.server_optimizer"),
    *("rule.push_every", "rule.start_after", "exchange", "exchange.wire", "exchange.servers"),
    *("exchange.overlap", "exchange.share", "exchange.powersgd_rank"),
]
VALUES = [
    *("", "true", "off", "null", "-1", "0", "1", "2", "3.5", "1e-3", "1e999", "nan", "-0.0"),
    *("9" * 30, "9" * 5000, "1000000000000", "[]", "[1]", "[0.9, 0.99]", "[1, true]", "{}"),
    *("{name: adam}", "{a: {b: c}}", "sgd", "adam", "adamw", "lbfgs", "step", "cosine", "bsp"),
    *("average", "easgd", "gossip", "diloco", "downpour", "powersgd", "int8", "epoch", "10m"),
    *("1h", "9e99h", "val_loss<=0.5", "val_loss<=nan", "mse", "text", "\u2603", "!!python/none"),
    *("2024-13-45", "0x10", "1_000", "&a [*a]", "'", "- x", "10GB", "-5GB", "auto", "digits"),
]
TEXTS = ["\n", ",", ":", "  ", "- ", "'", '"', "nan", "1e400", "-1", "[", "{", "\0", "\ufeff", "é"]


def make_whole_files(folder: Path) -> None:
    """One of each kind."""
    chance = np.random.default_rng(0)
    inputs, labels = chance.normal(size=(SAMPLES, 3)).astype(np.float32), np.arange(SAMPLES) % 2
    np.savez(folder / "d.npz", x=inputs, y=labels)
    np.save(folder / "x.npy", inputs)
    rows = [f"{a:.3f},{b:.3f},{c:.3f},{y}" for (a, b, c), y in zip(inputs, labels, strict=True)]
    (folder / "d.csv").write_text("a,b,c,y\n" + "\n".join(rows) + "\n")
    (folder / "d.list").write_text("# files\nd.npz\n*.npz\n")
    _make_tables(folder, inputs, labels)
    _make_images(folder, chance)
    _make_models(folder)
    (folder / "run.yaml").write_text(json.dumps(RunConfig().describe(), indent=1))
    (folder / "plain.yaml").write_text(
        "model: mnist\nepochs: 3\ndata: {train: digits, batch_size: 32}\n"
        "optimizer:\n  name: adam\n  lr: 1e-3\nrule: average\nstop: {patience: 2}\n"
    )
    with suppress(Interrupted):
        _fit(folder / "run", [_Interrupt()])


def _make_tables(folder: Path, inputs: np.ndarray, labels: np.ndarray) -> None:
    with suppress(ImportError):
        import h5py

        with h5py.File(folder / "d.h5", "w") as file:
            file.create_dataset("x", data=inputs, chunks=(4, 3), compression="gzip")
            file["y"] = labels
    with suppress(ImportError):
        import pyarrow
        from pyarrow import parquet

        columns = {name: inputs[:, at] for at, name in enumerate("abc")} | {"y": labels}
        parquet.write_table(pyarrow.table(columns), folder / "d.parquet", row_group_size=8)


def _make_images(folder: Path, chance: np.random.Generator) -> None:
    with suppress(ImportError):
        from PIL import Image

        with tarfile.open(folder / "d.tar", "w") as archive:
            for number in range(4):
                place = folder / "images" / f"class{number % 2}"
                place.mkdir(parents=True, exist_ok=True)
                image = Image.fromarray(chance.integers(0, 255, (6, 6, 3)).astype(np.uint8))
                name = f"{number}.{('png', 'jpg', 'bmp', 'gif')[number]}"
                image.save(place / name)
                image.save(content := io.BytesIO(), "png")
                for suffix, data in (("png", content.getvalue()), ("cls", b"1")):
                    info = tarfile.TarInfo(f"s{number}.{suffix}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))


def _make_models(folder: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    torch.save(model, folder / "model.pt")
    torch.save(model.state_dict(), folder / "w.pt")
    torch.export.save(torch.export.export(model, (torch.zeros(2, 3),)), folder / "model.pt2")
    from safetensors.torch import save_file

    save_file(model.state_dict(), folder / "w.safetensors")
    with suppress(ImportError):
        from paceline.frameworks.keras.model_files import import_keras

        keras = import_keras()
        whole = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
        whole.save(folder / "model.keras")
        (folder / "arch.json").write_text(whole.to_json())


class _Interrupt(Callback):
    def on_batch_end(self, trainer: Any, step: int, logs: Any) -> None:
        if trainer.clock.epoch == 1:
            trainer.interrupt()


def _network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def _fit(folder: Path, callbacks: Any = (), **settings: Any) -> Any:
    chance = np.random.default_rng(1)
    samples = chance.normal(size=(SAMPLES, 3)).astype(np.float32), np.arange(SAMPLES) % 2
    return Trainer(
        _network, samples, samples, world=SoloWorld(), epochs=3, data={"batch_size": 5},
        optimizer="adam", run_dir=str(folder), progress="off", callbacks=callbacks, **settings,
    ).fit()  # fmt: skip


def damage(chance: random.Random, content: bytes) -> bytes:
    """Some bytes flipped, removed, repeated, cut off, or text put in between."""
    found = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 5, 40))):
        at = chance.randrange(len(found) + 1)
        length = chance.choice((1, 1, 2, 4, 8, 64, 1000))
        kind = chance.randrange(7)
        if kind == 0 and found:
            found[min(at, len(found) - 1)] ^= 1 << chance.randrange(8)
        elif kind == 1:
            found[at : at + length] = chance.randbytes(len(found[at : at + length]))
        elif kind == 2:
            del found[at : at + length]
        elif kind == 3:
            del found[at:]
        elif kind == 4:
            found[at:at] = found[at : at + length] * chance.choice((1, 3))
        elif kind == 5:
            found[at:at] = chance.choice(TEXTS).encode()
        else:
            same = bytes([chance.choice((0, 255))])
            found[at : at + length] = same * len(found[at : at + length])
    return bytes(found)


def _damage_inside(chance: random.Random, path: Path) -> None:
    """One file of an archive, whose checksums are right; or the header of a safetensors file."""
    if path.suffix == ".safetensors":
        content = path.read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        document = json.loads(content[8:end])
        _damage_json(chance, document, chance.choice(JSON_VALUES))
        header = json.dumps(document).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + content[end:])
        return
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = chance.choice(list(members))
    try:
        document = json.loads(members[name])
        _damage_json(chance, document, chance.choice(JSON_VALUES))
        members[name] = json.dumps(document).encode()
    except (ValueError, TypeError, IndexError):
        members[name] = damage(chance, members[name])
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)


def _damage_file(chance: random.Random, path: Path) -> None:
    """Its bytes, most of the time; or there is no such file, an empty one, a pipe or a folder."""
    kind = chance.randrange(40)
    if kind > 20 and path.suffix in (".npz", ".pt", ".pt2", ".keras", ".safetensors"):
        _damage_inside(chance, path)
        return
    if kind > 3:
        path.write_bytes(damage(chance, path.read_bytes()))
        return
    path.unlink()
    if kind == 1:
        path.touch()
    elif kind == 2:
        os.mkfifo(path)
    elif kind == 3:
        path.mkdir()


def _damage_json(chance: random.Random, document: Any, value: Any) -> None:
    """One value somewhere within becomes another."""
    while True:
        keys = list(document) if isinstance(document, dict) else list(range(len(document)))
        key = chance.choice(keys)
        inner = document[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.85:
            document = inner
        elif chance.random() < 0.15:
            del document[key]
            return
        else:
            document[key] = value
            return


def damaged_data(chance: random.Random, folder: Path) -> None:
    name = chance.choice([name for name in DATA if (folder / name).exists()])
    path = folder / name
    inside = [file for file in sorted(path.rglob("*")) if file.is_file()] if path.is_dir() else []
    _damage_file(chance, chance.choice(inside) if inside else path)
    source: Any = open_data(str(path), part="train")
    rows = np.array(sorted({0, len(source) // 2, len(source) - 1}))
    batch = source.take(rows)
    assert len(batch.inputs) == len(rows), f"{len(batch.inputs)} inputs for {len(rows)} rows"
    if batch.targets is not None:
        assert len(batch.targets) == len(rows), f"{len(batch.targets)} targets"
    for start in range(0, len(source), 7):
        source.take(np.arange(start, min(start + 7, len(source))))


def damaged_model(chance: random.Random, folder: Path) -> None:
    path = folder / chance.choice([name for name in MODELS if (folder / name).exists()])
    if path.name == "arch.json" and chance.random() < 0.5:
        document = json.loads(path.read_text())
        _damage_json(chance, document, chance.choice(JSON_VALUES))
        path.write_text(json.dumps(document))
    elif chance.random() < 0.5 and path.suffix != ".json":
        _damage_inside(chance, path)
    else:
        path.write_bytes(damage(chance, path.read_bytes()))
    load_file(path)


def damaged_weights(chance: random.Random, folder: Path) -> None:
    path = folder / chance.choice(WEIGHTS)
    _damage_file(chance, path)
    load_weights(_network(), str(path))


def damaged_result(chance: random.Random, folder: Path) -> None:
    path = folder / "w.safetensors"
    _damage_file(chance, path)
    model = read_model(path)
    model.write(folder / "out.npz")


def damaged_run_file(chance: random.Random, folder: Path) -> None:
    path = folder / chance.choice(("run.yaml", "plain.yaml"))
    if path.name == "run.yaml" and chance.random() < 0.5:
        document = json.loads(path.read_text())
        _damage_json(chance, document, chance.choice(JSON_VALUES))
        path.write_text(json.dumps(document))
    else:
        _damage_file(chance, path)
    _use(_read_words("train", str(path)))


def odd_settings(chance: random.Random, folder: Path) -> None:
    words = ["--rule", chance.choice(list(RULES)), "--optimizer", chance.choice(OPTIMIZERS)]
    words += ["--schedule", chance.choice(("constant", "step", "cosine"))]
    for _ in range(chance.choice((1, 1, 2, 3))):
        key = chance.choice(KEYS)
        if chance.random() < 0.05:
            key = damage(chance, key.encode()).decode(errors="replace")
        value = chance.choice(VALUES)
        if chance.random() < 0.2:
            value = damage(chance, value.encode()).decode(errors="replace")
        words += ["--set", f"{key}={value}"]
    _use(_read_words("train", "mnist", *words))


JSON_VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1, 3.5, 1e300, 10**40, "", "text", "\u2603", [], {}, [1, 2, 3]),
    *([True], {"a": 1}, {"$array": "x"}, {"$float": "nan"}, {"class_name": "Dense"}, [[[]]]),
]


def damaged_checkpoint(chance: random.Random, folder: Path) -> None:
    """Bytes, which checksums find; or values, whose checksums are right."""
    checkpoint = next((folder / "run" / "checkpoints").glob("step-*"))
    files = sorted(path for path in checkpoint.iterdir())
    if chance.random() < 0.2:
        _damage_file(chance, chance.choice(files))
    else:
        path = chance.choice([file for file in files if file.suffix == ".json"])
        document = json.loads(path.read_text())
        inner = document["facts"] if path.name == "checkpoint.json" else document["values"]
        _damage_json(chance, inner, chance.choice(JSON_VALUES))
        path.write_text(json.dumps(document))
        _sum_anew(checkpoint, path)
    result = _fit(folder / "run", resume=str(folder / "run"))
    epochs = [record.epoch for record in result.history]
    assert epochs == [1, 2, 3], f"the run went on and has the epochs {epochs}"


def _sum_anew(checkpoint: Path, path: Path) -> None:
    manifest = json.loads((checkpoint / "checkpoint.json").read_text())
    if path.name in manifest["files"]:
        content = path.read_bytes()
        record = {"bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"}
        manifest["files"][path.name] = record
        (checkpoint / "checkpoint.json").write_text(json.dumps(manifest))


def _read_words(*words: str) -> RunConfig:
    with redirect_stderr(io.StringIO()):
        args = _make_parser("train").parse_args(list(words))
    return read_config(*read_levels(args)[0])


def _use(config: RunConfig) -> None:
    """What every run does with its settings: write them down, make an optimizer, take a step."""
    json.dumps(config.describe())
    for done in (0.0, 0.5, 1.0, 7.3):
        config.schedule.factor(done, config.epochs)
    if config.model != "mnist" or not isinstance(config.optimizer, OptimizerConfig):
        return
    replica = make_replica(_network(), config.loss, config.optimizer.settings())
    batch = type("Batch", (), {"samples": 4, "indices": None})()
    batch.inputs, batch.targets = np.zeros((4, 3), np.float32), np.zeros(4, np.int64)
    if config.loss == "cross_entropy":
        replica.gradients(batch)
        replica.apply()


CASES: dict[str, Callable[[random.Random, Path], None]] = {
    "data": damaged_data,
    "model": damaged_model,
    "weights": damaged_weights,
    "result": damaged_result,
    "run file": damaged_run_file,
    "settings": odd_settings,
    "checkpoint": damaged_checkpoint,
}


def run_case(seed: int, number: int, whole: Path, place: Path) -> str:
    """The kind of case; raises what the case raises."""
    chance = random.Random(f"{seed}-{number}")
    kind = chance.choice(list(CASES))
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(whole, place)
    CASES[kind](chance, place)
    return kind
