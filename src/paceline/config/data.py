"""The section `data:`, what a run trains and validates on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from paceline.config.section import Section
from paceline.config.setting import Flag, Values
from paceline.errors import ConfigError

MOST_SAMPLES = 100_000_000
"""In a batch."""
MOST_READY = 10_000
"""Batches in memory at once."""
MOST_LOADERS = 1024

_DATA = Values("a data set by name, file or function; in Python also the data itself")


class DataConfig(Section):
    """What is trained on."""

    train: Annotated[object, Flag("TRAIN"), _DATA] = None
    """Training data: `digits`, `mnist`, a file (`.h5`, `.npz`, `.npy`, `.parquet`, `.csv`,
    `.tar`), a list of files, a folder of images or `file.py:function` (default: for the model
    mnist, `mnist` if its folder is given, else `digits`).

    See [Data](#data) below."""
    validation: Annotated[object, Flag("VAL"), _DATA] = None
    """Validation data, of the same kinds as TRAIN (default: none; for `digits` and `mnist`, their
    test images)."""
    batch_size: Annotated[int, Flag("--batch-size")] = Field(64, ge=1, le=MOST_SAMPLES)
    """Samples per rank and step.

    The run prints how many that makes for all ranks together."""
    validation_batch_size: int = Field(500, ge=1, le=MOST_SAMPLES)
    """Samples per rank and validation step."""
    shuffle: bool = True
    """Draw a new order for every epoch, from `seed`, the same on all ranks.

    A stream keeps its own order."""
    cost: Annotated[
        object,
        Flag("--cost"),
        Values(
            "`length`, a column, `{power: 2}` of the length, `learned`; in Python also an array or "
            "function"
        ),
    ] = None
    """What a sample costs: ranks get equal costs in each step instead of equal counts (default:
    all samples cost the same).

    See [uneven.md](uneven.md#samples-of-unequal-cost)."""
    bucketing: float | None = Field(None, ge=0, le=1)
    """With `cost`: how far a step consists of samples of similar cost, from 0 (random)
    to 1 (sorted) (default: as far as equal costs need it)."""
    padded: bool | None = None
    """With `cost`: whether batches are padded to their longest sample, so that each of its samples
    costs as much (default: true if `collate` pads)."""
    tokens_per_batch: Annotated[float | None, Flag("--tokens-per-batch", "N")] = Field(None, gt=0)
    """The cost of a rank's batch, instead of `batch_size`; the cost is the length unless `cost`
    says otherwise."""
    speeds: Literal["equal", "measured"] = "equal"
    """With `measured`, a slower rank gets less, in proportion to what steps took; with rule `bsp`.

    Then no two runs are the same to the bit."""
    deal: Annotated[Literal["planned", "dynamic"], Flag("--deal")] = "planned"
    """Who takes which samples: `planned` in advance, or `dynamic`: each rank takes the next ones
    when it is ready, for work that nobody can plan.

    See [uneven.md](uneven.md#work-that-nobody-can-plan)."""
    micro_batch: int | None = Field(None, ge=1, le=MOST_SAMPLES)
    """With `bsp` and `deal` `dynamic`: samples that a rank takes at a time (default: an eighth of
    `batch_size`)."""
    weight: Annotated[object, Values("as of `cost`")] = None
    """What a sample counts in the mean of gradients, for a loss that is a mean over something
    else: `length` for a mean over tokens (default: all count alike)."""
    collate: Annotated[object, Values("`pad` or `file.py:function`; in Python also a function")] = (
        None
    )
    """How samples become a batch, where the data has samples of varying length (default: they are
    stacked).

    See [uneven.md](uneven.md#samples-of-varying-length)."""
    prefetch: int | None = Field(None, ge=0, le=MOST_READY)
    """Batches to prepare in the background (default: 2 per loader; 0 for arrays in memory)."""
    loaders: int = Field(1, ge=1, le=MOST_LOADERS)
    """Threads per rank that prepare batches.

    See [data.md](data.md#loading-ahead)."""
    cache_dir: Annotated[str | None, Flag("--cache-dir", "DIR"), Values("path")] = None
    """Copy the data files once to this folder on every node, for example `/dev/shm/me`, and
    read them there.

    See [data.md](data.md#a-copy-on-every-node)."""
    cache_limit: Annotated[int | str | None, Values("bytes, or a size such as `10GB`")] = None
    """Copy at most this much to `cache_dir` (default: half of the free space there)."""
    dir: Annotated[str | None, Flag("--data-dir", "DIR"), Values("path")] = None
    """Folder with the full MNIST data set (default: `$PACELINE_DATA`, then the user's cache)."""
    keys: Annotated[object, Values("a pair; each a name, a list or a mapping of names")] = None
    """Names of inputs and targets in files (default: the usual names).

    See [data.md](data.md#which-arrays-datakeys)."""
    shuffle_buffer: int | None = Field(None, ge=1)
    """Samples to shuffle at a time, in files that are read in blocks (default: as many as fit in
    64 MB).

    See [data.md](data.md#shuffling-what-does-not-fit-in-memory)."""

    # The validators import paceline.data when a file gives these keys: `paceline train --help`
    # would wait for it.
    @field_validator("keys", mode="after")
    @classmethod
    def check_keys(cls, value: object) -> object:
        from paceline.data.files.keys import FORMS, read_keys

        try:
            read_keys(value)
        except ConfigError as error:
            raise ValueError(FORMS) from error
        return value

    @field_validator("cost", "weight", mode="after")
    @classmethod
    def check_cost(cls, value: object) -> object:
        if value is None or isinstance(value, str):
            return value
        from paceline.data.cost import FORMS, check_form

        try:
            check_form(value)
        except ConfigError as error:
            raise ValueError(FORMS) from error
        return value

    @field_validator("cache_limit", mode="after")
    @classmethod
    def read_limit(cls, value: int | str | None) -> int | str | None:
        from paceline.core.quantities import read_bytes

        if value is not None:
            read_bytes(value)
        return value
