"""One of three sites lies, in one way after another: the run ends, what the others made is what they make without it,
bit for bit, and the report names the liar."""

from __future__ import annotations

import copy
import html
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedreel.config import Recipe, RoundConfig, TrainConfig
from fedreel.core.update import EVALUATE, TRAIN
from fedreel.registry import ENGINES, TASKS

pytest.importorskip("flwr")
from fedreel.api import run
from fedreel.engines.flower import engine, relay, wire
from fedreel.engines.flower.pipe import Frame
from fedreel.methods.fedavg import FedAvg
from fedreel.runs.run import Result
from support.three_sites import LIAR, Error, Lie, ThreeSites, reply_of
from support.toy import Toy


def told(change: Callable[[dict[str, Any]], Any]) -> Lie:
    """Another row of results."""

    def lie(frame: Frame, order: Any) -> Frame:
        head = copy.deepcopy(frame.head)
        for row in head["results"]:
            change(row)
        return Frame(head, frame.arrays)

    return lie


def numbers(**changes: Any) -> Lie:
    return told(lambda row: row["numbers"].update(changes))


def without(name: str) -> Lie:
    return told(lambda row: row["numbers"].pop(name, None))


def in_tests(lie: Lie) -> Lie:
    """This in answer to tests; nothing that could be used in answer to the rest."""
    return lambda frame, order: (lie if order["kind"] == EVALUATE else without("samples"))(frame, order)


def in_training(lie: Lie) -> Lie:
    return lambda frame, order: (lie if order["kind"] == TRAIN else without("n"))(frame, order)


def arrays(change: Callable[[np.ndarray], Any]) -> Lie:
    def lie(frame: Frame, order: Any) -> Frame:
        changed = {}
        for name, data in frame.arrays.items():
            if name.endswith("float32"):
                values = np.frombuffer(data, np.float32).copy()
                change(values)
                data = values.tobytes()
            changed[name] = data
        return Frame(frame.head, changed)

    return lie


def layouts(change: Callable[[list[Any]], Any]) -> Lie:
    def lie(frame: Frame, order: Any) -> Frame:
        head = copy.deepcopy(frame.head)
        for rows in head["layouts"].values():
            change(rows)
        return Frame(head, frame.arrays)

    return lie


def beside(name: str) -> Lie:
    """One of the model's arrays again, as a tensor that nobody declared."""
    return told(lambda row: row["tensors"].update({name: {"weights": 0}}))


def nested(depth: int) -> str:
    return '[{"results": ' + "[" * depth + "]" * depth + "}, {}]"


LIES: dict[str, tuple[Lie, str]] = {  # and the reason that the report gives
    "no samples": (in_training(without("samples")), "names"),
    "no loss": (in_training(without("loss")), "names"),
    "samples 1e300": (in_training(numbers(samples=1e300)), "range"),
    "samples 1e10": (in_training(numbers(samples=1e10)), "range"),
    "samples 0": (in_training(numbers(samples=0.0)), "range"),
    "samples -1": (in_training(numbers(samples=-1.0)), "range"),
    "samples nan": (in_training(numbers(samples=float("nan"))), "not-finite"),
    "samples a word": (in_training(numbers(samples="many")), "rubbish"),
    "frames 1e300": (in_training(numbers(frames=1e300)), "range"),
    "loss -1e9": (in_training(numbers(loss=-1e9)), "range"),
    "loss 1e300": (in_training(numbers(loss=1e300)), "range"),
    "an invented number": (in_training(numbers(reward=1.0)), "names"),
    "an invented tensor": (in_training(beside("secret")), "names"),
    "a tensor for a number": (in_training(lambda f, o: beside("samples")(without("samples")(f, o), o)), "names"),
    "3000 metrics": (in_tests(numbers(**{f"m{i}": 1.0 for i in range(3000)})), "rubbish"),
    "an invented metric": (in_tests(numbers(**{"\x1b[31m": 1.0})), "names"),
    "a metric of 1e308": (in_tests(numbers(top1=1e308)), "range"),
    "n 1e308": (in_tests(numbers(n=1e308)), "range"),
    "no n": (in_tests(without("n")), "names"),
    "200,000 tensors": (
        in_training(layouts(lambda rows: rows.extend([[f"t{i}", [], "float32", "norm", ""] for i in range(200_000)]))),
        "rubbish",
    ),
    "a shape of 2^39": (in_training(layouts(lambda rows: rows[0].__setitem__(1, [2**39]))), "rubbish"),
    "a tensor less": (in_training(layouts(lambda rows: rows.pop())), "rubbish"),
    "a tensor renamed": (in_training(layouts(lambda rows: rows[0].__setitem__(0, "\x1b]0;mine"))), "names"),
    "nan": (in_training(arrays(lambda a: a.__setitem__(0, np.nan))), "not-finite"),
    "a far model": (in_training(arrays(lambda a: a.__iadd__(1e6))), "norm"),
    "another's name": (told(lambda row: row.update(client="c0")), "rubbish"),
    "another round": (told(lambda row: row.update(round=99)), "rubbish"),
    "a reason of its own": (told(lambda row: row.update(reason="\x1b[2J", detail="\x1b[31mred")), "error"),
    "a problem": (lambda f, o: Frame({"problem": "\x1b[2J" * 10_000}), "error"),
    "30 lists": (lambda f, o: nested(30), "error"),
    "989 lists": (lambda f, o: nested(989), "error"),
    "100,000 lists": (lambda f, o: nested(100_000), "error"),
    "a head of 9 MB": (lambda f, o: json.dumps([{"results": "x" * (9 << 20)}, {}]), "error"),
    "no head": (lambda f, o: "null", "error"),
    "a head that is a list": (lambda f, o: Frame([1, 2]), "rubbish"),  # type: ignore[arg-type]
    "results that are none": (lambda f, o: Frame({**f.head, "results": 7}, f.arrays), "rubbish"),
    "too many bytes": (lambda f, o: Frame(f.head, {**f.arrays, "more": bytes(1 << 20)}), "rubbish"),
    "silence": (lambda f, o: None, "timeout"),
    "always about to come": (lambda f, o: Error("node unavailable"), "timeout"),
}


