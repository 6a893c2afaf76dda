"""Secure sums of a run on one machine: equal to plain ones, with clients lost, killed and resumed; and refusals."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("cryptography", reason="needs the extra `secure`")
from fedreel.config import Recipe, RoundConfig, SecureConfig, TrainConfig, make_recipe
from fedreel.core.exchange import Policy
from fedreel.core.ledger import departures
from fedreel.core.secure.work import MESSAGE, ClientSums, packed
from fedreel.core.update import TRAIN, Order
from fedreel.core.weights import Weights
from fedreel.errors import FedreelError, PolicyError, RecipeError, RunError
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedbn import FedBN
from fedreel.registry import METHODS
from fedreel.runs.checkpoint import Checkpoints
from fedreel.runs.run import run
from support.sums import PHASES, federate_securely
from support.toy import Toy, make_worker

LOST = {0: (), 1: ("c4",), 3: ("c0", "c4", "c9")}
SUMMED = (
    "fedavg",
    "fedprox",
    "fedbn",
    "scaffold",
    "fednova",
    "feddyn",
    "fedvssl",
    "loss",
    "fedadam",
    "fedrep",
    "moon",
    "fedcmr",
)


def bound(notes: Any, counted: int) -> float:
    """How far the mean may be from the plain one: as the records say, for the toy's ten clients of 8 + 4 i samples."""
    (row,) = notes.of("secure")
    return counted * row["step"] / sum(8 + 4 * i for i in range(counted)) + 1e-6


def far(one: Any, other: Any) -> tuple[float, float]:
    """Of what is trained, and of running means and variances."""
    moved = {n: float((one.weights[n].float() - t.float()).abs().max()) for n, t in other.weights.items()}
    statistics = {n for n in moved if "running" in n or "batches" in n}
    return max(d for n, d in moved.items() if n not in statistics), max(moved[n] for n in statistics)


@pytest.mark.parametrize(("phase", "gone"), [(PHASES[0], 0), *((phase, gone) for phase in PHASES for gone in (1, 3))])
def test_a_secure_mean_is_the_plain_mean_whoever_gets_lost(phase: str, gone: int, tmp_path: Path) -> None:
    lost = LOST[gone]
    absent = lost if phase in PHASES[:3] else ()  # later, their part is in the sum
    plain, _ = federate_securely(tmp_path / "p", FedAvg(), secure=False, lost=[(TRAIN, c) for c in absent])
    sums, notes = federate_securely(tmp_path / "s", FedAvg(), lost=[(phase, c) for c in lost])
    trained, statistics = far(plain, sums)
    assert trained <= bound(notes, 10 - len(absent))
    assert statistics <= 64 * bound(notes, 10 - len(absent))
    (row,) = notes.of("secure")
    assert (row["parties"], row["lost"], row["clipped"], row["capped"]) == (10 - len(absent), list(absent), 0, 0)
    (told,) = notes.of("train")
    assert told["answered"] == 10 - len(absent)
    assert told["ordered"] == 10 - len(lost if phase in PHASES[:2] else ())
    assert sums.progress.trained == plain.progress.trained


@pytest.mark.parametrize("phase", PHASES)
def test_with_four_of_ten_lost_the_run_stops_and_says_so(phase: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="too few answers"):
        federate_securely(tmp_path, FedAvg(), lost=[(phase, f"c{i}") for i in range(4)])


@pytest.mark.parametrize("name", SUMMED)
def test_methods_that_see_sums_end_as_they_do_without(name: str, tmp_path: Path) -> None:
    method, task = METHODS.lookup(name)(), Toy(clients=4)
    plain, without = federate_securely(tmp_path / "p", method, secure=False, rounds=2, task=task)
    sums, notes = federate_securely(tmp_path / "s", method, rounds=2, task=task, settings=SecureConfig(True, bits=64))
    for model, weights in plain.models.items():
        for tensor in weights:
            assert torch.allclose(sums.models[model][tensor].float(), weights[tensor].float(), rtol=2e-4, atol=2e-5)
    assert not [row for row in notes.of("secure") if row["clipped"]]
    by_samples = name in ("fedavg", "fedprox", "fedbn", "fednova", "fedadam", "fedrep", "moon")
    told = [[row["loss"] for row in found.of("train")] for found in (notes, without)]
    assert told[0] == pytest.approx(told[1], rel=1e-4 if by_samples else 0.2)  # elsewhere it is weighed as models are


