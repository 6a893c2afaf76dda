"""Work for the pages: one thing after another in a process of its own, whose death is told and survived."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra ui is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from starlette.testclient import TestClient

from fedreel.config import DataConfig
from fedreel.data.check import check
from fedreel.errors import FedreelError
from fedreel.tasks.vision.clips import ClipPopulation, divided, open_clips
from fedreel.ui import worker, workshop
from fedreel.ui.app import make_app
from fedreel.ui.places import Places
from fedreel.ui.workshop import Workshop

WORK = """
import json, os, sys, time
for line in sys.stdin:
    order = json.loads(line)
    def say(**told):
        print(json.dumps({"id": order["id"], **told}), flush=True)
    do = order["options"].get("do")
    say(what="looking", share=0.25)
    try:
        if do == "die":
            os._exit(3)
        if do == "wait":
            time.sleep(60)
    except KeyboardInterrupt:
        say(ended="stopped", error={"problem": "It was stopped."})
        continue
    if do == "fail":
        say(ended="failed", error={"problem": "no such thing", "hint": "try another"})
        continue
    open(os.path.join(order["folder"], "answer.json"), "w").write(json.dumps({"lines": [do]}))
    say(ended="done")
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """With a worker of a few lines: what the workshop does with it is the same."""
    script = tmp_path / "work.py"
    script.write_text(WORK)
    begin = workshop.subprocess.Popen
    monkeypatch.setattr(
        workshop.subprocess, "Popen", lambda command, **options: begin([sys.executable, str(script)], **options)
    )
    made = Workshop(tmp_path / "results")
    made.start()
    return made


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_answers_errors_and_deaths_are_told_and_the_next_one_is_answered(shop: Workshop) -> None:
    try:
        ids = [shop.ask("check", {"do": do}, {"title": do}) for do in ("a", "fail", "die", "b")]
        until(lambda: shop.look(ids[-1]).state == "done")
        found = [shop.look(id) for id in ids]
        assert [one.state for one in found] == ["done", "failed", "failed", "done"]
        assert found[0].answer == {"lines": ["a"]}
        assert found[1].error == {"problem": "no such thing", "hint": "try another"}
        assert "died" in found[2].error["problem"]
    finally:
        shop.close()
    later = Workshop(shop.folder)  # answers outlive the server
    assert [later.look(id).state for id in ids] == ["done", "failed", "failed", "done"]


def test_work_can_be_stopped_and_forgotten(shop: Workshop) -> None:
    try:
        first, second = (shop.ask("check", {"do": "wait"}, {}) for _ in range(2))
        until(lambda: shop.look(first).share == 0.25)
        assert (shop.look(first).state, shop.look(first).what) == ("working", "looking")
        shop.stop(second)
        shop.stop(first)
        until(lambda: shop.look(first).state == "stopped")
        assert shop.look(second).state == "stopped"
        shop.forget(second)
        with pytest.raises(FedreelError):
            shop.look(second)
        last = shop.ask("check", {"do": "c"}, {})
        until(lambda: shop.look(last).state == "done")
    finally:
        shop.close()
    for name in ("..", "", "../jobs", "20260101000000-00000000"):
        with pytest.raises(FedreelError):
            shop.look(name)


def test_a_server_that_ends_leaves_what_it_worked_on_interrupted(shop: Workshop) -> None:
    id = shop.ask("check", {"do": "wait"}, {})
    until(lambda: shop.look(id).share == 0.25)
    shop.close()
    shop._thread.join(60)
    assert Workshop(shop.folder).look(id).state == "interrupted"


def test_what_was_under_way_when_the_server_ended_is_interrupted(tmp_path: Path) -> None:
    made = Workshop(tmp_path / "results")
    id = made.ask("check", {}, {})
    assert made.look(id).state == "waiting"
    assert Workshop(tmp_path / "results").look(id).state == "interrupted"


def test_a_folder_is_shown_as_the_check_sees_it_with_pictures_and_divided(data: Path, tmp_path: Path) -> None:
    (tmp_path / "answer").mkdir()
    found = worker.KINDS["check"]({"source": str(data)}, tmp_path / "answer", lambda what, share: None)
    assert found["lines"] == check(data).lines()
    assert len(found["shown"]) == 12
    assert (tmp_path / "answer" / "picture-11.jpg").read_bytes()[:3] == b"\xff\xd8\xff"
    places = Places(tmp_path / "runs", (data,))
    app = make_app(places, names=("127.0.0.1",), port=8377, token="t", csrf="c")
    id = app.state.workshop.ask("check", {"source": str(data)}, {"title": "films", "source": "data1"})
    (places.results / id / "answer.json").write_text(json.dumps(found))
    owner = TestClient(app, base_url="http://127.0.0.1:8377")
    owner.get("/?token=t")
    assert owner.get("/try/answer", params={"id": id}).text.count("/picture-") == 12
    drawn = owner.get("/data/division", params={"id": id, "partition": '{name = "iid", num_partitions = 3}'})
    assert drawn.status_code == 200
    assert "3 clients" in drawn.text
    for wrong, said in (('{name = "iidd"}', "did you mean"), ("iid", "not a division")):
        answer = owner.get("/data/division", params={"id": id, "partition": wrong})
        assert answer.status_code == 422
        assert said in answer.text


@pytest.mark.parametrize(
    "partition",
    [
        {"name": "by-owner"},
        {"name": "iid", "num_partitions": 3},
        {"name": "dirichlet", "num_partitions": 2, "alpha": 0.1, "min_partition_size": 1},
    ],
)
def test_the_division_that_is_drawn_is_the_one_that_is_trained_on(data: Path, partition: dict[str, object]) -> None:
    config = DataConfig(source=str(data), partition=partition, seed=3)
    trained = ClipPopulation(open_clips(config, 16), config, 4, config.seed).describe()
    drawn = divided(check(data).clips, config)
    assert {"classes", "train", "test"} == {*drawn}
    assert drawn == {key: trained[key] for key in drawn}
