"""What a client costs beside its arithmetic: microseconds of a core for a client with one step of ten parameters.

    python bench/host_cost.py [--against SRC] [--profile]

50 clients a round, fedreel's whole product path (run directory, ledger, admission, checkpoints), on engines `local` and
`vector` on a CPU. With `--against`, the folder `src` of another version, this version and that one take turns, each in
processes of their own, and the ratio is of the best process of each. Time is what this process uses of cores, so that
others on the machine count little. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

ENGINES = ("local", "vector")
COHORT, EXAMPLES, ROUNDS = 50, 10, 40


def measured(engine: str, profiled: bool, rounds: int = ROUNDS) -> float:
    """Microseconds of a core for a client, of the median round."""
    import torch

    from fedreel.config import TrainConfig
    from fedreel.methods.fedavg import FedAvg
    from loops import WARM_UP, federated
    from points import Points

    torch.set_num_threads(1)

    profile, config, ticks = cProfile.Profile(time.process_time), TrainConfig(batch_size=EXAMPLES, lr=0.1), []

    def watch(round: int) -> None:
        ticks.append(time.process_time())
        if profiled and round == WARM_UP + 1:
            profile.enable()
        if round == WARM_UP + 1 + rounds:
            profile.disable()

    federated(Points(EXAMPLES), FedAvg(), config, rounds, "cpu", watch, engine=engine, clients=COHORT)
    if profiled:
        for order in ("cumtime", "tottime"):
            pstats.Stats(profile).sort_stats(order).print_stats(60)
    return statistics.median(after - before for before, after in pairwise(ticks[WARM_UP:])) / COHORT * 1e6


def in_process(engine: str, src: Path) -> float:
    here = Path(__file__)
    told = {**os.environ, "PYTHONPATH": os.pathsep.join([str(src), str(here.parent)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(here), "--engine", engine]
    return float(subprocess.run(command, env=told, check=True, capture_output=True, text=True).stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="the folder `src` of another version")
    parser.add_argument("--repeat", type=int, default=3, help="processes of each")
    parser.add_argument("--engine", choices=ENGINES, help="only measure this one, in this process")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="with --engine: timed rounds")
    parser.add_argument("--profile", action="store_true", help="with --engine: where the time goes")
    arguments = parser.parse_args()
    if arguments.engine:
        print(measured(arguments.engine, arguments.profile, arguments.rounds))
        return
    here = Path(__file__).parent.parent / "src"
    versions = {"now": here} | ({"before": arguments.against.resolve()} if arguments.against else {})
    best = {e: dict.fromkeys(versions, float("inf")) for e in ENGINES}
    for _ in range(arguments.repeat):
        for engine in ENGINES:
            for version, src in versions.items():
                best[engine][version] = min(best[engine][version], in_process(engine, src))
    row: dict[str, Any] = {"bench": "host_cost", "microseconds_per_client": best}
    if arguments.against:
        row["ratio"] = {e: found["now"] / found["before"] for e, found in best.items()}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
