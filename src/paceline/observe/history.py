"""What became of each epoch, and where its time went."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from paceline.errors import DataError
from paceline.observe.files import write_atomically
from paceline.observe.finite import finite

FORMAT = 1


@dataclass(frozen=True)
class TimeSplit:
    """Seconds spent computing, waiting for other ranks, communicating and waiting for data.

    For a world these are means: the sum over the ranks divided by their number.

    >>> (TimeSplit(compute=2.0) + TimeSplit(compute=1.0, wait=1.0)).shares()["wait"]
    0.25
    """

    compute: float = 0.0
    wait: float = 0.0
    communication: float = 0.0
    data: float = 0.0

    @property
    def total(self) -> float:
        """Seconds in all."""
        return self.compute + self.wait + self.communication + self.data

    def shares(self) -> dict[str, float]:
        """Return each part as a fraction of the total; all are 0 when no time was measured."""
        total = self.total
        if not 0.0 < total < math.inf:
            return dict.fromkeys(asdict(self), 0.0)
        return {name: seconds / total for name, seconds in asdict(self).items()}

    def __add__(self, other: "TimeSplit") -> "TimeSplit":
        if not isinstance(other, TimeSplit):
            return NotImplemented
        return TimeSplit(
            self.compute + other.compute,
            self.wait + other.wait,
            self.communication + other.communication,
            self.data + other.data,
        )


@dataclass
class EpochRecord:
    """One epoch of the whole world; epochs count from 1, None stands for "not measured"."""

    epoch: int
    samples: int
    seconds: float
    train_loss: float | None
    val_loss: float | None
    val_accuracy: float | None
    learning_rate: float | None
    samples_per_s: float
    time: TimeSplit = field(default_factory=TimeSplit)
    metrics: dict[str, float] = field(default_factory=dict)
    """Further figures of the validation, by names as val_auc."""


class History(list[EpochRecord]):
    """The records of a run's epochs, in order: a list that can be saved and loaded."""

    def to_json(self) -> str:
        """Return the history as JSON text; a number that is not finite becomes null."""
        content = {"format": FORMAT, "epochs": [asdict(record) for record in self]}
        return json.dumps(finite(content), indent=1, allow_nan=False) + "\n"

    def save(self, path: Path) -> None:
        """Write the history to `path`; a reader sees the old file or the new one, never half."""
        write_atomically(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a history that `save` wrote."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise DataError(
                f"Cannot read the history {path}: {error.strerror}. Give the history file of a run."
            ) from error
        except ValueError as error:
            raise DataError(
                f"{path} is not JSON: {error}. Give the history file of a run."
            ) from error
        return cls(_read_record(item, where) for where, item in _numbered(content, path))


def _numbered(content: Any, path: Path) -> Iterator[tuple[str, Any]]:
    """Return the epochs in a history file, each with the words for where it stands."""
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT or not isinstance(content.get("epochs"), list):
        raise DataError(
            f"{path} has history format {found}, expected {FORMAT} with a list of epochs. "
            "Give the history file of a run made by this version."
        )
    return ((f"{path}, record {n}", item) for n, item in enumerate(content["epochs"], start=1))


def _read_record(item: dict[str, Any], where: str) -> EpochRecord:
    if isinstance(item, dict) and {f.name for f in fields(EpochRecord)} - set(item) == {"metrics"}:
        item = {**item, "metrics": {}}  # older files have none
    _check_names(item, EpochRecord, where)
    _check_names(item["time"], TimeSplit, f"{where}, time")
    time = TimeSplit(**{name: _measured(value) for name, value in item["time"].items()})
    sure = {name: _measured(item[name]) for name in ("seconds", "samples_per_s")}
    return EpochRecord(**{**item, **sure, "time": time})


def _check_names(item: dict[str, Any], kind: type, where: str) -> None:
    expected = [field.name for field in fields(kind)]
    found = list(item) if isinstance(item, dict) else []
    if sorted(found) != sorted(expected):
        raise DataError(
            f"{where} has the keys {', '.join(found)}, expected {', '.join(expected)}. "
            "Restore the file as it was saved."
        )


def _measured(value: float | None) -> float:
    # These fields are never None in a record, so null can only have been a NaN or infinity.
    return math.nan if value is None else value
