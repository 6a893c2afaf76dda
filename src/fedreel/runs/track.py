"""Thin adapters to experiment trackers: TensorBoard, wandb, MLflow. Each gets every number of every record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fedreel.core.server import ServerState, Watcher
from fedreel.errors import RecipeError, nearest


class Tracker(Watcher):
    """Sends `phase/name` numbers to a function."""

    def __init__(self, send: Callable[[str, float, int], None], flush: Callable[[], object]) -> None:
        self._send, self._flush = send, flush

    def record(self, round: int, phase: str, values: Mapping[str, Any]) -> None:
        for name, value in {**values, **values.get("metrics", {})}.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._send(f"{phase}/{name}", float(value), round)

    def round_done(self, progress: ServerState, sync: Callable[[], None]) -> None:
        self._flush()


def find_trackers(names: Sequence[str]) -> list[Callable[[Path], Watcher]]:
    """What makes the trackers a recipe asks for, given the run directory, below which they write. Nothing is written
    before all of them are known to be there."""
    for name in names:
        if name not in _MAKERS:
            raise RecipeError(f"unknown tracker '{name}'", where="track", hint=nearest(name, _MAKERS))
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            raise RecipeError(
                f"the tracker '{name}' is not installed",
                found=f"no module {error.name}",
                hint="pip install 'fedreel[track]'",
            ) from error
    return [_MAKERS[name] for name in names]


def _tensorboard(out: Path) -> Watcher:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(out / "tensorboard"))
    return Tracker(writer.add_scalar, writer.flush)


def _wandb(out: Path) -> Watcher:
    import wandb

    run = wandb.init(project="fedreel", dir=str(out), name=out.name, resume="allow")
    return Tracker(lambda name, value, step: run.log({name: value, "round": step}), lambda: None)


def _mlflow(out: Path) -> Watcher:
    import mlflow

    mlflow.set_experiment("fedreel")
    mlflow.start_run(run_name=out.name)
    return Tracker(lambda name, value, step: mlflow.log_metric(name, value, step=step), lambda: None)


_MAKERS: dict[str, Callable[[Path], Watcher]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}
