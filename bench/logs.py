"""What it costs to look at a run of very many rounds, and to write its log.

    python bench/logs.py [--rounds 100 1000 10000 100000]

A run's files are written as a run writes them, all but its models: metrics, ledger, digest. Then every reader looks at
them in a process of its own: seconds of a processor without the imports, peak memory, and the size of the page if it
makes one. The last line is one JSON object; `longest_to_shortest` has, for each reader, the cost at the most rounds
in times of that at the fewest.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CLIENTS = [f"owner-{n}" for n in range(4)]
NO_DIGEST = "report, without the digest"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, nargs="+", default=[100, 1000, 10_000, 100_000])
    options = parser.parse_args()
    warm_up()
    found = {rounds: measured(rounds) for rounds in sorted(options.rounds)}
    print(f"\n{'seconds of a processor, peak MB, kB of the page':<46}" + "".join(f"{n:>14,}" for n in found))
    for name in next(iter(found.values())):
        rows = [found[rounds][name] for rounds in found]
        print(f"{name:<46}" + "".join(f"{row['cpu_s']:>14.3f}" for row in rows))
        print(f"{'':<46}" + "".join(f"{row['peak_mb']:>14.0f}" for row in rows))
        if "page_kb" in rows[0]:
            print(f"{'':<46}" + "".join(f"{row['page_kb']:>14.0f}" for row in rows))
    few, many = (found[rounds] for rounds in (min(found), max(found)))
    ratios = {name: {key: many[name][key] / max(few[name][key], 1e-3) for key in few[name]} for name in few}
    print(json.dumps({"bench": "logs", "found": found, "longest_to_shortest": ratios}))


def measured(rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "runs" / "long"
        writing = apart(lambda: written(run, rounds))
        size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
        print(f"{rounds:>9,} rounds: {size / 1e6:.1f} MB of files", flush=True)
        shutil.copytree(run, run.with_name("other"), copy_function=os.link)  # the same files by another name
        rows = {"writing, a thousand rounds at its end": writing}
        for name in READERS:
            rows[name] = apart(lambda name=name: one(READERS[name](run)))
        return rows


def apart(work: Callable[[], dict[str, float]]) -> dict[str, float]:
    """In a process of its own, because a process's peak never falls."""
    into, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(out, json.dumps(work()).encode())
        os._exit(0)
    os.close(out)
    with os.fdopen(into) as file:
        said = file.read()
    assert os.waitpid(pid, 0)[1] == 0
    return json.loads(said)


def warm_up() -> None:
    """So that imports and caches are not counted."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "runs" / "long"
        written(run, 3)
        shutil.copytree(run, run.with_name("other"))
        for make in READERS.values():
            one(make(run))


def written(run: Path, rounds: int) -> dict[str, float]:
    """A run's folder. Returns what the last thousand rounds of its log took, for each thousand."""
    import tomli_w
    import torch

    from fedreel.config import Recipe, RoundConfig, as_table
    from fedreel.core.job import make_method, make_task, resolved
    from fedreel.core.pool import Roll
    from fedreel.core.server import ServerState
    from fedreel.core.weights import Weights
    from fedreel.report.digest import Digest
    from fedreel.runs.checkpoint import Checkpoints, Snapshot

    run.mkdir(parents=True)
    recipe = Recipe(task={"name": "recognition"}, method={"name": "fedavg"}, round=RoundConfig(rounds=10**6))
    recipe = resolved(recipe, make_task(recipe), make_method(recipe))
    (run / "recipe.toml").write_text(tomli_w.dumps(as_table(recipe)))
    (run / "run.json").write_text('{"id": "x", "start": 1}')
    (run / "checkpoint").mkdir()
    digest, last, began = Digest(run), min(rounds, 1000), time.process_time()
    with open(run / "metrics.jsonl", "a") as metrics, open(run / "ledger.jsonl", "a") as ledger:
        for r in range(1, rounds + 1):
            if r == rounds - last + 1:
                began = time.process_time()
            metrics.writelines(records(r))
            ledger.writelines(departures(r))
            metrics.flush()
            ledger.flush()
            digest.round_done()
        spent = time.process_time() - began
    model = Weights.of({"w": torch.zeros(10)})
    totals = {"bytes_up": 4000 * rounds, "bytes_down": 4000 * rounds, "seconds": 0.5 * rounds}
    state = ServerState(rounds, {"global": model}, totals=totals, trained=Roll(CLIENTS))
    mark = {"metrics": (run / "metrics.jsonl").stat().st_size}
    Checkpoints(run / "checkpoint").save(Snapshot.of(state, mark))
    return {"cpu_s": spent * 1000 / last, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def records(r: int) -> list[str]:
    top1 = 0.9 - 0.8 / (1 + r / 500) + (r * 7919 % 100) / 2000
    tests = {name: {"top1": top1, "loss": 1 / r, "n": 10} for name in CLIENTS}
    metrics = {"top1": top1, "loss": 1 / r, "top1_clients": top1, "loss_clients": 1 / r}
    test = {"round": r, "phase": "test", "metrics": metrics, "clients": tests, "seconds": 0.1}
    train = {"round": r, "phase": "train", "loss": 1 / r, "clients": CLIENTS, "ordered": 4, "answered": 4}
    costs = {"bytes_up": 4000, "bytes_down": 4000, "bytes_testing": 4000, "seconds": 0.5}
    refused = {"round": r, "phase": "refused", "client": CLIENTS[r % 4], "reason": "offline", "detail": "it was away"}
    rows = [test, {**train, **costs}, *([refused] if r % 10 == 0 else [])]
    return [json.dumps(row) + "\n" for row in rows]


def departures(r: int) -> list[str]:
    row = {"kind": "departure", "time": 1e9 + r, "round": r, "layout": "L", "bytes": 1000, "kinds": ["weights"]}
    purposes = {"train": {"samples": 10.0, "loss": 0.5}, "evaluate": {"top1": 0.5, "n": 10.0}}
    return [
        json.dumps({**row, "client": client, "purpose": purpose, "numbers": numbers}) + "\n"
        for client in CLIENTS
        for purpose, numbers in purposes.items()
    ]


def one(look: Callable[[], str]) -> dict[str, float]:
    began = time.process_time()
    page = look()
    spent = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"cpu_s": spent, "peak_mb": peak, **({"page_kb": len(page.encode()) / 1000} if page else {})}


