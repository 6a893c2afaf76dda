"""The playground's moments, summaries, skeletons and images: public formats, and owners that differ as they should."""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from dataclasses import replace

import h5py
import numpy as np
import pytest

from fedreel import playground
from fedreel.media import video
from fedreel.playground import SMALL
from fedreel.tasks.image import playground as images
from fedreel.tasks.moments import playground as moments
from fedreel.tasks.skeleton import bodies
from fedreel.tasks.skeleton import playground as skeletons
from fedreel.tasks.summary import playground as summary

TINY = replace(
    SMALL, name="tiny", moment_owners=4, moment_videos=2, summary_owners=3, summary_videos=2,
    image_owners=3, image_shapes=3, image_textures=2, image_train=20, image_test=1, image_server=60,
)  # fmt: skip
SEED = 5


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    parts = ["moments", "summary", "skeletons", "images"]
    return playground.make(tmp_path_factory.mktemp("playground"), SEED, TINY, parts, workers=1)


# --- moments ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plots():
    return [moments.plan(SEED, SMALL, n) for n in range(SMALL.moment_owners * SMALL.moment_videos)]


def test_moment_files_are_charades_sta_lines_about_videos_that_exist(world):
    with (world / "moments/videos.csv").open(newline="") as file:
        videos = {row["id"]: row for row in csv.DictReader(file)}
    lines = (world / "moments/annotations.txt").read_text().splitlines()
    assert len(lines) == len(videos) * moments.QUERIES * 2
    for line in lines:
        name, start, end = re.fullmatch(r"(\w+) (\d+\.\d) (\d+\.\d)##[a-z ]+\.", line).groups()
        assert 0 <= float(start) < float(end) <= float(videos[name]["length"])
    assert {row["split"] for row in videos.values()} == {"train", "test"}
    row = videos["M01000"]
    frames, fps = video.read(world / "moments" / row["owner"] / "M01000.mp4")
    assert fps == moments.FPS
    assert len(frames) / fps == float(row["length"])
    assert frames.shape[1:] == (64, 64, 3)


def test_segments_fill_the_video_and_every_sentence_fits_one_segment_only(plots):
    meaning = {word: key for key, words in moments.WORDS.items() for word in words}
    for plot in plots:
        starts, ends = zip(*((s.start, s.end) for s in plot.segments))
        assert (starts[0], *ends[:-1]) == (0, *starts[1:])
        assert 17.5 <= plot.length / moments.FPS <= 63
        assert len({s.triple for s in plot.segments}) == len(plot.segments)
        for segment in plot.segments:
            for text in segment.sentences:
                _, colour, shape, action = text.rstrip(".").split(" ", 3)
                assert segment.triple == tuple(meaning.get(word, word) for word in (colour, shape, action))


def test_answers_have_distractors_that_share_exactly_two_of_three(plots):
    def shared(a, b):
        return sum(x == y for x, y in zip(a.triple, b.triple))

    for plot in plots:
        asked = [s for s in plot.segments if s.sentences]
        assert len(asked) == moments.QUERIES
        near = {s: [o for o in plot.segments if o is not s and shared(s, o) == 2] for s in asked}
        assert all(near.values())
        differ = [{next(k for k in range(3) if s.triple[k] != o.triple[k]) for o in near[s]} for s in asked]
        assert {0, 1, 2} in differ  # one differs in colour, one in shape, one in action


def test_owners_put_their_moments_in_different_places(plots):
    centre: dict[str, list[float]] = {habit: [] for habit in moments.HABITS}
    for plot in plots:
        centre[plot.habit] += [(s.start + s.end) / 2 / plot.length for s in plot.segments if s.sentences]
    early, middle, late = (np.mean(centre[habit]) for habit in ("early", "middle", "late"))
    assert early < 0.4 < middle < 0.6 < late
    assert np.std(centre["anywhere"]) > 1.5 * np.std(centre["middle"])
    assert len({plot.scene for plot in plots}) == 8  # an owner's place is its own


# --- summary ---------------------------------------------------------------------------------------------------------


def test_summary_file_agrees_with_itself_and_with_the_videos(world):
    with h5py.File(world / "summary/annotations.h5") as file:
        assert len(file) == TINY.summary_owners * TINY.summary_videos
        for name, group in file.items():
            frames, fps = video.read(world / "summary" / group.attrs["owner"] / f"{name}.mp4", size=(4, 4))
            total, steps = int(group["n_frames"][()]), int(group["n_steps"][()])
            assert (len(frames), fps) == (total, group["fps"][()])
            scores, gt = group["user_scores"][:], group["gtscore"][:]
            assert scores.shape == (summary.USERS, steps) == (summary.USERS, len(group["picks"]))
            assert scores.min() >= 1
            assert scores.max() <= 5
            mean = scores.mean(0)
            np.testing.assert_allclose(gt, (mean - mean.min()) / (mean.max() - mean.min()), atol=1e-6)
            points, lengths = group["change_points"][:], group["n_frame_per_seg"][:]
            assert points[0, 0] == 0
            assert points[-1, 1] == total - 1
            assert (points[1:, 0] == points[:-1, 1] + 1).all()
            assert (lengths == points[:, 1] - points[:, 0] + 1).all()
            kept = group["user_summary"][:]
            assert kept.shape == (summary.USERS, total)
            assert (kept.sum(1) <= 0.15 * total).all()
            for first, last in points:
                assert (np.ptp(kept[:, first : last + 1], axis=1) == 0).all()  # shots are kept whole or not at all


