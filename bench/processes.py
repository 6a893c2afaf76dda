"""The engine `processes`: how well it uses cores, against `local`, and beside other programs. A table and one line of
JSON for each part.

    python bench/processes.py cnn              # pfl's CNN job on 1, 2, 4 ... workers: efficiency against one
    python bench/processes.py recipes          # the five systems' default recipes on `processes`, against `local`
    python bench/processes.py busy --rounds 3  # the same recipes on `processes` beside two busy loops, against quiet
    python bench/processes.py gpu              # a recipe by 2 and 4 worker processes on one GPU, against `local` there

Each run of a recipe is printed when it has ended. With --keep FILE --minutes 6 a command ends soon after so many
minutes, and the same command goes on with what is missing. --before SRC times `local` as another version has it, whose
sources lie in SRC (git worktree add OLD COMMIT; --before OLD/src).

Efficiency is (clients a second on n workers) / (n times those on one worker). `at most` is the same of n bare processes
that train the same clients with no server and no exchange: what the machine (clocks, shared caches, threads of one
core) and clients that do not divide evenly take away is in both. `of bare` is clients a second against theirs.

`gpu` compares rounds, without the first: what the start of processes and of CUDA costs is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
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
ENGINES = ("local", "processes")
LOOPS = 2  # busy programs
BEGAN = time.monotonic()


def main() -> None:
    given = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="processes-") as folder:
        {"cnn": cnn, "recipes": recipes, "busy": busy, "gpu": gpu}[given.part](given, Path(folder))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("cnn", "recipes", "busy", "gpu"))
    numbers = {"type": lambda text: [int(n) for n in text.split(",")], "metavar": "N,N"}
    cores = [2**i for i in range(8) if 2**i <= len(os.sched_getaffinity(0))]
    parser.add_argument("--workers", **numbers, help="cnn: how many there are in turn, and 1; gpu: in turn (2,4)")
    parser.add_argument("--clients", type=int, default=96, help="cnn: clients a round; pfl's job has 50")
    parser.add_argument(
        "--rounds",
        type=int,
        default=0,
        help="cnn: timed rounds (1); gpu: with the first (6); else rounds of each recipe (its own)",
    )
    parser.add_argument("--recipes", type=lambda text: text.split(","), help="all five; gpu: the first of them (fsar)")
    parser.add_argument("--device", default="cuda", help="gpu: cuda or cuda:N")
    parser.add_argument("--engines", default=ENGINES[1:], type=lambda text: text.split(","), help="busy: which")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each, in turn; the fastest counts")
    parser.add_argument("--before", type=Path, metavar="SRC", help="recipes: `local` is that of these sources")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="what has been timed, to go on from")
    parser.add_argument("--minutes", type=float, default=0, help="no recipe begins after so many; needs --keep")
    given = parser.parse_args()
    given.workers = given.workers or ([2, 4] if given.part == "gpu" else cores)
    given.recipes = given.recipes or (["fsar"] if given.part == "gpu" else [*SYSTEMS])
    if given.minutes and not given.keep:
        parser.error("--minutes ends early: say by --keep FILE where to go on from")
    if given.before and not (given.before / "fedreel").is_dir():
        parser.error(f"--before wants a folder that holds fedreel/, and {given.before} does not")
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
    bare: dict[int, float] = {}
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
        bare = time_alone(data, counts, folder, bare)
    efficiency, most = ({n: s[1] / (n * took) for n, took in s.items()} for s in (seconds, bare))
    print(f"{given.clients} clients a round, CNN of 1.63M parameters, batch 10, one epoch")
    print(f"{'workers':>8}{'clients/s':>12}{'efficiency':>12}{'at most':>10}{'of bare':>10}{'server, ms a client':>22}")
    for n in counts:
        row = f"{n:>8}{given.clients / seconds[n]:>12.1f}{efficiency[n]:>12.3f}{most[n]:>10.3f}"
        print(f"{row}{bare[n] / seconds[n]:>10.3f}{server[n]:>22.2f}")
    same = len({*weights.values()}) == 1
    print("all end with the same bits" if same else "THEY END WITH DIFFERENT BITS")
    told = {"clients": given.clients, "seconds_per_round": seconds, "bare_seconds": bare}
    told |= {"efficiency": efficiency, "at_most": most}
    print(json.dumps({"bench": "processes cnn", **told, "server_ms_per_client": server, "same_bits": same}))


def time_alone(data: Path, counts: Sequence[int], folder: Path, before: dict[int, float]) -> dict[int, float]:
    """Seconds that so many bare processes take for a round's clients; the fastest time counts."""
    out = folder / "alone.json"
    command = [BENCH / "engine_jobs" / "alone_job.py", "--model", "cnn", "--data", data, "--out", out]
    run_python([*command, "--counts", ",".join(map(str, counts))], {"CUDA_VISIBLE_DEVICES": ""})
    took = {int(n): seconds for n, seconds in json.loads(out.read_text()).items()}
    print(f"bare processes: {took}", file=sys.stderr, flush=True)
    return {n: min(took[n], before.get(n, math.inf)) for n in counts}


