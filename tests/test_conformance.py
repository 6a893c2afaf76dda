"""Engine conformance: every registered method and task, and methods that use every way of talking, end with the same
bits on `local`, on `streams`, on Flower's Ray simulation, and at real sites over TLS with node keys."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from fedreel.core.federation import Federation
from fedreel.core.job import make_server_training
from fedreel.core.method import Method
from fedreel.core.weights import Weights
from support.conformance_jobs import CASES, NEEDS_ALL_DATA, job_of, run_case
from support.flower_site import Federation as Sites
from support.flower_site import environment
from support.moves import LEFT, RIGHT, motion, write_set
from support.tiny import videos

pytest.importorskip("flwr", reason="needs the extra `flower`")
pytestmark = pytest.mark.slow

OWNERS = {"north": ("c0", "c2"), "south": ("c1", "c3")}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`toy` and `videos` with all clients, and the same divided among the sites, in `north` and `south`."""
    root = tmp_path_factory.mktemp("conformance")
    everywhere = videos(root / "videos", owners=4, clips=4)
    rows = [
        (str(p.relative_to(everywhere)), p.parent.name, p.parent.parent.name, "test" if p.stem == "0" else "train")
        for p in sorted(everywhere.rglob("*.mp4"))
    ]
    _index(everywhere, rows)
    (root / "toy").mkdir()
    summary_h5(root / "summary", OWNERS["north"] + OWNERS["south"])
    skeletons(root / "skeleton", OWNERS["north"] + OWNERS["south"])
    moments(root / "moments", OWNERS["north"] + OWNERS["south"])
    pictures(root / "image", OWNERS["north"] + OWNERS["south"])
    (root / "words.txt").write_text("someone\nopens\ndoor\n")
    for site, clients in OWNERS.items():
        (root / site / "toy").mkdir(parents=True)
        (root / site / "toy" / "clients.txt").write_text(" ".join(clients))
        mine = [row for row in rows if row[2].replace("owner", "c") in clients]
        for path, *_ in mine:
            target = root / site / "videos" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.hardlink_to(everywhere / path)
        _index(root / site / "videos", mine)
        summary_h5(root / site / "summary", clients)
        skeletons(root / site / "skeleton", clients)
        moments(root / site / "moments", clients)
        pictures(root / site / "image", clients)
    return root


def pictures(folder: Path, owners: tuple[str, ...]) -> None:
    """Three pictures of each class for training, one for testing; the same wherever the owner is."""
    for owner in owners:
        for kind in range(3):
            for nth in range(4):
                path = folder / owner / ("test" if nth == 3 else "train") / f"class{kind}" / f"{nth}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                rng = np.random.default_rng([ord(owner[-1]), kind, nth])
                Image.fromarray(rng.integers(80 * kind, 80 * kind + 90, (16, 16, 3), dtype=np.uint8)).save(path)


def skeletons(folder: Path, owners: tuple[str, ...]) -> None:
    """A set of each owner, of two or three classes."""
    folder.mkdir(parents=True)
    for owner in owners:
        classes = LEFT if owner == "c0" else RIGHT
        moves = [motion(i % len(classes), 8 + i, ord(owner[-1]) + i) for i in range(4 * len(classes))]
        write_set(folder / f"{owner}.npz", moves, classes)


def moments(folder: Path, owners: tuple[str, ...]) -> None:
    """Three videos of each owner with two sentences about each, and features; the last video is for testing."""
    folder.mkdir(parents=True)
    rows, lines, videos = {}, [], ["id,owner,length,split"]
    for owner in owners:
        for nth in range(3):
            rng = np.random.default_rng([ord(owner[-1]), nth])
            name = f"{owner}v{nth}"
            rows[name] = rng.normal(size=(9 + nth, 3)).astype(np.float32)
            videos.append(f"{name},{owner},{9 + nth},{'test' if nth == 2 else 'train'}")
            starts = rng.uniform(0, 5, 2)
            lines += [f"{name} {s:.2f} {s + 3:.2f}##someone opens {w}." for s, w in zip(starts, ("a door", "it"))]
    (folder / "annotations.txt").write_text("\n".join(lines) + "\n")
    (folder / "videos.csv").write_text("\n".join(videos) + "\n")
    offsets = np.cumsum([0, *map(len, rows.values())])
    np.savez(folder / "own.npz", ids=np.array([*rows]), offsets=offsets, features=np.concatenate([*rows.values()]))


def summary_h5(folder: Path, owners: tuple[str, ...]) -> None:
    """Annotated videos of these owners, three each, the last for testing; the same wherever the owner is."""
    folder.mkdir(parents=True)
    with h5py.File(folder / "annotations.h5", "w") as file:
        for owner in owners:
            for nth in range(3):
                rng = np.random.default_rng([ord(owner[-1]), nth])
                steps = 6 + 2 * nth + ord(owner[-1]) % 3
                group = file.create_group(f"{owner}-{nth}")
                group["features"] = rng.normal(size=(steps, 6)).astype(np.float32)
                group["gtscore"] = rng.random(steps).astype(np.float32)
                group["picks"] = np.arange(steps) * 15
                group["n_frames"], group["n_steps"], group["fps"] = 15 * steps, steps, 30.0
                group["change_points"] = np.array([[0, 44], [45, 15 * steps - 1]])
                group["n_frame_per_seg"] = np.array([45, 15 * steps - 45])
                group["user_summary"] = (rng.random((3, 15 * steps)) < 0.2).astype(np.uint8)
                group.attrs.update(owner=owner, category="any", split="test" if nth == 2 else "train")


