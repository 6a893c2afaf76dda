"""The engine `processes`: how well it uses cores, against `local`, and beside other programs. A table and one line of
JSON for each part.

    python bench/processes.py cnn      # pfl's CNN job on 1, 2, 4 ... workers: efficiency against one
    python bench/processes.py recipes  # the default recipes of the five systems on `processes`, against `local`
    python bench/processes.py busy     # the same recipes on both engines beside two busy loops, against quiet

Efficiency is (clients a second on n workers) / (n times those on one worker). Equal clients that do not divide evenly
among workers leave some idle at the end of a round: `at most` is what that leaves.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

BENCH = Path(__file__).resolve().parent
SYSTEMS = ("cfedvs", "fedlid", "fedvmr", "fedvssl", "fsar")
LOOPS = 2  # busy programs


def main() -> None:
    given = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="processes-") as folder:
        {"cnn": cnn, "recipes": recipes, "busy": busy}[given.part](given, Path(folder))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("cnn", "recipes", "busy"))
    numbers = {"type": lambda text: [int(n) for n in text.split(",")], "metavar": "N,N"}
    cores = [2**i for i in range(8) if 2**i <= len(os.sched_getaffinity(0))]
    parser.add_argument("--workers", default=cores, **numbers, help="cnn: how many there are in turn, and 1")
    parser.add_argument("--clients", type=int, default=96, help="cnn: clients a round; pfl's job has 50")
    parser.add_argument(
        "--rounds", type=int, default=0, help="cnn: timed rounds (1); else rounds of each recipe (its own)"
    )
    parser.add_argument("--recipes", default=SYSTEMS, type=lambda text: text.split(","))
    parser.add_argument("--repeat", type=int, default=1, help="runs of each, in turn; the fastest counts")
    given = parser.parse_args()
    if min(given.workers) < 1 or given.clients < 1 or given.repeat < 1 or given.rounds < 0:
        parser.error("--workers, --clients and --repeat must be at least 1, --rounds at least 0")
    return given


def cnn(given: argparse.Namespace, folder: Path) -> None:
    from engine_jobs.common import make_data

    rounds, counts = given.rounds or 1, sorted({1, *given.workers})
    data = folder / "data.npz"
    warm_up = min(given.clients, max(counts))
    make_data(data, rounds, clients=given.clients, warm_up=warm_up)
    seconds: dict[int, float] = {}
    weights: dict[int, bytes] = {}
    server: dict[int, float] = {}
    for _ in range(given.repeat):
        for workers in counts:
            out = folder / f"{workers}.json"
            command = [BENCH / "engine_jobs" / "fedreel_job.py", "--model", "cnn", "--rounds", rounds, "--data", data]
            command += ["--out", out, "--threads", 1, "--engine", "processes", "--workers", workers]
            run_python(command, {"CUDA_VISIBLE_DEVICES": ""})
            result = json.loads(out.read_text())
            took = statistics.median(result["seconds_per_round"])
            seconds[workers] = min(took, seconds.get(workers, math.inf))
            server[workers] = result["cpu_seconds"] * 1000 / (warm_up + rounds * given.clients)
            print(f"{workers} workers: {took:.3f} s a round", file=sys.stderr, flush=True)
            weights[workers] = out.with_suffix(".npy").read_bytes()
    efficiency = {n: seconds[1] / (n * took) for n, took in seconds.items()}
    most = {n: given.clients / (n * math.ceil(given.clients / n)) for n in counts}
    print(f"{given.clients} clients a round, CNN of 1.63M parameters, batch 10, one epoch")
    print(f"{'workers':>8}{'clients/s':>12}{'efficiency':>12}{'at most':>10}{'server, ms a client':>22}")
    for n in counts:
        print(f"{n:>8}{given.clients / seconds[n]:>12.1f}{efficiency[n]:>12.3f}{most[n]:>10.3f}{server[n]:>22.2f}")
    same = len({*weights.values()}) == 1
    print("all end with the same bits" if same else "THEY END WITH DIFFERENT BITS")
    told = {"clients": given.clients, "seconds_per_round": seconds, "efficiency": efficiency, "at_most": most}
    print(json.dumps({"bench": "processes cnn", **told, "server_ms_per_client": server, "same_bits": same}))


def recipes(given: argparse.Namespace, folder: Path) -> None:
    warm_up(given, folder)
    seconds = time_recipes(given, folder)
    rows = {name: seconds["processes"][name] / seconds["local"][name] for name in given.recipes}
    together = sum(seconds["processes"].values()) / sum(seconds["local"].values())
    print(f"{'recipe':<12}{'local s':>10}{'processes s':>13}{'ratio':>8}")
    for name, ratio in rows.items():
        print(f"{name:<12}{seconds['local'][name]:>10.1f}{seconds['processes'][name]:>13.1f}{ratio:>8.2f}")
    print(f"{'together':<12}{'':>23}{together:>8.2f}")
    print(json.dumps({"bench": "processes recipes", "seconds": seconds, "ratios": rows, "together": together}))


def busy(given: argparse.Namespace, folder: Path) -> None:
    warm_up(given, folder)
    quiet = time_recipes(given, folder)
    with busy_loops(LOOPS):
        beside = time_recipes(given, folder)
    slower = {engine: sum(beside[engine].values()) / sum(quiet[engine].values()) for engine in quiet}
    print(f"{'engine':<12}{'quiet s':>10}{f'beside {LOOPS} s':>12}{'ratio':>8}")
    for engine, ratio in slower.items():
        print(f"{engine:<12}{sum(quiet[engine].values()):>10.1f}{sum(beside[engine].values()):>12.1f}{ratio:>8.2f}")
    print(json.dumps({"bench": "processes busy", "quiet": quiet, "beside": beside, "slower": slower}))


def warm_up(given: argparse.Namespace, folder: Path) -> None:
    """Data are generated and features kept before anything is timed."""
    for name in given.recipes:
        run_recipe(name, "local", folder / f"warm-{name}", 1)


def time_recipes(given: argparse.Namespace, folder: Path) -> dict[str, dict[str, float]]:
    """Seconds of each recipe, as commands, from their start to their end; engines in turn."""
    seconds: dict[str, dict[str, float]] = {"local": {}, "processes": {}}
    for _ in range(given.repeat):
        for name in given.recipes:
            for engine, found in seconds.items():
                out = Path(tempfile.mkdtemp(dir=folder)) / "run"
                found[name] = min(run_recipe(name, engine, out, given.rounds), found.get(name, math.inf))
    return seconds


def run_recipe(name: str, engine: str, out: Path, rounds: int) -> float:
    command = ["-m", "fedreel", "run", name, "--engine", engine, "--device", "cpu", "--out", out]
    began = time.perf_counter()
    run_python([*command, *(["--set", f"round.rounds={rounds}"] if rounds else [])])
    return time.perf_counter() - began


def run_python(command: Sequence[object], environment: dict[str, str] | None = None) -> None:
    """As a person would: with as many threads as PyTorch takes by itself."""
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment = inherited | (environment or {})
    done = subprocess.run([sys.executable, *map(str, command)], env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr[-3000:]}")


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    main()
