"""A recipe as a form: one field for each of its typed settings, checked by the code that checks `--set`."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedreel.config import (
    AttackConfig,
    DataConfig,
    PrivacyConfig,
    Recipe,
    RoundConfig,
    SecureConfig,
    TrainConfig,
    TransferConfig,
    as_table,
    load_recipe,
    parse_value,
)
from fedreel.core.job import check_fit, make_method, make_task, resolved
from fedreel.data.division import make_partitioner
from fedreel.errors import RecipeError
from fedreel.registry import BACKBONES, ENGINES, METHODS, Registry
from fedreel.runs.run import engine_starter
from fedreel.ui.places import Places
from fedreel.ui.values import toml

Settings = dict[str, Any]
HIDDEN = ("task.name", "system", "description")
SECTIONS = ("server", "transfer", "privacy")  # of a recipe, that it may lack
COMMENT = re.compile(r"^ {4}(\w+): .*?  # (.+)$", re.MULTILINE)
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Field:
    """A setting: its key as `--set` knows it, its value in the recipe, what it may be and what it is for."""

    key: str
    value: Any
    text: bool = False  # its value is a text, whatever it looks like
    choices: tuple[str, ...] = ()
    hint: str = ""
    decides: bool = False  # which other fields there are

    def shown(self) -> str:
        return self.value if self.text else toml(self.value)

    def read(self, given: str) -> Any:
        """What somebody typed, as a value."""
        given = given.strip()
        if CONTROL.search(given):
            raise RecipeError("there is a character in it that cannot be typed", where=self.key)
        return given if self.text else parse_value(given)


class Form:
    """The fields of a recipe with these choices (method, engine, backbone): by section, in the order of the page."""

    def __init__(self, source: str | Path, choices: Mapping[str, str], sources: tuple[str, ...] = ()) -> None:
        self.source = source
        recipe = load_recipe(source, dict(choices))
        task, method = make_task(recipe), make_method(recipe)
        self.recipe = resolved(recipe, task, method)
        lacked = {"transfer": TransferConfig, "privacy": PrivacyConfig}  # a recipe may have no such section
        usual = {name: {field.name: field.default for field in dataclasses.fields(cls)} for name, cls in lacked.items()}
        self.table = {**usual, **as_table(self.recipe)}
        self.sections: dict[str, list[Field]] = {
            "Choices": [*self._choices(task)],
            "Rounds": [*self._of(RoundConfig, "round")],
            "Data": [_source(field, sources) for field in self._of(DataConfig, "data")],
            "Training at a client": [*self._of(TrainConfig, "train")],
            "Training at the server": [*self._of(TrainConfig, "server")],
            "Transfer": [*self._of(TransferConfig, "transfer")],
            "Differential privacy": [*self._of(PrivacyConfig, "privacy")],
            "Secure sums": [*self._of(SecureConfig, "secure")],
            f"Method: {self.recipe.method['name']}": [*self._of(type(method), "method")],
            f"Task: {self.recipe.task['name']}": [*self._of(type(task), "task")],
            f"Engine: {self.recipe.engine['name']}": [*self._engine()],
            "Attack": [*self._of(AttackConfig, "attack")],
            "Everything else": [
                field
                for field in self._of(Recipe, "")
                if field.key not in HIDDEN and not isinstance(field.value, dict) and field.key not in SECTIONS
            ],
        }

    def fields(self) -> dict[str, Field]:
        return {field.key: field for fields in self.sections.values() for field in fields}

    def changed(self, given: Mapping[str, str]) -> Settings:
        """Of what was filled in, all that is not as the recipe has it."""
        base = load_recipe(self.source)
        own = {"method.name": base.method["name"], "engine.name": base.engine["name"]}
        settings: Settings = {}
        for key, field in self.fields().items():
            if key not in given:
                continue
            value = field.read(given[key])
            before = own.get(key, _backbone_name(base) if key == "task.backbone.name" else field.value)
            if not _equal(value, before):
                settings[key] = value
        return settings

    def _choices(self, task: object) -> Iterator[Field]:
        registries: dict[str, Registry] = {"method.name": METHODS, "engine.name": ENGINES}
        for key, registry in registries.items():
            section, _, name = key.partition(".")
            yield Field(key, self.table[section][name], True, tuple(registry.names()), "", True)
        if isinstance(self.table["task"].get("backbone"), dict):
            takes = getattr(getattr(task, "backbone", None), "takes", None)
            fitting = [name for name in BACKBONES.names() if getattr(BACKBONES.lookup(name), "takes", None) == takes]
            name = self.table["task"]["backbone"]["name"]
            yield Field("task.backbone.name", name, True, tuple(dict.fromkeys([name, *fitting])), "", True)

    def _of(self, cls: type, prefix: str) -> Iterator[Field]:
        """The fields of a class; those of a backbone come after those of its task."""
        table: Any = self.table
        for section in filter(None, prefix.split(".")):
            table = table.get(section, {})
        hints, remarks = typing.get_type_hints(cls), comments(cls)
        for field in dataclasses.fields(cls):
            key = f"{prefix}.{field.name}" if prefix else field.name
            if field.name not in table or key in HIDDEN:
                continue
            value, hint = table[field.name], hints[field.name]
            registry = getattr(hint, "registry", None)
            if isinstance(registry, Registry) and isinstance(value, dict):
                yield from self._of(registry.lookup(value["name"]), key)
            elif dataclasses.is_dataclass(hint):
                yield from self._of(hint, key) if prefix else ()  # type: ignore[arg-type]
            else:
                yield _field(key, value, hint, remarks.get(field.name, ""))

    def _engine(self) -> Iterator[Field]:
        given = self.table["engine"]
        begin = inspect.signature(ENGINES.lookup(given["name"]).begin)
        for name, parameter in list(begin.parameters.items())[1:]:
            default = None if parameter.default is inspect.Parameter.empty else parameter.default
            value = given.get(name, default)
            if isinstance(value, bool | int | float | str):
                yield _field(f"engine.{name}", value, type(value), "")


def check(source: str | Path, settings: Settings, places: Places) -> Recipe:
    """The recipe with these settings, as `fedreel run` would take it; whatever does not fit is named."""
    for key, value in settings.items():
        _check_place(key, value, places)
    recipe = load_recipe(source, settings)
    task, method = make_task(recipe), make_method(recipe)
    check_fit(task, method)
    engine_starter(recipe)
    make_partitioner(recipe.data.partition)
    return resolved(recipe, task, method)


def blamed(source: str | Path, settings: Settings, places: Places, error: RecipeError) -> list[str]:
    """The settings without which there would be no such error."""
    guilty = []
    for key in settings:
        try:
            check(source, {other: value for other, value in settings.items() if other != key}, places)
        except RecipeError as other:
            if str(other) == str(error):
                continue
        guilty.append(key)
    return guilty


def as_arguments(settings: Settings) -> tuple[str, ...]:
    """What `--set` gets."""
    return tuple(f"{key}={toml(value)}" for key, value in settings.items())


@cache
def comments(cls: type) -> dict[str, str]:
    """What the source says of a class's fields, at the end of their lines."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            try:
                found |= dict(COMMENT.findall(inspect.getsource(base)))
            except (OSError, TypeError):
                continue
    return found


