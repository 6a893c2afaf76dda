"""Files at a site: recipes from elsewhere name them, and what a name means here the site's own site.toml says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from fedreel.config import DataConfig, Recipe
from fedreel.errors import DataError, RecipeError
from fedreel.fields import Text, with_texts
from fedreel.registry import METHODS, TASKS


@dataclass(frozen=True)
class LocalFiles:
    """Names of models and of other files in recipes -> paths here. Whatever is not among them is not looked for."""

    models: Mapping[str, str]
    files: Mapping[str, str]
    told: Path  # site.toml

    def recipe(self, recipe: Recipe) -> Recipe:
        """A recipe with every file as it lies here; nothing is opened but what this site names."""
        return replace(
            recipe,
            policy="",
            track=(),
            task=self._section(TASKS.lookup(recipe.task["name"]), recipe.task, "task"),
            method=self._section(METHODS.lookup(recipe.method["name"]), recipe.method, "method"),
            data=replace(recipe.data, **with_texts(DataConfig, vars(recipe.data), self._take, "data")),
        )

    def _section(self, cls: type, table: dict[str, Any], where: str) -> dict[str, Any]:
        settings = {key: value for key, value in table.items() if key != "name"}
        return {"name": table["name"], **with_texts(cls, settings, self._take, where)}

    def _take(self, setting: str, text: Text | None, value: str) -> str:
        if text is None:
            raise RecipeError(
                f"{setting} does not say whether it names a file, so a site does not take it from a server",
                where=setting,
                expected="the setting's default",
                hint="whoever wrote the task or method declares it: see fedreel.fields",
            )
        if value in text.known or text.kind == "word":
            return value
        if text.kind == "server":
            return ""
        if text.kind == "below":
            return _below(setting, value)
        kind, mark, name = value.partition(":") if text.kind == "maker" else ("", "", value)
        if text.kind == "maker" and not mark:
            return value
        return f"{kind}{mark}{self._here(setting, name, 'files' if text.kind == 'file' else 'models')}"

    def _here(self, setting: str, name: str, table: str) -> str:
        """Where the file of this name lies. Of others it is not told whether they exist."""
        here = (self.files if table == "files" else self.models).get(name, "")
        if not here:
            raise DataError(
                f"this site has nothing by the name that the recipe has in {setting}",
                where=str(self.told),
                expected=f'[{table}] "{name}" = "PATH" in its site.toml',
                hint="a site opens no file that it does not name itself",
            )
        path = Path(here).expanduser()
        if path.exists():
            return str(path)
        return self._of_the_hub(setting, here, table)

    def _of_the_hub(self, setting: str, name: str, table: str) -> str:
        """A model of the hub that lies in the cache of this machine: nothing is fetched."""
        from fedreel.data.hugging_face import HUB_NAME, find_folder

        problem = f"what this site has for {setting} is not there"
        if table == "files" or not HUB_NAME.fullmatch(name):
            raise DataError(problem, where=str(self.told), found=name)
        try:
            return str(find_folder(name, fetch=False))
        except DataError as error:
            raise DataError(
                f"{problem}, and it does not fetch it", where=str(self.told), found=error.found, hint=error.hint
            ) from None


def _below(setting: str, value: str) -> str:
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or value.startswith("~") or "\\" in value or "\0" in value:
        raise RecipeError(
            "at real sites such files lie among the data",
            where=setting,
            expected="a path below a site's data folder",
            found=value,
        )
    return value
