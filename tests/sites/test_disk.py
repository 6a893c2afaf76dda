"""A site that is killed at any moment, or whose disk is full: what left is in the ledger, what is private is whole, and
when all is well again the end is that of a site that nothing happened to."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedreel.config import Recipe, as_table
from fedreel.core.chain import verify
from fedreel.core.ledger import departures
from fedreel.core.update import EVALUATE, TRAIN, Order
from fedreel.data.kept_arrays import keep, kept
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.wire import pack_orders
from fedreel.engines.flower.workplace import Workplace, for_others
from fedreel.machine.files import new_file, new_folder, replacing, write_atomic
from fedreel.methods.fedbn import FedBN
from fedreel.registry import TASKS
from support.disk import Killed, killed_at, room_for
from support.toy import make_worker

pytest.importorskip("cryptography", reason="the extra flower is not installed")

from fedreel.sites import site
from fedreel.sites.site import SiteFolder

RECIPE = as_table(Recipe(task={"name": "toy"}, method={"name": "fedbn"}))
START = make_worker(Path("none"), FedBN()).start
ORDERS = [
    Order(1, 1, "c1", TRAIN, {"global": START}),
    Order(1, 2, "c1", EVALUATE, {"global": START}),
    Order(2, 1, "c1", TRAIN, {"global": START}),
]


class Place:
    """A site over one folder, whatever becomes of its process."""

    def __init__(self, folder: Path) -> None:
        (folder / "data").mkdir(parents=True)
        self.site = site.init(folder / "north", "north", {"*": str(folder / "data")}, "", "", ["*"])
        self.start()

    def start(self) -> None:
        here: SiteFolder = self.site
        self.work = Workplace(here.worker, "north", for_others, here.runs, here.approvals().permit)

    def answer(self, order: Order) -> Frame:
        return self.work.answer(pack_orders([order], type="orders", run="r", start=1, recipe=RECIPE))

    def left(self, order: Order) -> int:
        """How often the ledger has this order's answer."""
        if not self.site.ledger.exists():
            return 0
        rows = departures(self.site.ledger)
        return sum((row["round"], row["purpose"]) == (order.round, order.kind) for row in rows)

    def check(self) -> None:
        """Nothing is half-written."""
        found = verify(self.site.ledger, self.site.ledger.with_suffix(".head"))
        assert found.problems == ()
        assert not list(self.site.path.rglob("*.tmp"))

    def private(self) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in (self.site.runs / "r" / "clients").rglob("*.safetensors")}


def plain(frame: Frame) -> tuple[Any, dict[str, bytes]]:
    """All of an answer but how long it took."""
    results = [{k: v for k, v in result.items() if k != "times"} for result in frame.head.get("results", [])]
    return {**frame.head, "results": results}, {name: bytes(data) for name, data in frame.arrays.items()}


def has_left(frame: Frame) -> bool:
    return "results" in frame.head and "numbers" in frame.head["results"][0]


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "toy", "support.toy:Toy")


@pytest.fixture
def expected(tmp_path: Path) -> tuple[list[Any], dict[str, bytes], int]:
    """What a site answers and keeps that nothing happens to, and how often it goes to the disk."""
    place = Place(tmp_path / "well")
    with killed_at(-1) as calls:
        answers = [plain(place.answer(order)) for order in ORDERS]
    place.check()
    return answers, place.private(), calls[0]


def test_a_site_that_is_killed_at_any_write_ends_as_one_that_is_not(
    tmp_path: Path, expected: tuple[list[Any], dict[str, bytes], int]
) -> None:
    answers, private, calls = expected
    assert calls > 20
    for call in range(calls):
        place, got = Place(tmp_path / str(call)), []
        with killed_at(call), suppress(Killed):
            for order in ORDERS:
                got.append(plain(place.answer(order)))
                assert place.left(order) >= 1
        assert len(got) < len(ORDERS)
        place.start()
        for order in ORDERS[len(got) :]:
            got.append(plain(place.answer(order)))
            assert place.left(order) >= 1
        assert got == answers, call
        assert place.private() == private, call
        found = verify(place.site.ledger, place.site.ledger.with_suffix(".head"))
        assert found.problems == (), call


@pytest.mark.parametrize("room", [0, 20, 100, 300, 500, 1000, 2000])
def test_a_site_whose_disk_is_full_lets_nothing_out_that_is_not_in_the_ledger(
    tmp_path: Path, expected: tuple[list[Any], dict[str, bytes], int], room: int
) -> None:
    answers, private, _ = expected
    place = Place(tmp_path / "full")
    for order, answer in zip(ORDERS, answers):
        before = place.private()
        with room_for(room):
            frame = place.answer(order)
        assert has_left(frame) <= place.left(order)
        assert has_left(frame) or frame.arrays == {}
        assert {name: place.private()[name] for name in before} == before
        assert plain(place.answer(order)) == answer
    assert place.private() == private
    place.check()


def test_where_nothing_can_be_noted_nothing_leaves_and_the_server_is_told_why(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.answer(ORDERS[0])
    with room_for(place.site.ledger.stat().st_size):
        frame = place.answer(ORDERS[1])
    assert frame.head["results"][0]["detail"].startswith("the ledger cannot be written, so nothing leaves")
    assert frame.arrays == {}


def test_what_a_full_disk_does_not_take_is_not_in_the_cache_either(tmp_path: Path) -> None:
    array = np.arange(4000, dtype=np.float32)
    whole = {"kept": b"old", "file": b"old", "atomic": b"old"}
    for name, content in whole.items():
        (tmp_path / name).write_bytes(content)

    def in_folder() -> None:
        with new_folder(tmp_path / "folder") as folder:
            (folder / "part").write_bytes(bytes(10_000))

    def in_file() -> None:
        with new_file(tmp_path / "file") as file:
            file.write_bytes(bytes(10_000))

    def in_place() -> None:
        with replacing(tmp_path / "file") as file:
            file.write(bytes(10_000))

    writers = (lambda: keep(tmp_path / "kept", array), in_folder, in_file, in_place)
    for write in (*writers, lambda: write_atomic(tmp_path / "atomic", bytes(10_000))):
        with room_for(5000), pytest.raises(OSError):  # noqa: PT011
            write()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == whole
    keep(tmp_path / "kept", array)
    assert np.array_equal(kept(tmp_path / "kept"), array)  # type: ignore[arg-type]
