"""What owners' held-out samples say of a model: as if all lay in one place, for every kind of method, and no more than
policies let out; and nothing of the model changes by it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedreel.config import Recipe, RoundConfig, TrainConfig
from fedreel.core.abilities import Accountable, Trials
from fedreel.core.assessment import BORROWED, model_for
from fedreel.core.ledger import departures
from fedreel.core.method import Method
from fedreel.core.task import ClientData, Examples, Population
from fedreel.methods.communities import Communities, Groups
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedper import FedPer
from fedreel.metrics.calibration import best_temperature, binned, doubts, expected_calibration_error, loss_sums
from fedreel.metrics.familiarity import Sums, histogram, threshold
from fedreel.runs.reading import read_metrics
from fedreel.runs.run import run
from support.toy import Toy, ToyPopulation

CLIENTS = 8


class Uncounted(ToyPopulation):
    def describe(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Judged(Toy, Accountable):
    """The toy, which says what it answers; `factor` times as sure as it is trained to be."""

    clients: int = CLIENTS
    factor: float = 1.0
    labels: str = "true"  # or random
    counted: bool = False  # whether it is known how often each class is held out

    def population(self, data: Any, seed: int) -> Population:
        return super().population(data, seed) if self.counted else Uncounted(self.clients, seed)

    def trials(self, model: nn.Module, data: ClientData, batch_size: int) -> Iterator[Trials]:
        for x, y in data.test.batches(batch_size):
            truth = (
                y if self.labels == "true" else torch.randint(2, y.shape, generator=torch.Generator().manual_seed(3))
            )
            logits = self.factor * self.forward(model, (x, y)).logits
            yield Trials((logits.argmax(1) == truth).double(), torch.full((len(y),), 0.5), logits, truth)

    def looks(
        self, model: nn.Module, examples: Examples, batch_size: int, generator: torch.Generator | None = None
    ) -> Iterator[Tensor]:
        for batch in examples.batches(batch_size, generator):
            yield batch[0]


def trained(
    folder: Path,
    task: Toy,
    method: Method | None = None,
    name: str = "fedavg",
    resume: bool = False,
    **changes: Any,
) -> Path:
    given = {
        "device": "cpu",
        "task": {"name": "toy"},
        "method": {"name": name},
        "train": TrainConfig(batch_size=4, lr=0.2, momentum=0.9, epochs=2),
        "round": RoundConfig(rounds=3),
    }
    run(Recipe(**{**given, **changes}), folder, quiet=True, resume=resume, task=task, method=method or FedAvg())
    return folder


def told(folder: Path) -> dict[str, Any]:
    (record,) = read_metrics(folder, "trust")
    assert json.loads((folder / "model" / "card.json").read_text())["trust"]["overall"] == record["overall"]
    return record


def pooled(folder: Path, task: Judged, which: str = "test", model: str = "global") -> tuple[list[Tensor], list[Tensor]]:
    """Logits and labels of each client's samples."""
    net = task.model()
    net.load_state_dict(load_file(folder / "model" / f"{model}.safetensors"), strict=False)
    population = task.population(None, 0)
    batches = [getattr(population.data(client), which).tensors for client in population.clients]
    with torch.no_grad():
        return [task.factor * task.forward(net.eval(), batch).logits for batch in batches], [y for _, y in batches]


def test_what_owners_say_is_what_all_samples_in_one_place_would(tmp_path: Path) -> None:
    task = Judged()
    record = told(trained(tmp_path / "run", task))
    logits, labels = pooled(tmp_path / "run", task)
    halves = [(torch.cat([x[h::2] for x in logits]), torch.cat([y[h::2] for y in labels])) for h in (0, 1)]
    first, second = (best_temperature((loss_sums(*half) + doubts()).tolist()) for half in halves)
    whole = torch.cat(logits), torch.cat(labels)
    assert record["overall"]["temperature"] == pytest.approx(best_temperature((loss_sums(*whole) + doubts()).tolist()))
    before, after = binned(*whole, 1.0), binned(*halves[0], second) + binned(*halves[1], first)
    assert record["overall"]["ece_uncalibrated"] == pytest.approx(expected_calibration_error(before), rel=1e-9)
    assert record["overall"]["ece"] == pytest.approx(expected_calibration_error(after), rel=1e-9)
    assert record["overall"]["score"] == pytest.approx(float((whole[0].argmax(1) == whole[1]).double().mean()))
    population = task.population(None, 0)
    train, test = (
        torch.cat([getattr(population.data(c), part).tensors[0] for c in population.clients])
        for part in ("train", "test")
    )
    space = Sums.of(train).space()
    assert (record["overall"]["farthest"], record["overall"]["false_alarms"]) == threshold(
        histogram(space.distances(test))
    )
    kept = load_file(tmp_path / "run" / "model" / "trust.safetensors")
    torch.testing.assert_close(kept["models/global/mean"], space.mean.float())
    torch.testing.assert_close(kept["models/global/whitening"], space.whitening.float())


