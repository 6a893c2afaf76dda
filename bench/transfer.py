"""Few bytes against full updates: how good systems become, bytes up a round, and what of a change each code loses.

    python bench/transfer.py [--systems clips cfedvs] [--forms int8] [--seeds 0 1 2] [--set KEY=VALUE ...]
    python bench/transfer.py --codes

The first trains each system with full updates and in each form, from the same seeds and data, and compares means over
clients' test samples after the last round, in points; `sd` is that of the seeds' differences from full updates. Where a
network is trained from nothing, rounding alone moves its end, so these differences tell little. The second takes one
client's change of the recognizer as training makes it, and says what share of its length is lost: by fedreel's codes,
and by others that were tried. It also says what is left of a model's bytes as news for a site that has the one of the
round before. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedreel.config import load_recipe
from fedreel.core.job import Job, make_method, make_task
from fedreel.core.server import GLOBAL
from fedreel.core.transfer.codes import BLOCK, Bf16, Code, Int8, TopK, join
from fedreel.core.transfer.difference import difference
from fedreel.core.update import TRAIN, Order, Update
from fedreel.core.weights import Layout, Weights
from fedreel.machine.device import pick_device
from fedreel.runs.run import run

FORMS = {
    "full": [],
    "bf16": ["transfer.up=bf16"],
    "int8": ["transfer.up=int8"],
    "int8, no feedback": ["transfer.up=int8", "transfer.feedback=false"],
    "top-k": ["transfer.up=top-k"],
    "top-k, no feedback": ["transfer.up=top-k", "transfer.feedback=false"],
}
MEASURES = {"clips": "top1", "recognition": "top1", "cfedvs": "f1", "fsar": "top1", "fedlid": "top1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", default=["clips", "cfedvs"], choices=MEASURES)
    parser.add_argument("--forms", nargs="+", default=["int8"], choices=FORMS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("--codes", action="store_true", help="what codes lose of a change")
    options = parser.parse_args()
    if options.codes:
        show_codes()
    else:
        show_systems(options.systems, options.forms, options.seeds, options.settings)


def show_systems(systems: Sequence[str], forms: Sequence[str], seeds: Sequence[int], settings: Sequence[str]) -> None:
    found: dict[str, Any] = {}
    print(f"{'system':<14}{'updates':<20}{'measure':<10}{'points':>8}{'from full':>11}{'sd':>7}{'MB up a round':>15}")
    for system in systems:
        full: list[float] = []
        for form in dict.fromkeys(["full", *forms]):
            runs = [trained(system, seed, [*FORMS[form], *settings]) for seed in seeds]
            points = [100 * r["metrics"][MEASURES[system]] for r in runs]
            full = full or points
            off = [mine - whole for mine, whole in zip(points, full)]
            spread = statistics.stdev(off) if len(off) > 1 else 0.0
            up = statistics.fmean(r["bytes_up"] / r["rounds"] for r in runs) / 1e6
            numbers = f"{statistics.fmean(points):>8.2f}{statistics.fmean(off):>+11.2f}{spread:>7.2f}{up:>15.3f}"
            print(f"{system:<14}{form:<20}{MEASURES[system]:<10}{numbers}", flush=True)
            found[f"{system}/{form}"] = {"points": points, "from_full": off, "mb_up": up}
    print(json.dumps(found))


def trained(system: str, seed: int, settings: Sequence[str]) -> dict[str, Any]:
    given = [f"seed={seed}", f"data.seed={seed}", "device=cpu", "round.trust=false", *settings]
    rounds = load_recipe(system, given).round.rounds
    with tempfile.TemporaryDirectory() as folder:
        return run(
            load_recipe(system, [*given, f"round.evaluate_every={rounds}"]), Path(folder) / "run", quiet=True
        ).summary


def show_codes() -> None:
    torch.manual_seed(0)
    old, new, update = a_change()
    change = join(update - old, old.layout.trained)
    ways: dict[str, float] = {
        "bf16": lost(Bf16(), change, old.layout.trained),
        f"int8, a scale for {BLOCK}": lost(Int8(), change, old.layout.trained),
        **{name: _share(change - tried, change) for name, tried in others(change, old.layout.trained)},
        **{f"top-k, {keep:g} kept": lost(TopK(keep), change, old.layout.trained) for keep in (0.1, 0.01)},
    }
    for name, share in ways.items():
        print(f"{name:<28}{share:>9.4f} of the change is lost")
    left = sum(map(len, difference(new, old).values())) / new.nbytes
    print(f"{'a model as what is new in it':<28}{left:>9.4f} of its bytes are left")
    print(json.dumps({**ways, "news": left}))


def a_change() -> tuple[Weights, Weights, Weights]:
    """The recognizer's model after two rounds and after three, and a client's after training from the first."""
    recipe = load_recipe("recognition", ["data.size=tiny", "device=cpu"])
    task = make_task(recipe).for_data(recipe.data, here=True)
    with tempfile.TemporaryDirectory() as folder:
        job = Job(recipe, task, make_method(recipe), pick_device("cpu"), Path(folder))
        worker = job.worker()
        models, updates = [worker.start], list[Update]()
        for number in (1, 2, 3):
            updates = []
            for step, client in enumerate(worker.population.clients):
                update = worker.execute(Order(number, step, client, TRAIN, {GLOBAL: models[-1]}))
                assert isinstance(update, Update)
                updates.append(update)
            total = updates[0].weights
            for update in updates[1:]:
                total = total + update.weights
            models.append((1 / len(updates)) * total)
    return models[2], models[3], updates[0].weights


def lost(code: Code, change: Tensor, layout: Layout) -> float:
    coded = Weights.zeros(Layout(code.layout(layout)))
    code.write(change, layout, coded)
    return _share(change - code.read(coded, layout), change)


def others(change: Tensor, layout: Layout) -> Iterator[tuple[str, Tensor]]:
    """int8 with other scales, and rounded at random to one of the two neighbours."""
    parts = [part.view(t.shape) for part, t in zip(change.split([t.size for t in layout.tensors]), layout.tensors)]
    yield "int8, a scale a tensor", torch.cat([_int8(p, p.abs().max()).view(-1) for p in parts])
    rows = [p.reshape(len(p), -1) if p.ndim > 1 else p.reshape(1, -1) for p in parts]
    yield "int8, a scale a row", torch.cat([_int8(r, r.abs().amax(1, keepdim=True)).view(-1) for r in rows])
    blocks = torch.nn.functional.pad(change, (0, -len(change) % BLOCK)).view(-1, BLOCK)
    at_random = _int8(blocks, blocks.abs().amax(1, keepdim=True), lambda x: (x + torch.rand_like(x)).floor())
    yield f"int8 for {BLOCK}, at random", at_random.view(-1)[: len(change)]


def _int8(numbers: Tensor, most: Tensor, rounding: Callable[[Tensor], Tensor] = torch.round) -> Tensor:
    scale = (most / 127).clamp_min(1e-30)
    return rounding(numbers / scale).clamp(-127, 127) * scale


def _share(rest: Tensor, whole: Tensor) -> float:
    return float(rest.norm() / whole.norm())


if __name__ == "__main__":
    main()
