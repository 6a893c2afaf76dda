"""Moments found in videos: the model's own numbers by hand, clips, the page, and what is refused."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import shutil
import subprocess
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedreel.config import DataConfig, make_recipe
from fedreel.core.job import make_task
from fedreel.data.features import Plain, video_features
from fedreel.errors import DataError, FedreelError, RunError
from fedreel.machine.words import clock
from fedreel.media.frames import Timeline
from fedreel.runs.run import load, run
from fedreel.tasks.moments.command import find
from fedreel.tasks.moments.features import pool_windows
from fedreel.tasks.moments.find import nearest_frames
from fedreel.tasks.moments.result import Finding
from fedreel.tasks.moments.text import Words
from support.films import RATE, film, numbered, pictures_of, read_number, sound_of
from support.tiny import cli

FPS = 10
FAST = {"preset": "ultrafast", "g": "10"}
COLOURS = {"red": (220, 30, 30), "green": (20, 170, 60), "blue": (20, 60, 210)}
PLACES = (4, 17, 28)  # the first frames of three stretches of 9 frames
TASK = {
    "name": "moments",
    "features": "plain",
    "fps": 2.0,
    "length": 8,
    "width": 8,
    "word_width": 4,
    "vocabulary": 40,
    "dropout": 0.0,
}


def coloured(order: tuple[str, ...], seed: int = 0) -> list[np.ndarray]:
    """4 s of grey with a stretch of each colour."""
    rng = np.random.default_rng(seed)
    pictures = [np.full((32, 32, 3), 120 + int(rng.integers(9)), np.uint8) for _ in range(40)]
    for colour, first in zip(order, PLACES):
        for picture in pictures[first : first + 9]:
            picture[4:28, 4:28] = COLOURS[colour]
    return pictures


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two owners with four videos each, and a sentence for every coloured stretch."""
    root = tmp_path_factory.mktemp("moments")
    rng = np.random.default_rng(0)
    lines, videos = [], ["id,owner,length,split"]
    for owner in ("kitchen", "hall"):
        for n in range(4):
            order = tuple(str(c) for c in rng.permutation([*COLOURS]))
            film(root / f"{owner}{n}.mp4", coloured(order, n), fps=FPS, options=FAST)
            for colour, first in zip(order, PLACES):
                lines.append(f"{owner}{n} {first / FPS} {(first + 9) / FPS}##a person sees {colour}.")
            videos.append(f"{owner}{n},{owner},4,{'test' if n == 3 else 'train'}")
    (root / "annotations.txt").write_text("\n".join(lines) + "\n")
    (root / "videos.csv").write_text("\n".join(videos) + "\n")
    return root


def train(out: Path, folder: Path, method: str = "fedavg", rounds: int = 1, **changes: Any) -> Path:
    table = {
        "task": TASK | changes,
        "method": {"name": method},
        "data": {"source": str(folder)},
        "train": {"batch_size": 9, "lr": 0.01, "optimizer": "adam", "epochs": 2},
        "round": {"rounds": rounds, "evaluate_every": rounds},
        "device": "cpu",
    }
    torch.set_num_threads(1)
    return learned_from(run(make_recipe(table), out, quiet=True).path, 12.0)


def learned_from(model: Path, seconds: float) -> Path:
    """The run, as if its videos had been so long; they are of 4 s, and those asked about of up to 12."""
    path = model / "metrics.jsonl"
    told = [json.loads(line) for line in path.read_text().splitlines()]
    changed = [line | {"seconds": seconds} if line["phase"] == "partition" else line for line in told]
    path.write_text("".join(json.dumps(line) + "\n" for line in changed))
    return model


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a pointer model. Tests that change it take a copy."""
    return train(tmp_path_factory.mktemp("trained") / "run", folder)


@pytest.fixture(scope="module")
def private(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which every client has encoders of its own."""
    return train(tmp_path_factory.mktemp("private") / "run", folder, "fedcmr")


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copy"))


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 s of numbered frames with a sound that grows louder."""
    pictures = [numbered(i) for i in range(120)]
    tone = np.sin(np.arange(12 * RATE) * 0.05) * np.linspace(0, 1, 12 * RATE)
    return film(tmp_path_factory.mktemp("video") / "long.mp4", pictures, fps=FPS, options=FAST, sound=tone)


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def change_card(model: Path, **values: Any) -> None:
    """Other values in a run's card; features__name stands for the name in its features."""
    path = model / "model" / "card.json"
    card = json.loads(path.read_text())
    for key, value in values.items():
        section, _, name = key.partition("__")
        if section == "features":
            card["input"]["features"][name] = value
        else:
            card[section] = value
    path.write_text(json.dumps(card))


