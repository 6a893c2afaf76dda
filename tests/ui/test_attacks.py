"""What others might try, each refused: a page of another site, a name that points here, a path that leads out, a script
in a name."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra ui is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from starlette.testclient import TestClient

from fedreel.errors import FedreelError
from fedreel.machine.files import hold_lock
from fedreel.ui.app import make_app
from fedreel.ui.files import address_of
from fedreel.ui.places import Places, inside
from fedreel.ui.serve import check_listening
from support.tiny import cli

TOKEN, CSRF, BASE = "a-token", "a-csrf", "http://127.0.0.1:8377"
SCRIPT = '<script>alert("x")</script>'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of runs with one of a hostile name, a folder of data, and a secret beside them."""
    run = tmp_path / "runs" / "<img src=x onerror=alert(1)>"
    run.mkdir(parents=True)
    (run / "recipe.toml").write_text(f"system = {json.dumps(SCRIPT)}\n[round]\nrounds = 3\n")
    rows = [
        {"round": 0, "phase": "partition", "classes": [SCRIPT], "train": {SCRIPT: [4]}, "test": {}},
        {"round": 1, "phase": "test", "metrics": {SCRIPT: 0.5}, "clients": {SCRIPT: {"top1": 1.0, "n": 2}}},
        {"round": 1, "phase": "train", "clients": [SCRIPT], "loss": 1.0, "seconds": 1.0},
        {"round": 1, "phase": "refused", "client": SCRIPT, "reason": SCRIPT, "detail": SCRIPT},
        {"round": 1, "phase": "note", "text": SCRIPT},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("given")
    (tmp_path / "secret.toml").write_text("secret")
    (tmp_path / "data" / "link").symlink_to(tmp_path / "secret.toml")
    (tmp_path / "runs" / "link").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "runs" / "linked").mkdir()
    (tmp_path / "runs" / "linked" / "recipe.toml").symlink_to(tmp_path / "secret.toml")
    return tmp_path


@pytest.fixture
def stranger(folder: Path) -> TestClient:
    """Somebody who has not opened the link."""
    places = Places(folder / "runs", (folder / "data",))
    app = make_app(places, names=("127.0.0.1", "localhost"), port=8377, token=TOKEN, csrf=CSRF, most_upload=1000)
    return TestClient(app, base_url=BASE, follow_redirects=False)


@pytest.fixture
def owner(stranger: TestClient) -> TestClient:
    answer = stranger.get("/", params={"token": TOKEN})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/"
    return stranger


def test_without_the_token_nothing_is_shown(stranger: TestClient) -> None:
    for path in ("/", "/run?name=x", "/static/page.css", "/new", "/files/data1/a.txt", "/runs/events", "/nowhere"):
        assert stranger.get(path).status_code == 401, path
    assert stranger.get("/", params={"token": "another"}).status_code == 401
    assert stranger.post(f"/run/stop?csrf={CSRF}", headers={"origin": BASE}).status_code == 401


def test_the_token_becomes_a_cookie_that_neither_scripts_nor_other_sites_can_use(stranger: TestClient) -> None:
    answer = stranger.get("/run", params={"token": TOKEN, "name": "x y"})
    words = answer.headers["set-cookie"].lower().replace(" ", "").split(";")
    assert {"httponly", "samesite=strict"} <= {*words}
    assert TOKEN not in answer.headers["set-cookie"]
    assert answer.headers["location"] == "/run?name=x+y"


def test_a_redirect_never_leaves_this_server(stranger: TestClient) -> None:
    for path in ("//evil.example/", "/\\evil.example"):
        answer = stranger.get(f"{BASE}{path}", params={"token": TOKEN})
        assert answer.headers["location"].startswith("/")
        assert not answer.headers["location"].startswith(("//", "/\\"))


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8377", "127.0.0.1", "127.0.0.1:80", "", "127.0.0.1.evil:8377"]
)
def test_a_name_that_was_pointed_here_is_not_ours(owner: TestClient, host: str) -> None:
    """DNS rebinding: the browser believes to talk to evil.example, and the connection ends here."""
    assert owner.get("/", headers={"host": host}).status_code == 421
    assert owner.get("/", headers={"host": "localhost:8377"}).status_code in (200, 401)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1", "https://127.0.0.1:8377"])
def test_another_site_cannot_send_requests(owner: TestClient, origin: str) -> None:
    assert owner.post(f"/run/stop?name=x&csrf={CSRF}", headers={"origin": origin}).status_code == 403
    assert owner.get("/", headers={"origin": origin}).status_code == 403


def test_what_changes_something_needs_an_origin_and_the_pages_own_secret(owner: TestClient) -> None:
    name = "<img src=x onerror=alert(1)>"
    for path in ("/run/stop", "/run/resume", "/jobs/cancel", "/uploads", "/new", "/try"):
        assert owner.post(path, params={"name": name, "csrf": CSRF}).status_code == 403, path
        assert owner.post(path, params={"name": name}, headers={"origin": BASE}).status_code == 403, path
        assert owner.post(path, params={"name": name, "csrf": "x"}, headers={"origin": BASE}).status_code == 403, path
        assert owner.get(path, params={"name": name, "csrf": CSRF}).status_code in (200, 404, 405), path
    good = owner.post("/run/stop", params={"name": name, "csrf": CSRF}, headers={"origin": BASE})
    assert good.status_code == 303