def job(folder: Path, method: FedAvg, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.setitem(ENGINES, "three-sites", "support.three_sites:ThreeSites")
    monkeypatch.setitem(TASKS, "toy", "support.toy:Toy")
    monkeypatch.setattr(wire, "_SPARE", 1 << 16)
    clock = SimpleNamespace(monotonic=lambda: ThreeSites.link.now if ThreeSites.link else 0.0)
    monkeypatch.setattr(engine, "time", clock)
    recipe = Recipe(
        system="toy",
        device="cpu",
        task={"name": "toy"},
        method={"name": "fedavg"},
        engine={"name": "three-sites"},
        train=TrainConfig(batch_size=4, lr=0.1),
        round=RoundConfig(rounds=2),
    )
    return run(recipe, folder / "run", quiet=True, task=Toy(clients=3), method=method)


def outcome(result: Result) -> tuple[bytes, Any]:
    """What the honest sites made: the model, and how well it does."""
    return (result.path / "model" / "global.safetensors").read_bytes(), result.summary["metrics"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bytes, Any]]:
    """Of the two honest sites, by samples and by loss."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ThreeSites, "names", ("c0", "c1"))
        for by in ("samples", "loss"):
            found[by] = outcome(job(tmp_path_factory.mktemp(by), FedAvg(weight_by=by), patch))
    return found


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_dropped_and_named_and_the_others_result_is_theirs(
    name: str, alone: dict[str, tuple[bytes, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie, reason = LIES[name]
    monkeypatch.setattr(ThreeSites, "lie", staticmethod(lie))
    by = "loss" if name.startswith("loss") else "samples"
    result = job(tmp_path, FedAvg(weight_by=by), monkeypatch)
    assert result.summary["complete"]
    assert outcome(result) == alone[by]
    assert reason in result.summary["refused"]
    page = html.unescape((result.path / "report.html").read_text())
    assert "What was refused" in page
    assert LIAR in page
    assert "\x1b" not in page
    rows = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    refused = [row for row in rows if row["phase"] == "refused"]
    assert {row["client"] for row in refused} == {LIAR}
    assert all(len(row["detail"]) < 10_000 and row["detail"].isprintable() for row in refused)


def test_with_three_honest_sites_nobody_is_refused_and_everybody_counts(
    alone: dict[str, tuple[bytes, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = job(tmp_path, FedAvg(), monkeypatch)
    assert result.summary["refused"] == {}
    assert outcome(result) != alone["samples"]


def test_an_answer_over_which_the_relay_trips_is_rubbish_and_the_relay_lives_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What can be read at one depth of the stack may be too deep to be written at another."""
    sent: list[Frame] = []

    def trips(pipe: object, frame: Frame) -> None:
        if frame.head["what"] == "reply":
            raise RecursionError
        sent.append(frame)

    monkeypatch.setattr(relay, "send", trips)
    relay._hand_over(None, reply_of(Frame({"results": []})), 7)  # type: ignore[arg-type]
    assert [frame.head for frame in sent] == [{"what": "error", "number": 7, "reason": "rubbish: RecursionError"}]
