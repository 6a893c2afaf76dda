"""What a round costs beside its training steps, on one core of a CPU: time, and how often the model is gone through.

    python bench/round_cost.py [--against SRC] [--repeat N]

- `stacked`: 50 clients of the engine `vector` with five steps of ten parameters each; milliseconds of a core for a
  round, without those of the steps themselves
- `clips`: five clients with R3D-18 (33 million parameters) and FedVSSL on the engine `local`, whose training is left
  out; seconds for a round, and how many bytes are read, written and newly taken for it, in models

fedreel runs its whole product path (run directory, ledger, admission, checkpoints). With `--against`, the folder `src`
of another version, this version and that one take turns, each in processes of their own; of each the best process
counts. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

PARTS = ("stacked", "clips")
COHORT, BATCH, STEPS = 50, 10, 5
OWNERS = 5


def stacked(rounds: int) -> dict[str, float]:
    from torch import Tensor

    from fedreel.config import TrainConfig
    from fedreel.engines.stacked.step import StackedStep
    from fedreel.methods.fedavg import FedAvg
    from loops import WARM_UP, federated
    from points import Points

    step, spent, ticks = StackedStep.on, [0.0], []

    def timed(self: StackedStep, *arguments: Any) -> Tensor:
        began = time.thread_time()
        losses = step(self, *arguments)
        spent[0] += time.thread_time() - began
        return losses

    with patch.object(StackedStep, "on", timed):
        config = TrainConfig(batch_size=BATCH, lr=0.1)
        federated(
            Points(BATCH * STEPS),
            FedAvg(),
            config,
            rounds,
            "cpu",
            lambda _: ticks.append((time.process_time() - spent[0], time.thread_time() - spent[0])),
            engine="vector",
            clients=COHORT,
        )
    whole, main = zip(*((b[0] - a[0], b[1] - a[1]) for a, b in pairwise(ticks[WARM_UP:])))
    return {"milliseconds": 1e3 * statistics.median(whole), "of the main thread": 1e3 * statistics.median(main)}


def clips(rounds: int) -> dict[str, float]:
    import torch

    import pretrain_gpu
    from fedreel.config import TrainConfig
    from fedreel.core.discretion import Discretion
    from fedreel.core.task import ClientData, Population, Tensors
    from fedreel.core.timing import Times
    from fedreel.core.training import Fitted
    from fedreel.methods.fedvssl import FedVSSL
    from fedreel.models.r3d import R3DConfig
    from loops import WARM_UP, federated

    class Owners(Population):
        clients = tuple(map(str, range(OWNERS)))

        def data(self, client: str) -> ClientData:
            return ClientData(Tensors((torch.zeros(4, 1),)), Tensors((torch.zeros(0, 1),)), {"frames": 4.0})

    class Clips(pretrain_gpu.Random):
        def population(self, data: Any, seed: int) -> Population:
            return Owners()

    def left_out(self: Discretion, client: Any, *arguments: Any, **_: Any) -> Fitted:
        _, _, examples, optimizer, _ = arguments
        return Fitted(1.0, len(examples), 1, optimizer.lr, Times(0.001))

    task, ticks, passed = Clips(backbone=R3DConfig(bn_eps=1e-3), frames=16, size=112), [], Counter()
    size = sum(t.numel() * t.element_size() for t in task.model().state_dict().values())
    with ExitStack() as counted, patch.object(Discretion, "fit", left_out):

        def watch(round: int) -> None:
            ticks.append((time.perf_counter(), time.thread_time()))
            if round == WARM_UP + rounds + 1:
                counted.enter_context(counting(passed))

        federated(task, FedVSSL(), TrainConfig(batch_size=4, lr=0.01), rounds, "cpu", watch)
    times = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(ticks[WARM_UP:])]
    whole, main = map(statistics.median, zip(*times))
    return {"seconds": whole, "of the main thread": main, **{name: n / size for name, n in sorted(passed.items())}}


@contextmanager
def counting(passed: Counter[str]) -> Iterator[None]:
    """Within it, bytes that operations on tensors read, write and newly take, here and where checkpoints are written.
    All that an operation is given counts as read, also where it is only written to; operations that look at memory in
    another way move nothing."""
    from torch import Tensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    from fedreel.runs.checkpoint import Checkpoints

    class Bytes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            returns = [r.alias_info for r in func._schema.returns]
            if any(alias is not None and not alias.is_write for alias in returns):
                return found
            given = {t.data_ptr(): t.nbytes for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
            made = {t.data_ptr(): t.nbytes for t in tree_leaves(found) if isinstance(t, Tensor)}
            fresh = {place: n for place, n in made.items() if place not in given}
            passed["models newly taken"] += sum(fresh.values())
            if "empty" not in str(func):
                passed["models read"] += sum(given.values())
                changed = sum(given.values()) if func._schema.is_mutable and not returns else sum(made.values())
                passed["models written"] += changed
            return found

    save, mode = Checkpoints.save, Bytes()

    def saving(self: Checkpoints, *arguments: Any) -> None:
        with Bytes():
            save(self, *arguments)

    with patch.object(Checkpoints, "save", saving), mode:
        yield


def in_process(part: str, src: Path, rounds: int) -> dict[str, float]:
    here = Path(__file__)
    told = {**os.environ, "PYTHONPATH": os.pathsep.join([str(src), str(here.parent)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(here), "--part", part, "--rounds", str(rounds)]
    done = subprocess.run(command, env=told, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="the folder `src` of another version")
    parser.add_argument("--repeat", type=int, default=3, help="processes of each")
    parser.add_argument("--part", choices=PARTS, help="only measure this one, in this process")
    parser.add_argument("--rounds", type=int, default=0, help="timed rounds; 0: 40 of `stacked`, 4 of `clips`")
    arguments = parser.parse_args()
    if arguments.part:
        import torch

        torch.set_num_threads(1)
        rounds = arguments.rounds or {"stacked": 40, "clips": 4}[arguments.part]
        print(json.dumps({"stacked": stacked, "clips": clips}[arguments.part](rounds)))
        return
    here = Path(__file__).parent.parent / "src"
    versions = {"now": here} | ({"before": arguments.against.resolve()} if arguments.against else {})
    row: dict[str, Any] = {"bench": "round_cost"}
    for part in PARTS:
        found: dict[str, list[dict[str, float]]] = {version: [] for version in versions}
        for _ in range(arguments.repeat):
            for version, src in versions.items():
                found[version].append(in_process(part, src, arguments.rounds))
        best = {version: {k: min(f[k] for f in runs) for k in runs[0]} for version, runs in found.items()}
        row[part] = best
        if arguments.against:
            row[part]["ratio"] = {k: best["now"][k] / best["before"][k] for k in best["now"] if best["before"].get(k)}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
