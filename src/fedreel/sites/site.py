"""A site's folder: its key, its policy, where its data lie, what it keeps for runs, and the ledger of what left."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

import tomli_w

from fedreel.config import DataConfig, Recipe, build, read_toml
from fedreel.core.job_rules import JobRules
from fedreel.errors import DataError, FedreelError, RecipeError, RunError
from fedreel.fields import texts_of
from fedreel.machine.files import write_atomic
from fedreel.registry import TASKS
from fedreel.sites.approval import Approvals
from fedreel.sites.files import LocalFiles

if TYPE_CHECKING:
    from fedreel.core.client import Worker

_POLICY = """# What this site never lets out, whatever a job asks for. What did leave: fedreel ledger FOLDER
# Kinds: {kinds}
# With "weights" among them only jobs by secure sums have what you trained, and then no single update of yours is seen.
refuse = ["raw-samples", "features", "label-statistics"]
max_bytes = 0        # of one departure; 0 = no limit
min_samples = 0      # with fewer samples than this, nothing that came of them leaves
min_cohort = 3       # fewer sites than this have no secure sum with this one among them

# Jobs wait until you approve them (fedreel site jobs), but for those that are named here. Limits hold for all; 0: none.
[jobs]
allow = {allow}           # such as "fedbn on recognition", "* on skeleton", a job's digest, or "*" for every job
max_rounds = 0
max_epochs = 0       # of one training
max_minutes = 0      # for one order
max_model_bytes = 0
divisions = 1        # ways to divide data for testing, in jobs that you have not approved yourself

# What all jobs together may give away of the data of a role; what they have so far: fedreel site budget
[privacy]
max_epsilon = 0      # with one above 0, only jobs with a section [privacy] are let in; 0: no limit
delta = 1e-5
unit = "example"     # or "client": whose privacy it is
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
    models: dict[str, str] = field(default_factory=dict)  # weights and encoders, as recipes name them -> path here
    files: dict[str, str] = field(default_factory=dict)  # other files, as recipes name them -> path here


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

    def local(self, recipe: Recipe) -> Recipe:
        """A recipe with the data, files and device of this site in place of those that it names."""
        files = LocalFiles(self.config.models, self.config.files, self.path / "site.toml")
        recipe = files.recipe(recipe)
        return replace(recipe, data=self._data(recipe.data), device=self.config.device)

    def _data(self, data: DataConfig) -> DataConfig:
        if data.partition.get("name") != "by-owner":
            raise RecipeError(
                "at real sites the data stay divided as they are",
                where="[data.partition] name",
                expected="by-owner",
                found=str(data.partition.get("name")),
            )
        return replace(data, source=str(self.folder_of(data.role).resolve()), owner=self.config.name)

    def approvals(self) -> Approvals:
        """The jobs that have come, and which of them may be worked for."""
        rules = read_toml(self.path / "policy.toml").get("jobs", {})
        return Approvals(self.path, build(JobRules, rules, str(self.path / "policy.toml")))

    def worker(self, recipe: Recipe, run: str) -> Worker:
        """A worker for a job at this site."""
        from fedreel.core.blueprint import Blueprint
        from fedreel.core.budget import Budget, budget_file
        from fedreel.core.exchange import Ledger, Policy
        from fedreel.core.job import Job, make_method, make_task, make_worker
        from fedreel.core.state import PrivateStore
        from fedreel.core.task import OneClient
        from fedreel.machine.device import pick_device
        from fedreel.machine.files import file_name

        named = _among_the_data(recipe)
        recipe = self.local(recipe)
        place = self.runs / file_name(run)
        task = make_task(recipe).for_data(recipe.data, here=False)
        policy = Policy.read(self.path / "policy.toml")
        policy.privacy.check(recipe)
        if policy.jobs.max_model_bytes:
            policy.jobs.check_bytes(Blueprint.measure(task))
        job = Job(recipe, task, make_method(recipe), pick_device(recipe.device), place, run)
        try:
            population = job.population()
        except Exception as error:
            if not named:
                raise
            raise DataError(  # one text, whatever lies there: it leaves the site
                f"what the recipe names in {' and '.join(named)} cannot be used with this site's data",
                where=recipe.data.source,
                found=f"{type(error).__name__}: {error}",
            ) from error
        if self.config.clients == "site":
            population = OneClient(population, self.config.name)
        store = PrivateStore(place / "clients", undone=place / "undone")
        ledger = Ledger(self.ledger, run, head=self.ledger.with_suffix(".head"))
        budget = Budget(budget_file(self.path, recipe.data.role), run, policy.privacy) if recipe.privacy else None
        worker = make_worker(job, population, store, ledger, policy, budget)
        if recipe.secure.sums:
            from fedreel.sites.peers import site_sums

            worker.sums = site_sums(self, recipe.secure, run, place, policy.min_cohort)
        return worker

    def budgets(self) -> dict[str, dict[str, float]]:
        """Epsilon of all private jobs so far: role -> client -> how much."""
        from fedreel.core.budget import Budget
        from fedreel.core.exchange import Policy

        rules = Policy.read(self.path / "policy.toml").privacy
        files = sorted((self.path / "budgets").glob("*.json"))
        return {unquote(file.stem): Budget(file, "", rules).spent() for file in files}


def init(path: Path, name: str, data: Mapping[str, str], server: str, ca: str, allow: Sequence[str] = ()) -> SiteFolder:
    """Make a site's folder: key pair, policy, site.toml. Jobs that the policy is to `allow` need no approval."""
    from fedreel.core.exchange import KINDS
    from fedreel.sites import keys

    keys.check_name(name, "--name")
    if (path / "site.toml").exists():
        raise FedreelError("there is already a site here", where=str(path), hint="choose another folder")
    path.mkdir(parents=True, exist_ok=True)
    os.chmod(path, 0o700)
    keys.make_site_keys(path, name)
    write_atomic(path / "policy.toml", _POLICY.format(kinds=", ".join(KINDS), allow=json.dumps([*allow])))
    folders = {role: str(Path(folder).expanduser().resolve()) for role, folder in data.items()}
    ca = str(Path(ca).expanduser().resolve()) if ca else ""
    table = {"name": name, "server": server, "ca": ca, "device": "auto", "clients": "owners", "data": folders}
    write_atomic(path / "site.toml", tomli_w.dumps(table))
    return SiteFolder.open(path)


def _among_the_data(recipe: Recipe) -> list[str]:
    """The settings by which a recipe names files that lie among the data."""
    sections = (("data", DataConfig, vars(recipe.data)), ("task", TASKS.lookup(recipe.task["name"]), recipe.task))
    return [
        f"{section}.{name}"
        for section, cls, table in sections
        for name, text in texts_of(cls).items()
        if text is not None and text.kind == "below" and table.get(name)
    ]
