"""What `fedreel ui` costs: the list of many long runs, and a page that shows a long run as it happens."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from fedreel.core.server import Watcher
from fedreel.machine.alive import this_process
from fedreel.runs.now import Now

CLIENTS = [f"owner-{n:02}" for n in range(10)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0, help="that a live run is watched")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        make_runs(root, given.runs, given.rounds)
        size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
        with Server(root) as server:
            first, again = timed(server.list), min(timed(server.list) for _ in range(5))
            page = timed(lambda: server.get("/run", {"name": "run-0000"}))
            idle = server.share(3.0)
            alive = Live(root / "run-0000", given.rounds)
            watched, rounds = server.watch("run-0000", alive, given.seconds)
        own = now_share(Path(folder))
    rows = [
        (f"list of {given.runs} runs of {given.rounds} rounds, first time", f"{first:.3f} s"),
        ("the same again", f"{again:.3f} s"),
        ("page of one run, first time", f"{page:.3f} s"),
        ("the server's share of a core while nobody looks", f"{100 * idle:.2f} %"),
        (f"and with a live page on a run that grows by {rounds} rounds", f"{100 * watched:.2f} %"),
        ("a run's own time for now.json, rounds of 100 clients in 1 s", f"{100 * own:.3f} %"),
    ]
    print(f"{size / 1e6:.0f} MB of runs, {os.cpu_count()} cores")
    for name, value in rows:
        print(f"{name:<68}{value:>12}")
    told = {"first": first, "again": again, "page": page, "idle": idle, "live": watched, "now": own}
    print(json.dumps({**told, "runs": given.runs, "rounds": given.rounds, "listed": server.listed}))


def make_runs(root: Path, runs: int, rounds: int) -> None:
    """Half of them finished."""
    recipe = f'system = "bench"\nseed = 0\n[method]\nname = "fedavg"\n[round]\nrounds = {rounds}\n'
    content = "".join(line for r in range(1, rounds + 1) for line in lines(r))
    summary = {"complete": True, "rounds": rounds, "metrics": {"top1": 0.5}, "method": "fedavg", "wall_seconds": 9.0}
    for number in range(runs):
        folder = root / f"run-{number:04}"
        folder.mkdir(parents=True)
        (folder / "recipe.toml").write_text(recipe)
        (folder / "run.json").write_text('{"id": "x", "start": 1}')
        (folder / "metrics.jsonl").write_text(content)
        if number % 2:
            (folder / "summary.json").write_text(json.dumps(summary))


def lines(r: int) -> list[str]:
    tests = {name: {"top1": (r % 100) / 100, "loss": 1 / r, "n": 10} for name in CLIENTS}
    metrics = {"top1": (r % 100) / 100, "loss": 1 / r, "top1_clients": 0.5, "loss_clients": 1 / r}
    test = {"round": r, "phase": "test", "metrics": metrics, "clients": tests, "seconds": 0.1}
    train = {"round": r, "phase": "train", "loss": 1 / r, "clients": CLIENTS, "ordered": 10, "answered": 10}
    return [json.dumps(test) + "\n", json.dumps({**train, "bytes_up": 1000, "bytes_down": 1000, "seconds": 0.5}) + "\n"]


class Server:
    """`fedreel ui` in a process of its own."""

    def __init__(self, root: Path) -> None:
        command = [sys.executable, "-m", "fedreel", "ui", "--runs", str(root), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        link = re.search(r"http\S+", self.process.stdout.readline())
        assert link is not None
        self.client = httpx.Client(base_url=link[0].split("/?")[0], follow_redirects=True, timeout=60, trust_env=False)
        while True:
            try:
                self.client.get("/nothing", params={"token": link[0].partition("token=")[2]})
                return
            except httpx.ConnectError:
                time.sleep(0.1)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()

    def get(self, path: str, params: dict[str, str] | None = None) -> str:
        answer = self.client.get(path, params=params)
        answer.raise_for_status()
        return answer.text

    def list(self) -> None:
        self.listed = self.get("/").count("data-run=")

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def share(self, seconds: float) -> float:
        before, began = self.cpu(), time.monotonic()
        time.sleep(seconds)
        return (self.cpu() - before) / (time.monotonic() - began)

    def watch(self, name: str, live: Live, seconds: float) -> tuple[float, int]:
        """The share of a core that a page of this run takes while it grows, and by how many rounds it grew."""
        ending = threading.Event()

        def look() -> None:
            with suppress(httpx.HTTPError), self.client.stream("GET", "/run/events", params={"name": name}) as answer:
                for _ in answer.iter_lines():
                    if ending.is_set():
                        return

        looker = threading.Thread(target=look, daemon=True)
        writer = threading.Thread(target=live.grow, args=(ending,), daemon=True)
        looker.start()
        writer.start()
        time.sleep(3.0)  # the whole of it is drawn once
        share = self.share(seconds)
        ending.set()
        writer.join()
        return share, live.written


class Live:
    """A run that goes on, two rounds a second."""

    def __init__(self, run: Path, rounds: int) -> None:
        self.run, self.round, self.written = run, rounds, 0

    def grow(self, ending: threading.Event) -> None:
        while not ending.wait(0.5):
            self.round += 1
            self.written += 1
            said: dict[str, Any] = {**this_process(), "round": self.round, "rounds": 10**6, "kind": "train"}
            (self.run / "now.json").write_text(json.dumps({**said, "clients": dict.fromkeys(CLIENTS, "working")}))
            with open(self.run / "metrics.jsonl", "a") as file:
                file.writelines(lines(self.round))


def now_share(folder: Path) -> float:
    """What telling who works costs a run whose rounds of 100 clients take a second: what the same loop takes more than
    with a watcher that does nothing."""
    now = Now(folder, 10)
    costs = [_told(watcher) for watcher in (Watcher(), now)]
    now.close()
    return max(costs[1] - costs[0], 0.0)


def _told(watcher: Watcher, rounds: int = 5) -> float:
    names, began = [f"c{n}" for n in range(100)], time.process_time()
    for r in range(rounds):
        watcher.work_begins(r, "train", names)
        for name in names:
            watcher.client_is(name, "working")
            watcher.client_is(name, "done")
            time.sleep(0.01)
    return (time.process_time() - began) / rounds


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
