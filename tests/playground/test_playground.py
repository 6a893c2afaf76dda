"""The playground: reproducible, complete or absent, and with something real in it for every system."""

from __future__ import annotations

import csv
import itertools
import json
import shutil
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedreel import playground
from fedreel.config import DataConfig
from fedreel.errors import DataError
from fedreel.machine.files import locked
from fedreel.media import video
from fedreel.playground import SMALL, actions, motion
from fedreel.playground.work import Jobs
from fedreel.tasks.vision.clips import open_clips

TINY = replace(
    SMALL, name="tiny",
    action_owners=2, action_train=24, action_test=8,
    moment_owners=4, moment_videos=1, summary_owners=3, summary_videos=1, skeleton_unit=4,
    image_owners=3, image_shapes=3, image_textures=2, image_train=20, image_test=1, image_server=60,
)  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return playground.make(tmp_path_factory.mktemp("playground") / "world", seed=3, size=TINY, workers=2)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# --- making it -------------------------------------------------------------------------------------------------------


def test_same_seed_gives_the_same_bytes_however_many_workers(world, tmp_path):
    again = contents(playground.make(tmp_path, seed=3, size=TINY, workers=1))
    first = contents(world)
    assert again.keys() == first.keys()
    assert [name for name in first if first[name] != again[name]] == []


def test_another_seed_gives_another_world(world, tmp_path):
    other = playground.make(tmp_path, seed=4, size=TINY, parts=["actions", "skeletons"])
    assert (other / "actions/index.csv").read_text() != (world / "actions/index.csv").read_text()
    here, there = contents(world / "actions"), contents(other / "actions")
    assert all(here[name] != there[name] for name in here if name.endswith(".mp4"))
    assert contents(world / "skeletons") != contents(other / "skeletons")


def test_a_complete_copy_is_left_untouched(world):
    before = {p: p.stat().st_mtime_ns for p in world.rglob("*")}
    said: list[str] = []
    playground.make(world, seed=3, size=TINY, progress=said.append)
    assert {p: p.stat().st_mtime_ns for p in world.rglob("*")} == before
    assert said == []


def test_a_folder_with_another_world_is_refused_before_anything_is_written(world):
    before = contents(world)
    for seed, size in ((4, TINY), (3, replace(TINY, action_train=25))):
        with pytest.raises(DataError, match="already holds another playground") as caught:
            playground.make(world, seed=seed, size=size, parts=["images"])
        assert "choose another folder" in caught.value.hint
    assert contents(world) == before


def test_a_folder_that_is_no_playground_is_refused(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "holiday.png").write_bytes(b"mine")
    with pytest.raises(DataError, match="not a part of a playground"):
        playground.make(tmp_path, size=TINY, parts=["images"])
    assert contents(tmp_path) == {"images/holiday.png": b"mine"}


def test_wrong_names_are_answered_with_the_right_ones(tmp_path):
    with pytest.raises(DataError, match="did you mean 'summary'"):
        playground.make(tmp_path, parts=["sumary"])
    with pytest.raises(DataError, match="did you mean 'medium'"):
        playground.make(tmp_path, size="mediun")
    with pytest.raises(DataError, match="negative"):
        playground.make(tmp_path, seed=-1)
    assert contents(tmp_path) == {}


def test_an_interrupted_make_leaves_nothing_that_looks_complete(world, tmp_path, monkeypatch):
    def stop(out, seed, size, number):
        if number == 5:
            raise KeyboardInterrupt
        (out / f"{number}.mp4").touch()

    with monkeypatch.context() as patched:
        patched.setattr(actions, "job", stop)
        with pytest.raises(KeyboardInterrupt):
            playground.make(tmp_path, seed=3, size=TINY, parts=["actions"], workers=1)
    assert [p.name for p in tmp_path.iterdir()] == [".lock"]

    (tmp_path / ".actions.0123abcd.tmp" / "owner-01").mkdir(parents=True)  # as `kill -9` leaves it
    playground.make(tmp_path, seed=3, size=TINY, parts=["actions"])
    assert contents(tmp_path / "actions") == contents(world / "actions")


