"""A round on a Ray cluster of two hosts against `processes` on the same cores: 1,000 clients with 0.5 MB of weights. A
table and one line of JSON.

    python bench/cluster.py [--clients 1000] [--megabytes 0.5] [--rounds 4] [--cores N] [--repeat 1]

The hosts are network namespaces of this machine, each with half of its cores; making them needs root. The clients' work
is next to nothing, so that a round's time is what engines add to it. The first round is left out: actors start in it.
`flower-sim` hands every client's update to the server and ends with the bits of `local`; `together` has actors add up
those of some clients (transfer.together), which rounds differently. Contenders run in turn, as commands; with --repeat
the fastest median of each counts."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from flower import FEDREEL, RECIPE, environment

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))  # which knows how to make hosts
from support.hosts import Hosts, ray_on

STORE = 2_000_000_000  # bytes that a host of the cluster may have under way
RATE = "1e-6"  # of training: the clients' numbers are large, and updates that leap are refused


def main() -> None:
    given = parse_arguments()
    try:
        made = Hosts("other")
    except OSError as error:
        sys.exit(f"two hosts cannot be made here, as root they could: {error}")
    one_thread = {**environment(), "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    with closing(made) as hosts, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        bench = Bench(given, Path(folder), one_thread)
        for _ in range(given.repeat):
            bench.run("local", "local")
            bench.run("processes", "processes", f"engine.workers={2 * given.cores}")
        with ray_on(hosts, given.cores, one_thread, STORE) as address:
            there = f"engine.address={address}"
            for _ in range(given.repeat):
                bench.run("flower-sim", "flower-sim", there, inside=hosts.inside("hub"))
                bench.run("together", "flower-sim", there, "transfer.together=true", inside=hosts.inside("hub"))
    bench.show()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--megabytes", type=float, default=0.5, help="of weights")
    parser.add_argument("--rounds", type=int, default=4)
    cores = max(1, len(os.sched_getaffinity(0)) // 2)
    parser.add_argument("--cores", type=int, default=cores, help="of each host; `processes` has twice as many workers")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each")
    given = parser.parse_args()
    if min(given.clients, given.cores, given.repeat) < 1 or given.rounds < 2:
        parser.error("--clients, --cores and --repeat must be at least 1, --rounds at least 2")
    return given


class Bench:
    """The runs of a job, and what is found in their folders."""

    def __init__(self, given: argparse.Namespace, folder: Path, environment: dict[str, str]) -> None:
        self.given, self.folder, self.environment = given, folder, environment
        sizes = {"size": int(given.megabytes * 1e6 / 4), "clients": given.clients, "rounds": given.rounds}
        (folder / "job.toml").write_text(RECIPE.format(**sizes, secure="false"))
        self.rows: dict[str, dict[str, Any]] = {}

    def run(self, name: str, engine: str, *settings: str, inside: Sequence[str] = ()) -> None:
        out = Path(tempfile.mkdtemp(dir=self.folder)) / "run"
        words = [word for setting in (f"train.lr={RATE}", *settings) for word in ("--set", setting)]
        command = [*inside, *FEDREEL, "run", str(self.folder / "job.toml"), "--engine", engine, "--out", str(out)]
        done = subprocess.run([*command, *words, "--quiet"], env=self.environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{name} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        rounds = [record for record in records if record["phase"] == "train"][1:]
        seconds = statistics.median(record["seconds"] for record in rounds)
        print(f"{name}: {seconds:.2f} s a round", file=sys.stderr, flush=True)
        self.rows[name] = {
            "seconds_per_round": min(seconds, self.rows.get(name, {"seconds_per_round": seconds})["seconds_per_round"]),
            "mb_down": rounds[-1].get("wire_down", 0) / 1e6,
            "mb_up": rounds[-1].get("wire_up", 0) / 1e6,
            "model": (out / "model" / "global.safetensors").read_bytes(),
        }

    def show(self) -> None:
        base = self.rows["processes"]["seconds_per_round"]
        ratios = {name: row["seconds_per_round"] / base for name, row in self.rows.items()}
        print(f"{'engine':<12}{'s/round':>10}{'x processes':>13}{'to actors':>13}{'from actors':>13}")
        for name, row in self.rows.items():
            wire = "".join(f"{row[way]:>10.1f} MB" if row[way] else f"{'-':>13}" for way in ("mb_down", "mb_up"))
            print(f"{name:<12}{row['seconds_per_round']:>10.2f}{ratios[name]:>13.2f}{wire}")
        same = self.rows["flower-sim"]["model"] == self.rows["processes"]["model"] == self.rows["local"]["model"]
        print("all but `together` end with the same bits" if same else "THEY END WITH DIFFERENT BITS")
        told = {name: {k: round(v, 3) for k, v in row.items() if k != "model"} for name, row in self.rows.items()}
        sizes = {
            "clients": self.given.clients,
            "megabytes": self.given.megabytes,
            "hosts": 2,
            "cores": self.given.cores,
        }
        found = {"times_processes": {name: round(ratio, 3) for name, ratio in ratios.items()}, "same_bits": same}
        print(json.dumps({"bench": "cluster", **sizes, "engines": told, **found}))


if __name__ == "__main__":
    main()
