"""Features of videos: what the hand-made ones see, how videos are cut into steps, the cache, and networks."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedreel.config import load_recipe
from fedreel.data import features
from fedreel.data.feature_networks import ModuleFeatures, efficientnet_lite0, fingerprint
from fedreel.data.features import (
    STEPS_AT_ONCE,
    Annotated,
    Plain,
    card_of,
    features_at,
    make_features,
    same_features,
    video_features,
)
from fedreel.data.input_scale import IMAGENET, LITE
from fedreel.errors import DataError, FedreelError, RecipeError
from fedreel.media.video import write
from fedreel.runs.run import run
from support.tiny import SETTINGS


class Brightness:
    """The mean of the frames a step shows, and how many these are."""

    name, width, frames, size = "brightness", 2, 3, (16, 16)

    def __call__(self, windows: np.ndarray) -> np.ndarray:
        return np.array([[w.mean(), len(w)] for w in windows], np.float32)

    def card(self) -> dict[str, Any]:
        return card_of(self)


def grey(path: Path, levels: list[int], fps: int) -> Path:
    """A video of even grey frames."""
    write(path, np.repeat(np.array(levels, np.uint8), 16 * 16 * 3).reshape(-1, 16, 16, 3), fps)
    return path


# steps


def test_steps_show_their_own_frames(tmp_path: Path) -> None:
    path = grey(tmp_path / "a.mp4", [level for level in (20, 90, 160, 230) for _ in range(5)], 10)
    found = video_features(path, Brightness(), fps=2)
    np.testing.assert_allclose(found.features[:, 0], [20, 90, 160, 230], atol=4)
    assert (found.features[:, 1] == 3).all()
    assert found.picks.tolist() == [2, 7, 12, 17]
    assert (found.n_frames, found.fps) == (20, 10.0)


@pytest.mark.parametrize(("frames", "fps", "rate"), [(100, 25, 2.0), (97, 30, 2.0), (31, 8, 3.0), (7, 5, 0.5)])
def test_steps_are_even_to_a_frame_and_picks_lie_in_them(tmp_path: Path, frames: int, fps: int, rate: float) -> None:
    found = video_features(grey(tmp_path / "a.mp4", [100] * frames, fps), Brightness(), fps=rate)
    assert found.n_frames == frames
    assert len(found.picks) == len(found.features) == np.ceil(round(frames * rate / fps, 6))
    steps = np.minimum((found.picks * rate / fps).astype(int), len(found.picks) - 1)
    np.testing.assert_array_equal(steps, np.arange(len(found.picks)))


def test_a_video_slower_than_the_steps_has_a_step_for_each_frame(tmp_path: Path) -> None:
    found = video_features(grey(tmp_path / "a.mp4", [10, 100, 200], 1), Brightness(), fps=2)
    assert found.picks.tolist() == [0, 1, 2]
    np.testing.assert_allclose(found.features[:, 0], [10, 100, 200], atol=4)
    with pytest.raises(RecipeError):
        video_features(tmp_path / "a.mp4", Brightness(), fps=0)


def test_a_long_video_is_never_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[Frame] = weakref.WeakSet()
    most = 0

    class Frame(np.ndarray):
        __hash__ = object.__hash__  # type: ignore[assignment]

    class Reader:
        fps, fault = 30.0, ""

        def __init__(self, *_: object) -> None: ...

        def __iter__(self) -> Iterator[np.ndarray]:
            nonlocal most
            for _ in range(9000):
                frame = np.zeros((4, 4, 3), np.uint8).view(Frame)
                alive.add(frame)
                most = max(most, len(alive))
                yield frame

    monkeypatch.setattr(features, "Reader", Reader)
    found = video_features(tmp_path / "a.mp4", Brightness(), fps=2)
    assert (len(found.features), found.n_frames) == (600, 9000)
    assert most <= 15 + 3 * STEPS_AT_ONCE


def test_files_that_are_no_video_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"no video")
    for name in ("a.mp4", "absent.mp4"):
        with pytest.raises(DataError, match=name):
            video_features(tmp_path / name, Brightness())


def test_features_that_are_not_usable_are_refused(tmp_path: Path) -> None:
    class Broken(Brightness):
        def __call__(self, windows: np.ndarray) -> np.ndarray:
            return np.full((len(windows), 2), np.nan)

    class Narrow(Brightness):
        def __call__(self, windows: np.ndarray) -> np.ndarray:
            return np.zeros((len(windows), 1))

    path = grey(tmp_path / "a.mp4", [1, 2, 3], 2)
    for kind in (Broken, Narrow):
        with pytest.raises(DataError, match="not usable"):
            video_features(path, kind())


# annotated videos, and the cache


def test_annotated_steps_lie_around_or_after_their_picks(tmp_path: Path) -> None:
    path = grey(tmp_path / "a.mp4", [20] * 4 + [120] * 4 + [220] * 2, 8)
    videos = [Annotated(path, np.array([2, 6, 9]), 10, True), Annotated(path, np.array([0, 4, 8]), 10, False)]
    around, after = features_at(videos, Brightness())
    np.testing.assert_allclose(after[:, 0], [20, 120, 220], atol=4)
    np.testing.assert_allclose(around[:, 0], [20, 120, 220], atol=4)


def test_features_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path / "cache"))
    path, picks = grey(tmp_path / "a.mp4", [20] * 4 + [120] * 4, 8), np.array([0, 4])
    calls = []

    class Counted(Brightness):
        def __call__(self, windows: np.ndarray) -> np.ndarray:
            calls.append(len(windows))
            return super().__call__(windows)

    def compute(**other: Any) -> np.ndarray:
        return features_at([Annotated(path, **{"picks": picks, "n_frames": 8, "centred": False, **other})], Counted())[
            0
        ]

    first = compute()
    np.testing.assert_array_equal(compute(), first)
    assert len(calls) == 1
    compute(picks=np.array([0, 5]))  # other steps
    assert len(calls) == 2
    os.utime(path, (1, 1))  # perhaps another video
    compute()
    assert len(calls) == 3
    kept = sorted((tmp_path / "cache" / "features").iterdir())
    assert len(kept) == 3  # and nothing half-written beside them
    for file in kept:
        file.write_bytes(file.read_bytes()[:-3])
    np.testing.assert_array_equal(compute(), first)
    assert len(calls) == 4


def test_a_video_shorter_than_its_annotations_is_refused(tmp_path: Path) -> None:
    path = grey(tmp_path / "a.mp4", [20] * 8, 8)
    for picks, n_frames in (([0, 4], 9), ([0, 4, 8], 12)):
        with pytest.raises(DataError, match="fewer frames than its annotations"):
            features_at([Annotated(path, np.array(picks), n_frames, False)], Brightness())
    with pytest.raises(DataError, match="no such video"):
        features_at([Annotated(tmp_path / "absent.mp4", np.array([0]), 8, False)], Brightness())


# hand-made features


def plain(frames: np.ndarray) -> np.ndarray:
    return Plain()(frames[None])[0]


def scene(colour: tuple[int, int, int], speed: int = 0) -> np.ndarray:
    """A square of a colour on grey, in eight frames, moving so many pixels a frame."""
    frames = np.full((8, 32, 32, 3), 120, np.uint8)
    for t, frame in enumerate(frames):
        at = 2 + speed * t
        frame[12:20, at : at + 6] = colour
    return frames


def test_there_are_64_numbers_and_they_do_not_depend_on_the_batch() -> None:
    windows = np.random.default_rng(0).integers(0, 256, (5, 8, 32, 32, 3)).astype(np.uint8)
    found = Plain()(windows)
    assert found.shape == (5, 64)
    assert found.dtype == np.float32
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found[3], plain(windows[3]))
    for extreme in (0, 255):
        assert np.isfinite(plain(np.full((8, 32, 32, 3), extreme, np.uint8))).all()


def test_colour_motion_and_speed_can_be_told_apart() -> None:
    still, slow, fast = (plain(scene((230, 60, 40), speed)) for speed in (0, 1, 3))
    cold = plain(scene((40, 60, 230)))
    moved = np.abs(slow - still) > 0.05
    coloured = np.abs(cold - still) > 0.05
    assert moved.any()
    assert coloured.any()
    assert (moved & ~coloured).any()
    assert (coloured & ~moved).any()
    assert (np.abs(fast - slow) > 0.2).any()


def test_a_cut_inside_a_step_hardly_counts_as_motion() -> None:
    cut = np.concatenate([np.full((5, 32, 32, 3), 60, np.uint8), np.full((3, 32, 32, 3), 200, np.uint8)])
    still = plain(np.full((8, 32, 32, 3), 200, np.uint8))
    moving = plain(np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3)).astype(np.uint8))
    lag_1 = slice(24, 27)  # after 12 mean colours and 12 hues: how much changes from frame to frame
    np.testing.assert_allclose(plain(cut)[lag_1], still[lag_1], atol=1e-6)
    assert (moving[lag_1] > still[lag_1] + 1).all()


# networks


class Means(nn.Module):
    """The mean of each channel, doubled."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x.flatten(2).mean(2)


