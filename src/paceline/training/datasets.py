"""The data sets of a run: opened on every rank, fetched by one, and compared."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from paceline.comm import World
from paceline.comm.rank0 import on_rank0
from paceline.config.data import DataConfig
from paceline.config.run import RunConfig
from paceline.core.quantities import read_bytes
from paceline.core.user_code import describe_failure, load_function
from paceline.data import Source, Stream, as_source, open_data
from paceline.data.builtin import mnist
from paceline.data.cache.node_cache import NodeCache
from paceline.data.cache.specs import copy_files
from paceline.data.collate import Collate
from paceline.data.convert import with_collate
from paceline.data.files.reader import Contents
from paceline.data.fingerprint import describe_arrays, sum_samples
from paceline.data.formats.image_folder import ImageFolder
from paceline.data.open import reads_keys
from paceline.data.padding import Pad
from paceline.data.sampling.prefetch import check_loading
from paceline.errors import ConfigError, DataError, PacelineError

T = TypeVar("T")

BUILT_IN = ("digits", "mnist")

PAD = "pad"


@contextmanager
def data_cache(config: RunConfig, world: World) -> Iterator[NodeCache | None]:
    """This node's copies of the data files, if the run is to have some; they go when it ends."""
    data = config.data
    if data.cache_dir is None:
        yield None
        return
    token = on_rank0(world, lambda: secrets.token_hex(8))
    limit = None if data.cache_limit is None else read_bytes(data.cache_limit)
    with closing(NodeCache(Path(data.cache_dir), token, limit)) as cache:
        yield cache


def open_datasets(
    config: RunConfig, world: World, cache: NodeCache | None = None
) -> tuple[Source | Stream, Source | Stream | None]:
    """Training and validation source; the second is None if there is nothing to validate on."""
    data = config.data
    train = data.train
    if train is None:  # what is at hand may differ from node to node
        train = on_rank0(world, lambda: _default_data(config))
    validation = data.validation
    if validation is None and isinstance(train, str) and train in BUILT_IN:
        validation = train
    _check_used(config, (train, validation))
    if "mnist" in [spec for spec in (train, validation) if isinstance(spec, str)]:
        on_rank0(world, lambda: _provide_mnist(data.dir))
    opened = _open_everywhere(config, world, train, "train", cache)
    _check_schedule(config, opened)
    _check_buffer(config, opened)
    _check_loaders(config, opened)
    if validation is None:
        return opened, None
    checked = _open_everywhere(config, world, validation, "validation", cache)
    _check_classes(opened, checked)
    return opened, checked


def _default_data(config: RunConfig) -> str:
    """The mnist model trains on the full set where it is at hand, else on the built-in digits."""
    if config.model != "mnist":
        raise ConfigError(
            "data.train is missing; name the training data: paceline train MODEL TRAIN [VAL]"
        )
    return "mnist" if _is_at_hand(config.data.dir) else "digits"


def _is_at_hand(data_dir: str | None) -> bool:
    """Whether the settings point to the full MNIST; a directory named there must hold it."""
    pointed = os.environ.get("PACELINE_DATA")
    return data_dir is not None or (bool(pointed) and mnist.locate(pointed) is not None)


def _check_used(config: RunConfig, specs: tuple[object, object]) -> None:
    """A setting that nothing reads is a mistake."""
    texts = [spec for spec in specs if isinstance(spec, str)]
    if config.data.dir is not None and "mnist" not in texts:
        raise ConfigError(f"data.dir is read for mnist only, and the data is {texts or 'yours'}")
    if config.data.keys is not None and not any(map(reads_keys, texts)):
        raise ConfigError(
            "data.keys is read for files of named arrays only (.h5, .npz, .parquet, .csv, lists of "
            "them), and there is none"
        )
    _check_cache(config, texts)
    if specs[1] is None:
        _check_without_validation(config)


def _check_without_validation(config: RunConfig) -> None:
    unread = []
    if config.validate_every != RunConfig().validate_every:
        unread.append("validate_every")
    if config.data.validation_batch_size != DataConfig().validation_batch_size:
        unread.append("data.validation_batch_size")
    if config.keep != RunConfig().keep:
        unread.append("keep")
    if unread:
        raise ConfigError(f"{', '.join(unread)}: there is no validation data; set data.validation")
    if config.stop.needs_validation:
        raise ConfigError(
            "stop.patience and stop.target of a val_... metric need validation data; "
            "set data.validation"
        )


def _check_schedule(config: RunConfig, train: Source | Stream) -> None:
    if isinstance(train, Stream) and config.schedule.warmup > 0:
        raise ConfigError(
            "schedule.warmup counts epochs, and the length of a stream is not known in its first; "
            "set warmup to 0, or give data with a length"
        )


def _check_buffer(config: RunConfig, train: Source | Stream) -> None:
    buffer = config.data.shuffle_buffer
    if buffer is None:
        return
    if not config.data.shuffle:
        raise ConfigError(f"data.shuffle_buffer is {buffer}, and data.shuffle is off")
    if not isinstance(config.data.train, str | None):
        raise ConfigError(
            f"data.shuffle_buffer is {buffer}, and is read for data that is named by text only; "
            "give it to open_data(..., shuffle_buffer=...)"
        )
    if not getattr(train, "in_blocks", False):
        raise ConfigError(
            f"data.shuffle_buffer is {buffer}, and {train.name} is not read in blocks: all of it "
            "is shuffled; leave it out"
        )


