"""Recipes: TOML to frozen dataclasses, unknown keys and values answered by the nearest known one. No torch here."""

from __future__ import annotations

import dataclasses
import os
import types
import typing
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

from fedreel.errors import RecipeError, nearest
from fedreel.fields import AtServer, Word
from fedreel.registry import ENGINES, METHODS, TASKS, Registry
from fedreel.sections import (
    AttackConfig,
    DataConfig,
    PrivacyConfig,
    RoundConfig,
    SecureConfig,
    TrainConfig,
    TransferConfig,
    WorldConfig,
    check_ranges,
)

T = TypeVar("T")
MOST_TEXT = 1 << 20  # characters of a TOML file


@dataclass(frozen=True)
class Recipe:
    """A whole job. `task`, `method` and `engine` are tables with a `name` and the fields of that class."""

    system: Word = ""
    description: Word = ""
    seed: int = 0
    device: AtServer = "auto"
    policy: AtServer = ""  # a site policy file that holds for all clients here
    track: tuple[AtServer, ...] = ()  # tensorboard, wandb, mlflow
    task: dict[str, Any] = field(default_factory=dict)
    method: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=lambda: {"name": "auto"})
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    round: RoundConfig = field(default_factory=RoundConfig)
    privacy: PrivacyConfig | None = None  # [privacy]: what may be learned about one client or example; none: anything
    secure: SecureConfig = field(default_factory=SecureConfig)
    server: TrainConfig | None = None  # [server]: how the server trains, for methods in which it does; none: as clients
    transfer: TransferConfig | None = None  # [transfer]: in which form models travel; none: as they are
    attack: AttackConfig | None = None  # [attack]: none: nobody lies
    world: WorldConfig | None = None  # [world]: how long clients take by a clock of their own; none: no clock

    def __post_init__(self) -> None:
        check_ranges(self, "recipe", seed=(0, 2**63 - 1))
        devices = ("auto", "cpu", "cuda")
        if self.device.partition(":")[0] not in devices:
            hint = nearest(self.device, devices)
            raise RecipeError(f"unknown device '{self.device}'", expected="auto, cpu, cuda or cuda:N", hint=hint)
        if self.world is not None and (self.privacy is not None or self.secure.sums):
            raise RecipeError(
                "a clock notes who came when, which privacy and secure sums do not let anybody know",
                where="[world]",
                expected="no [privacy], and secure.sums = false",
            )
        if self.round.test_clients and self.privacy is not None:
            raise RecipeError(
                "tests that are told with noise are counted as tests of all clients",
                where="[round] test_clients",
                expected="0 with [privacy]",
                found=str(self.round.test_clients),
            )


def load_recipe(source: str | Path, overrides: typing.Sequence[str] | typing.Mapping[str, Any] = ()) -> Recipe:
    """A recipe by its name or file, with overrides applied (texts `a.b=c`, or a mapping of `a.b` to values), checked
    as far as possible without torch."""
    path = Path(source)
    if path.suffix == ".toml":
        table = read_toml(path)
    elif str(source) in recipe_names():
        table = _parse((resources.files("fedreel") / "recipes" / f"{source}.toml").read_text(), str(source))
    else:
        raise RecipeError(
            f"there is no recipe '{source}'",
            where="recipes that come with fedreel",
            hint=nearest(str(source), recipe_names()) + " A file must end in .toml",
        )
    given = overrides.items() if isinstance(overrides, typing.Mapping) else map(read_setting, overrides)
    pairs = [(f"{key}.name" if key in _NAMED and isinstance(value, str) else key, value) for key, value in given]
    rank = {key: i for i, key in enumerate(_CHOICES)}
    for key, value in sorted(pairs, key=lambda pair: rank.get(pair[0], len(rank))):  # choices, then their settings
        _override(table, key, os.fspath(value) if isinstance(value, os.PathLike) else value)
    return make_recipe(table, str(source))


def make_recipe(table: dict[str, Any], where: str = "recipe") -> Recipe:
    """A checked recipe from a table as a file has it."""
    table = table | {key: {"name": table[key]} for key in _NAMED if isinstance(table.get(key), str)}
    engine = table.get("engine", {})
    if isinstance(engine, dict):  # settings of the default engine do not have to name it
        table = {**table, "engine": {"name": "auto", **engine}}
    recipe = build(Recipe, table, where)
    for known in (TASKS, METHODS, ENGINES):
        name = getattr(recipe, known.section).get("name")
        if name not in known.names():
            raise RecipeError(
                f"unknown {known.section} '{name}'",
                where=f"{where}, [{known.section}] name",
                hint=nearest(str(name), known.names()),
            )
    return recipe


def recipe_names() -> list[str]:
    return sorted(p.name[:-5] for p in (resources.files("fedreel") / "recipes").iterdir() if p.name.endswith(".toml"))


