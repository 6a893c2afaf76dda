"""Windows of whole clips, against plain indexing; and what a population of them asks of its clips."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedreel.config import DataConfig
from fedreel.core.task import EVERYONE
from fedreel.data import shards
from fedreel.data.clip_index import find
from fedreel.errors import DataError
from fedreel.media.video import write
from fedreel.tasks.pretrain.windows import WindowPopulation, Windows
from fedreel.tasks.vision.clips import open_clips

LENGTHS = (9, 4, 12, 6, 5)


def numbered(lengths: tuple[int, ...] = LENGTHS, span: int = 5) -> tuple[Windows, list[torch.Tensor]]:
    """Clips whose pixels are 20 * clip + frame, in one tensor and one by one."""
    clips = [
        (20 * i + torch.arange(n)).to(torch.uint8)[:, None, None, None].expand(n, 2, 3, 3)
        for i, n in enumerate(lengths)
    ]
    sizes = torch.tensor(lengths)
    return Windows(torch.cat(clips), sizes.cumsum(0) - sizes, sizes, span), clips


def shown(window: torch.Tensor) -> tuple[int, list[int]]:
    """Which clip a window is of, and which of its frames."""
    values = window[:, 0, 0, 0].tolist()
    assert (window == window[:, :1, :1, :1]).all()
    assert len({v // 20 for v in values}) == 1
    return values[0] // 20, [v % 20 for v in values]


def test_without_a_generator_windows_are_the_middles_in_order() -> None:
    windows, clips = numbered()
    (batch,) = next(windows.batches(8))
    assert batch.shape == (5, 5, 2, 3, 3)
    assert batch.dtype == torch.uint8
    for got, clip in zip(batch, clips):
        start = max(len(clip) - 5, 0) // 2
        expected = torch.stack([clip[(start + t) % len(clip)] for t in range(5)])
        assert torch.equal(got, expected)


def test_shuffled_windows_are_consecutive_frames_from_every_possible_place() -> None:
    windows, _ = numbered()
    generator = torch.Generator().manual_seed(0)
    starts: dict[int, set[int]] = {i: set() for i in range(5)}
    for _ in range(200):
        seen = [shown(window) for (batch,) in windows.batches(2, generator) for window in batch]
        assert sorted(clip for clip, _ in seen) == [0, 1, 2, 3, 4]
        for clip, frames in seen:
            assert frames == [(frames[0] + t) % LENGTHS[clip] for t in range(5)]
            starts[clip].add(frames[0])
    assert starts == {0: {*range(5)}, 1: {0}, 2: {*range(8)}, 3: {0, 1}, 4: {0}}


def test_a_clip_shorter_than_a_window_begins_again() -> None:
    windows, _ = numbered((3,), span=8)
    for generator in (None, torch.Generator().manual_seed(1)):
        (batch,) = next(windows.batches(1, generator))
        assert shown(batch[0]) == (0, [0, 1, 2, 0, 1, 2, 0, 1])


def test_a_single_sample_left_over_joins_the_batch_before_it() -> None:
    windows, _ = numbered()
    assert [len(batch) for (batch,) in windows.batches(2)] == [2, 3]
    assert [len(batch) for (batch,) in windows.batches(3)] == [3, 2]
    assert [len(batch) for (batch,) in windows.batches(1)] == [1] * 5


def test_equal_seeds_give_equal_batches() -> None:
    windows, _ = numbered()
    first, second, other = (
        torch.cat([b for (b,) in windows.batches(2, torch.Generator().manual_seed(seed))]) for seed in (3, 3, 4)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_clips_of_shards_come_in_the_order_asked_for(data: Path, tmp_path: Path) -> None:
    made = shards.build(find(data), data, tmp_path / "shards", side=8)
    windows = Windows.of(made, [3, 0], span=8)
    (batch,) = next(windows.batches(4))
    assert np.array_equal(batch.numpy(), np.stack([made.clip(3), made.clip(0)]))
    assert len(Windows.of(made, [], span=8)) == 0
    assert list(Windows.of(made, [], span=8).batches(4)) == []


def test_a_population_divides_clips_as_recognition_does(data: Path) -> None:
    config = DataConfig(source=str(data))
    population = WindowPopulation(open_clips(config, 8), config, 4, seed=0)
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
    population = WindowPopulation(open_clips(config, 8), config, 4, seed=0)
    told = population.describe()
    assert told["classes"] == ["no label"]
    assert sum(n for counts in (told["train"], told["test"]) for (n,) in counts.values()) == 6
    owned = DataConfig(source=str(flat), owner="me")
    assert WindowPopulation(open_clips(owned, 8), owned, 4, seed=0).clients == ("me",)


def test_a_partition_by_labels_asks_for_labels(flat: Path) -> None:
    partition = {"name": "dirichlet", "num_partitions": 2, "alpha": 1.0, "min_partition_size": 1}
    config = DataConfig(source=str(flat), partition=partition)
    with pytest.raises(DataError, match="no label"):
        WindowPopulation(open_clips(config, 8), config, 4, seed=0)


def test_shards_of_another_size_name_the_setting_that_fits_them(data: Path, tmp_path: Path) -> None:
    shards.build(find(data), data, tmp_path / "shards", side=8)
    with pytest.raises(DataError, match=r"set task\.stored=8"):
        open_clips(DataConfig(source=str(tmp_path / "shards")), (9, 9), "task.stored")