def test_a_module_sees_normalised_frames() -> None:
    made = ModuleFeatures(Means(), 3, size=(4, 4), mean=(0.1, 0.2, 0.3), std=(0.5, 0.5, 0.25))
    found = made(np.full((2, 1, 4, 4, 3), 51, np.uint8))  # 0.2 of 255
    np.testing.assert_allclose(found, [[0.4, 0.0, -0.8]] * 2, atol=1e-6)
    assert ModuleFeatures(Means(), 3, size=(4, 4), frames=5)(np.zeros((2, 5, 4, 4, 3), np.uint8)).shape == (2, 3)


def test_cards_match_if_all_that_both_know_is_the_same() -> None:
    other = Means()
    nn.init.constant_(other.scale, 3.0)
    one, same, changed = (ModuleFeatures(m, 3).card() for m in (Means(), Means(), other))
    assert same_features(one, same)
    assert not same_features(one, changed)
    assert not same_features(one, ModuleFeatures(Means(), 3, mean=(0, 0, 0)).card())
    assert not same_features(one, Plain().card())
    assert same_features(one, {"name": "module", "width": 3})  # came with the data: nothing else is known
    assert not same_features(one, {"name": "module"})
    assert not same_features({**one, "fps": 2.0}, {**same, "fps": 1.0})
    assert not same_features({}, {})