def test_two_who_want_the_same_part_at_once_make_it_once(tmp_path, monkeypatch):
    drawn, begun, second = [], threading.Event(), threading.Event()

    def slow(jobs):
        drawn.append(jobs.part)
        begun.set()
        assert second.wait(60)
        return {}

    def wanted_again(folder):
        if begun.is_set():
            second.set()
        return locked(folder)

    monkeypatch.setattr(actions, "write", slow)
    monkeypatch.setattr(playground, "locked", wanted_again)
    make = partial(playground.make, tmp_path, size=TINY, parts=["actions"], workers=1)
    with ThreadPoolExecutor() as both:
        first = both.submit(make)
        assert begun.wait(60)
        assert make() == first.result(60) == tmp_path
    assert drawn == ["actions"]


def test_a_helper_that_fails_says_why(tmp_path):
    (tmp_path / "owner-01").write_text("a file where a folder must be")
    with pytest.raises(OSError, match="owner-01"):
        Jobs("actions", tmp_path, 0, TINY, workers=2).run(20)


def test_the_cache_folder_names_what_it_holds(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(playground.SIZES, "tiny", TINY)
    folder = playground.cached(3, "tiny", ["skeletons"])
    assert folder == tmp_path / "cache" / f"playground-v{playground.VERSION}-tiny-3"
    record = json.loads((folder / "skeletons" / "part.json").read_text())
    assert (record["seed"], record["version"], record["size"]["name"]) == (3, playground.VERSION, "tiny")
    before = contents(folder)
    assert playground.cached(3, "tiny", ["skeletons"]) == folder
    assert contents(folder) == before


def test_a_copied_cache_of_decoded_clips_needs_neither_videos_nor_a_decoder(tmp_path, monkeypatch):
    monkeypatch.setitem(playground.SIZES, "tiny", TINY)
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path / "here"))
    config = DataConfig(size="tiny", seed=3)
    here = open_clips(config, 16)
    shutil.copytree(tmp_path / "here" / "shards", tmp_path / "there" / "shards", copy_function=shutil.copyfile)
    shutil.rmtree(tmp_path / "here")
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path / "there"))
    monkeypatch.setattr(playground, "make", lambda *_: pytest.fail("the world was made again"))
    there = open_clips(config, 16)
    assert there.clips == here.clips
    assert there.stack(range(len(there)), 4).any()
    assert there.folder.is_relative_to(tmp_path / "there")
    for other in (replace(config, seed=4), replace(config, size="small")):
        with pytest.raises(pytest.fail.Exception, match="made again"):
            open_clips(other, 16)


def test_it_does_not_load_torch():
    code = "import sys, fedreel.playground as p, importlib as i\n"
    code += "for module in p.declared_parts().values(): i.import_module(module)\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- actions ---------------------------------------------------------------------------------------------------------


def test_action_clips_are_as_the_index_says(world):
    index = rows(world / "actions/index.csv")
    assert {r["path"] for r in index} == {
        str(p.relative_to(world / "actions")) for p in (world / "actions").rglob("*.mp4")
    }
    frames, fps = video.read(world / "actions" / index[0]["path"])
    assert frames.shape == (24, 64, 64, 3)
    assert fps == 12
    assert np.abs(frames.astype(float) - actions.render(3, TINY, 0)).mean() < 6  # H.264 keeps the picture


