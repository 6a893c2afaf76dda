"""How long a person waits: for `fedreel --help`, and from `fedreel run` to the end of the first training step, on data
that are in the cache. Wall and CPU seconds, the best of several.

    python bench/startup.py [--repeat 3] [--recipes fsar,cfedvs]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SYSTEMS = ("cfedvs", "fedlid", "fedvmr", "fedvssl", "fsar")
MOST = {"help": 0.5, "first batch": 5.0}  # seconds
PROBE = """
import os, sys, time
from fedreel.core import training

backward = training.gradients

def gradients(*arguments):
    found = backward(*arguments)
    cpu = sum(os.times()[:4])
    os.write(int(os.environ["TELL"]), f"{time.monotonic()} {cpu}".encode())
    os._exit(0)

training.gradients = gradients
sys.argv = ["fedreel", *sys.argv[1:]]
from fedreel.__main__ import main
main()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--recipes", default=SYSTEMS, type=lambda text: text.split(","))
    given = parser.parse_args()
    if given.repeat < 1:
        parser.error("--repeat must be at least 1")
    rows = {"--help": best([time_help() for _ in range(given.repeat)])}
    for name in given.recipes:
        first_batch(name)  # makes the data
        rows[name] = best([first_batch(name) for _ in range(given.repeat)])
    print(f"{'until':<24}{'seconds':>9}{'CPU s':>9}")
    for name, (wall, cpu) in rows.items():
        print(f"{'fedreel --help' if name == '--help' else f'{name}: a first step':<24}{wall:>9.2f}{cpu:>9.2f}")
    told = {name: {"seconds": wall, "cpu_seconds": cpu} for name, (wall, cpu) in rows.items()}
    slowest = max(rows[name][0] for name in given.recipes)
    kept = {"help": rows["--help"][0] < MOST["help"], "first_batch": slowest < MOST["first batch"]}
    print(json.dumps({"bench": "startup", **told, "slowest_first_batch": slowest, "within": kept}))


def best(times: list[tuple[float, float]]) -> tuple[float, float]:
    return min(wall for wall, _ in times), min(cpu for _, cpu in times)


def time_help() -> tuple[float, float]:
    before, began = os.times(), time.monotonic()
    subprocess.run([sys.executable, "-m", "fedreel", "--help"], check=True, stdout=subprocess.DEVNULL)
    took, after = time.monotonic() - began, os.times()
    return took, sum(after[2:4]) - sum(before[2:4])


def first_batch(recipe: str) -> tuple[float, float]:
    """The command as it is, in a process that ends itself after its first gradients. The client is this process's own:
    the engine is `local`."""
    reading, writing = os.pipe()
    with tempfile.TemporaryDirectory(prefix="startup-") as folder:
        command = ["run", recipe, "--engine", "local", "--device", "cpu", "--out", str(Path(folder) / "run")]
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-c", PROBE, *command],
            pass_fds=[writing],
            env={**os.environ, "TELL": str(writing)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(writing)
        with open(reading) as file:
            said = file.read()
        _, problems = process.communicate()
    if not said:
        sys.exit(f"{recipe}: no batch came\n{problems[-3000:]}")
    ended, cpu = map(float, said.split())
    return ended - began, cpu


if __name__ == "__main__":
    main()
