"""Views of clips against slices, mirrors and arithmetic on plain pixels."""

from __future__ import annotations

import math

import pytest
import torch

from fedreel.tasks.vision.clip_views import (
    BRIGHTNESS,
    Views,
    below,
    brighter,
    cropped,
    hue_and_saturation,
    jittered,
    multiplied,
    recoloured,
    sometimes,
    table,
)

CPU = torch.device("cpu")


def clips(n: int = 3, frames: int = 2, side: int = 10) -> torch.Tensor:
    return torch.randint(0, 256, (n, frames, side, side, 3), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def test_a_crop_of_the_whole_clip_is_the_clip() -> None:
    x = clips()
    assert torch.allclose(Views(10).random(x), x.float(), atol=1e-2)
    assert torch.equal(Views(10).centre(x), x.float())


def test_without_room_to_move_a_random_view_is_the_centre() -> None:
    x = clips(side=9)
    assert torch.equal(Views(5).centre(x), x[:, :, 2:7, 2:7].float())
    assert torch.allclose(Views(9).random(x), Views(9).centre(x), atol=1e-2)


def test_a_crop_at_the_stored_scale_is_a_slice_and_every_slice_occurs() -> None:
    x, found = clips(n=200, side=8)[:1].expand(200, -1, -1, -1, -1), set()
    torch.manual_seed(0)
    for seen, clip in zip(cropped(x, 6, (8,), flip=0.0), x):
        places = [
            (top, left)
            for top in range(3)
            for left in range(3)
            if torch.allclose(seen, clip[:, top : top + 6, left : left + 6].float(), atol=1e-2)
        ]
        assert len(places) == 1
        found.add(places[0])
    assert len(found) == 9


def test_a_flip_mirrors_columns_and_a_certain_flip_always_does() -> None:
    x = clips()
    assert torch.allclose(cropped(x, 10, (10,), flip=1.0), x.flip(3).float(), atol=1e-2)
    torch.manual_seed(0)
    many = cropped(x[:1].expand(400, -1, -1, -1, -1), 10, (10,), flip=0.25)
    mirrored = (many - x[:1].flip(3).float()).flatten(1).abs().amax(1) < 1e-2
    plain = (many - x[:1].float()).flatten(1).abs().amax(1) < 1e-2
    assert (mirrored ^ plain).all()
    assert 60 < int(mirrored.sum()) < 140


def test_half_the_scale_averages_and_a_ramp_stays_a_ramp() -> None:
    ramp = torch.arange(16).to(torch.uint8)[None, None, None, :, None].expand(2, 1, 16, 16, 3)
    half = cropped(ramp, 8, (8,), flip=0.0)
    assert torch.allclose(half[0, 0, 0, :, 0], 2 * torch.arange(8.0) + 0.5, atol=1e-4)
    finer = cropped(ramp, 32, (32,), flip=0.0)[0, 0, 5, :, 1]
    expected = ((torch.arange(32.0) + 0.5) / 2 - 0.5).clamp(0, 15)  # beyond the outermost pixels' middles: their values
    assert torch.allclose(finer, expected, atol=1e-4)


def test_all_scales_occur_and_the_frames_of_a_clip_are_treated_alike() -> None:
    ramp = torch.arange(12).mul(20).to(torch.uint8)[None, None, None, :, None].expand(60, 3, 12, 12, 3)
    torch.manual_seed(1)
    seen = Views(12, scales=(1.0, 1.5, 2.0), flip=0.5, jitter=0.5).random(ramp)
    assert torch.allclose(seen, seen[:, :1].expand_as(seen))
    torch.manual_seed(1)
    steps = cropped(ramp, 12, (12, 18, 24), flip=0.5)[:, 0, 0, :, 0].diff(dim=1).abs().median(1).values
    assert {round(float(s), 2) for s in steps} == {20.0, round(20 * 12 / 18, 2), 10.0}


def test_equal_seeds_give_equal_views_and_the_range_of_bytes_is_kept() -> None:
    views, x = Views(8, scales=(1.0, 1.25), flip=0.5, jitter=0.8), clips(n=20)
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(views.random(x))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert drawn[0].shape == (20, 2, 8, 8, 3)
    assert drawn[0].dtype == torch.float32
    assert 0 <= drawn[0].min() <= drawn[0].max() <= 255


def test_brightness_is_added_and_contrast_multiplied_by_clip_or_by_frame() -> None:
    x = torch.full((2, 3, 1, 1, 3), 100.0)
    assert brighter(x, torch.tensor([7.0, -200.0]))[:, 0, 0, 0, 0].tolist() == [107, 0]
    assert brighter(x, torch.tensor([[1.0, 2, 3], [200, 0, -1]]))[:, :, 0, 0, 0].tolist() == [
        [101, 102, 103],
        [255, 100, 99],
    ]
    assert multiplied(x, torch.tensor([1.5, 3.0]))[:, 0, 0, 0, 0].tolist() == [150, 255]


def test_jitter_without_a_chance_changes_nothing() -> None:
    x = clips().float()
    assert torch.allclose(jittered(x, 0.0), x, atol=1e-3)
    assert torch.equal(Views(10, jitter=0.0).random(x), cropped(x, 10, (10,), 0.0))


def test_what_sometimes_changes_does_so_as_often_and_as_much_as_said() -> None:
    torch.manual_seed(0)
    by = sometimes(4000, 0.2, BRIGHTNESS, CPU)
    changed = by[by != 0]
    assert 0.17 < len(changed) / 4000 < 0.23
    assert changed.abs().max() <= BRIGHTNESS
    assert changed.abs().mean() == pytest.approx(BRIGHTNESS / 2, rel=0.1)
    turn, factor = hue_and_saturation(4000, 0.2, CPU)
    assert torch.equal(turn == 0, factor == 1)  # together


def test_a_third_of_a_circle_takes_red_to_green_and_grey_stays_grey() -> None:
    x = clips(n=2).float()
    third = torch.full((2,), 2 * math.pi / 3)
    one = torch.ones(2)
    assert torch.allclose(recoloured(x, third, one), x.roll(1, 4), atol=1e-3)
    assert torch.allclose(recoloured(x, 0 * third, one), x, atol=1e-3)
    grey = x.mean(4, keepdim=True).expand_as(x)
    assert torch.allclose(recoloured(grey, third / 3, 1.2 * one), grey, atol=1e-3)
    assert torch.allclose(recoloured(x, third, 0 * one), grey, atol=1e-3)


def test_numbers_below_limits_are_uniform() -> None:
    torch.manual_seed(0)
    drawn = below(torch.tensor([1, 3]).repeat(3000, 1))
    assert (drawn[:, 0] == 0).all()
    counts = drawn[:, 1].bincount()
    assert len(counts) == 3
    assert counts.min() > 850


def test_a_table_holds_its_values() -> None:
    assert table([-4, 0, 7], CPU).tolist() == [-4, 0, 7]