@pytest.mark.parametrize(
    "name",
    [
        "../secret.toml",
        "..",
        ".",
        "",
        "/etc/passwd",
        "a/../../secret.toml",
        "link",
        "link/secret.toml",
        "a\0b",
        ".ui",
        "x/.y",
    ],
)
def test_no_path_leads_out_of_the_given_folders(folder: Path, owner: TestClient, name: str) -> None:
    assert owner.get("/run", params={"name": name}).status_code == 404
    assert owner.get("/run/report", params={"name": name}).status_code == 404
    assert inside(folder / "runs", name) is None
    assert inside(folder / "data", name) is None


def test_a_run_whose_records_are_links_to_elsewhere_is_none(owner: TestClient) -> None:
    assert owner.get("/run", params={"name": "linked"}).status_code == 404
    assert owner.get("/run/report", params={"name": "linked"}).status_code == 404
    assert "linked" not in owner.get("/").text


def test_with_tls_the_cookie_is_for_tls_alone(folder: Path) -> None:
    app = make_app(Places(folder / "runs"), names=("h",), port=8377, token=TOKEN, csrf=CSRF, tls=True)
    client = TestClient(app, base_url="https://h:8377", follow_redirects=False)
    assert "secure" in client.get("/", params={"token": TOKEN}).headers["set-cookie"].lower()
    assert client.get("/", headers={"origin": "http://h:8377"}).status_code == 403
    assert client.get("/", headers={"origin": "https://h:8377"}).status_code == 200


def test_a_file_is_found_where_it_was_given(folder: Path) -> None:
    places = Places(folder / "runs", (folder / "data",))
    assert places.file("data1", "a.txt").read_text() == "given"
    for root, name in (("data1", "../secret.toml"), ("data1", "link"), ("data2", "a.txt"), ("/etc", "passwd")):
        with pytest.raises(FedreelError):
            places.file(root, name)
    assert not places.allows(folder / "secret.toml")
    assert not places.allows(folder / "data" / "link")
    assert places.allows(folder / "data" / "deeper")


def test_names_and_labels_are_text_and_never_markup(owner: TestClient) -> None:
    name = "<img src=x onerror=alert(1)>"
    for path, params in (
        ("/", {}),
        ("/run", {"name": name}),
        ("/run", {"name": SCRIPT}),
        ("/job", {"id": SCRIPT}),
        ("/compare", {"run": [name, name]}),
    ):
        text = owner.get(path, params=params).text  # type: ignore[arg-type]
        assert "<img src=x" not in text, path
        assert "<script>alert" not in text, path
        assert "&lt;" in text, path


def test_names_that_are_no_text_break_nothing(folder: Path, owner: TestClient) -> None:
    bad = os.fsdecode(b"odd\xff")
    for place in (folder / "runs" / bad, folder / "data" / bad):
        place.mkdir()
        (place / "recipe.toml").touch()
        (place / f"{bad}.mp4").touch()
    for path in ("/", "/try", "/data"):
        assert owner.get(path).status_code == 200, path
    assert "odd" not in owner.get("/").text
    assert owner.get("/run?name=odd%FF").status_code == 404
    assert address_of("data1", bad) == "/files/data1/odd%3F"


def test_no_page_allows_a_script_or_style_within_it(owner: TestClient) -> None:
    for path in ("/", "/run?name=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E", "/job?id=1"):
        answer = owner.get(path)
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert " style=" not in answer.text
        assert " on" + "click" not in answer.text
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_report_is_shown_in_a_sandbox_without_our_origin(owner: TestClient) -> None:
    answer = owner.get("/run/report", params={"name": "<img src=x onerror=alert(1)>"})
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts;")
    assert "allow-same-origin" not in policy
    assert "connect-src" not in policy  # so default-src 'none' holds for it


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])
def test_other_machines_are_let_in_only_by_tls_or_an_explicit_word(host: str) -> None:
    with pytest.raises(FedreelError, match="--unencrypted"):
        check_listening(host, ("x",), tls=False, unencrypted=False)
    check_listening(host, ("x",), tls=True, unencrypted=False)
    check_listening(host, ("x",), tls=False, unencrypted=True)


def test_loopback_needs_nothing_and_every_address_needs_a_name() -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        check_listening(host, (), tls=False, unencrypted=False)
    with pytest.raises(FedreelError, match="--name"):
        check_listening("0.0.0.0", (), tls=True, unencrypted=False)


def test_without_the_extra_the_command_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    said = cli("ui", "--runs", tmp_path / "runs")
    assert said.code == 2
    assert "pip install 'fedreel[ui]'" in said.err
    assert cli("jobs", "--runs", tmp_path / "runs").code == 0


def test_one_folder_has_one_server(tmp_path: Path) -> None:
    (tmp_path / "runs" / ".ui").mkdir(parents=True)
    lock = hold_lock(tmp_path / "runs" / ".ui")
    assert lock is not None
    with lock:
        said = cli("ui", "--runs", tmp_path / "runs")
    assert said.code == 2
    assert "another `fedreel ui`" in said.err


def test_the_command_refuses_too(tmp_path: Path) -> None:
    said = cli("ui", "--runs", tmp_path / "runs", "--host", "0.0.0.0")
    assert said.code == 2
    assert "--unencrypted" in said.err
    assert not (tmp_path / "runs").exists()
    said = cli("ui", "--runs", tmp_path / "runs", "--tls-cert", "x")
    assert said.code == 2
    assert "--tls-key" in said.err