def recipes(given: argparse.Namespace, folder: Path) -> None:
    seconds = time_recipes(given, folder, ENGINES)
    local, processes = (seconds[engine] for engine in ENGINES)
    rows = {name: processes[name] / local[name] for name in given.recipes}
    together = sum(processes.values()) / sum(local.values())
    print(f"{'recipe':<12}{'local s':>10}{'processes s':>13}{'ratio':>8}")
    for name, ratio in rows.items():
        print(f"{name:<12}{local[name]:>10.1f}{processes[name]:>13.1f}{ratio:>8.2f}")
    print(f"{'together':<12}{sum(local.values()):>10.1f}{sum(processes.values()):>13.1f}{together:>8.2f}")
    told = {"rounds": given.rounds or "the recipes' own", "local_is_of_another_version": bool(given.before)}
    print(json.dumps({"bench": "processes recipes", **told, "seconds": seconds, "ratios": rows, "together": together}))


def busy(given: argparse.Namespace, folder: Path) -> None:
    quiet = time_recipes(given, folder, given.engines)
    with busy_loops(LOOPS):
        beside = time_recipes(given, folder, given.engines, f"beside {LOOPS} loops")
    slower = {engine: sum(beside[engine].values()) / sum(quiet[engine].values()) for engine in quiet}
    print(f"{'engine':<12}{'quiet s':>10}{f'beside {LOOPS} s':>12}{'ratio':>8}")
    for engine, ratio in slower.items():
        print(f"{engine:<12}{sum(quiet[engine].values()):>10.1f}{sum(beside[engine].values()):>12.1f}{ratio:>8.2f}")
    told = {"rounds": given.rounds or "the recipes' own", "quiet": quiet, "beside": beside, "slower": slower}
    print(json.dumps({"bench": "processes busy", **told}))


def gpu(given: argparse.Namespace, folder: Path) -> None:
    """Seconds of a round, the median of all but the first, and how far its metrics are from those of `local`."""
    from fedreel.runs.reading import read_metrics

    name, rounds = given.recipes[0], given.rounds or 6
    ways = {"local": ["local"]} | {f"{n} workers": ["processes", "--set", f"engine.workers={n}"] for n in given.workers}
    seconds: dict[str, float] = {}
    metrics: dict[str, dict[str, float]] = {}
    for number, (way, engine) in itertools.product(range(given.repeat), ways.items()):
        out = folder / f"{way}-{number}".replace(" ", "-")
        command = ["-m", "fedreel", "run", name, "--device", given.device, "--out", out, "--engine", *engine]
        run_python([*command, "--set", f"round.rounds={rounds}"])
        rows = [*read_metrics(out)]
        took = statistics.median([row["seconds"] for row in rows if row["phase"] == "train"][1:])
        seconds[way] = min(took, seconds.get(way, math.inf))
        metrics[way] = [row["metrics"] for row in rows if row["phase"] == "test"][-1]
        print(f"{way}: {took:.3f} s a round", file=sys.stderr, flush=True)
    off = {way: max(abs(metrics[way][m] - metrics["local"][m]) for m in metrics["local"]) for way in ways}
    print(f"{name}, {rounds} rounds on {given.device}\n{'':<12}{'s a round':>12}{'to local':>10}{'metrics off by':>16}")
    for way, took in seconds.items():
        print(f"{way:<12}{took:>12.3f}{took / seconds['local']:>10.2f}{off[way]:>16.1e}")
    told = {"recipe": name, "rounds": rounds, "device": given.device, "seconds_per_round": seconds, "off": off}
    print(json.dumps({"bench": "processes gpu", **told}))


def time_recipes(
    given: argparse.Namespace, folder: Path, engines: Sequence[str], beside: str = "quiet"
) -> dict[str, dict[str, float]]:
    """Seconds of each recipe, as commands, from their start to their end; engines in turn. Data are generated and
    features kept before anything is timed."""
    seconds: dict[str, dict[str, float]] = {engine: {} for engine in engines}
    kept: dict[str, float] = json.loads(given.keep.read_text()) if given.keep and given.keep.exists() else {}
    warm: set[tuple[str, str]] = set()
    for number, name, engine in itertools.product(range(given.repeat), given.recipes, engines):
        source = str(given.before or "") if engine == "local" else ""
        key = f"{name} on {engine}, {beside}, rounds {given.rounds}, number {number}" + " of before" * bool(source)
        if key not in kept:
            if given.minutes and time.monotonic() - BEGAN > 60 * given.minutes:
                sys.exit(f"{given.minutes:g} minutes are over: the same command goes on with {key}")
            if (name, source) not in warm:
                run_recipe(name, engine, Path(tempfile.mkdtemp(dir=folder)) / "warm", 1, source)
                warm.add((name, source))
            kept[key] = run_recipe(name, engine, Path(tempfile.mkdtemp(dir=folder)) / "run", given.rounds, source)
            print(f"{key}: {kept[key]:.1f} s", file=sys.stderr, flush=True)
            if given.keep:
                given.keep.write_text(json.dumps(kept, indent=1))
        seconds[engine][name] = min(kept[key], seconds[engine].get(name, math.inf))
    return seconds


def run_recipe(name: str, engine: str, out: Path, rounds: int, source: str = "") -> float:
    command = ["-m", "fedreel", "run", name, "--engine", engine, "--device", "cpu", "--out", out]
    began = time.perf_counter()
    wanted = ["--set", f"round.rounds={rounds}"] if rounds else []
    run_python([*command, *wanted], {"PYTHONPATH": source} if source else {})
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
