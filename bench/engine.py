"""Simulation engines on one job, in one run: a bare PyTorch loop, fedreel, pfl and Flower on Ray, as ratios."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from engine_jobs.common import BATCH, CLIENTS_PER_ROUND, build_model, flat_weights, make_data

SAME_WORK = 0.01  # more than this and a contender did not do what bare did; rounding gives 1e-7 to 1e-4
BENCH = Path(__file__).resolve().parent
TAG = "FEDREEL_BENCH_RUN"  # set for every process of a run, so that stragglers can be found


@dataclass
class Contender:
    name: str
    script: str
    requirement: str = ""  # a peer: installed into an environment of its own
    options: tuple[str, ...] = ()
    models: tuple[str, ...] = ("linear", "cnn")
    best: dict[str, dict[str, Any]] = field(default_factory=dict)  # model -> its fastest result
    off: dict[str, float] = field(default_factory=dict)  # model -> distance of its weights to bare's
    failure: str = ""

    @property
    def path(self) -> Path:
        return BENCH / "engine_jobs" / self.script


def main() -> int:
    arguments = parse_arguments()
    for number in (signal.SIGINT, signal.SIGTERM):  # leave through the clean-up below
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    contenders = [
        Contender("bare", "bare_job.py"),
        Contender("fedreel", "fedreel_job.py"),
        Contender("fedreel vector", "fedreel_job.py", options=("--engine", "vector"), models=("linear",)),
    ]
    if not arguments.skip_peers:
        peers = ("linear", "cnn") if arguments.peers_cnn else ("linear",)
        flower = "flwr[simulation]==1.41.0"
        contenders += [
            Contender("pfl", "pfl_job.py", "pfl[pytorch]==0.6.0", models=peers),
            Contender("flower", "flower_job.py", flower, models=peers),
            Contender("flower tuned", "flower_job.py", flower, ("--actor-per-core",), models=peers),
        ]

    rounds = {"linear": arguments.rounds_linear, "cnn": arguments.rounds_cnn}
    with tempfile.TemporaryDirectory(prefix="engine-") as folder:
        data = Path(folder) / "data.npz"
        make_data(data, max(rounds.values()))
        for model in arguments.models:
            here = [c for c in contenders if model in c.models]
            check_weights(here, model, data, arguments.threads)
            for repeat in range(arguments.repeat):
                for contender in here:
                    time_rounds(contender, model, rounds[model], repeat, data, arguments.threads)
        report(contenders, arguments)
    return 1 if any(c.failure for c in contenders) else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds-linear", type=int, default=20, help="timed rounds of the linear model")
    parser.add_argument("--rounds-cnn", type=int, default=2, help="timed rounds of the CNN")
    parser.add_argument("--repeat", type=int, default=2, help="times each contender runs, in turn with the others")
    parser.add_argument("--threads", type=int, default=2, help="cores for each contender")
    parser.add_argument("--models", type=lambda text: text.split(","), default=["linear", "cnn"])
    parser.add_argument("--peers-cnn", action="store_true", help="time the peers on the CNN too (long)")
    parser.add_argument("--skip-peers", action="store_true", help="bare and fedreel only; installs nothing")
    arguments = parser.parse_args()
    if not arguments.models or not set(arguments.models) <= {"linear", "cnn"}:
        parser.error(f"--models takes linear, cnn or linear,cnn; found {','.join(arguments.models)}")
    if min(arguments.rounds_linear, arguments.rounds_cnn, arguments.repeat, arguments.threads) < 1:
        parser.error("--rounds-linear, --rounds-cnn, --repeat and --threads must be at least 1")
    return arguments


def check_weights(contenders: list[Contender], model: str, data: Path, threads: int) -> None:
    """One untimed round: all must arrive at bare's weights. (Later rounds amplify rounding and would prove less.)"""
    start = flat_weights(build_model(model)).astype(np.float64)
    bare = start
    for contender in contenders:
        out = run_job(contender, model, 0, data.with_name(f"{slug(contender)}-{model}-check.json"), data, threads)
        if out is None:
            if contender.name == "bare":
                sys.exit("nothing to compare with")
            continue
        weights = np.load(out.with_suffix(".npy")).astype(np.float64)
        if contender.name == "bare":
            bare = weights
        contender.off[model] = float(np.linalg.norm(weights - bare) / np.linalg.norm(bare - start))
        if not contender.off[model] < SAME_WORK:
            fail(contender, f"{model}: weights after one round are {contender.off[model]:.1e} off bare's")


def time_rounds(contender: Contender, model: str, rounds: int, repeat: int, data: Path, threads: int) -> None:
    """Run a contender once and keep the result if it is its fastest so far."""
    out = run_job(contender, model, rounds, data.with_name(f"{slug(contender)}-{model}.json"), data, threads)
    if out is None:
        return
    result = json.loads(out.read_text())
    result["median"] = statistics.median(result["seconds_per_round"])
    say(f"{model} {repeat + 1}: {contender.name} {result['median']:.4f} s per round")
    if model not in contender.best or result["median"] < contender.best[model]["median"]:
        contender.best[model] = result


