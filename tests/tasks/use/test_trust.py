"""What verbs say of how far they are to be trusted: of a model at chance, of noise, of runs that were not asked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fedreel.errors import RunError
from fedreel.media.video import write
from fedreel.runs.run import load
from fedreel.tasks.skeleton.bearing import bearing
from fedreel.tasks.use.recognize import recognize
from fedreel.tasks.use.trust import NOT_KNOWN, read_trust
from fedreel.tasks.vision.appearance import appearance
from fedreel.tasks.vision.result import Album, FileRecognition
from support.embedded import train

SIZE, FRAMES = 24, 8


def drifting(path: Path, colour: tuple[int, int, int], seed: int) -> Path:
    """A soft patch of a colour that drifts over a shaded ground: smooth in space and time."""
    draw = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIZE, :SIZE] / SIZE
    ground = 90 + 60 * (rows * draw.uniform(-1, 1) + columns * draw.uniform(-1, 1))
    y, x = draw.uniform(0.3, 0.7, 2)
    frames = []
    for t in range(FRAMES):
        patch = np.exp(-((rows - y - 0.02 * t) ** 2 + (columns - x + 0.01 * t) ** 2) / 0.03)[..., None]
        frames.append(ground[..., None] * (1 - patch) + patch * np.array(colour))
    write(path, np.clip(np.array(frames), 0, 255).astype(np.uint8), 8)
    return path


def noise(path: Path) -> Path:
    write(path, np.random.default_rng(0).integers(0, 256, (FRAMES, SIZE, SIZE, 3), dtype=np.uint8), 8)
    return path


def clips(folder: Path, random: bool) -> Path:
    """Two owners' clips of two colours; labelled by them or at random."""
    draw, seed = np.random.default_rng(5), 0
    for owner in ("ann", "bob"):
        for n in range(48):
            colour = n % 2
            label = int(draw.integers(2)) if random else colour
            place = folder / owner / ("blue" if label else "red") / f"{n}.mp4"
            drifting(place, ((220, 40, 40), (40, 40, 220))[colour], seed := seed + 1)
    return folder


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learned")
    settings = {"round.rounds": 6, "train.lr": 0.1, "train.batch_size": 8}
    return train(folder / "run", clips(folder / "clips", random=False), **settings)


@pytest.fixture(scope="module")
def at_chance(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chance")
    settings = {"round.rounds": 3, "train.lr": 0.1, "train.batch_size": 8}
    return train(folder / "run", clips(folder / "clips", random=True), **settings)


def one(source: Path, run: Path, **options: Path) -> FileRecognition:
    found = recognize(source, run, **options)
    assert isinstance(found, FileRecognition)
    return found


def test_of_a_good_model_and_a_clip_like_the_others_nothing_is_said(learned: Path, tmp_path: Path) -> None:
    found = one(drifting(tmp_path / "red.mp4", (220, 40, 40), 999), learned)
    assert found.notes == []
    assert found.trust is not None
    assert (found.trust.near_chance, found.trust.unlike) == ("no", "no")
    assert found.label == "red"


def test_noise_is_called_unlike_in_text_json_and_page(learned: Path, tmp_path: Path) -> None:
    found = one(noise(tmp_path / "n.mp4"), learned, page=tmp_path / "p.html", json=tmp_path / "a.json")
    assert found.trust is not None
    assert found.trust.unlike == "yes"
    assert found.trust.distance is not None
    assert found.trust.distance > 1
    (note,) = found.notes
    assert note.startswith("this video is unlike those that the model learned from")
    assert f"note: {note}" in found.remarks()
    assert json.loads((tmp_path / "a.json").read_text())["trust"]["unlike"] == "yes"
    assert note in (tmp_path / "p.html").read_text()


def test_a_model_whose_labels_were_random_says_so(at_chance: Path, tmp_path: Path) -> None:
    found = one(drifting(tmp_path / "red.mp4", (220, 40, 40), 999), at_chance)
    assert found.trust is not None
    assert found.trust.near_chance == "yes"
    assert found.notes[0].startswith("this model's own test does not show that it is better than guessing")
    assert found.confidence < 0.85


def test_of_a_folder_the_model_is_spoken_of_once_and_each_file_by_itself(at_chance: Path, tmp_path: Path) -> None:
    folder = tmp_path / "some"
    drifting(folder / "a.mp4", (220, 40, 40), 998)
    noise(folder / "b.mp4")
    album = recognize(folder, at_chance, page=tmp_path / "p.html")
    assert isinstance(album, Album)
    assert [note.partition(" ")[0] for note in album.notes] == ["this", f"{folder / 'b.mp4'}:"]
    assert [entry.trust.unlike for entry in album.entries if entry.trust] == ["no", "yes"]
    assert "unlike those" in (tmp_path / "p.html").read_text()


def test_of_a_run_that_was_not_asked_nothing_is_known(learned: Path, tmp_path: Path) -> None:
    old = shutil.copytree(learned, tmp_path / "old")
    card = old / "model" / "card.json"
    told = json.loads(card.read_text())
    del told["trust"]
    card.write_text(json.dumps(told))
    found = one(noise(tmp_path / "n.mp4"), old)
    assert found.notes == []
    assert found.trust is not None
    assert (found.trust.near_chance, found.trust.unlike, found.trust.temperature) == (NOT_KNOWN, NOT_KNOWN, None)


def test_a_file_that_was_not_copied_with_the_model_is_named(learned: Path, tmp_path: Path) -> None:
    lost = shutil.copytree(learned, tmp_path / "lost")
    (lost / "model" / "trust.safetensors").unlink()
    with pytest.raises(RunError) as error:
        recognize(noise(tmp_path / "n.mp4"), lost)
    assert "trust.safetensors" in error.value.where
    assert "copy the whole folder" in error.value.hint


def test_the_temperature_is_the_card_s(learned: Path) -> None:
    record = read_trust(learned, load(learned), "")
    assert record.temperature == load(learned).card["trust"]["models"]["global"]["temperature"]


def test_appearance_tells_noise_from_edges_and_still_from_moving() -> None:
    draw = torch.Generator().manual_seed(0)
    edges = torch.zeros(6, 32, 32, 3)
    edges[:, :, 16:] = 200
    flickering = torch.randint(0, 256, (6, 32, 32, 3), generator=draw)
    shifted = torch.stack([edges[0].roll(t, 1) for t in range(6)])
    looks = appearance(torch.stack([edges, flickering, shifted]).byte())
    assert looks.isfinite().all()
    assert looks[1, 10] < 2 < looks[0, 10]  # how much of the finest detail is in few places
    assert looks[0, 9] < -1 < looks[2, 9]  # how much changes from frame to frame
    assert appearance(edges[:1].byte()).shape[1] == looks.shape[1] - 3  # of a picture, no change over time


def test_bearing_is_that_of_the_body_and_grows_with_its_speed() -> None:
    still = torch.randn(1, 3, 1, 20, 1).expand(1, 3, 12, 20, 1)
    slow = still + 0.01 * torch.arange(12.0)[None, None, :, None, None]
    fast = still + 0.10 * torch.arange(12.0)[None, None, :, None, None]
    looks = bearing(torch.cat([still, slow, fast]))
    assert looks.isfinite().all()
    motion = looks[:, 8:17].reshape(3, 3, 3)
    assert (motion[0] < motion[1]).all()
    torch.testing.assert_close(motion[2] - motion[1], torch.full((3, 3), 2 * float(np.log(10))), atol=0.05, rtol=0)
