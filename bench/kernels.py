"""The kernels of summarization against dtaidistance, aeon, tslearn, ruptures and plain numpy, in one run, as ratios."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BENCH = Path(__file__).resolve().parent
PEERS = ("dtaidistance==2.5.1", "tslearn==0.10.0", "aeon==1.6.0", "ruptures==1.1.10")
Job = Callable[[], Any]
JOBS = {  # name -> (what it is, its peers)
    "dtw": ("DTW 1000 x 1000, scalar", ("dtaidistance", "aeon", "tslearn")),
    "dtw_pairs": ("DTW 2016 pairs of 200, scalar", ("dtaidistance", "aeon", "tslearn")),
    "dtw_1024": ("DTW 100 x 120 in 1024-d", ("tslearn", "aeon")),
    "kts": ("KTS n=600 in 1024-d, up to 30 changes", ("ruptures",)),
    "kts_8": ("KTS n=600 in 8-d, up to 30 changes", ("ruptures",)),
    "knapsack": ("knapsack 60 shots, capacity 900", ("numpy rows",)),
}
SECONDS = 0.3  # each job is called again for so long; the fastest call counts


def main() -> int:
    arguments = parse_arguments()
    if arguments.contender:
        return run_contender(arguments.contender, arguments.data)
    if hasattr(os, "sched_setaffinity"):  # contenders inherit it
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])
    with tempfile.TemporaryDirectory(prefix="kernels-") as folder:
        data = Path(folder) / "data.npz"
        make_data(data)
        contenders = {"fedreel": sys.executable}
        if not arguments.skip_peers:
            contenders["peers"] = python_of_peers()
        best: dict[str, dict[str, dict[str, Any]]] = {}
        for repeat in range(arguments.repeat):
            for contender, python in contenders.items():
                say(f"{repeat + 1}: {contender}")
                keep_fastest(best, measured(python, contender, data, arguments.threads))
    return report(best, arguments)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="times each contender runs, in turn with the others")
    parser.add_argument("--threads", type=int, default=2, help="cores for each contender")
    parser.add_argument("--skip-peers", action="store_true", help="fedreel and numpy only; installs nothing")
    parser.add_argument("--contender", choices=("fedreel", "peers"), help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if min(arguments.repeat, arguments.threads) < 1:
        parser.error("--repeat and --threads must be at least 1")
    return arguments


def make_data(path: Path) -> None:
    rng = np.random.default_rng(0)
    shots = np.repeat(rng.normal(size=(20, 1024)), 30, axis=0)
    video = shots + 0.5 * rng.normal(size=shots.shape)
    np.savez(
        path,
        x=rng.normal(size=1000).cumsum(),
        y=rng.normal(size=1000).cumsum(),
        many=rng.normal(size=(64, 200)).cumsum(axis=1),
        a=rng.normal(size=(100, 1024)),
        b=rng.normal(size=(120, 1024)),
        video=video,
        narrow=np.ascontiguousarray(video[:, :8]),
        values=rng.random(60),
        weights=rng.integers(20, 200, 60),
    )


def python_of_peers() -> str:
    """The interpreter of the peers' environment, made on first use. They need an older numpy than fedreel."""
    folder = BENCH / ".envs" / "kernels"
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        say(f"installing {', '.join(PEERS)} into {folder}")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PEERS], check=True, stdout=sys.stderr)
        ready.touch()
    return str(python)


def measured(python: str, contender: str, data: Path, threads: int) -> dict[str, dict[str, Any]]:
    """Run a contender in a process of its own: job -> name -> its fastest call and what it found."""
    command = [python, str(Path(__file__).resolve()), "--contender", contender, "--data", str(data)]
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    environment = os.environ | dict.fromkeys(names, str(threads))
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def run_contender(contender: str, data: Path) -> int:
    with np.load(data) as file:
        arrays = {name: file[name] for name in file.files}
    jobs = fedreel_jobs(arrays) if contender == "fedreel" else peer_jobs(arrays)
    results: dict[str, dict[str, Any]] = {}
    for (job, name), call in jobs.items():
        results.setdefault(job, {})[name] = {"found": call(), "seconds": fastest(call)}  # the first call compiles
    print(json.dumps(results))
    return 0


def fastest(call: Job) -> float:
    best, until = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < until or best == float("inf"):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return best


def fedreel_jobs(d: dict[str, np.ndarray]) -> dict[tuple[str, str], Job]:
    from fedreel.kernels.dtw import dtw, pairwise
    from fedreel.kernels.knapsack import knapsack
    from fedreel.kernels.kts import kts

    many = list(d["many"])
    return {
        ("dtw", "fedreel"): lambda: dtw(d["x"], d["y"]),
        ("dtw_pairs", "fedreel"): lambda: float(pairwise(many).sum()) / 2,
        ("dtw_1024", "fedreel"): lambda: dtw(d["a"], d["b"]),
        ("kts", "fedreel"): lambda: kts(d["video"], 30).tolist(),
        ("kts_8", "fedreel"): lambda: kts(d["narrow"], 30).tolist(),
        ("knapsack", "fedreel"): lambda: knapsack(d["values"], d["weights"], 900).tolist(),
        ("knapsack", "numpy rows"): lambda: knapsack_rows(d["values"], d["weights"], 900),
    }


