"""Summaries of videos by a trained model: the choice by brute force, files of every kind, and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedreel.config import make_recipe
from fedreel.data.features import Plain, video_features
from fedreel.data.steps import VideoSteps, look
from fedreel.errors import DataError, FedreelError, RecipeError, RunError
from fedreel.kernels.dtw import dtw
from fedreel.machine.words import clock
from fedreel.media.frames import Timeline
from fedreel.runs.run import load, run
from fedreel.tasks.summary import summarize as module
from fedreel.tasks.summary.command import summarize
from fedreel.tasks.summary.result import Shot
from fedreel.tasks.summary.summarize import choose
from support import embedded
from support.films import FPS, LENGTHS, film, numbered, pictures_of, scenes
from support.tiny import cli


def change(model: Path, **values: Any) -> None:
    """Other values in a model's card; features__name stands for the name in its features."""
    path = model / "card.json"
    card = json.loads(path.read_text())
    for key, value in values.items():
        section, _, name = key.partition("__")
        if section == "features":
            card["input"]["features"][name] = value
        elif name:
            card["recipe"][section][name] = value
        else:
            card[section] = value
    path.write_text(json.dumps(card))


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def best(values: list[float], lengths: list[int], room: int) -> float:
    """The greatest total of values that fits, over all subsets."""
    every = (c for n in range(len(values) + 1) for c in combinations(range(len(values)), n))
    return max(sum(values[i] for i in c) for c in every if sum(lengths[i] for i in c) <= room)


def steps(rows: np.ndarray, n_frames: int, each: int = 5, fps: float = 10.0) -> VideoSteps:
    line = Timeline(np.arange(n_frames + 1), np.array([0]), Fraction(1, int(fps)), fps)
    return VideoSteps(rows, np.arange(0, n_frames, each), line)


# the choice


@pytest.mark.parametrize("ratio", [0.15, 0.3, 0.6])
def test_the_chosen_shots_are_the_best_that_fit(video: Path, trained: Path, ratio: float) -> None:
    made = summarize(video, trained, ratio=ratio)
    room = int(ratio * made.n_frames)
    lengths = [s.last - s.first + 1 for s in made.shots]
    assert made.n_frames == sum(LENGTHS)
    assert 4 <= len(made.shots) <= 16
    assert sum(b - a + 1 for a, b in made.spans) <= room
    assert sum(s.score for s in made.chosen) == pytest.approx(best([s.score for s in made.shots], lengths, room))


def test_shots_tile_the_video_and_have_the_mean_score_of_their_frames(video: Path, trained: Path) -> None:
    made = summarize(video, trained)
    ends = [s.last + 1 for s in made.shots]
    assert [s.first for s in made.shots] == [0, *ends[:-1]]
    assert ends[-1] == made.n_frames
    half = [0, *(round(5.0 * (i + 1)) for i in range(len(made.scores) - 1)), made.n_frames]  # steps of half a second
    by_frame = np.repeat(made.scores, np.diff(half))
    for shot in made.shots:
        assert shot.score == pytest.approx(by_frame[shot.first : shot.last + 1].mean())
        assert (shot.start, shot.end) == pytest.approx((shot.first / FPS, (shot.last + 1) / FPS))


def test_shots_begin_where_the_scene_changes(video: Path, trained: Path) -> None:
    """To the step: steps are 5 frames, and the scenes begin at other frames too."""
    found = np.array([s.first for s in summarize(video, trained, ratio=1.0).shots])
    assert all(np.abs(found - start).min() <= 5 for start in np.cumsum(LENGTHS)[:-1])


def test_the_scores_are_those_of_the_model_on_the_features(video: Path, trained: Path) -> None:
    made = summarize(video, trained, community="community-1")
    given = video_features(video, Plain(), 2.0)
    loaded = load(trained, model="community-1")
    with torch.no_grad():
        scores = loaded.model(torch.from_numpy(given.features)[None])[0]
    assert made.picks == given.picks.tolist()
    assert made.scores == pytest.approx(scores.tolist(), abs=1e-5)
    assert made.scores != pytest.approx(summarize(video, trained, community="community-0").scores, abs=1e-4)