def _status(run: Path) -> Callable[[], str]:
    from fedreel.runs.reading import read_progress, read_summary

    return lambda: str((read_summary(run), read_progress(run)))[:0]


def _list(run: Path) -> Callable[[], str]:
    from fedreel.ui.board import Board

    return lambda: str(Board(run.parent).rows())[:0]


def _first_look(run: Path) -> Callable[[], str]:
    from fedreel.ui.watched import Watched

    return lambda: "".join(Watched(run).parts().values())


def _next_look(run: Path) -> Callable[[], str]:
    """When a round more has come, all is drawn again."""
    from fedreel.ui.watched import Watched

    watched = Watched(run)
    watched.parts()

    def look() -> str:
        with open(run / "metrics.jsonl", "a") as metrics:
            metrics.writelines(records(watched.run.rounds + 1))
        watched._next = 0.0
        return "".join(watched.parts().values())

    return look


def _report(run: Path) -> Callable[[], str]:
    from fedreel.report import write

    return lambda: write(run).read_text()


def _report_without(run: Path) -> Callable[[], str]:
    (run / "digest.json").unlink(missing_ok=True)
    return _report(run)


def _side_by_side(run: Path) -> Callable[[], str]:
    from fedreel.ui.runs import _compared

    _ended(run)
    return lambda: _compared({name: run.with_name(name) for name in ("long", "other")})


def _ended(run: Path) -> None:
    for folder in (run, run.with_name("other")):
        (folder / "summary.json").write_text('{"complete": false, "metrics": {"top1": 0.5}}')


def _compare(run: Path) -> Callable[[], str]:
    from fedreel.report.compare import compare_table

    _ended(run)
    return lambda: str(compare_table([run, run.with_name("other")]))[:0]


def _resume(run: Path) -> Callable[[], str]:
    import torch

    from fedreel.report.digest import Digest
    from fedreel.runs.rundir import RunDir, recipe_of

    def look() -> str:
        folder = RunDir(run, recipe_of(run), resume=True)
        folder.begin(torch.device("cpu"))
        Digest(run)
        folder.close()
        return ""

    return look


READERS: dict[str, Callable[[Path], Callable[[], str]]] = {
    "fedreel status": _status,
    "ui: the list of runs": _list,
    "ui: page of the run, first look": _first_look,
    "ui: page of the run, a round later": _next_look,
    "ui: runs side by side": _side_by_side,
    "report.html": _report,
    "fedreel compare": _compare,
    "run --resume": _resume,
    NO_DIGEST: _report_without,
}


if __name__ == "__main__":
    main()
