"""A site's folder: its key, its policy, where its data lie, what it keeps for runs, and the ledger of what left."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tomli_w

from fedreel.config import DataConfig, Recipe, build, read_toml
from fedreel.errors import DataError, FedreelError, RecipeError, RunError
from fedreel.machine.files import write_atomic

if TYPE_CHECKING:
    from fedreel.core.client import Worker

_POLICY = """# What this site never lets out, whatever a job asks for. What did leave: fedreel ledger FOLDER
# Kinds: name, weights, count, loss, metric, derived-number, label-statistics, features, raw-samples
refuse = ["raw-samples", "features", "label-statistics"]
max_bytes = 0        # of one departure; 0 = no limit
min_samples = 0      # with fewer samples than this, nothing trained on them leaves
"""


@dataclass(frozen=True)
class SiteConfig:
    """site.toml."""

    name: str
    server: str = ""  # HOST:PORT
    ca: str = ""  # the CA certificate that the server's owner gave you
    device: str = "auto"
    clients: Literal["owners", "site"] = "owners"  # each owner in the data is a client, or the whole site is one
    data: dict[str, str] = field(default_factory=dict)  # role in recipes -> folder here
    models: dict[str, str] = field(default_factory=dict)  # weights to begin with, as recipes name them -> path here


class SiteFolder:
    """What lies on the site's disk."""

    def __init__(self, path: Path, config: SiteConfig) -> None:
        self.path, self.config = path.resolve(), config
        self.ledger, self.runs = self.path / "ledger.jsonl", self.path / "runs"

    @staticmethod
    def open(
        path: Path, data: Mapping[str, str] | None = None, server: str | None = None, ca: str | None = None
    ) -> SiteFolder:
        """The site in a folder, with what was said on the command line in place of what its site.toml says."""
        if not (path / "site.toml").exists():
            raise RunError(
                "there is no site here",
                where=str(path),
                expected="a folder that `fedreel site init` made",
                hint="name it with --site, or make one: fedreel site init",
            )
        config = build(SiteConfig, read_toml(path / "site.toml"), str(path / "site.toml"))
        config = replace(config, data={**config.data, **(data or {})}, server=server or config.server)
        return SiteFolder(path, replace(config, ca=ca or config.ca))

    def folder_of(self, role: str) -> Path:
        """The folder that this site has for a role; `*` is for any."""
        place = self.config.data.get(role, self.config.data.get("*"))
        if not place:
            raise DataError(
                f"this site has no data for the role '{role}'",
                where=str(self.path / "site.toml"),
                expected=f'[data] {role} = "FOLDER"',
                hint=f"add it there, or start with --data {role}=FOLDER",
            )
        folder = Path(place).expanduser()
        if not folder.is_dir():
            raise DataError(f"the folder for the role '{role}' does not exist", where=str(folder))
        return folder

    def local(self, data: DataConfig) -> DataConfig:
        """A recipe's data as they are here."""
        if data.partition.get("name") != "by-owner":
            raise RecipeError(
                "at real sites the data stay divided as they are",
                where="[data.partition] name",
                expected="by-owner",
                found=str(data.partition.get("name")),
            )
        if Path(data.lists).is_absolute() or ".." in Path(data.lists).parts or data.lists.startswith("~"):
            raise RecipeError(
                "at real sites lists lie among the videos",
                where="[data] lists",
                expected="a path below a site's data folder",
                found=data.lists,
            )
        return replace(data, source=str(self.folder_of(data.role).resolve()), owner=self.config.name)

    def weights(self, task: dict[str, Any]) -> dict[str, Any]:
        """A recipe's task with the weights that its backbone begins with, and the models that make its features and
        read its sentences, as they lie here: nothing is fetched."""
        for key in ("features", "sentences"):
            kind, mark, model = str(task.get(key, "")).partition(":")
            if mark and (kind == "clip" or model in self.config.models):
                task = {**task, key: f"{kind}:{self._weights(model)}"}
        backbone = task.get("backbone")
        name = backbone.get("init") if isinstance(backbone, dict) else ""
        if not isinstance(backbone, dict) or not isinstance(name, str) or not name or name == "imagenet":
            return task
        return {**task, "backbone": {**backbone, "init": self._weights(name)}}

    def _weights(self, name: str) -> str:
        """Where the weights of this name lie here."""
        from fedreel.data.hugging_face import find_folder
        from fedreel.data.weights_file import SUFFIXES

        here = self.config.models.get(name, "")
        if here and not Path(here).expanduser().exists():
            raise DataError("the weights for a model are not here", where=here, expected=f"what is meant by '{name}'")
        if not here and Path(name).suffix not in SUFFIXES:
            try:
                here = str(find_folder(name, fetch=False))
            except DataError as error:
                raise DataError(
                    f"this site does not have the model '{name}', and does not fetch it",
                    where=str(self.path / "site.toml"),
                    expected=f'[models] "{name}" = "FOLDER", or a hub model in the cache of this machine',
                    found=error.found,
                    hint=error.hint,
                ) from None
        return here or name

    def worker(self, recipe: Recipe, run: str) -> Worker:
        """A worker for a job at this site."""
        from fedreel.core.exchange import Ledger, Policy
        from fedreel.core.job import Job, make_method, make_task, make_worker
        from fedreel.core.state import PrivateStore
        from fedreel.core.task import OneClient
        from fedreel.machine.device import pick_device
        from fedreel.machine.files import file_name

        recipe = replace(recipe, data=self.local(recipe.data), device=self.config.device, policy="")
        recipe = replace(recipe, task=self.weights(recipe.task))
        place = self.runs / file_name(run)
        task = make_task(recipe).for_data(recipe.data, here=False)
        job = Job(recipe, task, make_method(recipe), pick_device(recipe.device), place, run)
        population = job.population()
        if self.config.clients == "site":
            population = OneClient(population, self.config.name)
        policy = Policy.read(self.path / "policy.toml")
        return make_worker(job, population, PrivateStore(place / "clients"), Ledger(self.ledger, run), policy)


def init(path: Path, name: str, data: Mapping[str, str], server: str, ca: str) -> SiteFolder:
    """Make a site's folder: key pair, policy, site.toml."""
    from fedreel.sites import keys

    keys.check_name(name, "--name")
    if (path / "site.toml").exists():
        raise FedreelError("there is already a site here", where=str(path), hint="choose another folder")
    path.mkdir(parents=True, exist_ok=True)
    os.chmod(path, 0o700)
    keys.make_site_keys(path, name)
    write_atomic(path / "policy.toml", _POLICY)
    folders = {role: str(Path(folder).expanduser().resolve()) for role, folder in data.items()}
    ca = str(Path(ca).expanduser().resolve()) if ca else ""
    table = {"name": name, "server": server, "ca": ca, "device": "auto", "clients": "owners", "data": folders}
    write_atomic(path / "site.toml", tomli_w.dumps(table))
    return SiteFolder.open(path)
