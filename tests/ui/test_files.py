"""Uploads and files: limited, kept whole or not at all, in pieces for players, and never as something that acts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra ui is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from starlette.testclient import TestClient

from fedreel.ui.app import make_app
from fedreel.ui.files import safe_name
from fedreel.ui.places import Places

BASE = "http://127.0.0.1:8377"
HOSTILE = '<img src=x onerror="alert(1)">.mp4'


@pytest.fixture
def places(tmp_path: Path) -> Places:
    (tmp_path / "runs").mkdir()
    (tmp_path / "films").mkdir()
    (tmp_path / "films" / HOSTILE).write_bytes(bytes(range(100)))
    (tmp_path / "films" / "page.html").write_text("<script>alert(1)</script>")
    return Places(tmp_path / "runs", (tmp_path / "films",))


@pytest.fixture
def owner(places: Places) -> TestClient:
    app = make_app(places, names=("127.0.0.1",), port=8377, token="t", csrf="c", most_upload=1000)
    client = TestClient(app, base_url=BASE, headers={"origin": BASE}, follow_redirects=False)
    client.get("/?token=t")
    return client


def kept(places: Places) -> dict[str, bytes]:
    folder = places.uploads
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def test_an_upload_is_kept_under_its_name_and_overwrites_nothing(owner: TestClient, places: Places) -> None:
    for content in (b"one", b"two"):
        answer = owner.post("/uploads", params={"csrf": "c", "name": "a film.mp4"}, content=content)
        assert answer.status_code == 200
    assert answer.json() == {"source": "uploads/a film-2.mp4"}
    assert kept(places) == {"a film.mp4": b"one", "a film-2.mp4": b"two"}
    gone = owner.post("/uploads/forget", params={"csrf": "c", "name": "a film.mp4"})
    assert gone.status_code == 303
    assert [*kept(places)] == ["a film-2.mp4"]


def test_an_upload_that_is_too_large_leaves_nothing(owner: TestClient, places: Places) -> None:
    said = owner.post("/uploads", params={"csrf": "c", "name": "a.mp4"}, content=bytes(1001))
    assert said.status_code == 413

    def pieces() -> Iterator[bytes]:  # it does not say how long it is
        for _ in range(30):
            yield bytes(100)

    unsaid = owner.post("/uploads", params={"csrf": "c", "name": "a.mp4"}, content=pieces())
    assert unsaid.status_code == 413
    assert kept(places) == {}
    assert owner.post("/uploads", params={"csrf": "c", "name": "a.mp4"}, content=bytes(1000)).status_code == 200


@pytest.mark.parametrize("name", ["x.html", "x", "x.mp4.svg", "", "mp4"])
def test_only_videos_are_taken(owner: TestClient, places: Places, name: str) -> None:
    assert owner.post("/uploads", params={"csrf": "c", "name": name}, content=b"x").status_code == 415
    assert kept(places) == {}


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("../../etc/passwd.mp4", "passwd.mp4"),
        ("C:\\films\\a.mp4", "a.mp4"),
        (HOSTILE, "img src_x onerror_alert(1)_.mp4"),
        (".hidden.mp4", "hidden.mp4"),
        ("a\0\n\r.mp4", "a_.mp4"),
        ("Üben 日本.mp4", "Üben 日本.mp4"),
        ("x" * 300 + ".mp4", "x" * 80 + ".mp4"),
    ],
)
def test_names_of_uploads_lose_what_means_something_elsewhere(name: str, safe: str) -> None:
    assert safe_name(name) == safe


def test_a_player_gets_the_piece_that_it_asks_for(owner: TestClient) -> None:
    address = "/files/data1/" + HOSTILE.replace('"', "%22").replace("<", "%3C").replace(">", "%3E").replace(" ", "%20")
    whole = owner.get(address)
    assert whole.content == bytes(range(100))
    assert whole.headers["content-type"] == "video/mp4"
    piece = owner.get(address, headers={"range": "bytes=10-19"})
    assert piece.status_code == 206
    assert piece.content == bytes(range(10, 20))
    assert piece.headers["content-range"] == "bytes 10-19/100"
    assert owner.get(address, headers={"range": "bytes=200-"}).status_code == 416


def test_a_video_that_is_gone_is_not_played(owner: TestClient) -> None:
    text = owner.get("/try?source=data1/gone.mp4").text
    assert "gone.mp4" not in text
    assert '<option value="">(none)</option>' in text


def test_an_address_that_is_none_is_told_on_a_page_with_the_menu(owner: TestClient) -> None:
    answer = owner.get("/nowhere<b>")
    assert answer.status_code == 404
    assert "there is no such page" in answer.text
    assert 'href="/new"' in answer.text
    assert "<b>" not in answer.text


def test_the_icon_that_browsers_ask_for_is_there(owner: TestClient) -> None:
    """Also where a page, as a report, names none."""
    assert 'rel="icon" href="/static/icon.svg"' in owner.get("/").text
    for path in ("/favicon.ico", "/static/icon.svg"):
        answer = owner.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "image/svg+xml"), path


def test_what_is_no_video_or_picture_can_only_be_kept(owner: TestClient) -> None:
    answer = owner.get("/files/data1/page.html")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "path",
    [
        "/files/data1/../secret",
        "/files/data1/%2e%2e/secret",
        "/files/data1/..%2fsecret",
        "/files/data1//etc/passwd",
        "/files/x/a",
    ],
)
def test_files_outside_are_not_found(owner: TestClient, places: Places, path: str) -> None:
    (places.runs.parent / "secret").write_text("secret")
    answer = owner.get(path)
    assert answer.status_code == 404
    assert "secret" not in answer.text or "no such" in answer.text


def test_hostile_names_are_offered_as_text(owner: TestClient) -> None:
    text = owner.get("/try").text
    assert "&lt;img src=x onerror=" in text
    assert "<img src=x" not in text
    refused = owner.post("/try?csrf=c", data={"verb": "find", "source": f"data1/{HOSTILE}"})
    assert refused.status_code == 422
    assert "what is to be found?" in refused.text
