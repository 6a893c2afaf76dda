"""The storyboard: what it shows, that it is one file, and what a browser makes of it."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from pathlib import Path

import av
import numpy as np
import pytest

from fedreel.machine.words import clock
from fedreel.tasks.summary.command import summarize
from fedreel.tasks.summary.result import Summary
from support.films import pictures_of, scenes


@pytest.fixture(scope="module")
def board(video: Path, trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Summary, Path]:
    path = tmp_path_factory.mktemp("board") / "board.html"
    return summarize(video, trained, page=path, ratio=0.5), path


def images(page: str) -> list[bytes]:
    return [base64.b64decode(found) for found in re.findall(r'src="data:image/jpeg;base64,([^"]+)"', page)]


def test_the_storyboard_shows_every_chosen_shot(board: tuple[Summary, Path], tmp_path: Path) -> None:
    made, path = board
    page = path.read_text()
    found = images(page)
    assert len(found) == len(made.chosen) >= 2
    for shot, content in zip(made.chosen, found):
        (tmp_path / "a.jpg").write_bytes(content)
        (picture,) = pictures_of(tmp_path / "a.jpg")[0]
        middle = scenes()[(shot.first + shot.last) // 2]
        assert picture.shape == (202, 360, 3)
        assert np.abs(np.median(picture, axis=(0, 1)) - np.median(middle, axis=(0, 1))).max() < 20
        assert f"{clock(shot.start)} – {clock(shot.end)}" in page
    assert page.count('<rect class="kept"') == len(made.chosen)
    assert page.count("<rect ") == len(made.shots)


def test_the_storyboard_asks_nothing_of_any_network(board: tuple[Summary, Path]) -> None:
    page = board[1].read_text()
    assert "img-src data:" in page
    assert re.findall(r"<img(?![^>]*src=.data:image)", page) == []
    assert not re.search(r"https?:|@import|url\(|<link|<iframe|src=\"(?!data:)", page)


def test_the_same_pictures_with_and_without_a_video(board: tuple[Summary, Path], video: Path, trained: Path) -> None:
    """Once on the way through the chosen shots, once jumped to."""
    again = board[1].with_name("again.html")
    summarize(video, trained, out=again.with_suffix(".mp4"), page=again, ratio=0.5)
    page = again.read_text()
    assert images(page) == images(board[1].read_text())
    assert 'href="again.mp4#t=0.00"' in page


def test_names_cannot_change_the_page(trained: Path, video: Path, tmp_path: Path) -> None:
    nasty = tmp_path / "<img src=x onerror=alert(1)>&'\".mp4"
    shutil.copy(video, nasty)
    summarize(nasty, trained, out=tmp_path / "a <b>.mp4", page=tmp_path / "b.html", ratio=0.5)
    page = (tmp_path / "b.html").read_text()
    assert "onerror=alert(1)&gt;&amp;&#x27;&quot;.mp4" in page
    assert "<img src=x" not in page
    assert 'href="a%20%3Cb%3E.mp4#t=' in page


def test_time_codes_read_like_those_of_a_player() -> None:
    assert [clock(t) for t in (0, 9.96, 59.97, 61.04, 3599.99, 3661.5)] == [
        *("0:00.0", "0:10.0", "1:00.0", "1:01.0", "1:00:00.0", "1:01:01.5")
    ]
    assert clock(125, 0) == "2:05"


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="there is no chromium here")
def test_a_browser_shows_the_pictures(board: tuple[Summary, Path], tmp_path: Path) -> None:
    """The colour of the first chosen scene fills a part of the page, and so does nothing if pictures are refused."""
    shot = tmp_path / "shot.png"
    subprocess.run(
        [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"),
            *("--window-size=1000,1600", f"--screenshot={shot}", board[1].as_uri()),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    with av.open(str(shot)) as file:
        picture = next(file.decode(video=0)).to_ndarray(format="rgb24").astype(int)
    for chosen in board[0].chosen:
        colour = np.median(scenes()[(chosen.first + chosen.last) // 2], axis=(0, 1))
        assert (np.abs(picture - colour).max(axis=2) < 24).sum() > 5000
