"""Peak memory of a round of 1,000 clients against one of 10, with 33 million parameters: it must not grow."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COHORTS = (10, 1000)
PARAMETERS = 33_000_000


def main() -> None:
    """Each cohort in a process of its own, because a process's peak never falls."""
    peaks = {}
    print(f"one round of FedAvg, {PARAMETERS / 1e6:.0f}M float32 parameters, checkpoint and ledger included")
    print(f"{'clients':>8}{'peak MB':>10}")
    for cohort in COHORTS:
        result = subprocess.run([sys.executable, __file__, str(cohort)], check=True, capture_output=True, text=True)
        peaks[cohort] = json.loads(result.stdout.splitlines()[-1])["peak_mb"]
        print(f"{cohort:>8}{peaks[cohort]:>10.0f}", flush=True)
    ratio = peaks[COHORTS[-1]] / peaks[COHORTS[0]]
    print(json.dumps({"peak_mb": peaks, "ratio_1000_to_10": round(ratio, 3)}))


def one_round(cohort: int) -> None:
    import torch
    from torch import Tensor, nn

    from fedreel.config import Recipe, RoundConfig, TrainConfig
    from fedreel.core.task import ClientData, Examples, Outputs, Population, Task, Tensors
    from fedreel.methods.fedavg import FedAvg
    from fedreel.runs.run import run

    class Many(Population):
        clients = tuple(map(str, range(cohort)))

        def data(self, client: str) -> ClientData:
            x = Tensors((torch.full((1, 1), float(client)),))
            return ClientData(x, x, {})

    class Wide(nn.Module):
        """One large vector: a step costs little, its weights cost as much as R3D-18's."""

        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Linear(1, PARAMETERS, bias=False)

    @dataclass(frozen=True)
    class Large(Task):
        def model(self) -> nn.Module:
            return Wide()

        def population(self, data: Any, seed: int) -> Population:
            return Many()

        def forward(self, model: nn.Module, batch: tuple[Tensor]) -> Outputs:
            y = model.backbone.weight[:8].sum() * batch[0].mean()
            return Outputs(y, y)

        def loss(self, outputs: Outputs, batch: tuple[Tensor]) -> Tensor:
            return outputs.logits * 1e-6

        def evaluate(self, model: nn.Module, examples: Examples, batch_size: int) -> dict[str, float]:
            return {"n": 0.0}

    recipe = Recipe(
        system="bench",
        device="cpu",
        task={"name": "large"},
        method={"name": "fedavg"},
        engine={"name": "local"},  # one process, whose peak is told
        train=TrainConfig(batch_size=1, lr=0.1),
        round=RoundConfig(rounds=1, evaluate_every=0),
    )
    with tempfile.TemporaryDirectory() as folder:
        run(recipe, Path(folder) / "run", quiet=True, task=Large(), method=FedAvg())
    print(json.dumps({"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


if __name__ == "__main__":
    one_round(int(sys.argv[1])) if len(sys.argv) > 1 else main()