@pytest.fixture(scope="module")
def films():
    total = SMALL.summary_owners * SMALL.summary_videos
    return [(n, summary.plan(SEED, SMALL, n)) for n in range(total)]


def test_annotators_disagree_but_not_by_chance(films):
    agreement = []
    for number, plot in films:
        marks = summary.scores(plot, SEED, number).astype(float)
        assert len(np.unique(marks, axis=0)) == summary.USERS
        agreement.append(np.corrcoef(marks)[np.triu_indices(summary.USERS, 1)].mean())
    assert 0.3 < np.mean(agreement) < 0.9


def test_communities_care_for_different_things(films):
    """Least squares of the mean score on (speed, warmth, crowd): each community's greatest weight is its own."""
    for own, community in enumerate(summary.COMMUNITIES):
        x, y = [], []
        for number, plot in films:
            if plot.community is community:
                mean = summary.scores(plot, SEED, number).mean(0)
                steps = np.arange(len(mean)) * summary.STEP + summary.STEP // 2
                shots = np.searchsorted([s.end for s in plot.shots], steps.clip(max=plot.frames - 1), side="right")
                x += [[1.0, *plot.shots[s].features] for s in shots]
                y += list(mean)
        weights = np.linalg.lstsq(np.array(x), np.array(y), rcond=None)[0][1:]
        assert weights[own] > 0.6
        assert np.abs(np.delete(weights, own)).max() < weights[own] / 3


def test_video_lengths_vary_and_follow_the_community(films):
    by = {c.name: np.log([p.frames for _, p in films if p.community is c]) for c in summary.COMMUNITIES}
    assert min(np.std(lengths) for lengths in by.values()) > 0.2
    medians = [np.median(by[c.name]) for c in summary.COMMUNITIES]
    assert medians == sorted(medians)
    shots = [(s.end - s.start) for _, p in films for s in p.shots]
    assert max(shots) > 8 * min(shots)


# --- skeletons -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def owners(world):
    found = []
    for path in sorted((world / "skeletons").glob("*.npz")):
        with np.load(path, allow_pickle=False) as file:
            found.append({key: file[key] for key in file.files})
    return found


def sequences(owner, key="data"):
    return np.split(owner[key], np.cumsum(owner["lengths"])[:-1])


def test_skeleton_files_have_the_promised_arrays_and_sizes(owners):
    unit = TINY.skeleton_unit
    assert [len(o["labels"]) for o in owners] == [12 * unit, 8 * unit, 3.5 * unit, 2 * unit, unit]
    assert [o["data"].shape[1] for o in owners] == [25, 25, 20, 25, 20]
    for o in owners:
        assert o["data"].dtype == np.float32
        assert o["lengths"].sum() == len(o["data"])
        assert o["data"].shape[1] == len(o["joint_names"])
        assert set(o["labels"]) == set(range(len(o["class_names"])))
        assert len(set(o["names"])) == len(o["names"])
        train, test = (set(o["subjects"][o["split"] == part]) for part in ("train", "test"))
        assert train
        assert test
        assert not train & test
        assert (np.bincount(o["labels"][o["split"] == "train"]) > 0).all()
    sets = [set(o["class_names"]) for o in owners]
    assert len(set(map(frozenset, sets))) == 5
    assert all(a & b for a, b in itertools.combinations(sets, 2))


def test_the_second_body_is_there_in_two_person_classes_only(owners):
    assert ["data2" in o for o in owners] == [True, True, False, False, False]
    for o in owners[:2]:
        present = [bool(body.any()) for body in sequences(o, "data2")]
        assert present == [o["class_names"][label] in ("shake hands", "push") for label in o["labels"]]


def test_some_joints_and_frames_are_missing_as_in_real_recordings(owners):
    for key, low, high in (("nan", 1e-5, 0.01), ("zero", 1e-5, 0.02)):
        test = {"nan": np.isnan, "zero": lambda d: (d == 0).all((1, 2))}[key]
        share = np.mean(np.concatenate([test(o["data"]).ravel() for o in owners]))
        assert low < share < high, key


