"""Makes the pictures of the documentation from generated data: `python docs/screenshots.py OUT`. It needs Chromium and
the extras `dev` and `flower`, and takes some minutes. With `--work` what it trained is kept, and used again."""

from __future__ import annotations

import argparse
import csv
import io
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from PIL import Image

from fedreel import playground

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.browser import Page, browser

FEDREEL = [sys.executable, "-m", "fedreel"]
RUNS = {  # what is trained to be shown: name -> recipe and settings
    "recognition/fedavg": ("recognition", "round.rounds=14"),
    "recognition/fedbn": ("recognition", "round.rounds=14", "method.name=fedbn"),
    "summaries": ("cfedvs", "round.rounds=12", "train.epochs=1", "train.lr=1e-3"),
    "moments": ("fedvmr", "round.rounds=80", "data.size=demo", "round.evaluate_every=4"),
}
SITES = {"owner-01": "north", "owner-02": "south", "owner-03": "east"}
JOB = """system = "recognition"
task = {name = "recognition", frames = 9, size = 28, backbone = {name = "r3d", width = 8, blocks = [1, 1, 1, 1]}}
method = {name = "fedbn"}
engine = {name = "flower"}
data = {role = "clips", labels = LABELS}
round = {rounds = 3}
train = {batch_size = 8}
"""
WIDE, PHONE, HEIGHT, TALL = 1280, 390, 860, 1060
QUALITY = 72
FILM = (800, 540)  # size of the moving picture
FRAME = 120  # milliseconds of it
DONE = "document.querySelector('h1 .badge')?.textContent === 'done'"


def main() -> None:
    told = argparse.ArgumentParser(description=__doc__)
    told.add_argument("out", type=Path)
    told.add_argument("--work", type=Path, help="folder for runs and data; a temporary one if not given")
    given = told.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        work = given.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work = work.resolve()
        work.mkdir(parents=True, exist_ok=True)
        prepare(work)
        server = stack.enter_context(sites(work))
        base, link = stack.enter_context(ui(work, server))
        page = stack.enter_context(browser())
        Studio(page, base, given.out).all(link, work)


def prepare(work: Path) -> None:
    """Films, clips with owners and classes, and runs; what is there is left as it is."""
    world = work / "world"
    playground.make(world, seed=0, size="small", parts=["actions", "summary", "moments"])
    films = work / "films"
    films.mkdir(exist_ok=True)
    for number, path in enumerate(sorted((world / "summary").rglob("*.mp4"))[:54:9], 1):
        shutil.copy(path, films / f"holiday-{number}.mp4")
    for name, row in tested(world).items():
        shutil.copy(world / "moments" / row["owner"] / f"{name}.mp4", films)
    for row in csv.DictReader(io.StringIO((world / "actions" / "index.csv").read_text())):
        folder = work / "clips" / row["owner"] / row["label"]
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(world / "actions" / row["path"], folder)
    shutil.rmtree(work / "runs" / "live", ignore_errors=True)  # it is watched anew
    for name, (recipe, *settings) in RUNS.items():
        out = work / "runs" / name
        if not (out / "summary.json").exists():
            words = [word for setting in settings for word in ("--set", setting)]
            resume = ["--resume"] if (out / "recipe.toml").exists() else []
            fedreel("run", recipe, *words, "--out", out, *resume, "--quiet")


def tested(world: Path) -> dict[str, dict[str, str]]:
    """The first film of each owner that is for testing, by its name."""
    rows = list(csv.DictReader(io.StringIO((world / "moments" / "videos.csv").read_text())))
    owners = dict.fromkeys(row["owner"] for row in rows)
    firsts = [next(row for row in rows if row["owner"] == owner and row["split"] == "test") for owner in owners]
    return {row["id"]: row for row in firsts}


def asked(world: Path, film: str) -> str:
    """The first sentence of a film."""
    lines = (world / "moments" / "annotations.txt").read_text().splitlines()
    return next(line.partition("##")[2].rstrip(".") for line in lines if line.startswith(f"{film} "))