def test_a_model_too_sure_by_a_factor_gets_a_higher_temperature(tmp_path: Path) -> None:
    plain, sure = (told(trained(tmp_path / str(f), Judged(factor=f)))["overall"] for f in (1.0, 32.0))
    assert sure["temperature"] > 4 * plain["temperature"]


def test_the_model_and_its_metrics_are_those_of_a_run_that_is_not_asked(tmp_path: Path) -> None:
    for method, name in ((FedAvg(), "fedavg"), (FedPer(), "fedper")):
        asked, plain = (
            trained(tmp_path / f"{name}-{t}", Judged(), method, name, round=RoundConfig(rounds=3, trust=t))
            for t in (True, False)
        )
        files = sorted(p.relative_to(plain) for p in plain.rglob("*.safetensors") if "checkpoint" not in p.parts)
        assert all((asked / file).read_bytes() == (plain / file).read_bytes() for file in files)
        summaries = [json.loads((folder / "summary.json").read_text()) for folder in (asked, plain)]
        assert "trust" not in summaries[1]
        for key in ("metrics", "bytes_up", "bytes_down", "refused"):
            assert summaries[0][key] == summaries[1][key]


def test_a_run_that_ended_before_its_clients_answered_asks_them_when_it_is_resumed(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", Judged(), FedPer(), "fedper")
    states = {file: file.read_bytes() for file in (folder / "clients").rglob("*.safetensors")}
    before = told(folder)
    (folder / "summary.json").unlink()
    shutil.rmtree(folder / "model")
    trained(folder, Judged(), FedPer(), "fedper", resume=True)
    assert {file: file.read_bytes() for file in (folder / "clients").rglob("*.safetensors")} == states
    after = told(folder)
    assert {**after, "seconds": 0} == {**before, "seconds": 0}


def test_random_labels_are_near_chance_and_learned_ones_are_not(tmp_path: Path) -> None:
    learned = trained(tmp_path / "a", Judged(), round=RoundConfig(rounds=12))
    assert told(learned)["overall"]["near_chance"] is False
    chance = told(trained(tmp_path / "b", Judged(labels="random")))["overall"]
    assert chance["near_chance"] is True
    assert chance["chance"] == 0.5


def test_guessing_is_always_the_commonest_class_where_it_is_known_which_that_is(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", Judged(counted=True), round=RoundConfig(rounds=12))
    overall, (partition,) = told(folder)["overall"], read_metrics(folder, "partition")
    counts = [sum(column) for column in zip(*partition["test"].values())]
    assert overall["chance"] == pytest.approx(max(counts) / sum(counts))
    assert overall["chance"] > 0.7
    assert overall["near_chance"] is True  # the same answers as those that beat a coin


def test_a_client_s_own_model_has_a_temperature_of_its_own_with_a_little_of_everybody_s(tmp_path: Path) -> None:
    task = Judged(factor=3.0)
    folder = trained(tmp_path / "run", task, FedPer(), "fedper")
    record = told(folder)
    assert [*record["clients"]] == [f"c{i}" for i in range(CLIENTS)]
    assert "temperature" not in record["models"]["global"]
    sums, count = {}, 0
    for client in record["clients"]:
        net, data = task.model(), task.population(None, 0).data(client).test
        net.load_state_dict(load_file(folder / "model" / "global.safetensors"), strict=False)
        own = load_file(max((folder / "clients" / client).glob("*.safetensors")))
        net.load_state_dict({n.removeprefix("model/"): t for n, t in own.items() if "model/" in n}, strict=False)
        with torch.no_grad():
            logits = task.factor * task.forward(net.eval(), data.tensors).logits
        sums[client] = loss_sums(logits, data.tensors[1])
        count += len(logits)
    everybody = torch.stack([*sums.values()]).sum(0) * BORROWED / count
    for client, own_sums in sums.items():
        expected = best_temperature((own_sums + doubts() + everybody).tolist())
        assert record["clients"][client]["temperature"] == pytest.approx(expected, rel=1e-5)
    assert record["overall"]["samples"] == count
    assert record["clients"]["c0"]["farthest"] == record["models"]["global"]["farthest"]  # 4 samples are too few


@dataclass(frozen=True)
class Halves(Communities):
    """Even clients and odd ones."""

    groups: int = 2
    share: str = "none"  # type: ignore[assignment]

    def find(self, fed: Any) -> Groups:
        return {c: i % 2 for i, c in enumerate(fed.clients)}

    def join(self, fed: Any, clients: list[str]) -> Groups:
        return dict.fromkeys(clients, 0)


def test_each_community_s_model_is_judged_by_its_members(tmp_path: Path) -> None:
    task = Judged()
    folder = trained(tmp_path / "run", task, Halves(), "fedgroup")
    record = told(folder)
    assert {n: part["samples"] for n, part in record["models"].items()} == {
        "global": 4 * CLIENTS,
        "community-0": 2 * CLIENTS,
        "community-1": 2 * CLIENTS,
    }
    logits, labels = pooled(folder, task, model="community-1")
    right = sum(int((x.argmax(1) == y).sum()) for x, y in zip(logits[1::2], labels[1::2]))
    assert record["models"]["community-1"]["score"] == pytest.approx(right / (2 * CLIENTS))
    parts = [record["models"][f"community-{i}"] for i in (0, 1)]
    assert record["overall"]["score"] == pytest.approx(sum(part["score"] for part in parts) / 2)
    card = json.loads((folder / "model" / "card.json").read_text())
    assert [model_for(card, client) for client in ("c0", "c1", "")] == ["community-0", "community-1", "global"]


@pytest.mark.parametrize(
    ("refused", "known"),
    [
        (("feature-statistics",), {"temperature", "score", "ece"}),
        (("metric",), {"farthest"}),
        (("metric", "feature-statistics"), set()),
    ],
)
def test_what_a_policy_refuses_is_left_out_and_the_rest_answered(
    tmp_path: Path, refused: tuple[str, ...], known: set[str]
) -> None:
    (tmp_path / "policy.toml").write_text(f"refuse = {json.dumps(refused)}\n")
    folder = trained(tmp_path / "run", Judged(), policy=str(tmp_path / "policy.toml"))
    assert {*told(folder)["overall"]} & {"temperature", "score", "ece", "farthest"} == known
    kinds = {kind for row in departures(folder / "ledger.jsonl") for kind in row["kinds"]}
    assert not kinds & {*refused}


def test_the_ledger_has_every_answer_and_no_row_of_a_single_sample(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", Judged())
    rows = [r for r in departures(folder / "ledger.jsonl") if r["purpose"].startswith("calibration")]
    assert [r["purpose"] for r in rows] == ["calibration_sums"] * CLIENTS + ["calibration_bins"] * CLIENTS
    assert {r["round"] for r in rows} == {4}  # one after the last
    assert {kind for r in rows for kind in r["kinds"]} == {"count", "metric", "feature-statistics"}
    (record,) = read_metrics(folder, "trust")
    assert record["bytes_testing"] > sum(r["bytes"] for r in rows)


def test_too_few_samples_for_an_owner_s_policy_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("min_samples = 5\n")
    folder = trained(tmp_path / "run", Judged(), policy=str(tmp_path / "policy.toml"))
    assert told(folder)["overall"] == {"samples": 0}


def test_a_task_that_cannot_tell_and_a_run_without_tests_are_not_asked(tmp_path: Path) -> None:
    untested = trained(tmp_path / "a", Judged(), round=RoundConfig(rounds=1, evaluate_every=0))
    plain = trained(tmp_path / "b", Toy(), round=RoundConfig(rounds=1))
    for folder in (untested, plain):
        assert not [*read_metrics(folder, "trust")]
        assert not (folder / "model" / "trust.safetensors").exists()


def test_no_more_clients_are_asked_than_are_asked_to_test(tmp_path: Path) -> None:
    folder = trained(tmp_path, Judged(), round=RoundConfig(rounds=1, test_clients=2))
    asked = [r["client"] for r in departures(folder / "ledger.jsonl") if r["purpose"].startswith("calibration")]
    assert len({*asked}) == 2 < CLIENTS
    assert told(folder)["overall"]["samples"] > 0


@pytest.mark.parametrize("engine", ["vector", "streams"])
def test_engines_ask_the_same(tmp_path: Path, engine: str) -> None:
    local, other = (
        told(trained(tmp_path / name, Judged(), engine={"name": name}))["overall"] for name in ("local", engine)
    )
    assert other["temperature"] == pytest.approx(local["temperature"], rel=1e-3)
    assert other["farthest"] == local["farthest"]
    assert other["samples"] == local["samples"]
