"""Models down as what is new in them: sites train with the same bits, of fewer bytes, also those that start anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from fedreel.config import Recipe, RoundConfig, TrainConfig, TransferConfig
from fedreel.core.federation import Federation
from fedreel.core.job import Job
from fedreel.core.method import Method
from fedreel.core.transfer.difference import digest
from fedreel.core.update import EVALUATE, TRAIN, Order
from fedreel.core.weights import Weights
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.versions import Held, Lacking, Versions
from fedreel.engines.flower.wire import pack_orders, unpack_orders
from fedreel.errors import RunError
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.ifca import IFCA
from support.toy import Notes, Toy

pytest.importorskip("flwr", reason="needs the extra `flower`")
from support.three_sites import SitesLink, engine_at

HERE = {"north": ("c0", "c1", "c2"), "south": ("c3",)}
MODEL = Weights.of({"w": torch.arange(3000.0), "n": torch.tensor(3)})


@dataclass
class Line:
    """Looks at the frames of a run at sites: their bytes, and what is done to them on the way."""

    down: list[tuple[str, str, int]] = field(default_factory=list)  # node, kind of order, bytes
    before: Callable[[SitesLink, str, Frame], Frame | None] | None = None  # an answer instead of the site's
    answers: list[dict[str, Any]] = field(default_factory=list)

    def watch(self, link: SitesLink) -> None:
        for node, place in link.sites.items():

            def answer(frame: Frame, node: str = node, inner: Any = place) -> Frame:
                self.down.append((node, frame.head["orders"][0]["kind"], sum(map(len, frame.arrays.values()))))
                changed = self.before(link, node, frame) if self.before else None
                reply = changed or inner.answer(frame)
                self.answers.append(reply.head)
                return reply

            link.sites[node] = type("Watched", (), {"answer": staticmethod(answer)})()  # type: ignore[assignment]


def run(folder: Path, method: Method, down: Any, line: Line | None = None, **options: Any) -> tuple[Federation, Notes]:
    transfer = TransferConfig(down=down)
    recipe = Recipe(
        task={"name": "recognition"},  # the sites have the toy
        method={"name": "fedavg"},
        train=TrainConfig(batch_size=4, lr=0.001),
        round=RoundConfig(**{"rounds": 3, **options}),
        transfer=transfer,
    )
    engine, link = engine_at(Job(recipe, Toy(), method, torch.device("cpu"), folder / "run"), HERE, clients=4)
    if line is not None:
        line.watch(link)
    fed = Federation(engine, method, recipe.round, 0, watchers=[notes := Notes()], transfer=transfer)
    method.run(fed)
    return fed, notes


@pytest.mark.parametrize("method", [FedAvg(), IFCA(groups=2)], ids=lambda m: type(m).__name__)
def test_a_run_ends_with_the_same_bits_of_fewer_bytes(tmp_path: Path, method: Method) -> None:
    lines = {down: Line() for down in ("full", "changes")}
    runs = {down: run(tmp_path / down, method, down, line) for down, line in lines.items()}
    assert all(w.equal(runs["full"][0].models[name]) for name, w in runs["changes"][0].models.items())
    assert runs["full"][1].of("test") != []
    for one, other in zip(runs["full"][1].of("test"), runs["changes"][1].of("test")):
        assert one["clients"] == other["clients"]
    assert not any(head.get("lacks") for head in lines["changes"].answers)
    assert [d[:2] for d in lines["changes"].down] == [d[:2] for d in lines["full"].down]
    for down, line in lines.items():
        assert sum(row["wire_down"] for row in runs[down][1].of("train")) == sum(n for *_, n in line.down)
        assert all(row["wire_up"] > 0 for row in runs[down][1].of("train"))
    later = {down: sum(n for *_, n in line.down[2:]) for down, line in lines.items()}
    assert later["changes"] < 0.7 * later["full"]


def test_a_model_that_was_tested_is_trained_from_without_another_byte(tmp_path: Path) -> None:
    line = Line()
    run(tmp_path, FedAvg(), "changes", line)
    by_kind = {kind: [n for _, k, n in line.down if k == kind] for kind in (TRAIN, EVALUATE)}
    assert by_kind[TRAIN][2:] == [0] * 4  # after the first round, at two sites
    assert min(by_kind[EVALUATE]) > 0


def test_a_site_that_starts_anew_gets_the_whole_model(tmp_path: Path) -> None:
    """Before the second round the process at `north` dies."""

    def die(link: SitesLink, node: str, frame: Frame) -> None:
        order = frame.head["orders"][0]
        if node == "north" and (order["round"], order["kind"]) == (2, TRAIN) and len(places) == 2:
            places["north"]._held = Held()
            del places["north"]

    straight, _ = run(tmp_path / "full", FedAvg(), "full")
    line, places = Line(before=die), dict[str, Any]()
    real = Line.watch

    def watch(self: Line, link: SitesLink) -> None:
        places.update(link.sites)
        real(self, link)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Line, "watch", watch)
        fed, notes = run(tmp_path / "changes", FedAvg(), "changes", line)
    assert fed.weights.equal(straight.weights)
    assert not notes.of("refused")
    assert [head.get("lacks") for head in line.answers].count(True) == 1
    at = next(i for i, head in enumerate(line.answers) if head.get("lacks"))
    whole = line.down[0][2]
    assert [n for node, _, n in line.down[at:] if node == "north"][:2] == [0, whole]


def test_a_site_that_always_lacks_something_is_not_served_for_ever(tmp_path: Path) -> None:
    line = Line(before=lambda link, node, frame: Frame({"lacks": True}) if node == "south" else None)
    with pytest.raises(RunError, match="c3: rubbish"):
        run(tmp_path, FedAvg(), "changes", line, min_answers=1.0, repeat=0)
    assert len([node for node, *_ in line.down if node == "south"]) == 2


# the two ends


def orders(*models: Weights) -> list[Order]:
    return [Order(1, i, f"c{i}", TRAIN, {"global": model}) for i, model in enumerate(models)]


def passed(versions: Versions, held: Held, *models: Weights) -> tuple[list[Weights], int]:
    """Models as a site reads them, and the bytes that went there."""
    versions.begin()
    frame = pack_orders(sent := orders(*models), "n", versions)
    got = [order.models["global"] for order in unpack_orders(frame, held)]
    versions.answered("n", sent)
    return got, sum(map(len, frame.arrays.values()))


def test_what_the_server_thinks_a_site_has_is_what_it_has() -> None:
    versions, held = Versions(), Held()
    other = 1.0001 * MODEL
    for models in ([MODEL], [MODEL, MODEL], [other], [MODEL, other], [other, 2.0 * other], [MODEL]):
        got, _ = passed(versions, held, *models)
        assert all(mine.equal(theirs) for mine, theirs in zip(got, models))


def test_a_model_that_was_changed_in_place_is_sent_as_it_is_now() -> None:
    versions, held, model = Versions(), Held(), MODEL.clone()
    passed(versions, held, model)
    model["w"].add_(1)
    with pytest.raises(Lacking):
        passed(versions, held, model)
    versions.forget("n")
    got, _ = passed(versions, held, model)
    assert got[0].equal(model)


def test_messages_that_were_under_way_together_find_what_they_refer_to() -> None:
    versions, held, other = Versions(), Held(), 1.0001 * MODEL
    passed(versions, held, MODEL)
    versions.begin()
    frames = [pack_orders(orders(other), "n", versions) for _ in range(3)]
    assert all(unpack_orders(frame, held)[0].models["global"].equal(other) for frame in frames)


def test_bits_that_do_not_come_out_right_are_not_trained_with() -> None:
    versions, held, other = Versions(), Held(), 1.0001 * MODEL
    passed(versions, held, MODEL)
    versions.begin()
    frame = pack_orders(orders(other), "n", versions)
    assert frame.head["versions"]["0"] == {"digest": digest(other), "base": digest(MODEL)}
    frame.head["versions"]["0"]["digest"] = digest(2.0 * other)
    with pytest.raises(Lacking):
        unpack_orders(frame, held)
    assert [*held.models] == [digest(MODEL)]