def _field(key: str, value: Any, hint: Any, remark: str) -> Field:
    if typing.get_origin(hint) is typing.Literal:
        return Field(key, value, True, tuple(map(str, typing.get_args(hint))), remark)
    if hint is bool or isinstance(value, bool):
        return Field(key, value, False, ("true", "false"), remark)
    return Field(key, value, isinstance(value, str), (), remark)


def _source(field: Field, sources: tuple[str, ...]) -> Field:
    """Data come from the folders that were given to the server, or as the recipe has them."""
    if field.key != "data.source":
        return field
    return dataclasses.replace(field, choices=tuple(dict.fromkeys([field.value, "playground", *sources])))


def _equal(value: Any, before: Any) -> bool:
    if isinstance(value, bool) or isinstance(before, bool):
        return value is before
    return toml(value) == toml(before) or value == before


def _backbone_name(recipe: Recipe) -> Any:
    task = resolved(recipe, make_task(recipe), make_method(recipe)).task
    backbone = task.get("backbone")
    return backbone.get("name") if isinstance(backbone, dict) else backbone


def _check_place(key: str, value: Any, places: Places) -> None:
    """Raise if a setting names a file or folder outside those that the server was given."""
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            _check_place(key, item, places)
    if not isinstance(value, str) or not value:
        return
    for text in {value, value.partition(":")[2]} - {""}:
        path = Path(text).expanduser()
        named = path.is_absolute() or ".." in path.parts or text.startswith("~") or _exists(path)
        if named and not places.allows(path):
            raise RecipeError(
                "this lies outside the folders that this server was given",
                where=key,
                expected="a place in the folder of the runs, or in one of --data",
                found=value,
                hint="start it with --data FOLDER",
            )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return True
