"""What is left of a sweep in samples: counted as runs really learn from them, and nothing twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedreel.core.discretion
import fedreel.core.server_training
import fedreel.reproduce as harness
from fedreel import api
from fedreel.config import load_recipe
from fedreel.reproduce import fedlid_work, fedvssl_work
from fedreel.reproduce.plan import by_table, by_work, plan
from fedreel.reproduce.spec import Row, Scale, Table
from fedreel.reproduce.work import RUN, Work
from support.tiny import SETTINGS, videos


def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Samples that clients and the server will have learned from."""
    found = {"client": 0, "server": 0}

    def counting(who: str, fit: Any) -> Any:
        def fitting(*args: Any, **more: Any) -> Any:
            fitted = fit(*args, **more)
            found[who] += fitted.samples
            return fitted

        return fitting

    for who, module in (("client", fedreel.core.discretion), ("server", fedreel.core.server_training)):
        monkeypatch.setattr(module, "fit", counting(who, module.fit))  # type: ignore[attr-defined]
    return found


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two classes: 16 and 4 images of clients for training and testing, 10 of the server's."""
    noise = np.random.default_rng(0)
    for place, each in (("clients/train", 8), ("clients/test", 2), ("server/train", 5)):
        for kind in ("a", "b"):
            folder = tmp_path / "images" / place / kind
            folder.mkdir(parents=True)
            for number in range(each):
                Image.fromarray(noise.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / f"{number}.png")
    return tmp_path / "images"


@pytest.mark.parametrize(
    "method",
    [
        {"method.server": "none"},
        {"method.server": "labels", "method.share": 0.6},
        {"method.when": "once"},
        {"task.label_share": 0.5},
        {"data.validate": True, "data.test_share": 0.25},
        {"method.name": "fedsimclr", "server": None, "task.objective": "views"},
        {"method.name": "fedca", "task.objective": "views", "method.public": 4},
    ],
    ids=str,
)
def test_as_many_images_are_expected_as_a_run_learns_from(
    method: dict[str, Any], images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = counted(monkeypatch)
    settings = {
        "data.source": str(images / "clients"),
        "data.public": str(images / "server"),
        "data.partition": {"name": "iid", "num_partitions": 2},
        "task.size": 8,
        "task.backbone": {"name": "resnet18", "width": 2},
        "train.batch_size": 4,
        "server.batch_size": 4,
        "server.epochs": 2,
        "round.rounds": 3,
        "round.evaluate_every": 1000,
        "round.trust": False,
        "device": "cpu",
        "engine.name": "local",
        **method,
    }
    expected = fedlid_work.work(load_recipe("fedlid", settings), images)[RUN]
    api.run("fedlid", tmp_path / "run", set=settings, quiet=True)
    views = method.get("task.objective") == "views"
    aligned = method.get("method.name") == "fedca"
    assert expected.trained == found["client"] * ((3 if aligned else 2) if views else 1)
    assert expected.server == found["server"] * (1 if method.get("method.server") == "labels" else 2)


@pytest.mark.parametrize("more", [{}, {"method.name": "centralised"}, {"task.pretext": "vcop", "task.gap": 1}], ids=str)
def test_as_many_clips_are_expected_as_a_pretraining_learns_from(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = counted(monkeypatch)
    data = tmp_path / "data"
    videos(data / "pretrain", range(4), clips=4)
    for part in ("train", "test"):
        source = videos(tmp_path / part, [0], clips=2) / "owner0"
        (data / "downstream/set").mkdir(parents=True, exist_ok=True)
        source.rename(data / "downstream/set" / part)
    settings = {**SETTINGS, "data.source": str(data / "pretrain"), "round.fraction": 0.5, **more}
    settings |= {"task.size": 14, "task.frames": 2, "train.epochs": 1, "engine.name": "local"}
    expected = fedvssl_work.work(load_recipe("fedvssl", settings), data)
    api.run("fedvssl", tmp_path / "run", set=settings, quiet=True)
    assert expected[RUN].trained == found["client"] * (3 if "task.pretext" in more else 1)
    assert expected["recalls"].seen == 10 * (4 + 4)
    assert expected["tunings"].tuned == 60 * 4


def read(run: Path) -> dict[str, float]:
    return {}


def read_too(run: Path) -> dict[str, float]:
    return {}


def test_what_two_tables_show_is_done_once_and_all_is_read_off_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 and 2,000 samples for two rows and two seeds; half an hour and an hour for reading, by two functions."""

    def work(recipe: Any, data: Path) -> dict[str, Work]:
        return {
            RUN: Work(trained=1000 * recipe.round.rounds),
            "read": Work(seconds=1800),
            "read_too": Work(seconds=3600),
        }

    rows = tuple(Row(name, {"round.rounds": rounds}) for name, rounds in (("short", 1), ("long", 2)))
    table = Table(rows, ("top1",), {"smoke": Scale("recognition", (0, 1))}, derive=(read,), work=work)
    other = replace(table, rows=rows[:1], derive=(read, read_too))
    monkeypatch.setattr(harness, "find_table", lambda system, name: {"table": table, "other": other}[name])
    (tmp_path / "data").mkdir()
    found = plan("any", "table", "other", data=tmp_path / "data", out=tmp_path / "out")
    assert [[line[0], line[1], *line[-2:]] for line in by_work(found)] == [
        ["table", "6", "7,200", "7,200"],
        ["other", "2", "10,800", "10,800"],
        ["all", "6", "14,400", "14,400"],
    ]
    assert [line[-1] for line in by_table(found, jobs=8)] == ["~2.0", "~3.0", "~4.0"]
    alone = plan("any", "table", out=tmp_path / "out")  # on the playground nothing is expected
    assert by_work(alone) == []
    assert by_table(alone)[0][-1] == "?"