def test_no_weights_no_counts_and_no_losses_leave(tmp_path: Path) -> None:
    """`refuse = ["weights"]` means: no single update of mine."""
    strict = Policy(refuse=("weights", "count", "loss"))
    _, notes = federate_securely(tmp_path, FedAvg(), policy=strict)
    assert notes.of("train")[0]["answered"] == 10
    rows = departures(tmp_path / "ledger.jsonl")
    assert len(rows) == 50
    assert {kind for row in rows for kind in row["kinds"]} == {"masked-sum"}
    assert not any(row["numbers"] for row in rows)


def test_a_plain_order_is_refused_in_a_job_of_secure_sums(tmp_path: Path) -> None:
    from fedreel.core.secure.work import simulated_sums

    worker = make_worker(tmp_path, FedAvg())
    worker.sums = simulated_sums(SecureConfig(sums=True), "r", tmp_path)
    with pytest.raises(PolicyError, match="no single one leaves"):
        worker.execute(Order(1, 1, "c0", TRAIN, {"global": worker.start}))
    assert worker.leaves() == {"name": "name", "update": "masked-sum"}


def test_policies_hold_for_sums_too(tmp_path: Path) -> None:
    for number, (policy, why) in enumerate(
        [
            (Policy(refuse=("masked-sum",)), "lets no masked-sum out"),
            (Policy(min_cohort=11), "so small a sum"),
            (Policy(min_samples=1000), "too few samples"),
        ]
    ):
        with pytest.raises(RunError, match=why):
            federate_securely(tmp_path / str(number), FedAvg(), policy=policy)
    few, notes = federate_securely(tmp_path / "few", FedAvg(), policy=Policy(min_samples=17))
    assert notes.of("secure")[0]["lost"] == ["c0", "c1", "c2"]  # they have 8, 12 and 16
    assert len(few.progress.trained) == 7


def test_what_was_clipped_or_capped_is_noted(tmp_path: Path) -> None:
    _, notes = federate_securely(tmp_path, FedAvg(), settings=SecureConfig(True, clip=0.01, weight_cap=20))
    (row,) = notes.of("secure")
    assert row["clipped"] > 10
    assert row["capped"] == 6
    said = " ".join(r["text"] for r in notes.of("note"))
    assert "secure.clip" in said
    assert "secure.weight_cap" in said
    assert "simulation" in said