def test_every_owner_has_every_class_and_an_own_mix():
    total = SMALL.action_owners * (SMALL.action_train + SMALL.action_test)
    clips = [actions.plan(0, SMALL, n) for n in range(total)]
    mixes = []
    for owner in sorted({c.owner for c in clips}):
        train = Counter(c.label for c in clips if c.owner == owner and c.split == "train")
        test = Counter(c.label for c in clips if c.owner == owner and c.split == "test")
        assert set(train) == set(range(8))
        assert min(train.values()) >= 3
        assert set(test.values()) == {SMALL.action_test // 8}
        mixes.append([train[label] / SMALL.action_train for label in range(8)])
    apart = [np.abs(np.subtract(a, b)).sum() / 2 for a, b in itertools.combinations(mixes, 2)]
    assert np.mean(apart) > 0.15  # total variation between two owners' class mixes


def excess(pairs: list[tuple]) -> float:
    """How many standard deviations the chi-square of a contingency table lies above that of independent columns."""
    left, right = (sorted({p[i] for p in pairs}) for i in (0, 1))
    table = np.zeros((len(left), len(right)))
    for a, b in pairs:
        table[left.index(a), right.index(b)] += 1
    expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    freedom = (len(left) - 1) * (len(right) - 1)
    return (((table - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


def test_the_look_of_a_clip_is_independent_of_its_class():
    one = replace(SMALL, action_owners=1, action_train=3000)  # one owner: places and colours are the owner's own
    clips = [actions.plan(0, one, n) for n in range(3000)]
    looks = {
        "shape": lambda c: c.looks[0][0],
        "texture": lambda c: c.looks[0][1],
        "colour": lambda c: c.looks[0][2],
        "sprites": lambda c: len(c.looks),
        "scene": lambda c: c.scene,
        "speed": lambda c: int(4 * np.log(c.pace / motion.SLOW) / np.log(motion.FAST / motion.SLOW)),
    }
    for name, look in looks.items():
        assert excess([(c.label, look(c)) for c in clips]) < 4, name
    assert excess([(c.label, c.label // 2) for c in clips]) > 100  # the measure sees a dependence where there is one


def test_at_any_moment_every_motion_has_the_same_poses():
    """Two-sample Kolmogorov-Smirnov between every motion and the first, in every coordinate, at three times."""
    count, times = 1200, motion.slowing(24, 12)[[0, 11, 23]]
    poses = {}
    for number, action in enumerate(actions.CLASSES):
        rng = np.random.default_rng(number)
        tracks = [
            motion.track(action, times, 64, actions.RADIUS, motion.pace(rng), motion.phases(rng), rng)
            for _ in range(count)
        ]
        angle = [np.mod(t.angle, 2 * np.pi) for t in tracks]
        others = [[getattr(t, name) for t in tracks] for name in ("x", "y", "radius", "apart")]
        poses[action] = np.sort(np.array([angle, *others]), axis=1)  # coordinate, track, time
    first = poses[actions.CLASSES[0]]
    for action, other in poses.items():
        for coordinate, time in itertools.product(range(5), range(3)):
            mine, theirs = first[coordinate, :, time], other[coordinate, :, time]
            grid = np.concatenate([mine, theirs])
            gap = np.searchsorted(mine, grid, side="right") - np.searchsorted(theirs, grid, side="right")
            assert np.abs(gap).max() / count < 2.4 * np.sqrt(2 / count), action  # p = 2e-5


def test_motions_go_the_way_their_names_say():
    def moved(action):
        rng = np.random.default_rng(1)
        return motion.track(action, np.array([0.0, 0.01]), 64, (8, 8.001), 0.4, (0.1, 0.9), rng)

    x, y = (lambda a: np.diff(moved(a).x)[0]), (lambda a: np.diff(moved(a).y)[0])
    assert x("moves left") < 0 < x("moves right")
    assert y("moves up") < 0 < y("moves down")  # rows count downwards
    assert np.diff(moved("turns clockwise").angle) > 0 > np.diff(moved("turns counterclockwise").angle)
    assert np.diff(moved("grows").radius) > 0 > np.diff(moved("shrinks").radius)
    assert np.diff(moved("bursts").apart) > 0


def test_sprites_slow_down_so_that_time_has_an_arrow():
    steps = np.diff(motion.slowing(24, 12))
    assert np.all(np.diff(steps) < 0)
    assert steps[-1] / steps[0] == pytest.approx(1 - motion.FRICTION, abs=0.05)
    assert steps.mean() * 12 == pytest.approx(1, abs=0.05)


@pytest.fixture(scope="module")
def clips():
    """The small world's clips as a learner gets them: 8 frames of 32 x 32, labels, and which are test."""
    folder = playground.cached(parts=["actions"]) / "actions"
    index = rows(folder / "index.csv")
    pixels = np.stack([video.read(folder / r["path"], size=(32, 32))[0][::2][:8] for r in index]).astype(np.float32)
    labels = np.array([actions.CLASSES.index(r["label"]) for r in index])
    return (pixels - pixels.mean()) / pixels.std(), labels, np.array([r["split"] == "test" for r in index])


def linear_accuracy(features: np.ndarray, labels: np.ndarray, test: np.ndarray) -> tuple[float, float]:
    """Multinomial logistic regression: accuracy on its own training data and on the test data."""
    import torch

    x = torch.from_numpy(features.reshape(len(features), -1).astype(np.float32))
    x = (x - x[~test].mean(0)) / (x[~test].std(0) + 1e-3)
    y = torch.from_numpy(labels)
    weight = torch.zeros(x.shape[1] + 1, int(y.max()) + 1, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight], max_iter=60)

    def loss():
        optimiser.zero_grad()
        value = torch.nn.functional.cross_entropy(x[~test] @ weight[1:] + weight[0], y[~test])
        value = value + 0.02 * weight[1:].square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    right = ((x @ weight[1:] + weight[0]).argmax(1) == y).float()
    return right[~test].mean().item(), right[test].mean().item()


@pytest.mark.slow
def test_a_linear_probe_on_pixels_stays_near_chance(clips):
    pixels, labels, test = clips
    coarse = pixels.reshape(-1, 8, 16, 2, 16, 2, 3).mean((3, 5))
    fitted, accuracy = linear_accuracy(coarse, labels, test)
    assert fitted > 0.9  # it did train
    assert accuracy < 2 / 8


@pytest.mark.slow
@pytest.mark.parametrize("frame", [0, 4, 7])
def test_one_frame_does_not_tell_the_class(clips, frame):
    """Colour histograms, moments and edge energies of a single frame, and the frame itself."""
    pixels, labels, test = clips
    one = pixels[:, frame]
    edges = [np.abs(np.diff(one, axis=axis)) for axis in (1, 2)]
    bins = [[np.histogram(c, 8, (-3, 3))[0] / 1024 for c in np.moveaxis(f, -1, 0)] for f in one]
    values = [one.mean((1, 2)), one.std((1, 2)), *(e.mean((1, 2)) for e in edges), *(e.std((1, 2)) for e in edges)]
    statistics = np.concatenate([*values, np.array(bins).reshape(len(one), -1)], axis=1)
    assert linear_accuracy(statistics, labels, test)[1] < 2 / 8
    assert linear_accuracy(one, labels, test)[1] < 2 / 8


@pytest.mark.slow
def test_a_small_conv_net_over_space_and_time_learns_the_classes(clips):
    import torch
    from torch import nn

    torch.manual_seed(0)
    pixels, labels, test = clips
    frames = torch.from_numpy(pixels).permute(0, 1, 4, 2, 3).flatten(1, 2)  # a clip's frames as one picture's channels
    x, y = frames.contiguous(memory_format=torch.channels_last), torch.from_numpy(labels)

    class Pool(nn.Module):
        def forward(self, x):
            return torch.cat([x.mean((2, 3)), x.amax((2, 3))], 1)

    def block(inside, out, kernel, stride):
        conv = nn.Conv2d(inside, out, kernel, stride, kernel // 2, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU())

    net = nn.Sequential(block(24, 32, 5, 2), block(32, 48, 3, 2), block(48, 64, 3, 1), Pool(), nn.Linear(128, 8))
    net = net.to(memory_format=torch.channels_last)
    epochs, batch, train = 12, 16, torch.from_numpy(np.flatnonzero(~test))
    optimiser = torch.optim.AdamW(net.parameters(), weight_decay=1e-2)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, 6e-3, total_steps=epochs * (len(train) // batch))
    for _ in range(epochs):
        for some in train[torch.randperm(len(train))][: len(train) // batch * batch].split(batch):
            down, across = torch.randint(0, 32, (2,)).tolist()
            loss = nn.functional.cross_entropy(net(x[some].roll((down, across), (2, 3))), y[some])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            rate.step()
    net.eval()
    with torch.no_grad():
        accuracy = (net(x[test]).argmax(1) == y[test]).float().mean().item()
    assert accuracy > 4 / 8