def _index(folder: Path, rows: list[tuple[str, str, str, str]]) -> None:
    with open(folder / "index.csv", "w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "owner", "split"), *rows])


@pytest.fixture(scope="module")
def local(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("local")
    for name in CASES:
        run_case(name, data, root / name, {"name": "local"})
    return {name: root / name for name in CASES}


@pytest.fixture(scope="module")
def simulation() -> Iterator[Any]:
    from fedreel.engines.flower.engine import Simulation

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
        with closing(Simulation(4, threads=1)) as running:
            yield running


@pytest.fixture(scope="module")
def at_sites(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, int], Path]]:
    """All jobs at two sites, three jobs at a time: where they wrote, how they ended, and the sites' folder."""
    root = tmp_path_factory.mktemp("sites")
    with closing(
        Sites(
            root,
            {name: data / name for name in OWNERS},
            roles=("toy", "videos", "summary", "skeleton", "moments", "image"),
        )
    ) as sites:
        order = {"jobs": list(CASES), "at_once": 3, "data": str(data), "out": str(root / "out")}
        order["server"] = str(sites.server_folder)
        (root / "out").mkdir()
        program = [sys.executable, str(Path(__file__).parent / "support" / "conformance_jobs.py")]
        done = subprocess.run(
            program, input=json.dumps(order), env=environment(), capture_output=True, text=True, timeout=1200
        )
        ended = {row["job"]: row["code"] for row in map(json.loads, done.stdout.splitlines())}
        assert set(ended) == set(CASES), done.stderr[-3000:]
        yield root / "out", ended, root


@pytest.mark.parametrize("name", CASES)
def test_clients_side_by_side_end_with_the_same_bits(
    name: str, data: Path, local: dict[str, Path], tmp_path: Path
) -> None:
    run_case(name, data, tmp_path, {"name": "streams", "at_once": 3})
    for path in sorted((local[name] / "model").glob("*.safetensors")):
        assert path.read_bytes() == (tmp_path / "model" / path.name).read_bytes()
    summaries = [json.loads((run / "summary.json").read_text()) for run in (local[name], tmp_path)]
    for key in ("metrics", "bytes_up", "bytes_down", "rounds", "clients"):
        assert summaries[0][key] == summaries[1][key]
    _assert_same_state(local[name] / "clients", tmp_path / "clients")


@pytest.mark.parametrize("name", CASES)
def test_the_simulation_ends_with_the_same_bits(
    name: str, data: Path, local: dict[str, Path], simulation: Any, tmp_path: Path
) -> None:
    from fedreel.engines.flower.engine import FlowerSimEngine

    job = job_of(name, data, tmp_path, {"name": "flower-sim"})
    engine = FlowerSimEngine(job, job.population(), simulation)
    method: Method = job.method
    public = job.task.public(job.recipe.data, job.recipe.data.seed)
    fed = Federation(
        engine,
        method,
        job.recipe.round,
        job.recipe.seed,
        public=lambda: public,
        training=lambda what, share, own: make_server_training(job, what, share, own),
    )
    method.run(fed)
    for model, weights in fed.models.items():
        _assert_same(weights, local[name] / "model" / f"{model}.safetensors")
    assert fed.progress.metrics == json.loads((local[name] / "summary.json").read_text())["metrics"]
    _assert_same_state(local[name] / "clients", tmp_path / "clients")


@pytest.mark.timeout(1500)  # the first of them waits for all jobs
@pytest.mark.parametrize("name", [n for n in CASES if n not in NEEDS_ALL_DATA])
def test_sites_end_with_the_same_bits(name: str, local: dict[str, Path], at_sites: Any) -> None:
    out, ended, root = at_sites
    error = Path(f"{out / name}.error")
    assert ended[name] == 0, error.read_text() if error.exists() else ended[name]
    for path in sorted((local[name] / "model").glob("*.safetensors")):
        assert path.read_bytes() == (out / name / "model" / path.name).read_bytes()
    summaries = [json.loads((run / "summary.json").read_text()) for run in (local[name], out / name)]
    for key in ("metrics", "bytes_up", "bytes_down", "rounds", "clients"):
        assert summaries[0][key] == summaries[1][key]
    run = json.loads((out / name / "run.json").read_text())["id"]
    for site, clients in OWNERS.items():
        kept = root / site / "runs" / run / "clients"
        for client in clients:
            _assert_same_state(local[name] / "clients" / client, kept / client)


@pytest.mark.parametrize("name", sorted(NEEDS_ALL_DATA))
def test_a_method_that_needs_all_data_says_so_at_sites(name: str, at_sites: Any) -> None:
    out, ended, _ = at_sites
    assert ended[name] == 1
    assert "this method needs all data in one place" in Path(f"{out / name}.error").read_text()


def _assert_same(weights: Weights, path: Path) -> None:
    expected = load_file(path)
    assert set(expected) == set(weights)
    for name, tensor in expected.items():
        assert torch.equal(tensor, weights[name]), name


def _assert_same_state(expected: Path, found: Path) -> None:
    """Private states, all generations: the same files with the same bytes."""
    files = sorted(p.relative_to(expected) for p in expected.rglob("*.safetensors"))
    assert files == sorted(p.relative_to(found) for p in found.rglob("*.safetensors"))
    for file in files:
        assert (expected / file).read_bytes() == (found / file).read_bytes(), file
