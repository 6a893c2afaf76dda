"""Answers as pages: what was found is there, leads to its place in the video, and names are text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra ui is not installed")

from fedreel.ui.answers import draw_answer
from fedreel.ui.places import Places
from fedreel.ui.workshop import Ask, Workshop

HOSTILE = "<b>film</b>.mp4"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "runs", (tmp_path / "films",))


def asked(places: Places, kind: str, answer: dict[str, Any], source: str = f"data1/{HOSTILE}", **options: Any) -> Ask:
    shop = Workshop(places.results)
    id = shop.ask(kind, options, {"title": "x", "source": source})
    (places.results / id / "answer.json").write_text(json.dumps({"lines": ["said"], "notes": [HOSTILE], **answer}))
    (places.results / id / "picture-0.jpg").touch()
    (places.results / id / "result.json").touch()
    return shop.look(id)


def places_in(text: str) -> list[tuple[str, str]]:
    """Where buttons lead: second and file."""
    return re.findall(r'data-seek="([\d.]+)" data-src="([^"]+)"', text)


def test_chosen_shots_lead_into_the_summary_and_others_into_the_video(places: Places) -> None:
    spans = [(0.0, 2.0, True), (2.0, 5.0, False), (5.0, 6.5, True)]
    shots = [{"start": a, "end": b, "score": 0.5, "chosen": chosen} for a, b, chosen in spans]
    one = asked(places, "summarize", {"found": {"shots": shots}})
    text = draw_answer(one, places)
    summary, film = f"/files/results/{one.id}/summary.mp4", "/files/data1/%3Cb%3Efilm%3C/b%3E.mp4"
    assert places_in(text) == [("0.000", summary), ("2.000", summary), ("2.000", film)]
    assert text.count("<img ") == 1  # the others have no picture
    assert "<b>film" not in text
    assert f"/files/results/{one.id}/result.json?download=1" in text


@pytest.mark.parametrize("suffix", ["mp4", "avi"])
def test_moments_lead_into_the_video_or_where_browsers_cannot_play_it_into_its_clips(
    places: Places, suffix: str
) -> None:
    moments = [{"start": 3.5, "end": 4.0, "score": 0.9}, {"start": 1.0, "end": 2.0, "score": 0.1}]
    clips = ["01_3.5-4.0s.mp4", "02_1.0-2.0s.mp4"]
    one = asked(places, "find", {"found": {"moments": moments}, "clips": clips}, f"data1/a.{suffix}")
    text = draw_answer(one, places)
    own = [(f"{m['start']:.3f}", "/files/data1/a.mp4") for m in moments]
    cut = [("0.000", f"/files/results/{one.id}/moments/{clip}") for clip in clips]
    assert places_in(text) == (own if suffix == "mp4" else cut)
    assert all(f"moments/{clip}?download=1" in text for clip in clips)


def test_nothing_found_is_said(places: Places) -> None:
    assert "Nothing was found." in draw_answer(asked(places, "find", {"found": {"moments": []}, "clips": []}), places)


def test_similar_videos_are_played_from_the_folder_that_was_searched(places: Places) -> None:
    names = ["deep/a film.mp4", "b.avi", HOSTILE]
    hits = [{"path": name, "similarity": 0.5, "label": HOSTILE, "owner": ""} for name in names]
    one = asked(places, "search", {"found": {"hits": hits, "videos": 7}}, root="data1")
    text = draw_answer(one, places)
    assert [file for _, file in places_in(text)] == [
        "/files/data1/deep/a%20film.mp4",
        "/files/data1/%3Cb%3Efilm%3C/b%3E.mp4",
    ]
    assert "b.avi" in text
    assert "7 videos were compared" in text
    assert "<b>film" not in text


def test_the_likeliest_classes_are_listed(places: Places) -> None:
    ranking = [{"label": name, "probability": share} for name, share in (("run", 0.7), (HOSTILE, 0.2), ("sit", 0.1))]
    one = asked(places, "recognize", {"found": {"label": "run", "ranking": ranking}}, top=2)
    text = draw_answer(one, places)
    assert "70.0 %" in text
    assert "20.0 %" in text
    assert "sit" not in text
    assert " style=" not in text