def by_hand(video: Path, indices: list[int], model: Path, top: int, client: str = "") -> tuple[Any, Any, Any]:
    """Spans in shares, log-probabilities, and scores of windows, from the file on."""
    loaded = load(model, client=client)
    rows = torch.from_numpy(pool_windows(video_features(video, Plain(), 2.0).features, 8))[None]
    words = torch.tensor([indices + [0] * (15 - len(indices))])
    with torch.no_grad():
        located = loaded.model(rows, words)
        shares, scores = loaded.model.decode(located, top)  # type: ignore[operator]
    return shares[0], scores[0], located.scores[0]


# the answer


@pytest.mark.parametrize("form", ["pointer", "anchor-free", "proposal"])
def test_the_answer_is_what_the_model_says_of_the_features(
    form: str, folder: Path, video: Path, tmp_path: Path
) -> None:
    model = train(tmp_path / "run", folder, form=form)
    known = next(json.loads(row) for row in (model / "metrics.jsonl").open() if "partition" in row)["words"]
    indices = [2 + known.index(word) for word in ("a", "person", "sees", "blue")]
    made = find(video, "A person sees BLUE!", model, top=4)
    shares, scores, inside = by_hand(video, indices, model, 4)
    assert made.seconds == pytest.approx(12.0)
    assert len(made.moments) == 4
    np.testing.assert_allclose([(m.start, m.end) for m in made.moments], 12.0 * shares, atol=1e-4)
    assert [m.score for m in made.moments] == pytest.approx(scores.exp().tolist(), rel=1e-4)
    assert made.inside == pytest.approx((1 / (1 + (-inside).exp())).tolist(), abs=1e-5)


@pytest.mark.parametrize("top", [1, 3, 6])
def test_moments_lie_in_the_video_differ_and_come_in_the_order_of_their_scores(
    top: int, video: Path, trained: Path
) -> None:
    made = find(video, "a person sees red", trained, top=top)
    assert [m.rank for m in made.moments] == [*range(1, top + 1)]
    assert all(0 <= m.start < m.end <= made.seconds + 1e-6 and 0 <= m.score <= 1 for m in made.moments)
    assert [m.score for m in made.moments] == sorted((m.score for m in made.moments), reverse=True)
    assert len({(m.start, m.end) for m in made.moments}) == top
    assert made.moments == find(video, "a person sees red", trained, top=6).moments[:top]


def test_more_moments_than_there_are_is_no_error_but_a_note(video: Path, trained: Path) -> None:
    made = find(video, "red", trained, top=500)
    assert 6 <= len(made.moments) <= 36  # pairs of 8 positions
    assert f"500 moments were asked for, but the model finds only {len(made.moments)}" in made.notes[1]


@pytest.mark.slow
def test_a_trained_model_finds_the_colour_in_a_video_it_never_saw(folder: Path, tmp_path: Path) -> None:
    model = train(tmp_path / "run", folder, rounds=60, width=16)
    order = ("blue", "red", "green")
    new = film(tmp_path / "new.mp4", coloured(order, 9), fps=FPS, options=FAST)
    for colour, first in zip(order, PLACES):
        best = find(new, f"a person sees {colour}", model).moments[0]
        start, end = first / FPS, (first + 9) / FPS
        shared, union = min(best.end, end) - max(best.start, start), max(best.end, end) - min(best.start, start)
        assert shared / union > 0.4, (colour, best)


