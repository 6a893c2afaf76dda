"""Recognised videos: the frames that training would see, the numbers by hand, pages, and what is refused."""

from __future__ import annotations

import base64
import errno
import json
import shutil
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedreel import api
from fedreel.config import DataConfig
from fedreel.errors import DataError, RunError
from fedreel.media.video import write
from fedreel.tasks.recognition import recognize as reading
from fedreel.tasks.use.recognize import recognize
from fedreel.tasks.vision.clips import open_clips
from support.embedded import make_films, moving, train
from support.moves import motion, one
from support.pages import Read
from support.refusals import assert_refused
from support.tiny import cli

COLOURS = {"fire & <smoke>": (200, 60, 30), "water": (30, 70, 200)}
CLASSES = sorted(COLOURS)


def coloured(path: Path, label: str, seed: int, size: tuple[int, int] = (16, 16)) -> Path:
    """Eight frames of `size` (height, width) in the colour of the class, with noise."""
    noise = np.random.default_rng(seed).normal(0, 25, (8, *size, 3))
    write(path, np.clip(np.array(COLOURS[label]) + noise, 0, 255).astype(np.uint8), 8)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two owners' videos, six of each class."""
    folder = tmp_path_factory.mktemp("videos")
    places = [(owner, label, n) for owner in ("ann", "bob") for label in CLASSES for n in range(6)]
    for seed, (owner, label, n) in enumerate(places):
        coloured(folder / owner / label / f"{n}.mp4", label, seed)
    return folder


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose model sees 4 frames of 16 x 16 pixels."""
    settings = {"round.rounds": 8, "train.lr": 0.1, "train.batch_size": 4}
    return train(tmp_path_factory.mktemp("trained") / "run", data, **settings)


def film(path: Path, seed: int = 1, length: int = 14) -> Path:
    write(path, moving(seed, length), 8)
    return path


def as_in_training(folder: Path) -> np.ndarray:
    """What a client with these videos would train on: (videos, 4, 16, 16, 3)."""
    source = open_clips(DataConfig(source=str(folder)), 16)
    return source.stack(range(len(source)), 4)


def by_hand(run: Path, frames: np.ndarray) -> dict[str, float]:
    """Probabilities of the frames (4, 16, 16, 3): the network, its temperature, softmax."""
    loaded = api.load(run)
    with torch.no_grad():
        logits = loaded.task.forward(loaded.model, (torch.from_numpy(frames)[None],)).logits[0].double().numpy()
    logits /= loaded.card["trust"]["models"]["global"]["temperature"]
    powers = np.exp(logits - logits.max())
    return dict(zip(CLASSES, (powers / powers.sum()).tolist()))


def strip(page: Path) -> list[np.ndarray]:
    """The pictures of a page."""
    start = "data:image/jpeg;base64,"
    sources = [str(attributes["src"]) for attributes in Read(page.read_text()).all("img")]
    assert all(source.startswith(start) for source in sources)
    contents = [base64.b64decode(source.removeprefix(start), validate=True) for source in sources]
    return [np.asarray(Image.open(BytesIO(content))).astype(int) for content in contents]


# the answer


@pytest.mark.parametrize("label", CLASSES)
def test_videos_that_no_client_has_seen_are_recognised(label: str, trained: Path, tmp_path: Path) -> None:
    for seed in range(1000, 1004):
        made = recognize(coloured(tmp_path / "x.mp4", label, seed, (24, 40)), trained)
        assert (made.label, made.confidence) == made.ranking[0]
        assert made.label == label


@pytest.mark.parametrize("length", [1, 3, 4, 37])
def test_a_video_becomes_the_frames_that_training_would_see(length: int, trained: Path, tmp_path: Path) -> None:
    """Also a video that is shorter than the four frames, whose frames are repeated."""
    file = film(tmp_path / "in" / "a.mp4", 1, length)
    made = recognize(file, trained)
    assert dict(made.ranking) == pytest.approx(by_hand(trained, as_in_training(tmp_path / "in")[0]), abs=1e-5)
    assert (made.side, made.frames, made.fault) == (16, 4, "")


def test_the_suffix_of_a_file_does_not_matter(trained: Path, tmp_path: Path) -> None:
    file = film(tmp_path / "a.mp4")
    bare = Path(shutil.copy(file, tmp_path / "clip"))
    assert recognize(bare, trained).ranking == recognize(file, trained).ranking


def test_of_a_video_that_breaks_off_the_beginning_is_recognised(trained: Path, tmp_path: Path) -> None:
    file = film(tmp_path / "in" / "a.mp4", 1, 60)
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])
    made = recognize(file, trained, page=tmp_path / "p.html")
    assert dict(made.ranking) == pytest.approx(by_hand(trained, as_in_training(tmp_path / "in")[0]), abs=1e-5)
    assert "only what comes before was looked at" in (tmp_path / "p.html").read_text()
    said = cli("recognize", file, "--model", trained)
    assert (said.code, said.err.strip()) == (0, f"note: {made.fault}; only what comes before was looked at")


# folders


def test_a_folder_gives_an_answer_for_each_video_below_it(trained: Path, tmp_path: Path) -> None:
    """More than go through the network at once, one of them broken, and a file that is no video."""
    folder = make_films(tmp_path / "in", 10)
    (folder / "b").mkdir()
    (folder / "clip3.mp4").rename(folder / "b" / "x.MOV")
    (folder / "clip5.mp4").write_bytes(b"no")
    (folder / "notes.txt").write_text("no video")
    heard: list[float] = []
    made = recognize(folder, trained, tell=lambda what, share: heard.append(share))
    names = ["b/x.MOV", *(f"clip{n}.mp4" for n in (0, 1, 2, 4, 6, 7, 8, 9))]
    assert [found.source for found in made.entries] == [folder / name for name in names]
    assert [broken.path for broken in made.skipped] == [str(folder / "clip5.mp4")]
    for found, frames in zip(made.entries, as_in_training(folder)):
        assert dict(found.ranking) == pytest.approx(by_hand(trained, frames), abs=1e-5)
    assert heard == sorted(heard)
    assert heard[-1] == 1


def test_the_command_prints_a_line_for_each_video_of_a_folder(trained: Path, tmp_path: Path) -> None:
    folder = make_films(tmp_path / "in", 2)
    (folder / "z.mp4").write_bytes(b"")
    said = cli("recognize", folder, "--model", trained, "--json", tmp_path / "x.json")
    assert said.code == 0, said.err
    made = recognize(folder, trained)
    assert [line.split() for line in said.out.splitlines()] == [
        *([str(found.source), *found.label.split(), f"{100 * found.confidence:.0f}", "%"] for found in made.entries),
        [str(tmp_path / "x.json")],
    ]
    assert said.err.startswith(f"skipped {folder}/z.mp4: ")
    told = json.loads((tmp_path / "x.json").read_text())
    assert [(row["source"], row["label"], row["fault"]) for row in told.pop("videos")] == [
        (str(found.source), found.label, "") for found in made.entries
    ]
    assert [broken["path"] for broken in told.pop("skipped")] == [f"{folder}/z.mp4"]
    assert told.pop("trust")["near_chance"] == "no"
    assert told == {"source": str(folder), "run": str(trained), "client": "", "notes": [], "side": 16, "frames": 4}


# one video: JSON, command, page


def test_the_command_prints_the_label_the_ranking_and_the_files(trained: Path, tmp_path: Path) -> None:
    file, page, numbers = film(tmp_path / "a.mp4"), tmp_path / "p.html", tmp_path / "p.json"
    said = cli("recognize", file, "--model", trained, "--top", 1, "--page", page, "--json", numbers)
    assert said.code == 0, said.err
    made = recognize(file, trained)
    assert [line.split() for line in said.out.splitlines()] == [
        [*made.label.split(), f"{100 * made.confidence:.0f}", "%"],
        [*made.label.split(), f"{100 * made.confidence:.1f}", "%"],
        [str(page)],
        [str(numbers)],
    ]
    told = json.loads(numbers.read_text())
    assert [(row["label"], row["probability"]) for row in told.pop("ranking")] == made.ranking
    assert sorted(label for label, _ in made.ranking) == CLASSES
    values = {"label": made.label, "confidence": made.confidence, "client": "", "side": 16, "frames": 4, "fault": ""}
    assert told.pop("trust")["near_chance"] == "no"
    assert told == {"source": str(file), "notes": [], "run": str(trained), **values}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.mp4", "p.html", "p.json"]


def test_the_page_shows_the_frames_that_the_model_saw_and_a_bar_for_each_class(trained: Path, tmp_path: Path) -> None:
    made = recognize(film(tmp_path / "in" / "a.mp4", 2, 30), trained, page=tmp_path / "p.html")
    page = Read((tmp_path / "p.html").read_text())
    assert page.texts["h1"] == [made.label]
    bars = [float(style.removeprefix("width:").removesuffix("%")) for style in page.values("i", "style")]
    assert bars == [pytest.approx(100 * share, abs=0.06) for _, share in made.ranking]
    assert [attributes["alt"] for attributes in page.all("img")] == [f"frame {n} of 4" for n in (1, 2, 3, 4)]
    shown = np.stack(strip(tmp_path / "p.html"))
    seen = as_in_training(tmp_path / "in")[0]
    assert shown.shape == seen.shape
    assert np.abs(shown - seen).mean() < 6, "JPEG changes pixels a little"
    assert page.values("script", "src") == page.all("link") == []


def test_the_page_of_a_folder_shows_frames_of_each_video(trained: Path, tmp_path: Path) -> None:
    folder = make_films(tmp_path / "in", 3)
    (folder / "<b>.mp4").write_bytes(b"no")
    recognize(folder, trained, page=tmp_path / "p.html")
    shown, seen = strip(tmp_path / "p.html"), as_in_training(folder)
    assert len(shown) == 12
    for n in range(3):
        assert np.abs(np.stack(shown[4 * n : 4 * n + 4]) - seen[n]).mean() < 6
    page = Read((tmp_path / "p.html").read_text())
    assert {"clip0.mp4", "clip1.mp4", "clip2.mp4", "<b>.mp4"} <= {*page.said}


# whose model


def test_classifiers_that_stay_with_clients_need_a_name(data: Path, tmp_path: Path) -> None:
    method = {"method.name": "fedlid", "method.server": "none", "method.local_head": True}
    run = train(tmp_path / "run", data, **method)
    file = film(tmp_path / "a.mp4")
    with pytest.raises(RunError, match="whose model is meant") as error:
        recognize(file, run)
    assert error.value.found == "clients ann, bob"
    assert recognize(file, run, client="ann").ranking != recognize(file, run, client="bob").ranking


def test_a_model_that_learned_from_views_has_no_classes(data: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", data, **{"method.name": "fedsimclr", "task.objective": "views"})
    with pytest.raises(RunError, match="has no classes") as error:
        recognize(film(tmp_path / "a.mp4"), run, json=tmp_path / "a.json")
    assert (error.value.expected, error.value.found) == ("a run with task.objective = labels", "task.objective = views")
    assert "task.backbone.init=FILE" in error.value.hint
    assert not (tmp_path / "a.json").exists()


# what is refused


def test_files_that_are_no_videos_leave_nothing(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.mp4").write_bytes(film(tmp_path / "whole.mp4").read_bytes()[:200])
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "text").write_text("dear diary\n")
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    shutil.copy(tmp_path / "a.png", tmp_path / "photo")
    one(tmp_path / "moves.npz", motion(0))
    (tmp_path / "none").mkdir()
    shutil.copy(tmp_path / "a.png", tmp_path / "none" / "a.png")
    (tmp_path / "all").mkdir()
    for name in ("a.mp4", "b.mp4"):
        (tmp_path / "all" / name).write_bytes(b"no")
    told = {
        "broken.mp4": ("cannot be read as a video", "", "get the file anew"),
        "empty.mp4": ("cannot be read as a video", "", "get the file anew"),
        "text": ("cannot be read as a video", "", "save it as mp4"),
        "a.png": ("this is an image, and this run's model recognises videos", ".png", "a run of the task image"),
        "photo": ("cannot be read as a video", "it is an image", ""),
        "moves.npz#m0": ("this is a recorded skeleton", ".npz", "a run of the task skeleton"),
        "nowhere.mp4": ("no such file or folder", "", ""),
        "none": ("no videos in this folder", "", ""),
        "all": ("none of the 2 videos can be read", "", "get the file anew"),
    }
    assert_refused(told, tmp_path, trained)


def test_a_full_disk_is_not_blamed_on_the_video(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = film(tmp_path / "a.mp4")
    monkeypatch.setattr(reading, "build", full)
    with pytest.raises(RunError, match="cannot be kept") as error:
        recognize(file, trained)
    assert (error.value.found, "TMPDIR" in error.value.hint) == ("No space left on device", True)


def test_outputs_that_cannot_be_are_refused(trained: Path, tmp_path: Path) -> None:
    file = film(tmp_path / "in" / "a.mp4")
    before = file.read_bytes()
    with pytest.raises(DataError, match="would overwrite the video itself"):
        recognize(file, trained, page=file)
    with pytest.raises(DataError, match="would overwrite a video"):
        recognize(tmp_path / "in", trained, json=file)
    with pytest.raises(DataError, match="would lie in the folder that is looked at"):
        recognize(tmp_path / "in", trained, out=tmp_path / "in")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]
    assert file.read_bytes() == before


def test_the_command_ends_with_status_2_on_an_image(trained: Path, tmp_path: Path) -> None:
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    said = cli("recognize", tmp_path / "a.png", "--model", trained)
    assert (said.code, said.out) == (2, "")
    assert "a run of the task image" in said.err
