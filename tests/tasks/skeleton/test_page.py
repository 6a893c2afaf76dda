"""Moving skeletons as a page and as a GIF: every bone in its place, one file, and what a browser makes of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from fedreel.tasks.skeleton.figure import Figure, figure
from fedreel.tasks.skeleton.gif import COLOURS, PAPER
from fedreel.tasks.skeleton.joints import KINECT_V1
from fedreel.tasks.use.recognize import recognize
from support.moves import make_sets, motion, one, train
from support.pages import Read


@pytest.fixture(scope="module")
def federated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("trained")
    (folder / "sets").mkdir()
    return train(folder / "run", make_sets(folder / "sets"), rounds={"rounds": 1})


@pytest.fixture(scope="module")
def page(federated: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of two bodies, of which the second comes late."""
    folder = tmp_path_factory.mktemp("page")
    second = motion(1) + np.float32([1.5, 0, 0])
    second[:6] = 0
    file = one(folder / "two.npz", motion(0), data2=second, fps=np.array(10))
    recognize(file, federated, client="left", page=folder / "page.html", top=2)
    return (folder / "page.html").read_text()


# the drawing


def drawn_from(frames: np.ndarray, fps: float | None = 10.0) -> Figure:
    return figure(frames, KINECT_V1, fps)


def test_the_drawing_is_the_recording_seen_from_the_front() -> None:
    """x to the right, y up, one scale for both, nothing turned or centred frame by frame."""
    frames = motion(1)[:, None].astype(np.float64)
    frames[:, 0, :, 0] += np.linspace(0, 2, 15)[:, None]  # walking to the right
    drawn = drawn_from(frames)
    x, y = drawn.places[:, 0, :, 0], drawn.places[:, 0, :, 1]
    scale = np.ptp(x) / np.ptp(frames[..., 0])
    np.testing.assert_allclose(x - x[0, 0], scale * (frames[:, 0, :, 0] - frames[0, 0, 0, 0]), atol=1e-6)
    np.testing.assert_allclose(y - y[0, 0], -scale * (frames[:, 0, :, 1] - frames[0, 0, 0, 1]), atol=1e-6)
    assert drawn.places.min() >= 0
    assert (drawn.places.max(axis=(0, 1, 2)) <= drawn.size).all()
    np.testing.assert_allclose(drawn.times, np.arange(15) / 10)


def test_lost_frames_and_joints_do_not_jump_to_the_origin() -> None:
    """The body is metres away from the origin: whatever lay there would make it small."""
    whole = motion(0)[:, None]
    broken = whole.copy()
    broken[4], broken[9], broken[6, 0, 3], broken[7, 0, 8] = 0, np.nan, np.nan, 0
    drawn, expected = drawn_from(broken), drawn_from(whole)
    rest = [t for t in range(15) if t not in (4, 9)]
    assert np.isfinite(drawn.places).all()
    np.testing.assert_allclose(drawn.times, np.array(rest) / 10)
    np.testing.assert_allclose(drawn.places, expected.places[rest], atol=0.02 * max(expected.size))


def test_a_long_recording_is_shown_in_few_frames_and_its_own_time() -> None:
    drawn = drawn_from(motion(0, 1000)[:, None], 50.0)
    assert len(drawn.times) == 120
    assert (drawn.times[0], drawn.times[-1]) == (0, pytest.approx(999 / 50))
    many = figure(np.tile(motion(0, 300)[:, None], (1, 2, 1, 1)), KINECT_V1, None)
    assert many.times[-1] == pytest.approx(299 / 30)


# files


def test_the_page_names_the_action_and_the_likeliest_others(federated: Path, tmp_path: Path) -> None:
    file, out = one(tmp_path / "a.npz", motion(2)), tmp_path / "new" / "page.html"
    made = recognize(file, federated, client="left", page=out, top=2)
    found = Read(out.read_text())
    assert found.texts["h1"] == [made.label]
    assert f"{100 * made.confidence:.0f} %" in found.texts["p"]
    (more,) = (text for text in found.texts["span"] if text.endswith("more"))
    assert more == "1 more"
    shown = [(label, f"{100 * share:.1f} %") for label, share in made.ranking[:2]]
    listed = [text for text in found.texts["b"] if "%" in text]
    assert listed == [share for _, share in shown] + [f"{100 * made.ranking[2][1]:.1f} %"]
    assert all(label in found.texts["span"] for label, _ in shown)
    widths = [re.fullmatch(r"width:([\d.]+)%", a["style"] or "")[1] for a in found.all("i")]  # type: ignore[index]
    assert [float(w) for w in widths] == [pytest.approx(100 * share, abs=0.06) for _, share in made.ranking[:2]]
    assert {"a.npz", "run", "left", "15", "20, kinect-v1"} <= {*found.texts["td"]}
    assert [p.name for p in out.parent.iterdir()] == ["page.html"]


def test_every_bone_and_joint_is_drawn_in_every_key_frame(page: str) -> None:
    found = Read(page)
    for kind, pattern, number in (("bones", r"M[\d.]+ [\d.]+L[\d.]+ [\d.]+", 19), ("dots", r"M[\d.]+ [\d.]+h0", 20)):
        for body in ("b0", "b1"):
            (path,) = found.all("path", **{"class": f"{kind} {body}"})
            assert re.fullmatch(f"(?:{pattern}){{{number}}}", path["d"] or "")
    moves = found.all("animate", attributename="d")
    assert len(moves) == 4
    for move in moves:
        values, times = (move["values"] or "").split(";"), (move["keytimes"] or "").split(";")
        assert len(values) == len(times) == 16  # 15 frames, and the last one held
        assert len({re.sub(r"[\d.]+", "", value) for value in values}) == 1
        assert [float(t) for t in times] == sorted(map(float, times))
        assert (float(times[0]), float(times[-1]), move["dur"]) == (0, 1, "2.000s")  # 14 / 10 s and a pause