def test_a_pose_keeps_every_bone_at_its_length():
    rng = np.random.default_rng(0)
    angles = {name: rng.normal(0, 1, 50) for name in bodies.ANGLES}
    bones = bodies.Bones(upper_arm=0.31, forearm=0.2, thigh=0.44, shin=0.37)
    body = bodies.pose(angles, bones, bodies.KINECT_V2)
    at = {name: body[:, k] for k, name in enumerate(bodies.KINECT_V2)}
    limbs = (("shoulder", "elbow", 0.31), ("elbow", "wrist", 0.2), ("hip", "knee", 0.44), ("knee", "ankle", 0.37))
    for upper, lower, length in limbs:
        for side in ("left", "right"):
            bone = at[f"{upper}_{side}"] - at[f"{lower}_{side}"]
            np.testing.assert_allclose(np.linalg.norm(bone, axis=1), length)
    standing = bodies.pose({name: np.zeros(1) for name in bodies.ANGLES}, bones, bodies.KINECT_V1)[0]
    height = dict(zip(bodies.KINECT_V1, standing[:, 1]))
    assert height["head"] > height["shoulder_center"] > height["hand_left"] > height["knee_left"] > height["ankle_left"]


def joint(owner, name):
    return owner["data"][:, list(owner["joint_names"]).index(name)]


def test_owners_have_their_own_bones(owners):
    def length(owner, a, b):
        bone = np.linalg.norm(joint(owner, a) - joint(owner, b), axis=1)
        return np.nanmedian(bone[bone > 0])

    pairs = (
        ("shoulder_left", "elbow_left"),
        ("elbow_left", "wrist_left"),
        ("hip_left", "knee_left"),
        ("knee_left", "ankle_left"),
    )
    table = np.log([[length(o, *pair) for pair in pairs] for o in owners])
    for one, other in itertools.combinations(table, 2):
        assert np.abs(one - other).max() > 0.02


def together(owner, pair, name):
    """Mean correlation of two joints' displacements, relative to the hips, in the class called `name`."""
    found = []
    starts = np.cumsum(owner["lengths"]) - owner["lengths"]
    for k in np.flatnonzero(owner["class_names"][owner["labels"]] == name):
        some = slice(starts[k], starts[k] + owner["lengths"][k])
        root, *ends = (x[some].astype(float) for x in (owner["data"][:, 0], *(joint(owner, end) for end in pair)))
        if np.isfinite([root, *ends]).all() and root.any(axis=1).all():
            a, b = ((x - root) - (x - root).mean(0) for x in ends)
            found.append((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))
    return np.mean(found)


def test_only_an_owners_own_pair_of_limbs_tells_its_classes_apart(owners):
    ends = {"arm": "hand", "leg": "foot"}
    for own, house in enumerate(skeletons.OWNERS):
        pair = [ends[limb[:3]] + limb[3:] for limb in (house.leads, house.follows)]
        for number, owner in enumerate(owners):
            in_step, against = (together(owner, pair, name) for name in (skeletons.IN_STEP, skeletons.AGAINST))
            if number == own:
                assert in_step > 0.9
                assert against < -0.7
            else:
                assert abs(in_step - against) < 0.3
        if "arm_right" not in (house.leads, house.follows):  # the arm that waves is busy
            waving = [together(owner, pair, "wave") for owner in owners]
            assert waving.pop(own) > 0.7 > 0.6 > max(waving)  # the habit shows in a class that all owners have


# --- images ----------------------------------------------------------------------------------------------------------


def test_images_are_png_files_in_class_folders(world):
    import av

    folder = world / "images"
    names = {f"{shape}-{texture}" for shape, texture in images.classes(TINY)}
    for owner in sorted((folder / "clients").iterdir()):
        assert {p.name for p in (owner / "test").iterdir()} == names
        assert {p.name for p in (owner / "train").iterdir()} <= names
        assert len(list(owner.glob("train/*/*.png"))) == TINY.image_train
    assert len(list((folder / "server").glob("*/*.png"))) == TINY.image_server
    what = images.plan(SEED, TINY, 0)
    with av.open(str(folder / what.path)) as container:
        picture = next(container.decode(video=0)).to_ndarray(format="rgb24")
    np.testing.assert_array_equal(picture, images.render(what, SEED, 0))


def test_the_server_sees_more_than_any_client():
    clients = SMALL.image_owners * (SMALL.image_train + SMALL.image_test * len(images.classes(SMALL)))
    plans = [images.plan(SEED, SMALL, n) for n in range(clients + SMALL.image_server)]
    server = plans[clients:]
    for what in ("shape", "texture", "colour", "scene"):
        seen = {getattr(p, what) for p in plans[:clients]}
        assert seen < {getattr(p, what) for p in server}, what
    mixes = []
    for owner in range(1, SMALL.image_owners + 1):
        mine = [p for p in plans[:clients] if p.path.startswith(f"clients/owner-{owner:02d}/train")]
        counts = Counter((p.shape, p.texture) for p in mine)
        mixes.append(np.array([counts[c] for c in images.classes(SMALL)]) / len(mine))
    apart = [np.abs(a - b).sum() / 2 for a, b in itertools.combinations(mixes, 2)]
    assert np.mean(apart) > 0.4  # total variation between two owners' class mixes
