"""What a setting is: its key, values, default, flag and meaning, read from a config's fields.

A field is described where it is declared. Its docstring says what it means: the first paragraph
is the flag's help, and docs/settings.md has all of it. A default that no value can express stands
at the end of that paragraph: `(default: half of the free space)`. Annotations say the rest.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Literal,
    TypeGuard,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class Flag:
    """The field has a flag in `paceline train`: `Annotated[int, Flag("--epochs")]`."""

    name: str
    """`--epochs`; without dashes the name of a positional argument, as `MODEL`."""
    metavar: str = ""
    """By default N for integers, X for other numbers, else the flag's name in capitals."""
    const: str | None = None
    """What the flag means without a value; by default it needs one."""
    of_launcher: bool = False
    """The launcher's option, which other commands have too: it is added with those."""

    @property
    def is_positional(self) -> bool:
        return not self.name.startswith("-")


@dataclass(frozen=True)
class Values:
    """What a field may be where its type does not tell. It is described whole, not by its keys."""

    text: str = ""
    """For the page."""
    names: tuple[str, ...] = ()
    """For the help, and for the page if there is no text."""


@dataclass(frozen=True)
class Group:
    """The title of a group of settings, which begins with this field."""

    title: str


@dataclass(frozen=True)
class Setting:
    """One setting of a run, as the help and the page describe it."""

    key: str
    """`data.batch_size`."""
    group: str
    types: frozenset[object]
    """Those it may have, without None."""
    names: tuple[str, ...]
    """The values to choose from, if they are few."""
    values: str
    """What it may be, in words for the page; empty where types and names tell."""
    bounds: tuple[str, ...]
    """Least and greatest value, as `≥ 1`; limits that nobody reaches are omitted."""
    default: object
    summary: str
    """The first paragraph of the docstring, without its full stop."""
    details: str
    """The rest of it."""
    flag: Flag | None

    @property
    def default_in_words(self) -> str:
        """A default that the docstring tells, since no value can express it."""
        found = _DEFAULT.search(self.summary)
        return found[1] if found else ""


_DEFAULT = re.compile(r" \(default: (.*)\)$")


def describe_settings(config: type[BaseModel]) -> tuple[Setting, ...]:
    """Every setting of a config and of its sections, in the order of their fields.

    Sections are pydantic models or dataclasses; of a choice of sections all are described.
    """
    return tuple(_walk((config,), "", ""))


def sections_of(annotation: object) -> tuple[type, ...]:
    """The models and dataclasses among the types of a field."""
    return tuple(kind for kind in _members(annotation) if _is_section(kind))


def field_names(section: type) -> list[str]:
    """The keys of a section."""
    return [name for name, _, _, _ in _fields(section)]


def _walk(sections: tuple[type, ...], prefix: str, group: str) -> Iterator[Setting]:
    seen: dict[str, list[tuple[object, list[object], object]]] = {}
    texts: dict[str, str] = {}
    for section in sections:
        for name, annotation, metadata, default in _fields(section):
            seen.setdefault(name, []).append((annotation, metadata, default))
        texts = field_docstrings(section) | texts
    for name, alike in seen.items():
        annotation, metadata, default = alike[0]
        group = next((mark.title for mark in metadata if isinstance(mark, Group)), group)
        values = next((mark for mark in metadata if isinstance(mark, Values)), None)
        inner = sections_of(annotation) if values is None else ()
        if inner:
            yield from _walk(inner, f"{prefix}{name}.", group)
            continue
        names = tuple(dict.fromkeys(name for kind, _, _ in alike for name in _choices(kind)))
        summary, _, details = texts.get(name, "").partition("\n\n")
        yield Setting(
            key=f"{prefix}{name}",
            group=group,
            types=frozenset(_members(annotation)) - {type(None)},
            names=values.names if values and values.names else names,
            values=values.text if values else "",
            bounds=tuple(_bounds(metadata)),
            default=default,
            summary=_one_line(summary).removesuffix("."),
            details=_one_line(details),
            flag=next((mark for mark in metadata if isinstance(mark, Flag)), None),
        )


def _fields(section: type) -> Iterator[tuple[str, object, list[object], object]]:
    """Name, type, further annotations and default of each field."""
    if issubclass(section, BaseModel):
        for name, field in section.model_fields.items():
            yield (
                name,
                field.annotation,
                field.metadata,
                field.get_default(call_default_factory=True),
            )
        return
    hints = get_type_hints(section, include_extras=True)
    for plain in dataclasses.fields(cast("type[DataclassInstance]", section)):
        annotation, metadata = hints[plain.name], []
        if get_origin(annotation) is Annotated:
            annotation, *metadata = get_args(annotation)
        yield plain.name, annotation, metadata, plain.default


def _is_section(kind: object) -> TypeGuard[type]:
    return isinstance(kind, type) and (
        issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)
    )


def _members(annotation: object) -> tuple[object, ...]:
    """The types of a union, or the one that it is."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in _UNIONS:
        return tuple(kind for part in get_args(annotation) for kind in _members(part))
    return (annotation,)


_UNIONS = (get_origin(int | str), get_origin(Annotated[int, 0] | None))


def _choices(annotation: object) -> Iterator[str]:
    for kind in _members(annotation):
        if get_origin(kind) is Literal:
            yield from get_args(kind)


def _bounds(metadata: list[object]) -> Iterator[str]:
    """An upper limit above 1 only keeps out what no machine can do: it is not worth a reader's
    time."""
    for mark in metadata:
        for attribute, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<")):
            bound = getattr(mark, attribute, None)
            if bound is not None and (attribute in ("ge", "gt") or bound <= 1):
                yield f"{sign} {bound}"


def field_docstrings(section: type) -> dict[str, str]:
    """The text below each field of a class and of its bases; empty if there is no source."""
    texts: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if base not in (object, BaseModel):
            texts |= _docstrings_of_module(base.__module__).get(base.__qualname__, {})
    return texts


@cache
def _docstrings_of_module(name: str) -> dict[str, dict[str, str]]:
    """By class and field. Python keeps no docstrings of fields, so its source is read."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (OSError, TypeError, KeyError):
        return {}
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    return {node.name: dict(_docstrings_of(node)) for node in classes}


def _docstrings_of(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in zip(node.body, node.body[1:], strict=False):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(written))),
            ):
                yield name, inspect.cleandoc(written)


def _one_line(text: str) -> str:
    return " ".join(text.split())