def test_a_list_of_words_in_a_file_goes_before_that_of_training(folder: Path, video: Path, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("red\nblue\nsees\n")
    model = train(tmp_path / "run", folder, words=str(tmp_path / "words.txt"))
    made = find(video, "sees a red", model, top=2)
    assert made.unknown == ["a"]
    shares, _, _ = by_hand(video, [4, 1, 2], model, 2)  # 1 is any unknown word
    np.testing.assert_allclose([(m.start, m.end) for m in made.moments], 12.0 * shares, atol=1e-4)
    assert Words.read(tmp_path / "words.txt").encode("sees a red", 3).tolist() == [4, 1, 2]


def test_the_folder_of_the_model_is_as_good_as_the_run(video: Path, trained: Path) -> None:
    assert find(video, "red", trained / "model") == find(video, "red", trained)


def test_the_frames_of_a_stretch_are_the_nearest_even_where_the_rate_varies() -> None:
    line = Timeline(np.array([50, 60, 70, 80, 100, 120, 140]), np.array([0]), Fraction(1, 10), 5.0)
    # frames begin at 0, 1, 2, 3, 5 and 7 s; all ends at 9 s
    assert nearest_frames(line, 0.0, 9.0) == (0, 5)
    assert nearest_frames(line, 0.9, 3.2) == (1, 2)
    assert nearest_frames(line, 4.1, 6.9) == (4, 4)
    assert nearest_frames(line, 2.1, 2.2) == (2, 2)
    assert nearest_frames(line, 8.9, 9.0) == (5, 5)


# words


def test_unknown_words_are_told(video: Path, trained: Path) -> None:
    made = find(video, "a zebra sees a zebra's red", trained)
    assert made.unknown == ["zebra", "zebra's"]
    assert made.notes[1:] == ["the model does not know: zebra, zebra's"]
    assert find(video, "a person sees red", trained).notes[1:] == []


def test_words_that_the_model_does_not_read_are_told(video: Path, trained: Path) -> None:
    made = find(video, "red " * 15 + "blue zebra", trained)
    assert made.notes[1:] == ["the model reads 15 words; left out: blue zebra"]
    assert made.moments == find(video, "red " * 15, trained).moments


@pytest.mark.parametrize("sentence", ["", "  ", "?!"])
def test_a_sentence_without_words_is_refused(sentence: str, video: Path, trained: Path) -> None:
    with pytest.raises(DataError, match="has no words"):
        find(video, sentence, trained)


def test_a_sentence_of_unknown_words_is_refused(video: Path, trained: Path) -> None:
    with pytest.raises(DataError, match="knows none of these words") as error:
        find(video, "zebras gallop", trained)
    assert error.value.found == "zebras, gallop"
    assert "person" in error.value.expected


def test_a_model_without_its_list_of_words_is_told(video: Path, copied: Path) -> None:
    (copied / "metrics.jsonl").write_text('{"round": 0, "phase": "partition", "train": {"hall": []}}\n')
    with pytest.raises(RunError, match="words that the model knows are not recorded") as error:
        find(video, "red", copied)
    assert error.value.found == "no such list"
    (copied / "metrics.jsonl").unlink()
    with pytest.raises(RunError, match="no such record"):
        find(video, "red", copied)


# whose model


@pytest.mark.parametrize("client", ["kitchen", "hall"])
def test_private_encoders_are_those_of_the_client(client: str, private: Path, video: Path) -> None:
    made = find(video, "red", private, client=client)
    words = next(json.loads(row) for row in (private / "metrics.jsonl").open() if "partition" in row)["words"]
    shares, scores, _ = by_hand(video, [2 + words.index("red")], private, 3, client)
    assert made.client == client
    np.testing.assert_allclose([(m.start, m.end) for m in made.moments], 12.0 * shares, atol=1e-4)
    assert [m.score for m in made.moments] == pytest.approx(scores.exp().tolist(), rel=1e-4)


def test_of_several_clients_with_private_encoders_one_must_be_named(private: Path, video: Path) -> None:
    with pytest.raises(RunError, match="whose model is meant") as error:
        find(video, "red", private)
    assert sorted(re.findall("kitchen|hall", error.value.found)) == ["hall", "kitchen"]
    with pytest.raises(RunError, match="did you mean 'kitchen'"):
        find(video, "red", private, client="kitchn")
    assert find(video, "red", private, client="hall").inside != find(video, "red", private, client="kitchen").inside


def test_a_private_part_that_is_not_here_is_told(private: Path, video: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(private, tmp_path / "copy"))
    shutil.rmtree(copy / "clients")
    with pytest.raises(RunError, match="the part of client 'hall' has never been trained"):
        find(video, "red", copy, client="hall")
    change_card(copy, recipe={**load(copy).card["recipe"], "engine": {"name": "flower"}})
    with pytest.raises(RunError, match="at real sites it stays at the site"):
        find(video, "red", copy, client="hall")


# clips


def test_clips_are_the_moments_with_their_sound(video: Path, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "clips"
    made = find(video, "red", trained, out=out)
    assert files(out) == [f"{m.rank:02d}_{m.start:.1f}-{m.end:.1f}s.mp4" for m in made.moments]
    for moment, path in zip(made.moments, sorted(out.iterdir())):
        pictures, times = pictures_of(path)
        assert [read_number(p) for p in pictures] == [*range(moment.first, moment.last + 1)]
        assert abs(moment.first / FPS - moment.start) <= 0.5 / FPS + 1e-6
        assert times[-1] + 1 / FPS == pytest.approx(moment.end - moment.start, abs=1.0 / FPS + 1e-6)
        sound = sound_of(path)
        assert len(sound) / RATE == pytest.approx(len(pictures) / FPS, abs=0.07)
        middle = np.abs(sound[len(sound) // 2 - RATE // 20 :][: RATE // 10]).max()
        assert middle == pytest.approx((moment.first + moment.last + 1) / 2 / 120, abs=0.08)


def test_other_files_in_the_folder_stay_and_old_clips_are_replaced(video: Path, trained: Path, tmp_path: Path) -> None:
    made = find(video, "red", trained, top=1)
    (tmp_path / "diary.txt").write_text("dear diary")
    (tmp_path / made.moments[0].clip).write_bytes(b"old")
    find(video, "red", trained, top=1, out=tmp_path)
    assert files(tmp_path) == sorted([made.moments[0].clip, "diary.txt"])
    assert len(pictures_of(tmp_path / made.moments[0].clip)[0]) == made.moments[0].last - made.moments[0].first + 1


@pytest.mark.parametrize("clip", [1, 2])
def test_an_interruption_leaves_nothing(clip: int, video: Path, trained: Path, tmp_path: Path) -> None:
    done = 0

    def stop(what: str, share: float) -> None:
        nonlocal done
        done += what == "cutting" and share == 1
        if done == clip:
            raise KeyboardInterrupt

    (tmp_path / "old").mkdir()
    for out in (tmp_path / "old", tmp_path / "a" / "b"):
        done = 0
        with pytest.raises(KeyboardInterrupt):
            find(video, "red", trained, out=out, page=tmp_path / "p.html", json=tmp_path / "p.json", tell=stop)
    assert files(tmp_path) == ["old"]
    assert files(tmp_path / "old") == []


def test_without_a_page_there_are_no_clips_either(video: Path, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written") as error:
        find(video, "red", trained, out=tmp_path / "clips", page=tmp_path / "file" / "p.html")
    assert str(tmp_path / "file") in error.value.where
    assert files(tmp_path) == ["file"]


# what is refused


def wishes(folder: Path) -> dict[str, Any]:
    return {"out": folder / "clips", "page": folder / "p.html", "json": folder / "p.json"}


@pytest.mark.parametrize("kind", ["text", "empty", "none", "folder", "header"])
def test_what_is_no_video_is_told_and_leaves_nothing(kind: str, video: Path, trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    if kind == "folder":
        path.mkdir()
    elif kind != "none":
        path.write_bytes({"text": b"dear diary, " * 99, "empty": b"", "header": video.read_bytes()[:300]}[kind])
    before = files(tmp_path)
    with pytest.raises(DataError) as error:
        find(path, "red", trained, **wishes(tmp_path))
    assert error.value.where == str(path)
    assert files(tmp_path) == before


def test_a_video_of_one_frame_is_one_moment(trained: Path, tmp_path: Path) -> None:
    source = film(tmp_path / "a.mp4", [numbered(5)], fps=FPS, options=FAST)
    made = find(source, "red", trained, **wishes(tmp_path))
    (moment,) = made.moments
    assert (moment.first, moment.last) == (0, 0)
    assert 0 <= moment.start < moment.end <= made.seconds == pytest.approx(0.1)
    assert "one frame only" in made.notes[1]
    assert len(pictures_of(tmp_path / "clips" / moment.clip)[0]) == 1
    assert "one frame only" in (tmp_path / "p.html").read_text()


def test_of_a_video_that_breaks_off_the_beginning_is_looked_at(trained: Path, tmp_path: Path) -> None:
    source = film(tmp_path / "a.mkv", [numbered(i) for i in range(120)], fps=FPS, options=FAST)
    source.write_bytes(source.read_bytes()[: source.stat().st_size // 2])
    made = find(source, "red", trained, out=tmp_path / "clips")
    assert 1 < made.seconds < 11
    assert "the header promises 12.0 s" in made.notes[1]
    assert "only what comes before was looked at" in made.notes[1]
    for moment in made.moments:
        assert moment.end <= made.seconds + 1e-6
        assert len(pictures_of(tmp_path / "clips" / moment.clip)[0]) == moment.last - moment.first + 1


@pytest.mark.parametrize(
    ("task", "hint"),
    [("summary", "fedreel summarize"), ("image", "fedreel recognize"), ("pretrain", "fedreel search")],
)
def test_a_run_of_another_task_is_refused(task: str, hint: str, video: Path, copied: Path) -> None:
    """Of a model of the other task, built from scratch."""
    classes = {"classes": 2} if task == "image" else {}
    table = {"task": {"name": task, **classes}, "method": {"name": "fedavg"}}
    state = make_task(make_recipe(table)).model().state_dict()
    save_file(dict(state), copied / "model" / "global.safetensors")
    change_card(copied, task=task, recipe=table, travelling=[*state], private=[])
    with pytest.raises(RunError, match="does not find moments") as error:
        find(video, "red", copied)
    assert error.value.found == task
    assert hint in error.value.hint


@pytest.mark.parametrize(
    ("values", "needed"),
    [
        ({"features__name": "i3d", "features__width": 1024}, "i3d, 1024 numbers a step"),
        ({"features__width": 1024}, "plain, 1024 numbers a step"),
        ({"features__name": "run:no-such-folder"}, "run:no-such-folder, 64 numbers a step"),
        ({"features__frames": 7}, "plain, 64 numbers a step, frames 7"),
    ],
)
def test_features_that_cannot_be_made_are_told(values: dict[str, Any], needed: str, video: Path, copied: Path) -> None:
    change_card(copied, **values)
    with pytest.raises(RunError) as error:
        find(video, "red", copied)
    assert error.value.expected == needed
    assert error.value.hint


def test_a_model_that_diverged_is_told(video: Path, copied: Path) -> None:
    path = copied / "model" / "global.safetensors"
    save_file({name: tensor * math.nan for name, tensor in load_file(path).items()}, path)
    with pytest.raises(RunError, match="no finite numbers"):
        find(video, "red", copied)


@pytest.mark.parametrize("what", ["page", "json"])
def test_the_video_is_never_overwritten(what: str, video: Path, trained: Path, tmp_path: Path) -> None:
    source = Path(shutil.copy(video, tmp_path / "a.mp4"))
    os.link(source, tmp_path / "hard.mp4")
    before = source.read_bytes()
    for name in ("a.mp4", "hard.mp4"):
        with pytest.raises(DataError, match="overwrite the video itself"):
            find(source, "red", trained, **{what: tmp_path / name})  # type: ignore[arg-type]
    clip = source.rename(tmp_path / find(video, "red", trained).moments[0].clip)
    with pytest.raises(DataError, match="overwrite the video itself"):
        find(clip, "red", trained, out=tmp_path)
    assert clip.read_bytes() == before


def test_outputs_that_cannot_be_are_refused_before_any_work(video: Path, trained: Path, tmp_path: Path) -> None:
    def never(*_: object) -> None:
        raise AssertionError("it began")

    (tmp_path / "file").write_text("")
    for problem, places in {
        "overwrite the page": {"page": tmp_path / "x", "json": tmp_path / "x"},
        "would be a folder": {"page": tmp_path},
        "go into a folder": {"out": tmp_path / "file"},
    }.items():
        with pytest.raises(DataError, match=problem):
            find(video, "red", trained, **places, tell=never)  # type: ignore[arg-type]
    with pytest.raises(FedreelError, match="nothing to find"):
        find(video, "red", trained, top=0, tell=never)
    with pytest.raises(DataError, match="cannot be written"):
        find(video, "red", trained, out=tmp_path / "file" / "clips")
    assert files(tmp_path) == ["file"]


# page, JSON and command


@pytest.fixture(scope="module")
def drawn(video: Path, trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Finding, Path]:
    folder = tmp_path_factory.mktemp("page")
    sentence = "a <b>zebra</b> sees \"red\" & 'blue'"
    return find(video, sentence, trained, page=folder / "line.html", out=folder / "clips"), folder / "line.html"


class Reader(HTMLParser):
    """Counts tags, and keeps the text of each kind."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.said: dict[str, list[str]] = {}
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.said.setdefault(self.open[-1], []).append(data)


def test_the_page_holds_the_sentence_the_times_and_a_picture_of_every_moment(drawn: tuple[Finding, Path]) -> None:
    made, path = drawn
    read = Reader(path.read_text())
    assert read.open == []
    assert "".join(read.said["h1"]) == made.sentence
    texts = "".join(read.said["title"] + read.said["span"])
    for moment in made.moments:
        assert texts.count(f"{clock(moment.start)} – {clock(moment.end)}") >= 3  # bar, label and card
        assert f"{100 * moment.score:.1f} %" in texts
    assert len([link for link in read.links if link.startswith("data:image/jpeg")]) == len(made.moments) == 3
    assert "zebra" in "".join(read.said["li"])
    clips = [link for link in read.links if link.endswith(".mp4")]
    assert [path.parent / link for link in clips] == [path.parent / "clips" / m.clip for m in made.moments]
    assert all((path.parent / link).is_file() for link in clips)


def test_bars_and_curve_are_drawn_to_scale(drawn: tuple[Finding, Path]) -> None:
    made, path = drawn
    page = path.read_text()
    bars = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', page)
    expected = [(1000 * m.start / 12, 1000 * (m.end - m.start) / 12) for m in made.moments]
    np.testing.assert_allclose([(float(x), float(w)) for x, _, w in bars], [*expected, expected[0]], atol=0.02)
    (curve,) = re.findall(r'class="thick s0 fine" d="M([^"]+)"', page)
    points = np.array([point.split() for point in curve.split("L")], float)
    np.testing.assert_allclose(points[1:-1, 0], 1000 * (np.arange(8) + 0.5) / 8, atol=0.01)
    np.testing.assert_allclose(1 - points[1:-1, 1] / 1000, made.inside, atol=1e-3)


def test_the_pictures_are_the_middles_of_the_moments(drawn: tuple[Finding, Path], tmp_path: Path) -> None:
    made, path = drawn
    found = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', path.read_text())
    for moment, content in zip(made.moments, found):
        (tmp_path / "a.jpg").write_bytes(base64.b64decode(content))
        (picture,) = pictures_of(tmp_path / "a.jpg")[0]
        assert read_number(picture) == (moment.first + moment.last) // 2


def test_the_page_asks_nothing_of_any_network(drawn: tuple[Finding, Path]) -> None:
    page = drawn[1].read_text()
    assert not re.search(r"https?:|@import|url\(|<link|<iframe|src=\"(?!data:)", page)
    assert "<b>zebra" not in page


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="there is no chromium here")
def test_a_browser_shows_the_pictures(folder: Path, trained: Path, tmp_path: Path) -> None:
    """The colour in the middle of each picture fills a part of the page."""
    source, shot = folder / "hall0.mp4", tmp_path / "shot.png"
    made = find(source, "red", trained, page=tmp_path / "line.html")
    subprocess.run(
        [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"),
            *("--window-size=1000,1600", f"--screenshot={shot}", (tmp_path / "line.html").as_uri()),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    with av.open(str(shot)) as file:
        page = next(file.decode(video=0)).to_ndarray(format="rgb24").astype(int)
    pictures = pictures_of(source)[0]
    for moment in made.moments:
        colour = pictures[(moment.first + moment.last) // 2][16, 16].astype(int)
        assert (np.abs(page - colour).max(axis=2) < 24).sum() > 5000


def test_the_json_holds_all_that_was_found(video: Path, trained: Path, tmp_path: Path) -> None:
    made = find(video, "red zebra", trained, json=tmp_path / "a.json", top=2)
    told = json.loads((tmp_path / "a.json").read_text())
    assert {*told} == {
        *("source", "sentence", "run", "client", "features", "seconds", "moments", "inside", "unknown", "notes"),
        *("trust", "scale"),
    }
    assert [(m["start"], m["end"], m["score"], m["rank"]) for m in told["moments"]] == [
        (m.start, m.end, m.score, m.rank) for m in made.moments
    ]
    assert (told["source"], told["run"], told["features"]) == (str(video), str(trained), "plain")
    assert (told["unknown"], told["inside"]) == (["zebra"], made.inside)


def test_the_command_prints_the_moments_and_the_files(video: Path, trained: Path, tmp_path: Path) -> None:
    out, page, as_json = tmp_path / "clips", tmp_path / "p.html", tmp_path / "p.json"
    options = ["--top", 2, "-o", out, "--page", page, "--json", as_json]
    said = cli("find", video, "a zebra sees red", "--model", trained, *options)
    assert said.code == 0, said.err
    made = find(video, "a zebra sees red", trained, top=2)
    assert said.out.splitlines() == [
        *(f" {m.rank}  {clock(m.start)} - {clock(m.end)}  {100 * m.score:5.1f} %" for m in made.moments),
        *(str(out / m.clip) for m in made.moments),
        str(page),
        str(as_json),
    ]
    assert "note: the model does not know: zebra" in said.err
    assert files(tmp_path) == ["clips", "p.html", "p.json"]


def test_the_command_ends_with_status_2_when_nothing_is_understood(video: Path, trained: Path) -> None:
    said = cli("find", video, "zebra", "--model", trained)
    assert (said.code, said.out) == (2, "")
    assert "knows none of these words" in said.err


def test_a_video_much_longer_than_those_of_training_is_looked_at_in_windows(copied: Path, video: Path) -> None:
    whole = find(video, "a person sees red", copied, top=2)
    assert not any("windows" in note for note in whole.notes)
    found = find(video, "a person sees red", learned_from(copied, 4.0), top=2)
    (note,) = (note for note in found.notes if "windows" in note)
    assert note == "the model learned from videos of 4 s: it looked at 5 overlapping windows of this length"
    assert len(found.inside) == 24  # 12 s in positions of half a second, as in training
    assert all(0 <= m.start < m.end <= 12 for m in found.moments)
    assert all(m.end - m.start <= 4 for m in found.moments)


def test_a_run_notes_how_long_its_videos_were(folder: Path) -> None:
    task = make_task(make_recipe({"task": TASK, "method": {"name": "fedavg"}, "data": {"source": str(folder)}}))
    assert task.population(DataConfig(source=str(folder)), 0).describe()["seconds"] == 4.0