def test_a_fingerprint_differs_where_names_shapes_or_values_do() -> None:
    tensors = {"a": torch.zeros(2, 3), "b": torch.ones(1)}
    others = [{**tensors, "a": torch.zeros(3, 2)}, {**tensors, "b": torch.full((1,), 2.0)}, {"c": torch.zeros(2, 3)}]
    prints = [fingerprint(t) for t in (tensors, *others)]
    assert len({*prints}) == 4
    assert fingerprint(dict(reversed(tensors.items()))) == prints[0]


@pytest.mark.slow
def test_efficientnet_gives_1280_numbers() -> None:
    before = torch.random.get_rng_state()
    made = efficientnet_lite0()
    assert torch.equal(torch.random.get_rng_state(), before)
    rng = np.random.default_rng(0)
    flat, noise = np.full((1, 1, 224, 224, 3), 90, np.uint8), rng.integers(0, 256, (1, 1, 224, 224, 3)).astype(np.uint8)
    found = made(np.concatenate([flat, noise]))
    assert found.shape == (2, 1280)
    assert 0 <= found.min() <= found.max() <= 6  # ReLU6, averaged
    assert np.abs(found[0] - found[1]).max() > 0.5
    assert same_features(made.card(), make_features("efficientnet-lite0").card())
    assert made.card()["mean"] == [round(127 / 255, 6)] * 3


def test_unknown_features_are_answered_by_those_known() -> None:
    assert make_features("plain").width == 64
    with pytest.raises(RecipeError, match="did you mean 'plain'"):
        make_features("plane")


@pytest.mark.slow
def test_a_run_s_backbone_makes_features(data: Path, tmp_path: Path) -> None:
    settings = {**SETTINGS, "data.source": str(data), "round.rounds": 1}
    run(load_recipe("recognition", settings), tmp_path / "run", quiet=True)
    made = make_features(f"run:{tmp_path / 'run'}")
    assert (made.frames, made.size) == (4, (16, 16))
    video = next(data.rglob("*.mp4"))
    found = video_features(video, made, fps=4)
    assert found.features.shape == (4, made.width)
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    assert same_features(make_features(f"run:{tmp_path / 'elsewhere'}").card(), made.card())
    with pytest.raises(FedreelError):
        make_features(f"run:{tmp_path / 'absent'}")


def test_a_card_tells_the_scale_of_the_input() -> None:
    """EfficientNet-Lite0's features of before were made on torchvision's scale: they are others, and it is said why."""
    old, new = (ModuleFeatures(Means(), 3, mean=s.mean, std=s.std).card() for s in (IMAGENET, LITE))
    assert new["mean"] == [round(127 / 255, 6)] * 3
    assert new["std"] == [round(128 / 255, 6)] * 3
    assert old["weights"] != new["weights"], "so that cards without a scale are told apart, too"
    without = {key: value for key, value in old.items() if key not in ("mean", "std")}
    assert not same_features(without, new)