LIES: dict[str, tuple[str, Any]] = {
    "no integers": ("masked", lambda a: a.tensors.update(body=torch.zeros(3, dtype=torch.bfloat16))),
    "several tensors": ("masked", lambda a: a.tensors.update(body=Weights.of({"w": torch.zeros(3)}))),
    "another length": ("masked", lambda a: a.tensors.update(body=torch.zeros(3, dtype=torch.int32))),
    "a number more": ("masked", lambda a: a.numbers.update(samples=3.0)),
    "no keys": ("keys", lambda a: a.tensors.update({MESSAGE: packed("[]")})),
    "no text": ("shares", lambda a: a.tensors.update({MESSAGE: torch.full((3,), 255, dtype=torch.uint8)})),
    "another's signature": ("agree", lambda a: a.tensors.update({MESSAGE: packed("00" * 132)})),
    "no shares": ("open", lambda a: a.tensors.update({MESSAGE: packed('["{}", "{}"]')})),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_client_that_answers_rubbish_is_lost_and_the_others_have_their_sum(
    lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phase, spoil = LIES[lie]
    answer = ClientSums.answer

    def lying(self: ClientSums, worker: Any, order: Order) -> Any:
        said = answer(self, worker, order)
        if (order.question, order.client) == (phase, "c1"):
            spoil(said)
        return said

    monkeypatch.setattr(ClientSums, "answer", lying)
    fed, notes = federate_securely(tmp_path, FedAvg(), task=Toy(clients=4))
    assert notes.of("secure")[0]["lost"] == (["c1"] if phase in PHASES[:3] else [])
    assert [row["client"] for row in notes.of("refused")] == ([] if phase == "agree" else ["c1"])
    assert all(bool(t.isfinite().all()) for t in fed.weights.values() if t.is_floating_point())


# what cannot work


def refused(**changes: Any) -> str:
    table = {"task": "recognition", "method": "fedavg", "secure": {"sums": True}, **changes}
    with pytest.raises(RecipeError) as caught:
        run(make_recipe(table), "nowhere", task=Toy())
    return str(caught.value)


@pytest.mark.parametrize("name", ["ifca", "fedgroup", "cyclic", "cfedvs", "fedca"])
def test_methods_that_need_each_update_are_refused_by_name(name: str) -> None:
    said = refused(method=name)
    assert f"{name} needs each single update" in said
    assert "fedavg" in said


def test_settings_that_need_each_update_are_refused() -> None:
    assert "median compares single updates" in refused(round={"aggregation": "median"})
    assert "not seen under secure sums" in refused(round={"divergence": True})
    assert "every number of a change" in refused(transfer={"up": "int8"})
    assert "every number of a change" in refused(transfer={"together": True})
    with pytest.raises(RecipeError, match="clip is out of range"):
        SecureConfig(clip=0.0)
    with pytest.raises(RecipeError, match="bits is out of range"):
        make_recipe({"task": "recognition", "method": "fedavg", "secure": {"bits": 16}})


def test_one_sum_a_round_of_one_model(tmp_path: Path) -> None:
    class Twice(FedAvg):
        def run(self, fed: Any) -> None:
            for _ in fed.rounds():
                fed.average(fed.sample(), fed.weights)
                fed.average(fed.sample(), fed.weights)

    with pytest.raises(FedreelError, match="one sum a round"):
        federate_securely(tmp_path, Twice())


# killed


def recipe() -> Recipe:
    return Recipe(
        system="toy",
        device="cpu",
        task={"name": "toy"},
        method={"name": "fedbn"},
        train=TrainConfig(batch_size=4, lr=0.1, momentum=0.9, keep_optimizer=True),
        round=RoundConfig(rounds=2),
        secure=SecureConfig(sums=True),
    )


def go(out: Path) -> Path:
    begun = (out / "recipe.toml").exists()
    return run(recipe(), out, resume=begun, quiet=True, task=Toy(), method=FedBN()).path


def killed(out: Path, at: int, when: str) -> bool:
    """Run in a child that dies at its so many-th write; whether it did."""
    child = os.fork()
    if child == 0:
        replace, count = os.replace, [0]

        def dying(*args: Any) -> None:
            count[0] += 1
            if count[0] == at and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            replace(*args)
            if count[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)

        os.replace = dying  # type: ignore[assignment]
        try:
            go(out)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def ending(out: Path) -> dict[str, Any]:
    """Model, metrics and private state to the bit. Of a sum that is known nobody is asked again."""
    asked = ("seconds", "bytes_up", "bytes_down", "ordered")
    kept = sorted(p for p in (out / "clients").rglob("*.safetensors"))
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {
        "model": (out / "model" / "global.safetensors").read_bytes(),
        "kept": {str(p.relative_to(out)): p.read_bytes() for p in kept},
        "metrics": [{k: v for k, v in row.items() if k not in asked} for row in rows],
    }


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_that_is_killed_at_any_write_ends_as_one_that_is_not(when: str, tmp_path: Path) -> None:
    """Keys, shares, vectors and signatures of clients, and the server's notes: each is written before it is used."""
    expected = ending(go(tmp_path / "undisturbed"))
    at, step = (1, 9) if when == "before" else (5, 9)
    times = 0
    while killed(tmp_path / str(at), at, when):
        assert ending(go(tmp_path / str(at))) == expected, at
        at, times = at + step, times + 1
    assert times >= 8  # both rounds


def test_a_sum_does_not_begin_before_the_round_before_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a run that is killed then would go back to a round whose tests undo what clients keep of the sum."""
    save, answer, saved, asked = Checkpoints.save, ClientSums.answer, list[int](), set[tuple[int, int]]()

    def slow(self: Checkpoints, snapshot: Any) -> Any:
        time.sleep(0.3)
        made = save(self, snapshot)
        saved.append(len(saved) + 1)
        return made

    def noted(self: ClientSums, worker: Any, order: Order) -> Any:
        asked.add((order.round, len(saved)))
        return answer(self, worker, order)

    monkeypatch.setattr(Checkpoints, "save", slow)
    monkeypatch.setattr(ClientSums, "answer", noted)
    go(tmp_path / "out")
    assert asked == {(1, 0), (2, 1)}


def test_notes_that_are_lost_or_of_another_cohort_are_named(tmp_path: Path) -> None:
    federate_securely(tmp_path, FedAvg(), task=Toy(clients=4))
    notes = tmp_path / "secure" / "server" / "round-000001" / "notes.json"
    kept = notes.read_text()
    again, _ = federate_securely(tmp_path, FedAvg(), task=Toy(clients=4), start=2)  # its sum is known: nobody is asked
    assert again.round == 1
    notes.write_text(kept.replace('\\"c3\\"', '\\"c9\\"'))
    with pytest.raises(RunError, match="begun with other clients"):
        federate_securely(tmp_path, FedAvg(), task=Toy(clients=4), start=3)
    notes.write_text("{}")
    with pytest.raises(RunError, match="cannot be read"):
        federate_securely(tmp_path, FedAvg(), task=Toy(clients=4), start=3)
    notes.unlink()
    with pytest.raises(RunError, match="has sent its part of the sum of round 1 before"):
        federate_securely(tmp_path, FedAvg(), task=Toy(clients=4), start=3)
