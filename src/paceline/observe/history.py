"""The results of each epoch, and where its time went."""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from paceline.core.files import cannot_write, json_safe, write_atomically
from paceline.errors import DataError

FORMAT = 2


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
    """Further metrics of the validation, by names like val_auc."""


class History(list[EpochRecord]):
    """The records of a run's epochs, in order: a list that can be saved and loaded.

    The file has a line of JSON for the format and one for each record. Saving again appends what is
    new, so that the cost of an epoch does not grow with their number.
    """

    def __init__(self, records: Iterable[EpochRecord] = ()) -> None:
        super().__init__(records)
        self._written = 0
        """Records that are in the file."""

    def save(self, path: Path) -> None:
        """Bring the file up to date: write it whole the first time, then append."""
        try:
            if self._written:
                with path.open("a", encoding="utf-8") as file:
                    file.write("".join(map(_line, self[self._written :])))
            else:
                lines = [json.dumps({"format": FORMAT}) + "\n", *map(_line, self)]
                write_atomically(path, "".join(lines))
        except OSError as error:
            self._written = 0  # it may have written half a line
            raise cannot_write(path, error) from error
        self._written = len(self)

    def revise_last(self) -> None:
        """The last record has changed: the next save appends it again, and the last one counts."""
        self._written = min(self._written, len(self) - 1)

    def snapshot(self) -> list[dict[str, object]]:
        """The records as plain values, for a checkpoint."""
        return [asdict(record) for record in self]

    def restore(self, saved: Iterable[dict[str, Any]]) -> None:
        """Go on from what `snapshot` gave."""
        self[:] = [
            EpochRecord(**{**record, "time": TimeSplit(**record["time"])}) for record in saved
        ]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a history that `save` wrote; half a line at its end is a record being written."""
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
        except OSError as error:
            raise DataError(
                f"Cannot read the history {path}: {error.strerror}. Give the history file of a run."
            ) from error
        except ValueError as error:
            raise DataError(
                f"{path} is not text: {error}. Give the history file of a run."
            ) from error
        whole = [line for line in lines if line.endswith("\n")]
        head = _parse(whole[0], path) if whole else None
        found = head.get("format") if isinstance(head, dict) else None
        if found != FORMAT:
            raise DataError(
                f"{path} has history format {found}, expected {FORMAT}. "
                "Give the history file of a run made by this version."
            )
        records = [
            _read_record(_parse(line, path), f"{path}, record {number}")
            for number, line in enumerate(whole[1:], start=1)
        ]
        return cls({record.epoch: record for record in records}.values())


def _line(record: EpochRecord) -> str:
    """One record as strict JSON; NaN and infinity become null."""
    return json.dumps(json_safe(asdict(record)), allow_nan=False) + "\n"


def _parse(line: str, path: Path) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}. Give the history file of a run.") from error


def _read_record(item: dict[str, Any], where: str) -> EpochRecord:
    _check_names(item, EpochRecord, where)
    _check_names(item["time"], TimeSplit, f"{where}, time")
    time = TimeSplit(**{name: _measured(value) for name, value in item["time"].items()})
    sure = {name: _measured(item[name]) for name in ("seconds", "samples_per_s")}
    return EpochRecord(**{**item, **sure, "time": time})


def _check_names(item: object, kind: type, where: str) -> None:
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