def as_table(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain TOML types, all defaults filled in."""
    return _plain(dataclasses.asdict(recipe))


def stated(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain TOML types, without what its sections have at their defaults."""
    return _plain(_changed(recipe))


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return _parse(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError as error:
        raise RecipeError("the file does not exist", where=str(path)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError("the file cannot be read", where=str(path), found=str(error)) from error


def build(cls: type[T], table: dict[str, Any], where: str) -> T:
    """An instance of a dataclass from a table; unknown keys, wrong types and wrong values are named."""
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in table:
        if key not in known:
            raise RecipeError(f"unknown key '{key}'", where=where, hint=nearest(key, known))
    missing = [name for name, f in known.items() if _required(f) and name not in table]
    if missing:
        raise RecipeError(f"the setting '{missing[0]}' is missing", where=where)
    values = {}
    for key, value in table.items():
        if isinstance(getattr(hints[key], "registry", None), Registry):
            values[key] = _choose(hints[key], value, known[key], f"{where}, {key}")
        else:
            values[key] = _convert(hints[key], value, f"{where}, {key}")
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise RecipeError(f"these settings do not fit together: {error}", where=where) from error


def settings_of(made: object) -> dict[str, Any]:
    """The fields of a task, method or backbone as a recipe has them; what a recipe cannot say is left out."""
    settings = {}
    for name in (f.name for f in dataclasses.fields(made)):  # type: ignore[arg-type]
        value = getattr(made, name)
        registry = getattr(value, "registry", None)
        if isinstance(registry, Registry):
            value = {"name": registry.name_of(type(value)), **settings_of(value)}
        elif dataclasses.is_dataclass(value):
            value = settings_of(value)
        if isinstance(value, bool | int | float | str | list | tuple | dict):
            settings[name] = value
    return settings


def _choose(kind: Any, value: Any, field: dataclasses.Field[Any], where: str) -> Any:
    """What a section names, made from its other keys; a bare name has none. Keys without a name change the default."""
    registry: Registry = kind.registry
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, dict):
        found = f"{value!r} ({type(value).__name__})"
        raise RecipeError("wrong type of value", where=where, expected="a section, or a name", found=found)
    if "name" not in value:
        if _required(field):
            raise RecipeError("the setting 'name' is missing", where=f"[{registry.section}]")
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        value = {"name": registry.name_of(type(default)), **settings_of(default), **value}
    name = _convert(str, value["name"], f"[{registry.section}] name")
    settings = {key: setting for key, setting in value.items() if key != "name"}
    cls = registry.lookup(name)
    if not (isinstance(cls, type) and issubclass(cls, kind)):
        raise RecipeError(
            f"the package that brings '{name}' registered something else under that name",
            where=registry.group,
            expected=f"a {kind.__name__}",
            found=f"{cls!r}",
        )
    return build(cls, settings, f"[{registry.section}] {name}")


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return build(hint, value, where)  # type: ignore[arg-type]
    if origin is Literal:
        if value not in args:
            raise RecipeError(
                f"'{value}' is not a possible value",
                where=where,
                expected=", ".join(map(str, args)),
                hint=nearest(str(value), map(str, args)),
            )
        return value
    if origin is tuple and isinstance(value, list | tuple):
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_convert(args[0], v, where) for v in value)
        if len(args) == len(value):
            return tuple(_convert(a, v, where) for a, v in zip(args, value))
    if hint is types.NoneType and value is None:
        return None
    if origin in (typing.Union, types.UnionType):
        sections = [option for option in args if dataclasses.is_dataclass(option)]
        if sections and isinstance(value, dict):  # what is wrong in it is said as of any section
            return build(sections[0], value, where)  # type: ignore[arg-type]
        for option in args:
            try:
                return _convert(option, value, where)
            except RecipeError:
                continue
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    plain = {int: int, float: float, bool: bool, str: str}.get(hint, origin if origin is dict else None)
    if plain and isinstance(value, plain) and not (plain is int and isinstance(value, bool)):
        return value
    raise RecipeError(
        "wrong type of value", where=where, expected=_words(hint), found=f"{value!r} ({type(value).__name__})"
    )


def _words(hint: Any) -> str:
    """A type as a person would say it: a plain name, or `tuple[int, int]` for what has parts."""
    if dataclasses.is_dataclass(hint):
        return "a section"
    return str(hint) if typing.get_origin(hint) else getattr(hint, "__name__", str(hint))


def read_setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise RecipeError(f"cannot read the setting '{text}'", expected="section.key=value", where="--set")
    return key.strip(), parse_value(value.strip())


_NAMED = ("task", "method", "engine")  # sections that a bare name may stand for
_WITHIN = "task.backbone.image"  # a backbone within a backbone
_CHOICES = (*(f"{name}.name" for name in _NAMED), "task.backbone", "task.backbone.name", _WITHIN, f"{_WITHIN}.name")


def _override(table: dict[str, Any], key: str, value: Any) -> None:
    """Set a key. Another task, method, engine or backbone than the recipe's does not inherit its settings."""
    *sections, last = key.split(".")
    for depth, section in enumerate(sections, 1):
        inner = table.get(section, {})
        if isinstance(inner, str) and ".".join(sections[:depth]) in (*_NAMED, "task.backbone", _WITHIN):  # a bare name
            inner = {"name": inner}
        if not isinstance(inner, dict):
            raise RecipeError(f"'{section}' is a value, not a section", where=f"the setting {key}")
        table[section] = inner = {**inner}  # a copy: it may be an override's own value
        table = inner
    if key in _CHOICES and last == "name" and table.get("name") != value:
        table.clear()
    table[last] = value


def parse_value(text: str) -> Any:
    """A value as TOML writes it; a bare word is a string."""
    try:
        return _parse(f"v = {text}", "")["v"]
    except RecipeError:
        return text


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib  # type: ignore[no-redef]
    try:
        if len(text) > MOST_TEXT:
            raise ValueError(f"{len(text)} characters, and no recipe needs more than {MOST_TEXT}")
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecipeError("this is not valid TOML", where=where, found=str(error)) from error


def _changed(value: Any) -> dict[str, Any]:
    found = {}
    for f in dataclasses.fields(value):
        own = getattr(value, f.name)
        if _required(f) or own != (f.default_factory() if callable(f.default_factory) else f.default):
            found[f.name] = _changed(own) if dataclasses.is_dataclass(own) else own
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if v is not None}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
