"""Windows of whole clips, against plain indexing; and what a population of them asks of its clips."""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from fedreel.config import DataConfig, load_recipe
from fedreel.core.task import EVERYONE
from fedreel.data import shard_readers, shards
from fedreel.data.clip_index import find
from fedreel.errors import DataError
from fedreel.media.video import write
from fedreel.runs.reading import read_metrics
from fedreel.runs.run import load, run
from fedreel.tasks.pretrain.pretexts import clamped, placed
from fedreel.tasks.pretrain.windows import WindowPopulation, Windows
from fedreel.tasks.vision import footage
from fedreel.tasks.vision.clips import open_clips
from support.shelf import shelved

LENGTHS = (9, 4, 12, 6, 5)
CPU = torch.device("cpu")


@dataclass(frozen=True)
class InARow:
    """Asks about so many frames in a row, and tells where they begin."""

    span: int = 5

    def pick(self, lengths: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        first = placed(lengths - self.span, torch.rand(len(lengths), generator=generator))
        return clamped(first[:, None] + torch.arange(self.span), lengths), first


def numbered(folder: Path, lengths: tuple[int, ...] = LENGTHS, span: int = 5) -> Windows:
    """Clips, 2 x 3 and 3 x 2 pixels, whose pixels are 40 * clip + 2 * frame, plus 1 beyond the first row or column."""
    clips = []
    for i, n in enumerate(lengths):
        clip = np.broadcast_to((40 * i + 2 * np.arange(n))[:, None, None, None], (n, 2, 3, 3)).astype(np.uint8)
        clip[:, :, 1:] += 1
        clips.append(clip if i % 2 else clip.transpose(0, 2, 1, 3).copy())
    return Windows.of(shelved(folder, clips, [""] * len(clips), [""] * len(clips)), range(len(clips)), InARow(span))


def shown(clip: torch.Tensor) -> tuple[int, list[int], int]:
    """Which clip it is of, which of its frames, and whether its square begins at the first row or column (0) or not."""
    assert (clip == clip[:, :, :, :1]).all()
    first = clip[:, 0, 0, 0]
    return int(first[0]) // 40, (first % 40 // 2).tolist(), int(first[0] % 2)


def test_shuffled_clips_are_what_was_picked_in_squares_from_every_place(tmp_path: Path) -> None:
    windows = numbered(tmp_path / "shards").to(CPU)
    generator = torch.Generator().manual_seed(0)
    starts: dict[int, set[int]] = {i: set() for i in range(5)}
    squares = set()
    for _ in range(100):
        batches = [*windows.batches(2, generator)]
        seen = [(*shown(clip), int(at)) for clips, first in batches for clip, at in zip(clips, first)]
        assert sorted(clip for clip, *_ in seen) == [0, 1, 2, 3, 4]
        for clip, frames, square, first in seen:
            assert frames == [min(first + t, LENGTHS[clip] - 1) for t in range(5)]
            starts[clip].add(first)
            squares.add((clip, square))
    assert starts == {0: {*range(5)}, 1: {0}, 2: {*range(8)}, 3: {0, 1}, 4: {0}}
    assert squares == {(clip, square) for clip in range(5) for square in (0, 1)}


def test_windows_to_test_with_are_the_middles_in_order(tmp_path: Path) -> None:
    found = [one for pair in numbered(tmp_path / "shards").windows(2) for one in zip(*pair)]
    assert [(*shown(clip)[:2], int(n)) for clip, n in found] == [
        (0, [2, 3, 4, 5, 6], 5),
        (1, [0, 1, 2, 3, 3], 4),  # a short clip stands still
        (2, [3, 4, 5, 6, 7], 5),
        (3, [0, 1, 2, 3, 4], 5),
        (4, [0, 1, 2, 3, 4], 5),
    ]


def test_a_clip_shorter_than_what_is_asked_for_stands_still_at_its_last_frame(tmp_path: Path) -> None:
    windows = numbered(tmp_path / "shards", (3,), span=8)
    for generator in (None, torch.Generator().manual_seed(1)):
        ((clips, _),) = windows.batches(1, generator)
        assert shown(clips[0])[1] == [0, 1, 2, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_batches_are_the_same_held_in_memory_and_read_in_turn(tmp_path: Path, size: int) -> None:
    read = numbered(tmp_path / "shards")
    assert read.nbytes == sum(n * 18 for n in LENGTHS)
    for seed in (None, 3):
        one, other, again = (
            [*w.batches(size, None if seed is None else torch.Generator().manual_seed(seed))]
            for w in (read.to(CPU), read.streamed(CPU), read)
        )
        assert len(one) == len(other)
        for a, b, c in zip(one, other, again):
            assert all(torch.equal(x, y) and torch.equal(x, z) for x, y, z in zip(a, b, c))


@pytest.fixture
def by_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clips are read as they are for a GPU."""
    monkeypatch.setattr(footage, "by_processes", lambda stored: True)
    monkeypatch.setattr(shard_readers, "READERS", 1)


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.skipif(not shard_readers.can_share(), reason="this system's processes have no memory to share")
@pytest.mark.usefixtures("by_processes")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_batches_are_the_same_read_by_processes(data: Path, tmp_path: Path, device: str) -> None:
    made = shards.build(find(data), data, tmp_path / "shards", side=8, quality=90, workers=1)
    windows = Windows.of(made, range(len(made)), InARow(5))
    held, read = windows.to(CPU), windows.streamed(torch.device(device))
    try:
        for size in (1, 11, 5):  # twelve batches; one that is larger than any before; and smaller ones
            for seed in (None, 3):
                one, other = (
                    [*w.batches(size, None if seed is None else torch.Generator().manual_seed(seed))]
                    for w in (held, read)
                )
                assert len(one) == len(other) > 0
                assert all(torch.equal(x, y.cpu()) for a, b in zip(one, other) for x, y in zip(a, b))
        given_up = read.batches(1)
        first = next(given_up)[0]
        given_up.close()
        assert torch.equal(next(held.batches(1))[0], first.cpu())
        assert len(footage._sheets._free) == footage.AHEAD + 1  # those of the batches that were under way, none lost
    finally:
        shard_readers.readers_of(made).stop()


@pytest.mark.skipif(not shard_readers.can_share(), reason="this system's processes have no memory to share")
@pytest.mark.usefixtures("by_processes")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
@pytest.mark.parametrize("many", [True, False])
def test_where_many_pictures_are_to_be_held_processes_decode_them(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: bool, device: str
) -> None:
    videos = shutil.copytree(data, tmp_path / "videos")
    for i, (height, width) in enumerate([(24, 16), (16, 32)]):  # clips of several shapes
        write(videos / "owner0" / "class0" / f"more{i}.mp4", np.full((5, height, width, 3), 90 * i, np.uint8), 8)
    made = shards.build(find(videos), videos, tmp_path / "shards", side=8, quality=90, workers=1)
    rows = tuple(range(len(made)))[::-1]
    stored = footage.Stored(made, rows, torch.device(device))
    monkeypatch.setattr(footage, "MANY", sum(frames for frames, _, _ in stored.shapes) - many)
    asked = []
    begin = shard_readers.Readers.begin
    monkeypatch.setattr(
        shard_readers.Readers, "begin", lambda self, sheet, wanted: asked.append(wanted) or begin(self, sheet, wanted)
    )
    try:
        clips = stored.held().clips
    finally:
        shard_readers.readers_of(made).stop()
    assert [one for (one,) in asked] == [made.clips[i] for i in rows if many]
    assert len({clip.shape for clip in clips}) > 2
    assert len(clips) == len(rows)
    assert all(np.array_equal(clip.cpu(), made.whole(i)) for clip, i in zip(clips, rows))


def test_processes_read_where_a_gpu_waits_and_pictures_are_to_be_decoded(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footage, "own_cores", lambda: 4)
    for quality in (0, 90):
        made = shards.build(find(data), data, tmp_path / f"{quality}", side=8, quality=quality, workers=1)
        for device in ("cpu", "cuda"):
            stored = footage.Stored(made, (0,), torch.device(device))
            assert footage.by_processes(stored) is (quality > 0 and device == "cuda" and shard_readers.can_share())


@pytest.mark.parametrize("quality", [0, 90])
def test_only_where_frames_are_decoded_are_there_threads_and_they_end_with_the_iteration(
    data: Path, tmp_path: Path, quality: int
) -> None:
    made = shards.build(find(data), data, tmp_path / "shards", side=8, quality=quality, workers=1)
    before = {*threading.enumerate()}
    batches = Windows.of(made, range(len(made)), InARow()).batches(1)
    next(batches)
    own = {*threading.enumerate()} - before
    assert bool(own) == bool(quality)
    batches.close()
    for thread in own:
        thread.join(60)
    assert not [thread for thread in own if thread.is_alive()]


def test_a_single_sample_left_over_joins_the_batch_before_it(tmp_path: Path) -> None:
    windows = numbered(tmp_path / "shards")
    assert [len(clips) for clips, _ in windows.batches(2)] == [2, 3]
    assert [len(clips) for clips, _ in windows.batches(3)] == [3, 2]
    assert [len(clips) for clips, _ in windows.batches(1)] == [1] * 5


def test_some_of_some_clips_are_these_held_in_memory_and_read_in_turn(tmp_path: Path) -> None:
    windows = numbered(tmp_path / "shards")
    for clips in (windows.footage, windows.to(CPU).footage):
        ((found, _),) = Windows(clips.of([4, 1, 3]).of([2, 0]), InARow(5)).windows(8)
        assert [shown(clip)[0] for clip in found] == [3, 4]


def test_clips_of_shards_come_in_the_order_asked_for(data: Path, tmp_path: Path) -> None:
    made = shards.build(find(data), data, tmp_path / "shards", side=8)
    ((batch, _),) = Windows.of(made, [3, 0], InARow(8)).windows(4)
    assert np.array_equal(batch.numpy(), np.stack([made.clip(3), made.clip(0)]))
    nothing = Windows.of(made, [], InARow(8))
    assert (len(nothing), [*nothing.batches(4)], [*nothing.windows(4)]) == (0, [], [])


def test_a_population_divides_clips_as_recognition_does(data: Path) -> None:
    config = DataConfig(source=str(data))
    population = WindowPopulation(open_clips(config, 8), config, InARow(4), seed=0)
    assert population.clients == ("owner0", "owner1")
    parts = [population.data(client) for client in population.clients]
    everyone = population.data(EVERYONE)
    assert len(everyone.train) == sum(len(p.train) for p in parts)
    assert len(everyone.train) + len(everyone.test) == 12
    assert everyone.numbers == {"frames": 8.0 * len(everyone.train)}  # all frames of a clip, not a window's
    assert population.describe()["classes"] == ["class0", "class1"]
    assert population.agreement() == {}


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """Six clips in one folder: no label, no owner."""
    for i in range(6):
        write(tmp_path / f"{i}.mp4", np.full((6, 16, 16, 3), 20 * i, np.uint8), 8)
    return tmp_path


def test_clips_without_labels_and_owners_are_enough_where_the_partition_needs_neither(flat: Path) -> None:
    config = DataConfig(source=str(flat), partition={"name": "iid", "num_partitions": 2}, test_share=0.3)
    population = WindowPopulation(open_clips(config, 8), config, InARow(4), seed=0)
    told = population.describe()
    assert told["classes"] == ["no label"]
    assert sum(n for counts in (told["train"], told["test"]) for (n,) in counts.values()) == 6
    owned = DataConfig(source=str(flat), owner="me")
    assert WindowPopulation(open_clips(owned, 8), owned, InARow(4), seed=0).clients == ("me",)


def test_a_partition_by_labels_asks_for_labels(flat: Path) -> None:
    partition = {"name": "dirichlet", "num_partitions": 2, "alpha": 1.0, "min_partition_size": 1}
    config = DataConfig(source=str(flat), partition=partition)
    with pytest.raises(DataError, match="no label"):
        WindowPopulation(open_clips(config, 8), config, InARow(4), seed=0)


def test_shards_of_another_size_name_the_setting_that_fits_them(data: Path, tmp_path: Path) -> None:
    shards.build(find(data), data, tmp_path / "shards", side=8)
    with pytest.raises(DataError, match=r"set task\.stored=8"):
        open_clips(DataConfig(source=str(tmp_path / "shards")), (9, 9), "task.stored")


@pytest.mark.parametrize("quality", [0, 90])
def test_training_ends_with_the_same_weights_held_in_memory_and_read_in_turn(
    data: Path, tmp_path: Path, quality: int
) -> None:
    small = {"task.size": 14, "task.frames": 2, "round.rounds": 2, "round.evaluate_every": 1, "train.epochs": 1}
    ends = []
    for memory in (1.0, 1e-9):
        settings = {**small, "data.source": str(data), "data.quality": quality, "data.memory": memory}
        out = tmp_path / f"{memory}"
        run(load_recipe("fedvssl", {**settings, "device": "cpu"}), out, quiet=True)
        ends.append((load(out).model.state_dict(), [record["metrics"] for record in read_metrics(out, "test")]))
    assert ends[0][1] == ends[1][1]
    assert all(torch.equal(t, ends[1][0][name]) for name, t in ends[0][0].items())
