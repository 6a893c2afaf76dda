"""Time per round on Flower against the `local` engine, and bytes on the wire: 10 clients, 0.5 MB and 130 MB of weights.

    python bench/flower.py [--rounds 3] [--sizes 0.5 130] [--engines local flower-sim flower] [--set KEY=VALUE ...]
                           [--secure] [--cut MB]

`flower` is two sites with five clients each on loopback, with TLS and node keys, started by the command line. Between
the sites and the server lies a line that counts bytes. The clients' work is next to nothing, so that a round's time is
transport: processes that Flower starts, polling, copies, TLS, and masks. The first round is left out. Settings such as
transfer.up=int8 hold for all runs; with --secure every job runs a second time by secure sums; with --cut the line
breaks after every so many MB, and sites must connect anew."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CLIENTS, SITES = 10, ("one", "two")
ENGINES = ("local", "flower-sim", "flower")
FEDREEL = [sys.executable, "-m", "fedreel"]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--sizes", type=float, nargs="+", default=[0.5, 130.0], help="MB of weights")
    arguments.add_argument("--engines", nargs="+", default=ENGINES, choices=ENGINES)
    arguments.add_argument("--set", dest="settings", action="append", default=[], help="a setting of the recipe")
    arguments.add_argument("--secure", action="store_true", help="by secure sums too")
    arguments.add_argument("--cut", type=float, default=0.0, help="MB after which the line breaks; 0: it does not")
    options = arguments.parse_args()
    ways = (False, True) if options.secure else (False,)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, contextlib.ExitStack() as stack:
        root, sites = Path(folder), None
        for engine in (name for name in ENGINES if name in options.engines):
            if engine == "flower":
                sites = stack.enter_context(Sites(root, int(options.cut * 1e6)))
            for megabytes, secure in itertools.product(options.sizes, ways):
                rows.append(measure(root, engine, megabytes, options.rounds, options.settings, secure, sites))
        if sites is not None and options.cut:
            print(f"the line broke {sites.line.breaks} times")
    show(rows)


def measure(
    root: Path,
    engine: str,
    megabytes: float,
    rounds: int,
    settings: list[str],
    secure: bool,
    sites: Sites | None,
) -> dict[str, Any]:
    out = root / f"{engine}-{megabytes:g}-{secure}"
    text = RECIPE.format(size=int(megabytes * 1e6 / 4), rounds=rounds, clients=CLIENTS, secure=str(secure).lower())
    (root / "job.toml").write_text(text)
    words = ["submit", "--server", str(sites.server)] if sites else ["run", "--engine", engine]
    before = sites.line.counted() if sites else (0, 0)
    began = time.monotonic()
    words += [word for setting in settings for word in ("--set", setting)]
    subprocess.run([*FEDREEL, words[0], str(root / "job.toml"), "--out", str(out), *words[1:], "--quiet"],
                   env=environment(), check=True, stdout=subprocess.DEVNULL)  # fmt: skip
    wall = time.monotonic() - began
    after = sites.line.counted() if sites else (0, 0)
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    seconds = [r["seconds"] for r in records if r["phase"] == "train"][1:]
    summary = json.loads((out / "summary.json").read_text())
    shutil.rmtree(out)
    return {
        "engine": engine + (", secure" if secure else ""),
        "megabytes": megabytes,
        "seconds_per_round": statistics.median(seconds),
        "whole_run": wall,
        "wire_up": (after[0] - before[0]) / rounds,
        "wire_down": (after[1] - before[1]) / rounds,
        "update_bytes": summary["bytes_up"] / rounds,
    }


def show(rows: list[dict[str, Any]]) -> None:
    local = {r["megabytes"]: r["seconds_per_round"] for r in rows if r["engine"] == "local"}
    head = f"{'engine':<20}{'weights':>11}{'s/round':>10}{'x local':>10}{'run s':>9}"
    print(f"{head}{'updates':>12}{'wire up':>12}{'wire down':>12}")
    for r in rows:
        if r["megabytes"] in local:
            r["times_local"] = r["seconds_per_round"] / local[r["megabytes"]]
        times = f"{r['times_local']:>10.1f}" if "times_local" in r else f"{'-':>10}"
        wire = [f"{r[k] / 1e6:9.1f} MB" if r["wire_up"] else f"{'-':>12}" for k in ("wire_up", "wire_down")]
        numbers = f"{r['seconds_per_round']:>10.2f}{times}{r['whole_run']:>9.1f}"
        print(f"{r['engine']:<20}{r['megabytes']:>8g} MB{numbers}{r['update_bytes'] / 1e6:>9.1f} MB{''.join(wire)}")
    print("updates: what clients send, as the ledger counts it; wire: between sites and server; each a round's")
    result = {
        f"{r['engine'].replace(', ', '_')}_{r['megabytes']:g}MB": {
            k: round(v, 3) for k, v in r.items() if isinstance(v, float) and v == v
        }
        for r in rows
    }
    print(json.dumps(result))


RECIPE = """
system = "bulk"
device = "cpu"
[task]
name = "bulk"
size = {size}
clients = {clients}
[method]
name = "fedavg"
[train]
batch_size = 2
lr = 0.01
[round]
rounds = {rounds}
evaluate_every = 0
min_answers = 1.0
[secure]
sums = {secure}
"""


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(HERE / "plugin"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


class Line(threading.Thread):
    """A piece of cable: passes bytes between a port here and another, and counts them. It breaks after every so many,
    in the middle of whatever is under way; whoever is connected must connect anew."""

    def __init__(self, to: int, cut: int = 0) -> None:
        super().__init__(daemon=True)
        self.to, self.port, self.up, self.down = to, 0, 0, 0
        self.cut, self.breaks = cut, 0
        self._ends: set[asyncio.StreamWriter] = set()
        self._ready = threading.Event()
        self.start()
        self._ready.wait()

    def counted(self) -> tuple[int, int]:
        return self.up, self.down

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        async with server:
            await server.serve_forever()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:
            writer.close()
            return
        self._ends |= {writer, far_writer}
        await asyncio.gather(self._pass(reader, far_writer, "up"), self._pass(far_reader, writer, "down"))
        self._ends -= {writer, far_writer}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        try:
            while piece := await reader.read(1 << 18):
                setattr(self, way, getattr(self, way) + len(piece))
                if self.cut and self.up + self.down > self.cut * (self.breaks + 1):
                    self.breaks += 1
                    for end in self._ends:
                        end.transport.abort()
                    return
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


class Sites:
    """A server and sites, up while the block lasts."""

    def __init__(self, root: Path, cut: int = 0, names: Sequence[str] = SITES) -> None:
        self.root, self.server, self.cut, self.names = root, root / "server", cut, names
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Sites:
        import socket

        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._do("server", "init", self.server, "--host", "127.0.0.1", "--port", port, "--listen", "127.0.0.1")
        for number, site in enumerate(self.names):
            data = self.root / f"data-{site}"
            data.mkdir()
            names = [f"client{i:02d}" for i in range(CLIENTS) if i % len(self.names) == number]
            (data / "clients.txt").write_text(" ".join(names))
            self._do("site", "init", self.root / site, "--data", data, "--allow", "*")
            self._do("server", "enroll", self.root / site / "site.pub", "--server", self.server)
            policy = self.root / site / "policy.toml"
            policy.write_text(policy.read_text().replace("min_cohort = 3", f"min_cohort = {min(3, len(self.names))}"))
        for site, other in itertools.permutations(self.names, 2):
            self._do("site", "add-peer", self.root / other / "site.pub", "--site", self.root / site)
        self.line = Line(port, self.cut)
        self._start("server", "Listening for sites", "server", "start", self.server)
        ca = self.server / "ca.crt"
        for site in self.names:
            where = ("--site", self.root / site, "--server", f"127.0.0.1:{self.line.port}", "--ca", ca)
            self._start(site, "waiting for work", "site", "start", *where)
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._running):
            process.terminate()
            process.wait()

    def _do(self, *words: object) -> None:
        subprocess.run([*FEDREEL, *map(str, words)], env=environment(), check=True, stdout=subprocess.DEVNULL)

    def _start(self, name: str, until: str, *words: object) -> None:
        log = self.root / f"{name}.out"
        env = {**environment(), "PYTHONUNBUFFERED": "1"}
        with open(log, "wb") as file:
            process = subprocess.Popen([*FEDREEL, *map(str, words)], env=env, stdout=file, stderr=subprocess.STDOUT)
        self._running.append(process)
        while until not in log.read_text():
            if process.poll() is not None:
                raise SystemExit(f"{name} ended:\n{log.read_text()}")
            time.sleep(0.2)


if __name__ == "__main__":
    main()
