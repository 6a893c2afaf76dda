"""What is read off runs over images: the same whatever else a run was asked for, and nothing is looked at twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedreel.api import run
from fedreel.runs.run import load
from fedreel.tasks.image import analysis
from support.pictures import pictures

FEDLID: dict[str, Any] = {
    "task.backbone": {"name": "resnet10", "width": 2, "small_stem": True},
    "task.size": 16,
    "task.embedding": 4,
    "train.epochs": 1,
    "server.epochs": 1,
    "server.batch_size": 16,
    "round.rounds": 1,
    "round.evaluate_every": 1,
    "round.trust": False,
    "data.partition": {"name": "iid", "num_partitions": 2},
    "device": "cpu",
}


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Path]:
    """The folder of a run of FedLID with some settings changed."""
    source = pictures(tmp_path / "pictures", each=12)

    def make(name: str, **changed: Any) -> Path:
        settings = {**FEDLID, "data.source": source, "data.public": source, **changed}
        return run("fedlid", tmp_path / name, set=settings, quiet=True).path

    return make


def test_without_labels_the_share_of_labels_changes_nothing_but_the_probe(made: Callable[..., Path]) -> None:
    """So FedCA's runs serve Table 5, too: its few probes are those of a run with a tenth of the labels."""
    unlabelled = {"method.name": "fedca", "method.public": 8, "task.objective": "views"}
    whole, tenth = made("whole", **unlabelled), made("tenth", **unlabelled, **{"task.label_share": 0.1})
    one, other = (load(folder).model.state_dict() for folder in (whole, tenth))
    assert all(torch.equal(one[name], other[name]) for name in one)
    few = analysis.probes(tenth)
    assert analysis.few_probes(whole) == analysis.few_probes(tenth) == few
    assert analysis.scores(whole) == {"score": analysis.probes(whole)["probe"]}


@pytest.mark.parametrize(("server", "bodies"), [("none", 1), ("views", 2)])
def test_the_body_is_probed_again_only_if_the_server_changed_it(
    made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, server: str, bodies: int
) -> None:
    folder = made("run", **{"method.server": server})
    given = iter((0.25, 0.5))
    monkeypatch.setattr(analysis._Body, "probe", lambda body: next(given))
    assert analysis.probes(folder) == {"probe": 0.25, "probe before": (0.25, 0.5)[bodies - 1]}
    assert analysis.scores(folder) == {"score": analysis.accuracies(folder)["trained"]}, "no probe is needed"