def _check_classes(train: Source | Stream, validation: Source | Stream) -> None:
    """Classes are numbered by the folders that there are; the numbers must mean the same."""
    ours, theirs = (getattr(source, "dataset", None) for source in (train, validation))
    if not isinstance(ours, ImageFolder) or not isinstance(theirs, ImageFolder):
        return
    if ours.classes != theirs.classes:
        differ = sorted(set(ours.classes) ^ set(theirs.classes))
        raise DataError(
            f"{train.name} and {validation.name} differ in their folders, which are the classes: "
            f"{', '.join(differ[:10])}; make an empty folder where one is missing"
        )


def _check_loaders(config: RunConfig, train: Source | Stream) -> None:
    loaders, prefetch = config.data.loaders, config.data.prefetch
    if loaders == 1:
        return
    if isinstance(train, Stream):
        raise ConfigError(
            f"data.loaders is {loaders}, and a stream is read by one thread; set it to 1, or give "
            "data with a length"
        )
    if prefetch is not None:
        check_loading(prefetch, loaders)


def _check_cache(config: RunConfig, texts: list[str]) -> None:
    data = config.data
    if data.cache_dir is None and data.cache_limit is not None:
        raise ConfigError("data.cache_limit is read with data.cache_dir only, and there is none")
    if data.cache_dir is not None and not any(map(_names_files, texts)):
        raise ConfigError(f"data.cache_dir is for files, and the data is {texts or 'yours'}")


def _names_files(spec: str) -> bool:
    return spec not in BUILT_IN and ":" not in spec


class _Facts(NamedTuple):
    """What a rank reports of its data; equal on all of them."""

    node: str
    length: int | None = None
    arrays: str | None = None
    checksum: int | None = None
    failure: PacelineError | None = None


def _open_everywhere(
    config: RunConfig, world: World, spec: object, part: str, cache: NodeCache | None
) -> Source | Stream:
    """Open on every rank and compare, or fail on every rank: none waits for one that could not.

    Rank 0 reads what the files hold and shares it, so that the others need not open each.
    """
    source: Source | Stream | None = None
    contents = None
    there, error = _attempt(lambda: _fetch(spec, cache))
    if world.rank == 0 and error is None:
        source, error = _attempt(lambda: _open(config, spec, there, part))
        contents = getattr(source, "contents", None) if isinstance(spec, str) else None
    contents, failed = world.bcast_value((contents, error is not None))
    if world.rank and error is None and not failed:
        source, error = _attempt(lambda: _open(config, spec, there, part, contents))
    facts = _Facts(world.node)
    if source is not None:
        found, error = _attempt(lambda: _describe(source, world.node))
        facts = found or facts
    noun = "training" if part == "train" else part
    everyone = world.allgather_values(facts if error is None else _failed(world.node, error))
    if error is not None:
        raise error
    for rank, other in enumerate(everyone):
        if other.failure is not None:
            kind = type(other.failure)
            raise kind(f"rank {rank} ({other.node}) cannot open the {noun} data: {other.failure}")
    assert source is not None, "a rank without data has failed"
    _compare(everyone, noun, source.name)
    return source


def _attempt(action: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """What it gives, or what it raises: other ranks wait to hear either."""
    try:
        return action(), None
    except Exception as error:
        return None, error


def _describe(source: Source | Stream, node: str) -> _Facts:
    length = None if isinstance(source, Stream) else len(source)
    return _Facts(node, length, describe_arrays(source), sum_samples(source))


def _failed(node: str, error: Exception) -> _Facts:
    kind: type[PacelineError] = ConfigError if isinstance(error, ConfigError) else DataError
    text = str(error) if isinstance(error, PacelineError) else describe_failure(error)
    return _Facts(node, failure=kind(text))


def _compare(everyone: list[_Facts], part: str, name: str) -> None:
    """Ranks that see different data would train on some samples twice and on others never."""
    first = everyone[0]
    for rank, other in enumerate(everyone):
        if other.length != first.length:
            found = f"has {other.length} {part} samples, rank 0 has {first.length}"
        elif other.arrays != first.arrays:
            found = f"has {part} samples of {other.arrays}, rank 0 has {first.arrays}"
        elif other.checksum != first.checksum:
            found = (
                f"({other.node}) has other {part} samples than rank 0 ({first.node}), as many of "
                f"the same kind: checksum {other.checksum}, rank 0 has {first.checksum}"
            )
        else:
            continue
        raise DataError(
            f"rank {rank} {found}; every rank must see the same data in {name} (Paceline deals "
            "it out)"
        )


def _provide_mnist(data_dir: str | None) -> None:
    if mnist.locate(data_dir) is None and data_dir is None:
        mnist.fetch()


def _fetch(spec: object, cache: NodeCache | None) -> object:
    """The data set where this node has it: all ranks of a node copy its files together."""
    if cache is None or not isinstance(spec, str) or not _names_files(spec):
        return spec
    return copy_files(spec, cache)


def _open(
    config: RunConfig,
    spec: object,
    there: object,
    part: str,
    contents: Sequence[Contents] | None = None,
) -> Source | Stream:
    collate = find_collate(config.data.collate)
    if not isinstance(there, str):
        return with_collate(as_source(there), collate)
    data = config.data
    source = open_data(
        there,
        part=part,
        data_dir=data.dir,
        keys=data.keys if reads_keys(there) else None,
        shuffle_buffer=data.shuffle_buffer if part == "train" else None,
        contents=contents,
    )
    if isinstance(spec, str) and there != spec:
        source.name = spec  # messages are about the user's files, not about the copies
    return with_collate(source, collate)


def find_collate(named: object) -> Collate | None:
    """The function that `data.collate` means."""
    if named == PAD:
        return Pad()
    if isinstance(named, str):
        named = load_function(named)
    if named is None or callable(named):
        return named
    raise ConfigError(f"data.collate is {named!r}, expected {PAD}, file.py:function, or a function")