@contextmanager
def sites(work: Path) -> Iterator[Path]:
    """A server with three sites on this machine, and a job that they have done."""
    folder = work / "server"
    for owner, name in SITES.items():
        shutil.copytree(work / "clips" / owner, work / "clips-of" / name, dirs_exist_ok=True)
    if not folder.exists():
        fedreel("server", "init", folder, "--host", "localhost", "--port", 8911)
        for name in SITES.values():
            place = ("--name", name, "--data", f"clips={work / 'clips-of' / name}", "--server", "localhost:8911")
            fedreel("site", "init", work / name, *place, "--ca", folder / "ca.crt")
            fedreel("server", "enroll", work / name / "site.pub", "--server", folder)
    with ExitStack() as stack:
        first_line(stack.enter_context(running("server", "start", folder)))
        for process in [stack.enter_context(running("site", "start", "--site", work / n)) for n in SITES.values()]:
            first_line(process)  # it is connected
        labels = sorted(path.name for path in (work / "clips" / "owner-01").iterdir())
        (work / "job.toml").write_text(JOB.replace("LABELS", str(labels).replace("'", '"')))
        out = work / "runs" / "three-hospitals"
        if not (out / "summary.json").exists():
            shutil.rmtree(out, ignore_errors=True)
            fedreel("submit", work / "job.toml", "--out", out, "--server", folder, "--quiet")
        yield folder


@contextmanager
def ui(work: Path, server: Path) -> Iterator[tuple[str, str]]:
    """The address of `fedreel ui` over all that, and the link that opens it."""
    places = ("--runs", work / "runs", "--data", work / "films", "--data", work / "clips", "--server", server)
    with running("ui", *places, "--port", 0) as process:
        found = re.search(r"http\S+", first_line(process))
        assert found is not None
        yield found[0].split("/?")[0], found[0]


