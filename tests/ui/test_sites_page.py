"""The page of sites tells what the server and its folder tell: who is enrolled, online, and what was submitted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra flower is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from starlette.testclient import TestClient

from fedreel.errors import RunError
from fedreel.sites import keys, server, status
from fedreel.sites.server import ServerFolder
from fedreel.ui.app import make_app
from fedreel.ui.places import Places

BASE = "http://127.0.0.1:8377"


def owner(places: Places) -> TestClient:
    app = make_app(places, names=("127.0.0.1",), port=8377, token="t", csrf="c")
    client = TestClient(app, base_url=BASE)
    client.get("/?token=t")
    return client


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A server with two sites and three jobs: one finished, one not, one that is gone."""
    made = server.init(tmp_path / "server", ["server.org"], 8123, "127.0.0.1")
    for name in ("north", "south"):
        (tmp_path / name).mkdir()
        keys.make_site_keys(tmp_path / name, name)
        server.enroll(made, tmp_path / name / "site.pub")
        (made.path / "sites" / f"{name}.json").write_text(json.dumps({"node": f"node-{name}"}))
    for name, content in (("good", {"complete": True, "rounds": 7, "bytes_up": 12_000}), ("half", {}), ("gone", None)):
        out = tmp_path / "runs" / name
        if content is not None:
            out.mkdir(parents=True)
            (out / "recipe.toml").touch()
            (out / "metrics.jsonl").write_text(json.dumps({"round": 4, "phase": "train"}) + "\n")
        if content:
            (out / "summary.json").write_text(json.dumps(content))
        (made.path / "jobs").mkdir(exist_ok=True)
        (made.path / "jobs" / f"{name}.json").write_text(json.dumps({"out": str(out)}))
    return Places(tmp_path / "runs", (), made.path)


def test_a_server_that_does_not_run_tells_who_is_enrolled_and_what_was_submitted(places: Places) -> None:
    text = owner(places).get("/sites").text
    for part in ("not running", "port 8123", "north", "south", "enrolled", "finished", "not finished", "missing"):
        assert part in text, part
    assert "/run?name=good" in text
    assert "12 kB" in text
    lines: list[str] = []
    assert places.server is not None
    status.show(places.server, lines.append)
    assert f"job      {places.runs / 'good'}: finished, 7 rounds" in lines
    assert any(line.startswith(f"job      {places.runs / 'half'}: not finished, 4 rounds done") for line in lines)


def test_what_private_jobs_have_given_away_is_told_finished_or_not(places: Places) -> None:
    runs = places.runs
    (runs / "good" / "summary.json").write_text(
        json.dumps({"complete": True, "rounds": 7, "privacy": {"epsilon": 3.25}})
    )
    with open(runs / "half" / "metrics.jsonl", "a") as file:
        for round, spent in ((3, 1.0), (4, 1.5)):
            file.write(json.dumps({"round": round, "phase": "privacy", "epsilon": spent}) + "\n")
    text = owner(places).get("/sites").text
    assert "3.25" in text
    assert "1.50" in text
    lines: list[str] = []
    assert places.server is not None
    status.show(places.server, lines.append)
    assert f"job      {runs / 'good'}: finished, 7 rounds, epsilon 3.25" in lines
    assert any("4 rounds done, epsilon 1.50" in line for line in lines)


def test_who_is_online_is_asked_of_the_server(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerFolder, "running", True)
    nodes = {"node-north": {"status": "online", "online-at": "2026-01-01 10:00"}, "node-south": {"status": "offline"}}
    monkeypatch.setattr(ServerFolder, "nodes", lambda self: nodes)
    text = owner(places).get("/sites").text
    assert "2026-01-01 10:00" in text
    assert text.index(">north<") < text.index(">online<") < text.index(">south<") < text.index(">offline<")

    def silent(self: ServerFolder) -> None:
        raise RunError("the server does not answer", found="no route")

    monkeypatch.setattr(ServerFolder, "nodes", silent)
    assert "no route" in owner(places).get("/sites").text
    assert places.server is not None
    with pytest.raises(RunError, match="does not answer"):
        status.show(places.server, print)


def test_without_a_servers_folder_the_page_says_how_to_give_one(tmp_path: Path) -> None:
    assert "--server FOLDER" in owner(Places(tmp_path)).get("/sites").text
