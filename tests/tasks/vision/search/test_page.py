"""The gallery of a search: it holds its pictures, leads to the videos, names cannot change it, browsers play it."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote

import av
import numpy as np
import pytest

from fedreel.media.video import write
from fedreel.tasks.vision.search.command import search
from fedreel.tasks.vision.search.page import draw_page, pictures
from fedreel.tasks.vision.search.result import Similar
from support.embedded import make_films, train
from support.films import film
from support.pages import Read


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("trained") / "run", data)


@pytest.fixture
def films(tmp_path: Path) -> Path:
    return make_films(tmp_path / "films")


def drawn(films: Path, run: Path, page: Path, **options: object) -> tuple[Similar, str]:
    made = search(films / "clip0.mp4", films, run, page=page, **options)  # type: ignore[arg-type]
    return made, page.read_text()


def shown(link: str) -> np.ndarray:
    """The picture of a data: link."""
    head, _, content = link.partition(",")
    assert head == "data:image/jpeg;base64"
    with av.open(BytesIO(base64.b64decode(content))) as file:
        return next(file.decode(video=0)).to_ndarray(format="rgb24")


def test_every_hit_has_a_player_a_strip_and_its_numbers(trained: Path, films: Path, tmp_path: Path) -> None:
    made, text = drawn(films, trained, tmp_path / "pages" / "p.html", top=3)
    found = Read(text)
    expected = [films / "clip0.mp4", *(films / hit.path for hit in made.hits)]
    players = found.values("video", "src")
    assert [(tmp_path / "pages" / unquote(src)).resolve() for src in players] == expected
    assert not any(src.startswith(("/", "file:", "http")) for src in players)
    assert len(found.values("video", "controls")) == len(found.values("video", "poster")) == 4
    assert len(found.values("img", "src")) == 4
    for hit in made.hits:
        assert f"similarity {hit.similarity:.4f}" in found.said
        assert found.said.count(hit.path) == 2 + (hit.rank == 1)  # a card, a row of the table; the best in the head


def test_a_strip_shows_three_frames_in_their_order(trained: Path, films: Path, tmp_path: Path) -> None:
    levels = [20] * 8 + [120] * 8 + [220] * 8
    write(films / "steps.mp4", np.repeat(np.uint8(levels), 16 * 24 * 3).reshape(-1, 16, 24, 3), 8)
    made, text = drawn(films, trained, tmp_path / "p.html", top=9)
    at = 1 + [hit.path for hit in made.hits].index("steps.mp4")
    strip = shown(Read(text).values("img", "src")[at]).mean(axis=(0, 2))
    parts = strip.reshape(3, -1).mean(axis=1)
    np.testing.assert_allclose(parts, [20, 120, 220], atol=6)
    poster = shown(Read(text).values("video", "poster")[at])
    assert poster.mean() == pytest.approx(120, abs=6)
    assert poster.shape[1] / poster.shape[0] == pytest.approx(24 / 16, rel=0.05)


def test_pictures_keep_the_proportions_and_fit_any_video(tmp_path: Path) -> None:
    tall = film(tmp_path / "tall.mp4", [np.full((60, 20, 3), 9, np.uint8)] * 2)
    for picture in pictures(tall):
        assert picture.shape == (180, 60, 3)
    one = film(tmp_path / "one.mp4", [np.full((16, 16, 3), 9, np.uint8)])
    assert len(pictures(one)) == 3
    (tmp_path / "bad.mp4").write_text("dear diary")
    assert pictures(tmp_path / "bad.mp4") == pictures(tmp_path / "none.mp4") == []


def test_the_page_asks_nothing_of_any_network(trained: Path, films: Path, tmp_path: Path) -> None:
    _, text = drawn(films, trained, tmp_path / "p.html")
    (policy,) = (p for p in Read(text).values("meta", "content") if "default-src" in p)
    assert policy.startswith("default-src 'none';")
    assert {part.strip() for part in policy.split(";")} >= {"img-src data:", "media-src 'self' file:"}
    assert not re.search(r"https?:|[\"'(]//\w|@import|url\(|<link|<iframe", text)


def test_names_cannot_change_the_page(trained: Path, films: Path, tmp_path: Path) -> None:
    odd = films / "<b>own&er's" / 'x" onerror="alert(1)'
    odd.mkdir(parents=True)
    shutil.copy(films / "clip1.mp4", odd / "<script>alert(2)<%23#?.mp4")
    for n in range(5):
        (films / "o" / "c").mkdir(parents=True, exist_ok=True)
        (films / f"clip{n}.mp4").rename(films / "o" / "c" / f"clip{n}.mp4")
    (odd / "<i>bad.mp4").write_text("dear diary")
    made = search(films / "o" / "c" / "clip0.mp4", films, trained, page=tmp_path / "p.html")
    text = (tmp_path / "p.html").read_text()
    found = Read(text)
    hostile = next(hit for hit in made.hits if "script" in hit.path)
    assert {hostile.path, hostile.label, hostile.owner} <= {*found.said}
    assert (hostile.owner, hostile.label) == ("<b>own&er's", 'x" onerror="alert(1)')
    assert made.skipped[0].path in found.said
    assert found.values("video", "onerror") == found.values("img", "onerror") == []
    assert "<script>alert" not in text
    link = next(src for src in found.values("video", "src") if "script" in src)
    assert (tmp_path / unquote(link)).is_file()
    assert not {*'<>"#?'} & {*link}


def test_a_video_that_vanished_meanwhile_has_no_pictures(trained: Path, films: Path, tmp_path: Path) -> None:
    made = search(films / "clip0.mp4", films, trained)
    (films / made.hits[0].path).unlink()
    found = Read(draw_page(made, tmp_path))
    assert len(found.values("video", "src")) == 5
    assert len(found.values("video", "poster")) == len(found.values("img", "src")) == 4


def test_skipped_files_and_notes_are_on_the_page(trained: Path, films: Path, tmp_path: Path) -> None:
    (films / "bad.mp4").write_text("dear diary")
    made, text = drawn(films, trained, tmp_path / "p.html")
    assert {made.skipped[0].path, made.skipped[0].reason, *made.notes} <= {*Read(text).said}


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="there is no chromium here")
def test_a_browser_loads_the_videos(trained: Path, films: Path, tmp_path: Path) -> None:
    """By a link that leads up from the page's folder; the page's own policy is in force."""
    film(films / "web.webm", [np.full((16, 24, 3), 9, np.uint8)] * 8, codec="libvpx")
    made = search(films / "web.webm", films, trained, page=tmp_path / "pages" / "p.html", top=1)
    text = (tmp_path / "pages" / "p.html").read_text()
    probe = """<script>const v = document.querySelector('video'); v.preload = 'auto';
    v.onloadeddata = () => document.body.dataset.seen = v.videoWidth; v.load();</script></body>"""
    (tmp_path / "pages" / "p.html").write_text(text.replace("</body>", probe))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    options += ["--virtual-time-budget=20000", "--dump-dom", (tmp_path / "pages" / "p.html").as_uri()]
    done = subprocess.run(["chromium", *options], check=True, capture_output=True, text=True, timeout=120)
    assert made.source.name == "web.webm"
    assert 'data-seen="24"' in done.stdout