def run_job(contender: Contender, model: str, rounds: int, out: Path, data: Path, threads: int) -> Path | None:
    """One contender, one model, in a process of its own; None if it failed, now or before."""
    if contender.failure:
        return None
    log = out.with_suffix(".log")
    try:
        command = [python_of(contender), contender.path, "--model", model, "--rounds", rounds, "--data", data]
        run_tagged(
            [str(part) for part in [*command, "--out", out, "--threads", threads, *contender.options]], log, threads
        )
    except subprocess.CalledProcessError as error:
        tail = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
        fail(contender, "\n".join([f"ended with status {error.returncode}", *tail]))
        return None
    return out


def slug(contender: Contender) -> str:
    return contender.name.replace(" ", "-")


def fail(contender: Contender, reason: str) -> None:
    contender.failure = reason
    say(f"{contender.name}: {reason}")


def python_of(contender: Contender) -> str:
    """The interpreter a contender runs in; a peer's environment is made on first use."""
    if not contender.requirement:
        return sys.executable
    folder = BENCH / ".envs" / contender.script.removesuffix("_job.py")
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        say(f"{contender.name}: installing {contender.requirement} into {folder}")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        # All contenders compute with the torch and numpy of this project; torch first, so that no other is fetched.
        pins = folder / "pins.txt"
        lines = (BENCH.parent / "constraints.txt").read_text().splitlines()
        pins.write_text("\n".join(line for line in lines if line.startswith(("torch==", "numpy=="))))
        for requirement in ("torch", contender.requirement):
            install = [python, "-m", "pip", "install", "--quiet", "-c", pins, "numpy", requirement]
            subprocess.run([str(part) for part in install], check=True, stdout=sys.stderr)
        ready.touch()
    return str(python)


def run_tagged(command: list[str], log: Path, threads: int) -> None:
    """Run a command to its end and end whatever it leaves behind, also when this program is interrupted."""
    tag = uuid.uuid4().hex
    environment = os.environ | {TAG: tag, "OMP_NUM_THREADS": str(threads), "PFL_PYTORCH_DEVICE": "cpu"}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(log.parent), "FLWR_HOME": str(log.parent / "flwr")}
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
            end_stragglers(tag)
            process.wait()
    if status:
        raise subprocess.CalledProcessError(status, command)


def end_stragglers(tag: str, patience: float = 5.0) -> None:
    """Wait for the tagged processes to go (Ray's need a moment), then end the rest one by one."""
    give_up = time.monotonic() + patience
    while (left := tagged(tag)) and time.monotonic() < give_up:
        time.sleep(0.1)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def tagged(tag: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{TAG}={tag}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:  # gone meanwhile, or another user's
            continue
    return found


def report(contenders: list[Contender], arguments: argparse.Namespace) -> None:
    """The table, then one line of JSON."""
    seconds = {c.name: {m: r["median"] for m, r in c.best.items()} for c in contenders}

    def ratio(model: str, above: str, below: str) -> float | None:
        pair = [seconds.get(name, {}).get(model) for name in (above, below)]
        return None if None in pair else pair[0] / pair[1]

    threads, repeat = arguments.threads, arguments.repeat
    print(f"\n{CLIENTS_PER_ROUND} clients a round, batch {BATCH}, one epoch, {threads} threads; best of {repeat}")
    for model in arguments.models:
        unit, scale = ("ms per client", 1000 / CLIENTS_PER_ROUND) if model == "linear" else ("s per round", 1.0)
        print(f"\n{model:<16}{unit:>15}{'to bare':>10}{'final loss':>13}{'weights off bare':>19}")
        for contender in [c for c in contenders if model in c.best]:
            result, to_bare = contender.best[model], ratio(model, contender.name, "bare") or math.nan
            row = f"{contender.name:<16}{result['median'] * scale:>15.3f}{to_bare:>10.2f}"
            print(f"{row}{result['final_loss']:>13.4f}{contender.off[model]:>19.1e}")
    print("(weights off bare: after one round, distance to bare's weights / distance bare's have gone)\n")

    both = [seconds.get(name, {}).get("linear") for name in ("fedreel", "bare")]
    engines = [name for name in ("fedreel", "fedreel vector") if "linear" in seconds.get(name, {})]
    ours = min(engines, key=lambda name: seconds[name]["linear"], default="fedreel")
    summary = {
        "cnn_vs_bare": ratio("cnn", "fedreel", "bare"),
        "linear_extra_ms_per_client": None if None in both else (both[0] - both[1]) * 1000 / CLIENTS_PER_ROUND,
        "faster_than_pfl": ratio("linear", "pfl", ours),
        "faster_than_flower_ray": ratio("linear", "flower", ours),
        "faster_than_flower_ray_tuned": ratio("linear", "flower tuned", ours),
        "compared_with_peers": ours,
        "linear_ms_per_client": {
            n: s["linear"] * 1000 / CLIENTS_PER_ROUND for n, s in seconds.items() if "linear" in s
        },
        "cnn_s_per_round": {n: s["cnn"] for n, s in seconds.items() if "cnn" in s},
        "weights_off_bare": {c.name: c.off for c in contenders},
        "final_loss": {c.name: {m: r["final_loss"] for m, r in c.best.items()} for c in contenders},
        "failed": {c.name: c.failure for c in contenders if c.failure},
    }
    print(json.dumps(summary))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