@pytest.mark.parametrize(("fps", "rate"), [(10, 2.0), (25, 2.0), (7, 3.0), (10, 30.0), (8, 1.0)])
def test_features_are_those_of_training_at_any_rate(fps: int, rate: float, tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4", scenes(18, 32)[:60], fps=fps)
    found, given = look(path, Plain(), rate, None), video_features(path, Plain(), rate)
    assert found.picks.tolist() == given.picks.tolist()
    np.testing.assert_array_equal(found.rows, given.features)


def test_a_step_is_as_long_at_every_frame_rate_of_a_video(tmp_path: Path) -> None:
    """4 s at 20 frames a second, 4 s at 5: steps of a second have 20 frames, then 5."""
    ticks = [*range(0, 4000, 50), *range(4000, 8000, 200)]
    path = film(tmp_path / "a.mkv", [numbered(i) for i in range(100)], ticks=ticks)
    found = look(path, Plain(), 1.0, None)
    assert found.lengths.tolist() == [20, 20, 20, 20, 5, 5, 5, 5]
    assert found.line.seconds(85) == pytest.approx(5.0)


def test_a_shot_that_could_never_fit_is_cut_into_parts() -> None:
    """100 equal frames are one shot; a summary of 15 gets the best of 7 parts, of 14 or 15 frames."""
    scores = np.linspace(0.1, 0.9, 20)
    shots, notes = choose(scores, steps(np.ones((20, 3)), 100), 0.15)
    assert sorted({s.last - s.first + 1 for s in shots}) == [14, 15]
    assert [s.chosen for s in shots] == [False] * 6 + [True]
    assert "1 of 1 shots were longer" in notes[0]


def test_scores_of_nothing_but_zeros_still_give_a_summary() -> None:
    shots, _ = choose(np.zeros(20), steps(np.ones((20, 3)), 100), 0.15)
    assert sum(s.chosen for s in shots) == 1


def test_a_ratio_of_one_keeps_everything() -> None:
    rows = np.repeat(np.eye(4), 5, axis=0)
    shots, notes = choose(np.zeros(20), steps(rows, 100), 1.0)
    assert [(s.first, s.chosen) for s in shots] == [(0, True), (25, True), (50, True), (75, True)]
    assert notes == []


def test_a_budget_takes_the_frame_that_rounding_would_lose() -> None:
    """.29 * 100 is a little less than 29 in floating point."""
    rows = np.repeat(np.eye(2), [29, 71], axis=0)
    shots, _ = choose(np.repeat([0.9, 0.1], [29, 71]), steps(rows, 100, each=1), 0.29)
    assert [(s.first, s.last) for s in shots if s.chosen] == [(0, 28)]


def test_a_summary_of_an_instant_says_how_to_get_more() -> None:
    """100 frames at 25 a second are 4 s."""
    given = steps(np.repeat(np.eye(4), 5, axis=0), 100, fps=25.0)
    said = {ratio: choose(np.zeros(20), given, ratio)[1] for ratio in (0.2, 0.3)}
    assert "20% of 4.0 s are 0.8 s: with a larger --ratio there is more to see" in said[0.2]
    assert not any("--ratio" in note for note in said[0.3])


def test_long_videos_are_worked_on_in_parts(monkeypatch: pytest.MonkeyPatch, video: Path, trained: Path) -> None:
    monkeypatch.setattr(module, "BLOCK", 10)
    monkeypatch.setattr(module, "CELLS", 40)
    made = summarize(video, trained, ratio=0.5)
    assert any("parts of up to 10 steps" in note for note in made.notes)
    assert len(made.scores) == 32
    assert 0 < sum(b - a + 1 for a, b in made.spans) <= 80
    assert [s.first for s in made.shots[1:]] == [s.last + 1 for s in made.shots[:-1]]


# communities


def test_auto_takes_the_community_that_is_as_far_from_the_public_video(video: Path, copy: Path) -> None:
    loaded = load(copy)
    recipe = make_recipe(loaded.card["recipe"])
    proxy = loaded.task.public(recipe.data, recipe.data.seed).sequences[0].numpy()  # type: ignore[union-attr]
    d = dtw(video_features(video, Plain(), 2.0).features, proxy, normalize="path")
    assert recipe.method["normalize"] == "path"
    for near, far in (("community-0", "community-1"), ("community-1", "community-0")):
        change(copy, distances={near: [d + 0.5], far: [d - 0.7]})
        assert summarize(video, copy).community == near


def test_without_the_public_video_the_model_of_all_is_taken(video: Path, copy: Path) -> None:
    change(copy, data__public="no-such-file.h5")
    made = summarize(video, copy)
    assert made.community == "global"
    assert re.search(r"no community could be found.*no-such-file\.h5.*community-0, community-1", made.notes[1])


def test_communities_without_distances_are_not_guessed(video: Path, copy: Path) -> None:
    change(copy, distances={})
    assert summarize(video, copy).community == "global"
    change(copy, communities={})
    made = summarize(video, copy)
    assert made.community == "global"
    assert not any("community" in note for note in made.notes)


def test_a_client_has_the_model_of_its_community(video: Path, trained: Path) -> None:
    where = load(trained).card["communities"]
    assert len({*where.values()}) == 2
    for client, community in where.items():
        made = summarize(video, trained, client=client)
        assert (made.client, made.community) == (client, community)
        assert made.scores == summarize(video, trained, community=community).scores
    assert summarize(video, trained, community="global").community == "global"


def test_a_name_that_nobody_has_is_answered_by_the_nearest(video: Path, trained: Path) -> None:
    with pytest.raises(RunError, match="did you mean 'community-"):
        summarize(video, trained, community="comunity-1")
    with pytest.raises(RunError, match="no client 'o9'"):
        summarize(video, trained, client="o9")
    with pytest.raises(RecipeError, match="of its own community"):
        summarize(video, trained, client="o1", community="community-1")


def test_parts_that_stayed_with_clients_are_those_of_the_client(video: Path, trained: Path, tmp_path: Path) -> None:
    """Where nothing travels, nobody can speak for all: the client must be named."""
    recipe = load(trained).card["recipe"]
    table = {**recipe, "method": {"name": "local-only"}}
    private = run(make_recipe(table), tmp_path / "run", quiet=True).path
    with pytest.raises(RunError, match="whose model is meant"):
        summarize(video, private)
    scores = {client: summarize(video, private, client=client).scores for client in ("o0", "o1")}
    assert scores["o0"] != scores["o1"]


# features


@pytest.mark.parametrize(
    ("values", "expected", "found"),
    [
        ({"features__weights": "abc", "features__name": "other"}, "other, 64 numbers a step", "name plain"),
        ({"features__width": 65}, "plain, 65 numbers a step", "width 64"),
        ({"features__frames": 4}, "plain, 64 numbers a step, frames 4", "frames 8"),
    ],
)
def test_other_features_than_in_training_are_refused(
    values: dict[str, Any], expected: str, found: str, video: Path, copy: Path
) -> None:
    change(copy, **values)
    with pytest.raises(RunError) as error:
        summarize(video, copy)
    assert (error.value.expected, error.value.found) == (expected, found)


def test_features_of_other_weights_are_refused(video: Path, copy: Path) -> None:
    class Weighted(Plain):
        def card(self) -> dict[str, Any]:
            return {**super().card(), "weights": "beef"}

    change(copy, features__weights="cafe")
    with pytest.raises(RunError, match=r"weights cafe(.|\n)*weights beef"):
        summarize(video, copy, features=Weighted())


def test_features_that_cannot_be_made_must_be_given(video: Path, copy: Path) -> None:
    class Mine(Plain):
        name = "mine"

    change(copy, features__name="mine", task__features="mine")
    with pytest.raises(RunError, match="mine, 64 numbers a step"):
        summarize(video, copy)
    assert summarize(video, copy, features=Mine()).features == "mine"


def test_standardised_features_are_so_over_the_video(video: Path, copy: Path) -> None:
    raw = summarize(video, copy, community="global")
    change(copy, features__standardised=True)
    made = summarize(video, copy, community="global")
    assert "standardised over this video alone" in made.notes[1]
    rows = video_features(video, Plain(), 2.0).features.astype(np.float64)
    deviation = rows.std(axis=0)
    rows = (rows - rows.mean(axis=0)) / np.where(deviation > 0, deviation, 1)
    with torch.no_grad():
        scores = load(copy).model(torch.from_numpy(rows).float()[None])[0]
    assert made.scores == pytest.approx(scores.tolist(), abs=1e-4)
    assert made.scores != pytest.approx(raw.scores, abs=1e-3)


def test_a_model_for_something_else_is_refused_with_what_it_is_for(
    video: Path, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also where clients have parts of their own: whose it is does not matter then."""
    other = embedded.train(tmp_path_factory.mktemp("other") / "run", data, **{"method.name": "fedbn"})
    with pytest.raises(RunError, match="does not summarise videos") as error:
        summarize(video, other)
    assert (error.value.expected, error.value.found) == ("a run of the task summary", "recognition")
    assert error.value.hint == "use fedreel recognize, fedreel search or fedreel find"


# files


def test_the_summary_is_a_video_of_the_chosen_frames(video: Path, trained: Path, tmp_path: Path) -> None:
    made = summarize(video, trained, out=tmp_path / "new" / "out.mp4", ratio=0.4)
    pictures, _ = pictures_of(tmp_path / "new" / "out.mp4")
    kept = [n for a, b in made.spans for n in range(a, b + 1)]
    assert len(pictures) == len(kept) > 30
    for picture, original in zip(pictures, (scenes()[n] for n in kept)):
        assert np.abs(picture.astype(int) - original).mean() < 12
    assert files(tmp_path / "new") == ["out.mp4"]


def test_the_json_holds_all_that_was_found(video: Path, trained: Path, tmp_path: Path) -> None:
    said = cli("summarize", video, "--model", trained, "--json", tmp_path / "s.json", "--ratio", 0.4)
    assert (said.code, files(tmp_path)) == (0, ["s.json"])
    told, made = json.loads((tmp_path / "s.json").read_text()), summarize(video, trained, ratio=0.4)
    assert told["fps"] == FPS
    assert (told["source"], told["run"], told["client"]) == (str(video), str(trained), "")
    assert (told["picks"], told["community"], told["n_frames"]) == (made.picks, made.community, made.n_frames)
    assert told["scores"] == pytest.approx(made.scores)
    assert [Shot(**s) for s in told["shots"]] == made.shots
    assert [made.shots[i] for i in told["chosen"]] == made.chosen


def test_a_json_that_is_printed_is_alone_on_stdout(video: Path, trained: Path, tmp_path: Path) -> None:
    page = tmp_path / "p.html"
    said = cli("summarize", video, "--model", trained, "--json", "-", "--page", page)
    assert json.loads(said.out) == summarize(video, trained).as_json()
    assert str(page) in said.err
    assert files(tmp_path) == ["p.html"]


def test_the_command_prints_the_shots_and_the_files(video: Path, trained: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "out.mp4", tmp_path / "board.html"
    out.write_bytes(b"old")
    said = cli("summarize", video, "--model", trained, "-o", out, "--ratio", 0.4, "--page", page)
    assert said.code == 0, said.err
    made = summarize(video, trained, ratio=0.4)
    shots = [f"  {clock(s.start)} - {clock(s.end)}  {s.score:.3f}" for s in made.chosen]
    head = f"{made.seconds:.1f} s in {len(shots)} of {len(made.shots)} shots, by the model {made.community}"
    assert said.out.splitlines() == [head, *shots, str(out), str(page)]
    assert len(pictures_of(out)[0]) > 30
    assert files(tmp_path) == ["board.html", "out.mp4"]


def test_the_result_names_the_files_that_were_written(video: Path, trained: Path, tmp_path: Path) -> None:
    places = {"out": tmp_path / "a.mp4", "page": tmp_path / "p.html", "json": tmp_path / "s.json"}
    assert summarize(video, trained, **places).files == [*places.values()]  # type: ignore[arg-type]
    assert summarize(video, trained).files == []


@pytest.mark.parametrize("what", ["out", "page", "json"])
def test_the_input_is_never_overwritten(what: str, video: Path, trained: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.mp4"
    shutil.copy(video, source)
    (tmp_path / "link.mp4").symlink_to(source)
    os.link(source, tmp_path / "hard.mp4")
    before = source.read_bytes()
    for name in ("a.mp4", "../" + tmp_path.name + "/a.mp4", "link.mp4", "hard.mp4"):
        with pytest.raises(DataError, match="overwrite the video itself"):
            summarize(source, trained, **{what: tmp_path / name})
    assert source.read_bytes() == before


def test_outputs_that_cannot_be_are_refused_before_any_work(video: Path, trained: Path, tmp_path: Path) -> None:
    def never(*_: object) -> None:
        raise AssertionError("it began")

    for problem, places in {
        "overwrite the summary": {"out": tmp_path / "a.mp4", "page": tmp_path / "a.mp4"},
        "would be a folder": {"page": tmp_path},
        "written as mp4": {"out": tmp_path / "a.webm"},
    }.items():
        with pytest.raises(DataError, match=problem):
            summarize(video, trained, **places, tell=never)  # type: ignore[arg-type]
    for ratio in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(FedreelError, match="ratio"):
            summarize(video, trained, ratio=ratio, tell=never)
    assert files(tmp_path) == []


def wav(path: Path) -> Path:
    head = struct.pack("<I4s4sIHHIIHH4sI", 44, b"WAVE", b"fmt ", 16, 1, 1, 8000, 8000, 1, 8, b"data", 8)
    path.write_bytes(b"RIFF" + head + bytes(8))
    return path


@pytest.mark.parametrize("kind", ["text", "empty", "sound", "none", "folder", "header"])
def test_what_is_no_video_is_told_and_leaves_nothing(kind: str, video: Path, trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    if kind == "sound":
        wav(path)
    elif kind == "folder":
        path.mkdir()
    elif kind != "none":
        path.write_bytes({"text": b"dear diary, " * 99, "empty": b"", "header": video.read_bytes()[:300]}[kind])
    before = files(tmp_path)
    with pytest.raises(DataError) as error:
        summarize(path, trained, out=tmp_path / "out.mp4", page=tmp_path / "board.html", json=tmp_path / "s.json")
    assert error.value.where == str(path)
    if kind == "sound":
        assert "only sound" in error.value.found
    assert files(tmp_path) == before


def test_a_video_of_one_frame_is_its_own_summary(trained: Path, tmp_path: Path) -> None:
    source = film(tmp_path / "a.mp4", scenes()[:1], fps=FPS)
    made = summarize(source, trained, out=tmp_path / "out.mp4", page=tmp_path / "board.html")
    assert made.spans == [(0, 0)]
    assert "the summary is one frame" in made.notes[1]
    assert len(pictures_of(tmp_path / "out.mp4")[0]) == 1
    assert "the summary is one frame" in (tmp_path / "board.html").read_text()


def test_of_a_video_that_breaks_off_the_beginning_is_summarised(trained: Path, tmp_path: Path) -> None:
    source = film(tmp_path / "a.mkv", scenes(), fps=FPS, options={"g": "20"})
    source.write_bytes(source.read_bytes()[: source.stat().st_size // 2])
    made = summarize(source, trained, out=tmp_path / "out.mp4", ratio=0.4)
    assert 20 < made.n_frames < 160
    assert "the header promises 16.0 s" in made.notes[1]
    assert len(pictures_of(tmp_path / "out.mp4")[0]) == sum(b - a + 1 for a, b in made.spans)


@pytest.mark.parametrize("moment", ["looking", "cutting"])
def test_an_interruption_leaves_nothing(moment: str, video: Path, trained: Path, tmp_path: Path) -> None:
    def stop(what: str, share: float) -> None:
        if what == moment and share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        summarize(video, trained, out=tmp_path / "out.mp4", page=tmp_path / "b.html", ratio=0.4, tell=stop)
    assert files(tmp_path) == []
