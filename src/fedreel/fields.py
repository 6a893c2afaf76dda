"""What the texts of a recipe are: words, or names of files. A recipe may come from elsewhere, so each text says it."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from fedreel.registry import Registry


@dataclass(frozen=True)
class Text:
    """What a setting's text is good for. A `word` is compared or shown, and nothing is opened by it. A `model` is a
    file or folder of weights, a `maker` one after a colon (`clip:FOLDER`) or else a word, a `file` any other; those
    `known` come with fedreel. `below` is a file among the data. A `server` text is of no concern to clients. `divides`:
    it has a say in which samples are trained on and which are for testing."""

    kind: Literal["word", "model", "maker", "file", "below", "server"]
    known: tuple[str, ...] = ()
    divides: bool = False


Word = Annotated[str, Text("word")]
DividingWord = Annotated[str, Text("word", divides=True)]
ModelName = Annotated[str, Text("model", ("", "imagenet"))]
WeightsName = Annotated[str, Text("model", ("",))]
MakerName = Annotated[str, Text("maker")]
FileName = Annotated[str, Text("file", ("",))]
BelowData = Annotated[str, Text("below", ("",), divides=True)]
AtServer = Annotated[str, Text("server")]

Take = Callable[[str, Text | None, str], str]  # the setting, what it is (None: it does not say), its text -> another


def texts_of(section: type) -> dict[str, Text | None]:
    """The settings of a section that can hold a text which is not one of a few: what each is. None: it does not say."""
    hints = typing.get_type_hints(section, include_extras=True)
    return {f.name: _mark(hints[f.name]) for f in _fields(section) if _holds_text(hints[f.name])}


def with_texts(section: type, table: Mapping[str, Any], take: Take, where: str) -> dict[str, Any]:
    """A section's table with every text that differs from its default as `take` has it, and those of the sections in
    it. Nothing is built or opened."""
    hints = typing.get_type_hints(section, include_extras=True)
    defaults = {f.name: default_of(f) for f in _fields(section)}
    taken = dict(table)
    for key, value in table.items():
        if key not in defaults:
            continue  # whoever builds the section says so
        inner = section_within(hints[key], value, defaults[key])
        if inner is not None and isinstance(value, Mapping):
            taken[key] = with_texts(inner, value, take, f"{where}.{key}")
        elif _holds_text(hints[key]) and value != defaults[key]:
            taken[key] = _each(value, partial(take, f"{where}.{key}", _mark(hints[key])))
    return taken


def filled(section: type, table: Mapping[str, Any]) -> dict[str, Any]:
    """A section's table with the defaults of what it leaves out, and those of the sections in it. Nothing is built."""
    hints = typing.get_type_hints(section, include_extras=True)
    whole = {}
    for field in _fields(section):
        default = default_of(field)
        value = table.get(field.name, default)
        inner = section_within(hints[field.name], value, default)
        if inner is None:
            whole[field.name] = value
            continue
        registry = getattr(hints[field.name], "registry", None)
        name = {"name": registry.name_of(inner)} if isinstance(registry, Registry) else {}
        given = value if isinstance(value, Mapping) else {}
        own = vars(default) if type(default) is inner else {}
        whole[field.name] = {**name, **filled(inner, {**own, **given})}
    return whole


def section_within(hint: Any, value: Any, default: Any) -> type | None:
    """The class of a section in a section, as the recipe names it."""
    registry = getattr(hint, "registry", None)
    if isinstance(registry, Registry):
        name = value.get("name") if isinstance(value, Mapping) else value
        return registry.lookup(name) if isinstance(name, str) else type(default)
    return hint if dataclasses.is_dataclass(hint) and isinstance(hint, type) else None


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The value of a setting that is not given; MISSING if it must be."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _fields(section: type) -> Iterator[dataclasses.Field[Any]]:
    return iter(dataclasses.fields(section))


def _mark(hint: Any) -> Text | None:
    """Of a text, of several, or of one that may be missing."""
    if typing.get_origin(hint) is Annotated:
        return next((mark for mark in typing.get_args(hint)[1:] if isinstance(mark, Text)), None)
    marks = [_mark(part) for part in typing.get_args(hint) if _holds_text(part)]
    return marks[0] if marks and all(mark == marks[0] for mark in marks) else None


def _holds_text(hint: Any) -> bool:
    if isinstance(getattr(hint, "registry", None), Registry) or dataclasses.is_dataclass(hint):
        return False  # a section of its own
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal or hint in (int, float, bool, types.NoneType, Ellipsis):
        return False
    if origin in (Annotated, tuple, list, typing.Union, types.UnionType):
        return any(_holds_text(part) for part in (parts[:1] if origin is Annotated else parts))
    return True  # texts, paths, tables, and whatever else could be one


def _each(value: Any, take: Callable[[str], str]) -> Any:
    """All texts in a value."""
    if isinstance(value, str | Path):
        return take(str(value))
    if isinstance(value, Mapping):
        return {key: _each(inner, take) for key, inner in value.items()}
    return type(value)(_each(inner, take) for inner in value) if isinstance(value, list | tuple) else value
