"""A site's owner decides which jobs work there: by its policy, or one by one. What is not approved waits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedreel.config import DataConfig, Recipe, RoundConfig, TrainConfig, as_table, load_recipe, make_recipe, read_toml
from fedreel.core.blueprint import Blueprint
from fedreel.core.job import make_method, make_task, resolved
from fedreel.core.job_rules import JobRules, Waiting
from fedreel.core.update import TRAIN, Failure, Order, Result
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.wire import pack_orders, unpack_results
from fedreel.engines.flower.workplace import Workplace, for_others
from fedreel.errors import PolicyError
from fedreel.registry import TASKS
from support.tiny import cli
from support.toy import Toy, make_worker

pytest.importorskip("cryptography", reason="the extra flower is not installed")

from fedreel.sites import site
from fedreel.sites.approval import Approvals, division, job_digest
from fedreel.sites.site import SiteFolder


def recipe(method: str = "fedavg", **changes: Any) -> Recipe:
    return Recipe(task={"name": "toy"}, method={"name": method}, **changes)


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "toy", "support.toy:Toy")


@pytest.fixture
def north(tmp_path: Path) -> SiteFolder:
    (tmp_path / "data").mkdir()
    return site.init(tmp_path / "north", "north", {"*": str(tmp_path / "data")}, "", "")


def rules(folder: SiteFolder, **changes: Any) -> None:
    table = read_toml(folder.path / "policy.toml")
    table["jobs"] |= changes
    (folder.path / "policy.toml").write_text(tomli_w.dumps(table))


def roster(folder: SiteFolder, job: Recipe, run: str = "r") -> dict[str, Any]:
    made = Blueprint(Toy(), make_method(job), job.seed, make_worker(Path("none"), make_method(job)).device)
    asked = {"type": "roster", "run": run, "start": 1, "recipe": as_table(job)}
    place = Workplace(folder.worker, "north", for_others, folder.runs, folder.approvals().permit)
    return place.answer(Frame({**asked, "layout": made.travelling.id, "frozen": made.digest})).head


def train(folder: SiteFolder, job: Recipe, run: str = "r", **order: Any) -> Result | str:
    start = make_worker(Path("none"), make_method(job)).start
    asked = Order(**{"round": 1, "step": 1, "client": "c1", "kind": TRAIN, "models": {"global": start}, **order})
    place = Workplace(folder.worker, "north", for_others, folder.runs, folder.approvals().permit)
    frame = place.answer(pack_orders([asked], type="orders", run=run, start=1, recipe=as_table(job)))
    return frame.head["problem"] if "problem" in frame.head else unpack_results(frame, [asked])[0]


def test_a_new_sites_jobs_wait_and_nothing_leaves_till_they_are_approved(north: SiteFolder) -> None:
    told = roster(north, recipe())
    assert told == {"site": "north", "problem": "this site's owner has not approved the job yet", "waiting": True}
    assert train(north, recipe()) == "this site's owner has not approved the job yet"
    assert not north.ledger.exists()
    assert not north.runs.exists()
    said = cli("site", "jobs", "--site", north.path).out
    digest = job_digest(recipe())[:12]
    assert digest in said
    assert "fedavg on toy" in said
    assert f"fedreel site approve {digest}" in said
    assert cli("site", "approve", digest, "--site", north.path).code == 0
    assert roster(north, recipe())["clients"] == ["c0", "c1", "c2", "c3"]
    assert not isinstance(train(north, recipe()), str | Failure)
    assert "approved" in cli("site", "jobs", "--site", north.path).out
    assert cli("site", "refuse", digest, "--site", north.path).code == 0
    assert train(north, recipe(), round=2) == "this site's owner has refused the job"
    assert "has refused" in roster(north, recipe())["problem"]
    assert "waiting" not in roster(north, recipe())


def test_a_recipe_can_be_approved_before_it_comes(north: SiteFolder, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('[task]\nname = "toy"\n[method]\nname = "fedavg"\n')
    assert cli("site", "approve", tmp_path / "job.toml", "--site", north.path).code == 0
    there = replace(recipe(), system="x", engine={"name": "flower", "wait": 5}, device="cuda")
    assert "clients" in roster(north, resolved(there, Toy(), make_method(there)))
    assert "waiting" in roster(north, recipe(seed=1), "other")


@pytest.mark.parametrize(
    ("allow", "waits"),
    [
        (["*"], False),
        (["fedavg on toy"], False),
        (["* on toy"], False),
        (["fedavg on *"], False),
        (["fedavg"], True),
        (["fedbn on toy", "* on recognition"], True),
        ([""], True),
        (["DIGEST"], False),
        (["DIG"], True),
    ],
    ids=str,
)
def test_a_policy_names_jobs_that_need_no_approval(north: SiteFolder, allow: list[str], waits: bool) -> None:
    digest = job_digest(recipe())
    rules(north, allow=[{"DIGEST": digest[:12], "DIG": digest[:3]}.get(word, word) for word in allow])
    assert ("waiting" in roster(north, recipe())) == waits


def test_init_writes_what_is_allowed_into_the_policy(tmp_path: Path) -> None:
    words = ("--allow", "fedbn on recognition", "--allow", "* on skeleton")
    assert cli("site", "init", tmp_path / "a", *words).code == 0
    assert cli("site", "init", tmp_path / "b").code == 0
    allowed = [read_toml(tmp_path / name / "policy.toml")["jobs"]["allow"] for name in "ab"]
    assert allowed == [["fedbn on recognition", "* on skeleton"], []]


def test_a_policy_without_the_section_lets_every_job_wait(north: SiteFolder) -> None:
    (north.path / "policy.toml").write_text("refuse = []\n")
    assert "waiting" in roster(north, recipe())


def test_jobs_that_are_too_large_are_refused_whoever_approved_them(north: SiteFolder) -> None:
    jobs = {
        "fewer rounds; expected <= 5 rounds": recipe(round=RoundConfig(rounds=6)),
        "fewer epochs; expected <= 2 epochs": recipe(round=RoundConfig(rounds=5), train=TrainConfig(epochs=3)),
    }
    rules(north, allow=["*"], max_rounds=5, max_epochs=2)
    for told, job in jobs.items():
        north.approvals().folder.mkdir(exist_ok=True)
        assert roster(north, job, told) == {"site": "north", "problem": f"this site allows {told}"}
    assert "clients" in roster(north, recipe(round=RoundConfig(rounds=5), train=TrainConfig(epochs=2)))


def test_a_method_trains_no_more_epochs_than_the_policy_says(tmp_path: Path) -> None:
    from fedreel.core.exchange import Policy
    from fedreel.methods.fedrep import FedRep

    worker = make_worker(tmp_path, FedRep(head_epochs=2), policy=Policy(jobs=JobRules(max_epochs=1)))
    order = Order(1, 1, "c1", TRAIN, {"global": worker.start})
    with pytest.raises(PolicyError, match="fewer epochs"):
        worker.execute(order)
    assert not (tmp_path / "ledger.jsonl").exists()


def test_a_model_is_measured_before_it_is_made(north: SiteFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    small = sum(t.nbytes for t in Toy().model().state_dict().values())
    assert Blueprint.measure(Toy()) == small
    huge = replace(recipe(), task={"name": "toy", "width": 10**12})  # it would take terabytes
    rules(north, allow=["*"], max_model_bytes=small)
    assert roster(north, huge)["problem"] == f"this site allows smaller models; expected <= {small} bytes"
    assert "clients" in roster(north, recipe(), "other")


def test_an_order_takes_no_longer_than_the_policy_says(north: SiteFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    rules(north, allow=["*"], max_minutes=2)
    seen = []
    monkeypatch.setattr("fedreel.core.client.Worker.execute", lambda self, order: seen.append(order.limit))
    for limit in (None, 5.0, 500.0):
        train(north, recipe(), limit=limit, step=len(seen) + 1)
    assert seen == [120.0, 5.0, 120.0]


def test_a_run_keeps_to_its_recipe(north: SiteFolder) -> None:
    rules(north, allow=["*"])
    assert "clients" in roster(north, recipe())
    assert roster(north, recipe("fedbn"))["problem"] == "this run has begun with another recipe"
    assert "clients" in roster(north, recipe("fedbn"), "another run")
    assert "clients" in roster(north, recipe())


@pytest.mark.parametrize("change", [{"seed": 1}, {"test_share": 0.26}, {"validate": True}, {"fold": 2}], ids=str)
def test_data_are_divided_in_one_way_unless_the_owner_says_otherwise(north: SiteFolder, change: dict[str, Any]) -> None:
    rules(north, allow=["*"])
    other = recipe(data=DataConfig(**change))
    assert "clients" in roster(north, recipe())
    assert "clients" in roster(north, recipe("fedbn", seed=5), "b")
    told = roster(north, other, "c")
    assert "divides the data for testing in another way" in told["problem"]
    assert told["waiting"]
    north.approvals().decide(job_digest(other), "approved")
    assert "clients" in roster(north, other, "c")


def test_splits_and_sets_divide_data_too() -> None:
    def of(task: str, **settings: Any) -> str:
        return division(Recipe(task={"name": task, **settings}, method={"name": "fedavg"}))

    assert of("summary", splits="a.json") != of("summary", splits="b.json")
    assert of("skeleton", leave_out="x") != of("skeleton") != of("skeleton", sets=["a"])
    assert of("summary", ratio=0.2) == of("summary")


@pytest.mark.parametrize("name", ["recognition", "cfedvs", "fedvmr", "fedvssl", "fedlid"])
def test_a_recipes_file_and_what_a_server_makes_of_it_are_the_same_job(name: str) -> None:
    given = load_recipe(name)
    given = replace(given, data=replace(given.data, labels=("a", "b", "c")))
    task = make_task(given).for_data(given.data, here=False)
    sent = make_recipe(json.loads(json.dumps(as_table(resolved(given, task, make_method(given))))))
    assert job_digest(sent) == job_digest(given)
    for changed in (replace(given, seed=9), replace(given, train=replace(given.train, lr=0.123))):
        assert job_digest(changed) != job_digest(given)


def test_a_server_does_not_fill_the_disk_with_jobs(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path, JobRules())
    for seed in range(100):
        with pytest.raises(Waiting):
            approvals.permit(recipe(seed=seed), f"r{seed}")
    with pytest.raises(PolicyError, match="too many jobs wait"):
        approvals.permit(recipe(seed=100), "r")
    with pytest.raises(PolicyError, match="too long"):
        Approvals(tmp_path / "b", JobRules()).permit(recipe(description="x" * 2**20), "r")
    assert len(approvals.all()) == 100


def test_a_job_that_is_none_is_named(north: SiteFolder) -> None:
    said = cli("site", "approve", "abc", "--site", north.path)
    assert said.code == 2
    assert "no job begins with 'abc'" in said.err
    assert cli("site", "jobs", "--site", north.path).out == "No job has come yet.\n"
