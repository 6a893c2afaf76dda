"""Runs a small federation in forked children that are killed at a chosen moment. Speaks JSON lines on stdin and stdout.

Imports are paid once; each child is a fork, so that dozens of kill points take seconds. A command is
{"out": folder, "method": "fedbn" | "fedbuff", "kill": kill}, with a kill of
null | {"at": n, "when": "before" | "after" | "torn"} | {"after": seconds}."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
import fedreel.core.state as state
import fedreel.runs.checkpoint as checkpoint
import fedreel.runs.written_once as written_once
from fedreel.config import Recipe, RoundConfig, TrainConfig, TransferConfig, WorldConfig
from fedreel.methods.fedbn import FedBN
from fedreel.methods.fedbuff import FedBuff
from fedreel.runs.run import run
from support.toy import Toy


def work(out: Path, name: str = "fedbn") -> None:
    late = name == "fedbuff"
    recipe = Recipe(
        system="toy",
        device="cpu",
        task={"name": "toy"},
        method={"name": name},
        train=TrainConfig(batch_size=4, lr=0.1, momentum=0.9, keep_optimizer=True),
        round=RoundConfig(rounds=6, fraction=1.0 if late else 0.5, evaluate_every=2),
        transfer=TransferConfig(up="int8"),  # so that remainders must come back as well
        world=WorldConfig(drop=0.2) if late else None,
    )
    method = FedBuff(buffer=2, in_flight=3) if late else FedBN(weight_by="equal")
    run(recipe, out, resume=(out / "recipe.toml").exists(), quiet=True, task=Toy(), method=method)


def arm(at: int, when: str) -> list[int]:
    """Count the calls that touch the disk; die at the given one."""
    count = [0]

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def counted(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            hit = count[0] == at
            if hit and when == "before":
                die()
            result = function(*args, **kwargs)
            if hit and when == "torn" and args and isinstance(args[-1], str | os.PathLike) and os.path.isfile(args[-1]):
                os.truncate(args[-1], os.path.getsize(args[-1]) // 2)
            if hit:
                die()
            return result

        return call

    os.replace, os.fsync, os.open = counted(os.replace), counted(os.fsync), counted(os.open)
    Path.write_text, Path.unlink = counted(Path.write_text), counted(Path.unlink)  # type: ignore[method-assign]
    for module in (checkpoint, state, written_once):
        module.save_file = counted(module.save_file)  # type: ignore[attr-defined]
    return count


def child(command: dict[str, Any]) -> None:
    kill = command["kill"] or {}
    count = arm(kill.get("at", -1), kill.get("when", "before"))
    if "after" in kill:
        signal.setitimer(signal.ITIMER_REAL, kill["after"])
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the default action ends the process at once, like SIGKILL
    try:
        work(Path(command["out"]), command["method"])
    except BaseException as error:
        print(json.dumps({"error": repr(error)}), flush=True)
        os._exit(3)
    print(json.dumps({"calls": count[0]}), flush=True)
    os._exit(0)


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        work(Path(folder) / "warm-up")  # what torch imports late is then imported once, not in every child
    for line in sys.stdin:
        command = json.loads(line)
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            child(command)
        _, status = os.waitpid(pid, 0)
        ended = {"killed": os.WIFSIGNALED(status), "code": os.waitstatus_to_exitcode(status)}
        print(json.dumps({"ended": ended, "seconds": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    main()
