"""Theano-MPI's config files, translated to Paceline's settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from paceline.config.messages import show
from paceline.config.reading import combine, nest, read_yaml
from paceline.config.run import RunConfig
from paceline.config.theano_mpi_keys import KEYS
from paceline.config.theano_mpi_readers import MODES, Meaning, OldConfig
from paceline.core.suggestions import nearest
from paceline.errors import ConfigError

_MARKS = {"sync_rule", "sync_start", "avg_freq", "sync_freq", "exch_strategy", "n_epochs", *MODES}
"""Keys that no run file of Paceline has: a file with one of them is Theano-MPI's."""


class Translation(NamedTuple):
    """Paceline's settings, and a line for each old key that says what became of it."""

    settings: dict[str, object]
    lines: tuple[str, ...] = ()


def read_run_file(path: Path, given: Mapping[str, object]) -> Translation:
    """The settings in a YAML file, Paceline's or Theano-MPI's.

    `given` are those of the command line. As in Theano-MPI, the settings of the model may be in a
    file of its name next to the config: `name: alexnet` and alexnet.yaml.
    """
    content = read_yaml(path)
    if not is_old(content):
        return Translation(content)
    name = content.get("name")
    beside = path.with_name(f"{name}.yaml") if _is_word(name) else path
    model = read_yaml(beside) if beside != path and beside.is_file() else {}
    both = model if is_old(model) else {}
    settings, lines = translate(content | both, given)
    files = f"{path} and {beside.name} have" if both else f"{path} has"
    return Translation(
        settings, (f"{files} the settings of Theano-MPI; in Paceline they are:", *lines)
    )


def is_old(content: Mapping[str, object]) -> bool:
    """Whether these are settings of Theano-MPI."""
    return bool(_MARKS & set(content))


def translate(
    content: Mapping[str, object], given: Mapping[str, object] | None = None
) -> Translation:
    """Theano-MPI's settings as Paceline's; all errors are reported at once.

    Paceline's own may be among them, as long as no two set the same thing.

    >>> translate({"sync_rule": "EASGD", "avg_freq": 2}).settings
    {'rule': {'name': 'easgd', 'every': 2}}
    """
    content = {key: value for key, value in content.items() if value is not None}
    new = combine({key: content[key] for key in content if key in RunConfig.model_fields})
    old = {key: value for key, value in content.items() if key not in new}
    outside = combine(given or {})
    beside = {*new, *_dotted(new)}
    config = OldConfig(old, frozenset(beside | {*outside, *_dotted(outside)}))
    meanings, faults = _read(config)
    faults += _find_doubles(meanings, beside)
    if faults:
        raise ConfigError("; ".join(faults))
    found = {
        name: value for meaning in meanings.values() for name, value in meaning.settings.items()
    }
    for section, usual in (("rule", config.name), ("optimizer", "sgd")):
        if any(name.startswith(f"{section}.") for name in found):
            found = {f"{section}.name": usual} | found
    settings = combine(*(nest(name, value) for name, value in found.items()), new)
    used = sorted(meanings, key=lambda key: not meanings[key].settings)  # what counts first
    lines = [_describe(key, old[key], meanings[key], {*_dotted(outside)}) for key in used]
    return Translation(settings, tuple(lines))


def _read(config: OldConfig) -> tuple[dict[str, Meaning], list[str]]:
    """What became of each key, and what is wrong with them."""
    meanings: dict[str, Meaning] = {}
    faults = []
    for key, value in config.old.items():
        try:
            if key not in KEYS:
                raise ConfigError(_explain_unknown(key))
            meanings[key] = KEYS[key](key, value, config)
        except ConfigError as error:
            faults.append(str(error))
    return meanings, faults


def _explain_unknown(key: object) -> str:
    near = nearest(key, [*KEYS, *RunConfig.model_fields])
    hint = f"; did you mean {near}?" if near else ""
    return f"{show(key)} is not a setting of Theano-MPI or Paceline{hint}"


def _find_doubles(meanings: Mapping[str, Meaning], beside: set[str]) -> list[str]:
    """Settings that two keys set to different values."""
    faults = []
    first: dict[str, str] = {}
    for key, meaning in meanings.items():
        for name, value in meaning.settings.items():
            if name in beside:
                faults.append(f"{key} and {name} set the same thing; omit one of them")
            elif value != meanings[first.setdefault(name, key)].settings[name]:
                faults.append(
                    f"{first[name]} and {key} give two values for {name}; omit one of them"
                )
    return faults


def _describe(key: str, value: object, meaning: Meaning, outside: set[str]) -> str:
    translated = ", ".join(f"{name}: {_written(value)}" for name, value in meaning.settings.items())
    notes = [meaning.note] if meaning.note else []
    if outside & meaning.settings.keys():
        notes.append("the command line overrides it")
    arrow = f" -> {translated}" if translated else ""
    return f"{key}: {_written(value)}{arrow}" + (f" ({'; '.join(notes)})" if notes else "")


def _written(value: object) -> str:
    return value if isinstance(value, str) and value.isprintable() else show(value)


def _is_word(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier() and name.isascii()


def _dotted(settings: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"
