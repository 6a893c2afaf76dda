"""Try mutated inputs on all readers and messages: `make fuzz N=1000000`, or `python tests/fuzz/run.py --help`.

Inputs are divided over the harnesses by how fast each is. A fault is written to a file, with the number that makes it
again: `python tests/fuzz/run.py --only NAME --seed S --number I`."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from fuzz.harness import Bench, Fault, Kind, digest
from fuzz.readers import HARNESSES

Job = tuple[str, int, int, int]  # harness, seed, first number, how many
BATCH = 500  # inputs that one process tries
KINDS: dict[Kind, str] = {"crash": "crashes", "memory": "over_1_GB", "time": "over_5_s"}
HANGS = 60  # seconds after which an input is given up


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="how many in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=-1, help="only the input of this number")
    parser.add_argument("--only", default="", help="harnesses whose names hold this")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("fuzz-found"), help="where faults are written")
    given = parser.parse_args(words)
    names = [name for name in HARNESSES if given.only in name]
    began = time.monotonic()
    faults: list[Fault] = []
    tried: Counter[str] = Counter()
    if given.number >= 0:
        batches, rates = [(name, given.seed, given.number, 1) for name in names], {}
    else:
        rates = {name: _rate(name, given.seed) for name in names}
        batches = _batches(names, rates, given.inputs, given.seed)
    for batch, found in _in_processes(batches, given.jobs):
        tried[batch[0]] += batch[3]
        for fault in found:
            faults.append(fault)
            print(_told(fault, given.out), flush=True)
    seconds = time.monotonic() - began
    counts = {name: {"inputs": tried[name], **_counted(faults, name)} for name in names}
    whole = {"inputs": tried.total(), **_counted(faults)}
    print("\n".join(_table(counts, whole, rates)))
    print(f"{len(names)} harnesses in {seconds:.0f} s, seed {given.seed}: {len(faults)} faults")
    print(json.dumps({"bench": "fuzz", "seed": given.seed, **whole, "harnesses": counts}))
    return 1 if faults else 0


def _counted(faults: Sequence[Fault], name: str | None = None) -> dict[str, int]:
    """How many of them are of each kind: of all harnesses, or of one."""
    kinds = Counter(fault.kind for fault in faults if name in (None, fault.harness))
    return {words: kinds[kind] for kind, words in KINDS.items()}


def _table(counts: Mapping[str, Mapping[str, int]], whole: Mapping[str, int], rates: Mapping[str, float]) -> list[str]:
    """A line for each harness, the slowest first, and one for all."""
    words = [*whole]
    lines = [f"{'harness':<28} {'a second':>9} " + " ".join(f"{word.replace('_', ' '):>10}" for word in words)]
    for name in sorted(counts, key=lambda name: rates.get(name, 0.0)):
        rate = f"{rates[name]:.0f}" if name in rates else ""
        lines.append(f"{name:<28} {rate:>9} " + " ".join(f"{counts[name][word]:>10}" for word in words))
    return [*lines, f"{'all':<28} {'':>9} " + " ".join(f"{whole[word]:>10}" for word in words)]


def _batches(names: list[str], rates: dict[str, float], inputs: int, seed: int) -> list[Job]:
    """As many inputs for each harness as take the same time, a quarter of an equal share at least."""
    whole = sum(rates.values())
    batches = []
    for name in names:
        wanted = max(round(inputs * rates[name] / whole), inputs // (4 * len(names)), 1)
        batches += [(name, seed, at, min(BATCH, wanted - at)) for at in range(0, wanted, BATCH)]
    return batches


@dataclass
class _Running:
    batch: Job
    process: BaseProcess
    number: int  # of the input that is being tried
    since: float
    hangs: bool = False


def _in_processes(batches: list[Job], jobs: int) -> Iterator[tuple[Job, list[Fault]]]:
    """Each batch in a process of its own: a reader that crashes or hangs ends nothing but its batch."""
    context = multiprocessing.get_context("fork")
    waiting, running = deque(batches), dict[Connection, _Running]()
    while waiting or running:
        while waiting and len(running) < jobs:
            here, there = context.Pipe(duplex=False)
            batch = waiting.popleft()
            process = context.Process(target=_batch, args=(batch, there))
            process.start()
            there.close()
            running[here] = _Running(batch, process, batch[2], time.monotonic())
        for pipe in wait([*running], 1.0):
            one = running[pipe]  # type: ignore[index]
            told = _told_by(pipe)  # type: ignore[arg-type]
            if isinstance(told, int):
                one.number, one.since = told, time.monotonic()
                continue
            yield one.batch, [_ended(one)] if told is None else told
            one.process.join()
            del running[pipe]  # type: ignore[arg-type]
        for one in running.values():
            if time.monotonic() - one.since > HANGS:
                one.hangs = True
                one.process.kill()


def _told_by(pipe: Connection) -> int | list[Fault] | None:
    """The number of the next input, what was found in the end, or None if the process is gone."""
    try:
        told: int | list[Fault] = pipe.recv()
    except EOFError:
        return None
    return told


def _ended(one: _Running) -> Fault:
    name, seed, *_ = one.batch
    bench = _bench(name)
    data = bench.input(seed, one.number)
    bench.close()
    if one.hangs:
        return Fault(name, seed, one.number, "time", f"killed after {HANGS} s", data)
    return Fault(name, seed, one.number, "crash", "the process died over it", data)


def _rate(name: str, seed: int) -> float:
    """Inputs a second, from the seeds: what is spoiled is not tried here, lest it end this process."""
    bench = _bench(name)
    began, done = time.monotonic(), 0
    try:
        while done < 20 and time.monotonic() - began < 0.5:
            bench.accepts(bench.seeds[done % len(bench.seeds)])
            bench.input(seed, done)
            done += 1
    finally:
        bench.close()
    return done / (time.monotonic() - began)


def _batch(job: Job, pipe: Connection) -> None:
    name, seed, first, count = job
    bench = _bench(name)
    found: list[Fault] = []
    try:
        for number in range(first, first + count):
            pipe.send(number)
            found += bench.tries(seed, [number])
        pipe.send(found)
    finally:
        bench.close()


def _bench(name: str) -> Bench:
    warnings.simplefilter("ignore")
    return Bench(HARNESSES[name])


def _told(fault: Fault, out: Path) -> str:
    out.mkdir(exist_ok=True)
    path = out / f"{fault.harness.replace(' ', '-')}-{digest(fault.data)}.bin"
    path.write_bytes(fault.data)
    return f"{fault.harness}, seed {fault.seed}, number {fault.number}: {fault.what} ({path})"


if __name__ == "__main__":
    sys.exit(main())