def test_a_body_that_comes_late_is_hidden_until_then(page: str) -> None:
    (hiding,) = Read(page).all("animate", attributename="visibility")
    assert (hiding["values"] or "").split(";") == ["hidden"] * 6 + ["visible"] * 10
    assert hiding["calcmode"] == "discrete"


def test_the_page_asks_nothing_of_any_network(page: str) -> None:
    (policy,) = Read(page).all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert (policy["content"] or "").startswith("default-src 'none';")
    assert "img-src" not in (policy["content"] or "")
    assert not re.search(r"https?:|//\w|@import|url\(|<link|<iframe|src=", page)


def test_names_cannot_change_the_page(federated: Path, tmp_path: Path) -> None:
    file = one(tmp_path / "<script>alert(1)<b>.npz", motion(0))
    made = recognize(file, federated, client="left", page=tmp_path / "p.html")
    text = (tmp_path / "p.html").read_text()
    assert "bow <low>" in dict(made.ranking)
    assert "bow &lt;low&gt;" in text
    assert "<low>" not in text
    assert "<script>alert" not in text


def test_coordinates_of_the_page_hold_no_lost_joints(federated: Path, tmp_path: Path) -> None:
    broken = motion(0)
    broken[4], broken[9], broken[6, 3], broken[7, 8] = 0, np.nan, np.nan, 0
    pages = {}
    for name, frames in (("whole", np.delete(motion(0), (4, 9), axis=0)), ("broken", broken)):
        recognize(one(tmp_path / f"{name}.npz", frames), federated, client="left", page=tmp_path / f"{name}.html")
        found = Read((tmp_path / f"{name}.html").read_text())
        moves = [move["values"] or "" for move in found.all("animate", attributename="d")]
        assert not any("nan" in values or "inf" in values for values in moves)
        pages[name] = [np.array(re.findall(r"[\d.]+", values.replace("h0", "")), float) for values in moves]
    for whole, mended in zip(pages["whole"], pages["broken"]):
        np.testing.assert_allclose(mended, whole, atol=10)


@pytest.mark.parametrize("joints", [20, 1])
def test_a_recording_of_one_frame_stands_still(joints: int, federated: Path, tmp_path: Path) -> None:
    frames = motion(0, 1)
    if joints == 1:
        frames[:] = frames[0, 0]  # all in one place: there is nothing to fit
    made = recognize(
        one(tmp_path / "a.npz", frames), federated, client="left", page=tmp_path / "p.html", out=tmp_path / "p.gif"
    )
    found = Read((tmp_path / "p.html").read_text())
    assert made.frames == 1
    assert found.all("animate") == []
    assert len(found.all("path")) == 2
    assert "one frame" in found.texts["span"]
    assert len(pictures(tmp_path / "p.gif")) == 1


def pictures(path: Path) -> list[tuple[float, np.ndarray]]:
    with av.open(str(path)) as file:
        return [(float(f.time or 0), f.to_ndarray(format="rgb24").astype(int)) for f in file.decode(video=0)]


def test_the_gif_shows_the_joints_where_they_were(federated: Path, tmp_path: Path) -> None:
    second = motion(1) + np.float32([4, 0, 0])
    second[:6] = 0
    recognize(
        one(tmp_path / "a.npz", motion(0), data2=second, fps=np.array(10)),
        federated,
        client="left",
        out=tmp_path / "a.gif",
    )
    drawn = drawn_from(np.stack([motion(0), second], axis=1))
    found = pictures(tmp_path / "a.gif")
    assert [t for t, _ in found] == pytest.approx(np.arange(15) / 10)
    for t, (_, picture) in enumerate(found):
        assert picture[0, 0].tolist() == pytest.approx(PAPER, abs=2)
        for m, colour in enumerate(COLOURS):
            for x, y in drawn.places[t, m].round().astype(int):
                wanted = colour if drawn.there[t, m] else PAPER
                assert picture[y, x].tolist() == pytest.approx(wanted, abs=2)


def test_frames_too_short_for_a_gif_are_left_out(federated: Path, tmp_path: Path) -> None:
    """100 frames a second: every second one, since browsers show none for less than two hundredths."""
    recognize(
        one(tmp_path / "a.npz", motion(0, 20), fps=np.array(100)), federated, client="left", out=tmp_path / "a.gif"
    )
    assert [t for t, _ in pictures(tmp_path / "a.gif")] == pytest.approx(np.arange(0, 0.2, 0.02))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="there is no chromium here")
def test_a_browser_shows_the_bodies(page: str, tmp_path: Path) -> None:
    """The first body is there from the start, the second one only after 0.6 s."""
    (tmp_path / "p.html").write_text(page)
    seen = {}
    for moment in (0, 1200):
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / f'profile{moment}'}"]
        options += ["--window-size=1000,900", f"--screenshot={tmp_path / 's.png'}"]
        # the page's own clock, set to the moment and stopped
        stop = f"<script>const s=document.querySelector('svg.bodies');s.setCurrentTime({moment / 1000});"
        (tmp_path / "p.html").write_text(page.replace("</body>", f"{stop}s.pauseAnimations()</script></body>"))
        command = ["chromium", *options, (tmp_path / "p.html").as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        ((_, picture),) = pictures(tmp_path / "s.png")
        seen[moment] = [int((np.abs(picture - colour).max(axis=2) < 12).sum()) for colour in COLOURS]
    assert seen[0][0] > 300
    assert seen[1200][0] > 300
    assert seen[0][1] == 0
    assert seen[1200][1] > 300