class Studio:
    """A browser before the pages, and a folder for the pictures."""

    def __init__(self, page: Page, base: str, out: Path) -> None:
        self.page, self.base, self.out = page, base, out
        self.film: list[Image.Image] = []

    def all(self, link: str, work: Path) -> None:
        self.page.size(WIDE, HEIGHT)
        for _ in range(100):  # until it listens
            self.page.call("Page.navigate", url=link)
            time.sleep(0.2)
            if self.page.js("document.title") == "Runs: fedreel":
                break
        self.live()
        self.runs()
        self.data()
        self.tries(work / "world")
        self.go("/sites")
        self.page.wait("document.querySelectorAll('.badge.good').length >= 4")
        self.take("sites")
        self.reports(work)
        self.save_film()

    def live(self) -> None:
        """A run from the form, as it happens; the film begins with it."""
        self.go("/new?recipe=recognition")
        self.take("new-run")
        self.shoot(8)
        for name, text in (("round.rounds", "14"), ("name", "live")):
            self.page.js(f"document.querySelector('[name=\"{name}\"]').closest('details')?.setAttribute('open', '')")
            self.page.js(f"document.querySelector('[name=\"{name}\"]').select()")
            self.page.type(text)
        self.page.click("button", "Start")
        self.page.wait("location.pathname === '/'")
        self.page.click("a[href='/run?name=live']", "live")
        self.page.wait("document.querySelectorAll('#curves path.thick').length", 300)
        self.page.js("document.querySelector('#now').scrollIntoView()")
        for number in range(3, 11):
            self.page.wait(f"document.body.textContent.includes('Round {number} of 14')", 300)
            self.shoot(6)
        self.page.js("scrollTo(0, 0)")
        self.take("live")
        self.go("/")
        self.page.wait("document.body.textContent.includes('running')")

    def runs(self) -> None:
        self.take("runs")
        self.go("/run?name=live")
        self.page.click("button", "Stop")
        self.page.wait("document.querySelector('[data-state=interrupted]')", 120)
        self.go("/compare?run=recognition/fedavg&run=recognition/fedbn")
        self.page.js("scrollTo(0, 0)")
        self.take("compare")

    def data(self) -> None:
        self.go("/data")
        self.page.click("form[action*='folder=data2&'] button", "Look it over")
        self.answered("document.querySelector('.thumbs img')?.naturalWidth")
        self.take("data")
        self.page.click("a.button", "Dirichlet 0.1")
        self.page.wait("location.pathname === '/data/division' && document.querySelector('.heatmap')")
        self.page.js("document.querySelector('#drawn').scrollIntoView()")
        self.take("division")

    def tries(self, world: Path) -> None:
        """What models make of generated films; the film ends with it."""
        self.go("/try?source=data1/holiday-1.mp4&model=run:summaries")
        self.page.wait("document.querySelector('video').readyState >= 2")
        self.take("try")
        self.page.click("button", "Summarize")
        self.answered("document.querySelector('video')?.readyState >= 2")
        self.page.size(WIDE, TALL)
        self.play("summary")
        film = next(iter(tested(world)))
        self.go(f"/try?source=data1/{film}.mp4&model=run:moments")
        self.fill("find.sentence", asked(world, film))
        self.page.press("Enter")
        self.answered("document.querySelector('video')?.readyState >= 2")
        self.play("moment")
        self.go("/try?source=data2/owner-01/bursts/" + self.first_clip() + "&model=run:recognition/fedavg")
        self.page.js("document.querySelector('[name=\"search.folder\"]').value = 'data2'")
        self.page.click("button", "Search")
        self.answered("document.querySelector('video')?.readyState >= 2")
        self.play("search")
        self.page.size(WIDE, HEIGHT)

    def play(self, name: str) -> None:
        """What was found, playing."""
        self.page.click(".moments button")
        self.page.js("scrollTo(0, 0)")
        for _ in range(5):
            time.sleep(0.3)
            self.shoot(2)
        self.take(name)

    def reports(self, work: Path) -> None:
        address = (work / "runs" / "recognition" / "fedavg" / "report.html").as_uri()
        for scheme in ("light", "dark"):
            self.page.scheme(scheme)
            self.page.go(address)
            self.take(f"report-{scheme}")
        self.page.size(PHONE, HEIGHT)
        self.page.go(address)
        self.take("phone-dark")
        self.page.scheme("light")
        self.go("/")
        self.take("phone")
        self.page.size(WIDE, HEIGHT)

    def first_clip(self) -> str:
        words = "document.querySelector('option[value^=\"data2/owner-01/bursts/\"]').value.split('/').pop()"
        self.go("/try")
        return str(self.page.js(words))

    def answered(self, shown: str) -> None:
        self.page.wait(f"location.pathname === '/try/answer' && {DONE}", 300)
        self.page.wait(shown)

    def fill(self, name: str, text: str) -> None:
        self.page.js(f"document.querySelector('[name=\"{name}\"]').select()")
        self.page.type(text)

    def go(self, path: str) -> None:
        self.page.go(self.base + path)

    def seen(self) -> Image.Image:
        path = self.out / ".seen.png"
        self.page.picture(path, whole=False)
        with Image.open(path) as picture:
            loaded = picture.convert("RGB")
        path.unlink()
        return loaded

    def take(self, name: str) -> None:
        time.sleep(0.3)
        self.seen().save(self.out / f"{name}.webp", quality=QUALITY, method=6)
        print(name, flush=True)

    def shoot(self, frames: int) -> None:
        """So many frames of the film are what is to be seen now."""
        seen = self.seen().crop((0, 0, WIDE, HEIGHT))
        self.film += [seen.resize(FILM, Image.Resampling.LANCZOS)] * frames

    def save_film(self) -> None:
        first, *rest = self.film
        options = {"duration": FRAME, "loop": 0, "quality": 60, "method": 4, "minimize_size": True}
        first.save(self.out / "ui-moving.webp", save_all=True, append_images=rest, **options)


@contextmanager
def running(*words: object) -> Iterator[subprocess.Popen[str]]:
    """A command that is ended as by Ctrl-C."""
    command = [*FEDREEL, *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    """What a command says when it is ready."""
    assert process.stdout is not None
    return process.stdout.readline()


def fedreel(*words: object) -> None:
    subprocess.run([*FEDREEL, *map(str, words)], check=True)


if __name__ == "__main__":
    main()
