"""The task of the package outside the tree: the toy under another name. Its declaration imports no torch; it may."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedreel.playground.sizes import Size
from fedreel.playground.work import Jobs
from support.toy import Toy


@dataclass(frozen=True)
class Counting(Toy):
    """Points in the plane that are counted."""

    def which(self, model: torch.nn.Module, rows: list[list[float]]) -> list[int]:
        """The class of each point."""
        with torch.inference_mode():
            return self.forward(model, (torch.tensor(rows), torch.zeros(len(rows)))).logits.argmax(1).tolist()


def write(jobs: Jobs) -> dict[str, int]:
    """The part of the playground: a file with a pebble for every action owner."""
    (jobs.out / "pebbles.txt").write_text(f"{jobs.size.action_owners} pebbles\n")
    jobs.run(1)
    return {"pebbles": jobs.size.action_owners}


def job(out: object, seed: int, size: Size, number: int) -> None:
    """There is nothing to draw."""
