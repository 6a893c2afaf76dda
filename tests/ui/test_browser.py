"""The pages in a real browser: a run from the form to its end, a video that is dropped, the keyboard, a phone."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra ui is not installed")
pytest.importorskip("websockets", reason="websockets is not installed")

from fedreel.machine.alive import interrupt
from fedreel.ui.board import read_now
from support.browser import Page, browser, find_browser
from support.contrast import weak_texts
from support.started import start as start_program
from support.tiny import SETTINGS, cli, sets

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_browser() is None, reason="no Chromium here: apt-get install chromium"),
]

HOSTILE = "<img src=x onerror=window.hacked=1>"
ENDLESS = 1_000_000  # rounds of the run that is stopped and resumed: however slow the browser is, it finds it at work
DONE = "document.querySelector('h1 .badge')?.textContent === 'done'"


class Server:
    """`fedreel ui` in a process of its own, over a folder with films, a finished run and one of a hostile name."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, folder / "runs"
        self.begin()

    def begin(self) -> None:
        command = [sys.executable, "-m", "fedreel", "ui", "--runs", str(self.runs), "--port", "0"]
        command += ["--data", str(self.folder / "films"), "--data", str(self.folder / "clips")]
        self.process = start_program(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        link = re.search(r"http\S+", self.process.stdout.readline())
        assert link is not None
        self.link, self.base = link[0], link[0].split("/?")[0]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def rounds(self, run: str) -> list[int]:
        """Those that a run has trained."""
        lines = (self.runs / run / "metrics.jsonl").read_text().splitlines(keepends=True)
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return [row["round"] for row in rows if row["phase"] == "train"]


@pytest.fixture(scope="module")
def server(data: Path, video: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("ui")
    (folder / "films").mkdir()
    (folder / "films" / f"{HOSTILE}.mp4").write_bytes(video.read_bytes())
    clips = Path(shutil.copytree(data, folder / "clips"))
    (clips / "owner0" / "class0" / "0.mp4").rename(clips / "owner0" / "class0" / f"{HOSTILE}.mp4")
    made = cli("run", "recognition", "--data", clips, "--out", folder / "runs" / "base", "--quiet", *sets(SETTINGS))
    assert made.code == 0, made.err
    strange = folder / "runs" / HOSTILE
    strange.mkdir()
    (strange / "recipe.toml").write_text(f"system = {json.dumps(HOSTILE)}\n")
    (strange / "metrics.jsonl").write_text(json.dumps({"round": 1, "phase": "note", "text": HOSTILE}) + "\n")
    started = Server(folder)
    try:
        yield started
    finally:
        started.kill()
        interrupt(read_now(started.runs / "mine"))  # it outlives the server, and a test that failed


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    with browser() as page:
        page.size(1280)
        yield page


@pytest.fixture
def page(tab: Page, server: Server) -> Iterator[Page]:
    """Signed in, and at the end free of errors in the console."""
    open_link(tab, server)
    tab.errors.clear()
    yield tab
    assert tab.errors == []
    assert tab.js("window.hacked") is None


def open_link(page: Page, server: Server) -> None:
    deadline = time.monotonic() + 120
    while page.js("document.title") != "Runs: fedreel" and time.monotonic() < deadline:  # until it listens
        page.call("Page.navigate", url=server.link)
        time.sleep(0.1)
    assert "token" not in page.js("location.href")


def fill(page: Page, name: str, text: str) -> None:
    page.js(f"document.querySelector('[name=\"{name}\"]').closest('details')?.setAttribute('open', '')")
    page.js(f"document.querySelector('[name=\"{name}\"]').select()")
    page.type(text)


def start(page: Page, server: Server, name: str, rounds: int) -> None:
    """From the form with the settings of `base`; then look at it."""
    page.go(f"{server.base}/run?name=base")
    page.click("a", "New run with these settings")
    page.wait("location.pathname === '/new' && document.readyState === 'complete'")
    fill(page, "round.rounds", "many")
    fill(page, "name", name)
    page.click("button", "Start")
    page.wait("document.querySelector('#f-round-rounds-why')")
    assert "wrong type of value" in page.js("document.querySelector('#f-round-rounds-why').textContent")
    page.errors.clear()  # the browser remarks on the status 422
    fill(page, "round.rounds", str(rounds))
    page.click("button", "Start")
    page.wait("location.pathname === '/'")
    page.click(f"a[href='/run?name={name}']", name)


def jobs(server: Server) -> str:
    """What `fedreel jobs` says when none is running any more: a run writes its report when its page has ended."""
    deadline = time.monotonic() + 60
    while "running" in (said := cli("jobs", "--runs", server.runs).out) and time.monotonic() < deadline:
        time.sleep(0.2)
    return said


def test_a_run_is_started_from_the_form_and_watched_to_its_end(page: Page, server: Server) -> None:
    start(page, server, "short", 3)
    page.wait("document.querySelector('iframe.report')")
    assert server.rounds("short") == [1, 2, 3]
    assert "done" in jobs(server)
    page.errors.clear()


def test_a_run_is_stopped_and_resumed_and_outlives_the_server(page: Page, server: Server) -> None:
    start(page, server, "mine", ENDLESS)
    page.wait("document.querySelector('[data-state=running] .at-work li')")
    page.wait("document.querySelectorAll('#curves path.thick').length")
    drawn = page.js("document.querySelector('#curves figure').textContent")
    page.wait(f"document.querySelector('#curves figure').textContent !== {json.dumps(drawn)}")  # it grows
    page.click("button", "Stop")
    page.wait("document.querySelector('[data-state=interrupted]')")
    assert not (server.runs / "mine" / "now.json").exists()
    page.click("button", "Resume")
    page.wait("document.querySelector('[data-state=running]')")
    server.kill()
    assert (server.runs / "mine" / "now.json").exists()
    before = server.rounds("mine")[-1]
    server.begin()
    open_link(page, server)
    page.errors.clear()  # the connection to the old server was cut
    page.go(f"{server.base}/run?name=mine")
    page.wait("document.querySelector('[data-state=running] .at-work li')")
    page.click("button", "Stop")
    page.wait("document.querySelector('[data-state=interrupted]')")
    rounds = server.rounds("mine")
    assert rounds == [*range(1, len(rounds) + 1)]
    assert len(rounds) > before
    said = jobs(server)
    assert [state in said for state in ("stopped", "failed", "interrupted")] == [True, False, False]


def test_a_video_is_dropped_and_its_summary_plays(page: Page, server: Server, video: Path) -> None:
    page.go(f"{server.base}/try")
    content = base64.b64encode(video.read_bytes()).decode()
    page.js(
        f"""(() => {{
          const bytes = Uint8Array.from(atob("{content}"), letter => letter.charCodeAt(0)), data = new DataTransfer();
          data.items.add(new File([bytes], {json.dumps(HOSTILE)} + ".mp4", {{ type: "video/mp4" }}));
          document.querySelector(".drop").dispatchEvent(new DragEvent("drop", {{ dataTransfer: data, bubbles: true }}));
        }})()"""
    )
    page.wait("document.querySelector('#source')?.value.startsWith('uploads/')")
    page.click("button", "Summarize")
    page.wait(DONE, 120)
    page.wait("document.querySelector('video').readyState >= 2")
    page.click(".moments button")
    page.wait("document.querySelector('video').currentTime > 0")
    length = page.js("document.querySelector('video').duration")
    assert 0 < length < 0.3 * 16
    page.go(page.js("document.querySelector('a.button').href"))
    fill(page, "find.sentence", "something green")
    page.press("Enter")  # the key means the button of its own part
    page.wait(f"location.pathname === '/try/answer' && {DONE}", 120)
    page.wait("document.querySelector('video').readyState >= 1")
    start = float(page.js("document.querySelector('.moments button').dataset.seek"))
    page.click(".moments button")
    page.wait(f"Math.abs(document.querySelector('video').currentTime - {start}) < 3")
    assert page.js("fetch(document.querySelector('.moments a').href).then(r => r.status)") == 200
    visit_all(page, [page.js("location.href")])


def test_every_page_fits_wide_and_narrow_screens_without_errors(page: Page, server: Server) -> None:
    names = f"run=base&run={HOSTILE.replace('=', '%3D').replace(' ', '%20')}"
    paths = ["/", "/new", "/new?recipe=fsar", "/try", "/data", "/sites", "/run?name=base", f"/compare?{names}"]
    paths += [f"/run?name={HOSTILE.replace('=', '%3D')}", f"/try?source=data1/{HOSTILE.replace('=', '%3D')}.mp4"]
    visit_all(page, [server.base + path for path in paths])


def test_a_report_can_be_read_in_every_light_and_on_a_phone(page: Page, server: Server) -> None:
    visit_all(page, [(server.runs / "base" / "report.html").as_uri()])
    page.js("document.querySelector('h1').style.color = '#999'")
    assert [text for text, _, _ in weak_texts(page)] == ["recognition"]  # it does look


def visit_all(page: Page, addresses: list[str]) -> None:
    for address in addresses:
        page.go(address)
        for width in (390, 1280):
            page.size(width)
            assert page.js("document.documentElement.scrollWidth - innerWidth") <= 0, (width, address)
            assert page.js("document.querySelectorAll('img[src=x]').length") == 0
            assert page.errors == [], (width, address)
        for scheme in ("dark", "light"):
            page.scheme(scheme)
            assert weak_texts(page) == [], (scheme, address)


def test_data_are_looked_over_and_divided(page: Page, server: Server) -> None:
    page.go(f"{server.base}/data")
    page.click("form[action*='folder=data2&'] button", "Look it over")
    page.wait(f"location.pathname === '/try/answer' && {DONE}", 120)
    page.wait("document.querySelector('.thumbs img').complete && document.querySelector('.thumbs img').naturalWidth")
    assert HOSTILE in page.js("document.querySelector('.thumbs').textContent")
    page.click("a.button", "evenly")
    page.wait("location.pathname === '/data/division' && document.readyState === 'complete'")
    fill(page, "partition", '{name = "iid", num_partitions = 2}')
    page.press("Enter")
    page.wait("document.querySelector('#drawn h2')?.textContent === '2 clients'")
    assert page.js("document.querySelectorAll('.heatmap tbody tr').length") == 2 * 2  # for training and for testing


def test_the_keyboard_alone_suffices(page: Page, server: Server) -> None:
    """Tab reaches everything that can be clicked, and what has the focus can be seen; space ticks, enter follows."""
    strange = server.runs / HOSTILE
    (strange / "summary.json").write_text(json.dumps({"complete": True, "metrics": {"top1": 0.5}}))
    for path in ("/", "/new", "/try", "/run?name=base"):
        page.go(server.base + path)
        wanted = page.js(
            "[...document.querySelectorAll('a, button, input, select, summary')].filter(e => e.type !== 'hidden'"
            " && e.checkVisibility() && !e.disabled).length"
        )
        seen: set[str] = set()
        for _ in range(wanted + 20):
            page.press("Tab")
            seen.add(
                page.js(
                    "(() => { const e = document.activeElement, all = [...document.querySelectorAll('*')];"
                    " const line = getComputedStyle(e).outlineStyle; return all.indexOf(e) + ' ' + e.tagName"
                    " + (line === 'none' && !['IFRAME', 'BODY', 'VIDEO'].includes(e.tagName) ? ' unseen' : ''); })()"
                )
            )
        reached = [one for one in seen if one.split()[1] in ("A", "BUTTON", "INPUT", "SELECT", "SUMMARY")]
        assert len(reached) >= wanted, (path, wanted, sorted(seen))
        assert [one for one in seen if one.endswith("unseen")] == [], path
    page.go(f"{server.base}/")
    for name in ("base", HOSTILE):
        tab_to(page, f"document.activeElement.value === {json.dumps(name)}")
        page.press("Space")
    tab_to(page, "document.activeElement.textContent === 'Compare'")
    page.press("Enter")
    page.wait("location.pathname === '/compare' && document.querySelector('h1')")
    assert page.js("new URLSearchParams(location.search).getAll('run').length") == 2


def tab_to(page: Page, there: str) -> None:
    for _ in range(80):
        if page.js(there):
            return
        page.press("Tab")
    raise AssertionError(there)


def test_a_server_that_is_interrupted_ends_and_says_nothing_bad(page: Page, server: Server) -> None:
    """Also while a page waits for news."""
    page.go(f"{server.base}/")
    os.kill(server.process.pid, signal.SIGINT)
    assert server.process.wait(60) in (0, 130, -signal.SIGINT)
    page.go("about:blank")
    page.errors.clear()