def peer_jobs(d: dict[str, np.ndarray]) -> dict[tuple[str, str], Job]:
    """aeon and tslearn sum squared distances (tslearn takes the root at the end): as much work, another number."""
    import aeon.distances as aeon
    import ruptures
    import tslearn.metrics as tslearn
    from dtaidistance import dtw

    x, y, many = d["x"], d["y"], d["many"]
    across = np.ascontiguousarray(d["a"].T), np.ascontiguousarray(d["b"].T)

    def segment(video: np.ndarray) -> list[int]:
        unit = video / np.linalg.norm(video, axis=1, keepdims=True)
        return ruptures.KernelCPD(kernel="linear", min_size=1).fit(unit).predict(n_bkps=30)[:-1]

    def parallel_pairs() -> float:
        matrix = dtw.distance_matrix_fast(many, inner_dist="euclidean", parallel=True, compact=True)
        return float(np.sum(matrix))

    return {
        ("dtw", "dtaidistance"): lambda: dtw.distance_fast(x, y, inner_dist="euclidean"),
        ("dtw", "aeon"): lambda: float(aeon.dtw_distance(x, y)),
        ("dtw", "tslearn"): lambda: float(tslearn.dtw(x, y)),
        ("dtw_pairs", "dtaidistance"): parallel_pairs,
        ("dtw_pairs", "aeon"): lambda: float(aeon.dtw_pairwise_distance(many, n_jobs=-1).sum()) / 2,
        ("dtw_pairs", "tslearn"): lambda: float(tslearn.cdist_dtw(many).sum()) / 2,
        ("dtw_1024", "tslearn"): lambda: float(tslearn.dtw(d["a"], d["b"])),
        ("dtw_1024", "aeon"): lambda: float(aeon.dtw_distance(*across)),
        ("kts", "ruptures"): lambda: segment(d["video"]),
        ("kts_8", "ruptures"): lambda: segment(d["narrow"]),
    }


def knapsack_rows(values: np.ndarray, weights: np.ndarray, capacity: int) -> list[int]:
    """The same dynamic program with a numpy call for each item."""
    table = np.zeros((len(values) + 1, capacity + 1))
    for i, (value, weight) in enumerate(zip(values, weights)):
        table[i + 1] = table[i]
        if weight <= capacity:
            np.maximum(table[i, weight:], table[i, : capacity + 1 - weight] + value, out=table[i + 1, weight:])
    chosen = []
    for i in range(len(values) - 1, -1, -1):
        if table[i + 1, capacity] != table[i, capacity]:
            chosen.append(i)
            capacity -= int(weights[i])
    return chosen[::-1]


def keep_fastest(best: dict[str, dict[str, dict[str, Any]]], new: dict[str, dict[str, dict[str, Any]]]) -> None:
    for job, results in new.items():
        for name, result in results.items():
            kept = best.setdefault(job, {}).setdefault(name, result)
            if result["seconds"] < kept["seconds"]:
                best[job][name] = result


def report(best: dict[str, dict[str, dict[str, Any]]], arguments: argparse.Namespace) -> int:
    """The table, then one line of JSON. Peers that solve the very same problem must find the same."""
    print(f"{arguments.threads} threads; fastest call of {arguments.repeat} runs")
    faster: dict[str, dict[str, float]] = {}
    for job, (title, peers) in JOBS.items():
        ours = best[job]["fedreel"]["seconds"]
        print(f"\n{title:<40}{'ms':>10}{'to fedreel':>12}")
        for name in ("fedreel", *(peer for peer in peers if peer in best[job])):
            seconds = best[job][name]["seconds"]
            print(f"  {name:<38}{seconds * 1000:>10.3f}{seconds / ours:>12.1f}")
            if name != "fedreel":
                faster.setdefault(job, {})[name] = round(seconds / ours, 2)
    wrong = disagreements(best)
    for line in wrong:
        say(line)
    milliseconds = {job: {name: r["seconds"] * 1000 for name, r in found.items()} for job, found in best.items()}
    least = min(ratio for ratios in faster.values() for ratio in ratios.values())
    print("\n" + json.dumps({"least": least, "faster_than": faster, "ms": milliseconds, "disagree": wrong}))
    return 1 if wrong else 0


def disagreements(best: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    wrong = []
    for job, peer in (("dtw", "dtaidistance"), ("dtw_pairs", "dtaidistance"), ("knapsack", "numpy rows")):
        ours, theirs = (best[job].get(name, {}).get("found") for name in ("fedreel", peer))
        if theirs is not None and not np.allclose(ours, theirs, rtol=1e-9):
            wrong.append(f"{job}: fedreel found {ours}, {peer} {theirs}")
    planted = list(range(30, 600, 30))
    if best["kts"]["fedreel"]["found"] != planted:
        wrong.append(f"kts: fedreel found {best['kts']['fedreel']['found']}, planted {planted}")
    return wrong


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
