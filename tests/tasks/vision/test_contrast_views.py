"""Views of images against slices, mirrors, PyTorch's own resizing and arithmetic on plain pixels."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from fedreel.tasks.vision import clip_views as views
from fedreel.tasks.vision.contrast_views import (
    HUE,
    JITTER,
    VALUES,
    SimCLR,
    coloured,
    colours,
    crop_and_flip,
    draw_blurs,
    draw_boxes,
    draw_colours,
    resampled,
    resampling,
    scaled,
)

CPU = torch.device("cpu")
LUMA = torch.tensor([0.299, 0.587, 0.114])


def images(n: int = 4, side: int = 12, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (n, side, side, 3), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


def still(size: int, **changes: float) -> SimCLR:
    """The whole image as it is, but for what is changed."""
    off = {"strength": 0.0, "flip": 0.0, "grey": 0.0, "blur": 0.0, **changes}
    return SimCLR(size, scale=(1.0, 1.0), ratio=(1.0, 1.0), **off)


def planes(x: torch.Tensor) -> torch.Tensor:
    """(N, 3, 1, H, W) of images."""
    return x.permute(0, 3, 1, 2)[:, :, None].float()


# --- whole views ---


def test_without_any_change_the_view_is_the_image() -> None:
    x = images()
    assert torch.equal(still(12).random(x), x.float())
    assert torch.equal(still(12).random(x.float()), x.float())
    # probabilities of a change of colour and of a blur that are next to nothing go through the arithmetic of one
    assert torch.allclose(still(12, grey=1e-12, blur=1e-12).random(x), x.float(), atol=1e-3)


def test_a_certain_flip_is_the_mirror_and_a_likely_one_is_as_likely_as_said() -> None:
    x = images()
    assert torch.equal(still(12, flip=1.0).random(x), x.flip(2).float())
    torch.manual_seed(0)
    many = still(12, flip=0.25).random(x[:1].expand(400, -1, -1, -1))
    mirrored = (many == x[:1].flip(2).float()).flatten(1).all(1)
    plain = (many == x[:1].float()).flatten(1).all(1)
    assert (mirrored ^ plain).all()
    assert 60 < int(mirrored.sum()) < 140


@pytest.mark.parametrize("size", [8, 12, 17])
def test_views_have_their_size_and_the_range_of_bytes(size: int) -> None:
    torch.manual_seed(0)
    seen = SimCLR(size, strength=1.0).random(images(64))
    assert seen.shape == (64, size, size, 3)
    assert seen.dtype == torch.float32
    assert seen.min() == 0  # strong changes of noise reach both ends
    assert seen.max() == 255
    oblong = torch.cat([images(2), images(2)], dim=2)
    assert SimCLR(size).random(oblong).shape == (2, size, size, 3)


def test_equal_seeds_give_equal_views_and_two_calls_differ() -> None:
    x, all_of_it = images(20), SimCLR(10)
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(all_of_it.random(x))
    again = all_of_it.random(x)
    assert torch.equal(drawn[0], drawn[1])
    for other in (drawn[2], again):
        assert ((drawn[0] - other).flatten(1).abs().amax(1) > 1).float().mean() > 0.9


def test_the_view_of_an_image_does_not_depend_on_the_other_images() -> None:
    x, others = images(6), images(6, seed=1)
    others[2] = x[2]
    torch.manual_seed(3)
    seen = SimCLR(10).random(x)
    torch.manual_seed(3)
    among_others = SimCLR(10).random(others)
    assert torch.allclose(seen[2], among_others[2], atol=1e-3)
    assert not torch.allclose(seen[1], among_others[1], atol=1)


def test_equal_images_of_a_batch_get_views_of_their_own() -> None:
    torch.manual_seed(0)
    seen = SimCLR(12).random(images(1).expand(30, -1, -1, -1)).flatten(1)
    assert ((torch.cdist(seen, seen) + 1e6 * torch.eye(30)).amin(1) > 10).all()


def test_frames_of_a_clip_get_the_same_view_and_an_image_is_a_clip_of_one_frame() -> None:
    x = images(8)
    torch.manual_seed(0)
    seen = SimCLR(9, strength=1.0).random(x[:, None].expand(-1, 5, -1, -1, -1))
    torch.manual_seed(0)
    alone = SimCLR(9, strength=1.0).random(x)
    assert seen.shape == (8, 5, 9, 9, 3)
    assert torch.allclose(seen, alone[:, None].expand_as(seen), atol=1e-3)


def test_frames_stay_in_order() -> None:
    clips = images(6).view(2, 3, 12, 12, 3)
    assert torch.equal(still(12).random(clips), clips.float())
    assert torch.equal(still(12, flip=1.0).random(clips), clips.flip(3).float())


def test_grey_images_stay_grey() -> None:
    x = images(40)[..., :1].expand(-1, -1, -1, 3)
    torch.manual_seed(0)
    seen = SimCLR(12, strength=1.0).random(x)
    assert torch.allclose(seen, seen[..., :1].expand_as(seen), atol=1e-2)
    assert not torch.allclose(seen, x.float(), atol=10)


def test_autocast_does_not_change_the_views() -> None:
    x = images()
    torch.manual_seed(0)
    plain = SimCLR(12).random(x)
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(SimCLR(12).random(x), plain)


# --- crops ---


def test_areas_and_ratios_of_crops_are_drawn_as_said() -> None:
    torch.manual_seed(0)
    tenths = torch.arange(1, 10) / 10
    box = draw_boxes(20_000, 1000, 1000, (0.08, 1.0), (1.0, 1.0), CPU)
    area = (box.height * box.width) / 1e6
    assert float(area.mean()) == pytest.approx(0.54, abs=0.006)  # 3 standard errors: .92 / sqrt(12 * 20,000) is .0019
    assert torch.allclose(area.quantile(tenths), 0.08 + 0.92 * tenths, atol=0.015)
    box = draw_boxes(20_000, 1000, 1000, (0.3, 0.3), (0.5, 2.0), CPU)
    assert torch.allclose((box.width / box.height).log2().quantile(tenths), 2 * tenths - 1, atol=0.04)
    assert torch.allclose((box.height * box.width) / 1e6, torch.full((20_000,), 0.3), atol=2e-3)  # whole pixels


def test_the_mean_area_of_crops_is_near_that_of_the_range_though_boxes_are_cut_to_the_image() -> None:
    torch.manual_seed(0)
    box = draw_boxes(20_000, 64, 64, SimCLR(64).scale, SimCLR(64).ratio, CPU)
    area = (box.height * box.width).double() / 64**2
    assert float(area.mean()) == pytest.approx(0.54, abs=0.02)  # cutting takes about .01 of the image on average
    assert float(area.mean()) < 0.54


def test_boxes_lie_inside_of_images_and_anywhere_in_them() -> None:
    torch.manual_seed(0)
    box = draw_boxes(5000, 10, 20, (0.01, 1.0), (0.1, 10.0), CPU)
    for start, extent, length in ((box.top, box.height, 10), (box.left, box.width, 20)):
        assert (start >= 0).all()
        assert (extent >= 1).all()
        assert (start + extent <= length).all()
        assert len((start + extent).unique()) == length
        assert len(start.unique()) == length


@pytest.mark.parametrize("size", [5, 16, 40])
def test_a_resampled_box_is_the_slice_resized_by_torch(size: int) -> None:
    torch.manual_seed(0)
    x = images(12, side=24)
    box = draw_boxes(12, 24, 24, (0.1, 1.0), (0.5, 2.0), CPU)
    pixels = torch.arange(size).expand(12, size)
    rows, columns = (resampling(s, e, 24, pixels) for s, e in ((box.top, box.height), (box.left, box.width)))
    seen = resampled(x[:, None], rows, columns)[:, :, 0]
    for image, at, got in zip(planes(x)[:, :, 0], zip(*(b.tolist() for b in box)), seen):
        top, left, height, width = at
        cut = image[None, :, top : top + height, left : left + width]
        expected = F.interpolate(cut, (size, size), mode="bilinear", antialias=True, align_corners=False)
        assert torch.allclose(got, expected[0], atol=1e-2)


def test_a_view_is_a_crop_of_the_image() -> None:
    ramp = torch.arange(32.0)[None, None, :, None].expand(200, 32, 32, 3)
    torch.manual_seed(0)
    crops = SimCLR(32, strength=0.0, grey=0.0, blur=0.0).random(ramp)[:, 16, :, 0]
    steps = crops.diff(dim=1).median(1).values  # of a box: its width over 32
    assert (crops.amin(1) >= 0).all()
    assert (crops.amax(1) <= 31).all()
    assert 60 < int((steps < 0).sum()) < 140  # mirrored
    whole = (32 * steps.abs() - (32 * steps.abs()).round()).abs()
    assert whole.max() < 1e-2


# --- colours ---


def test_certain_grey_has_three_equal_channels_of_the_right_weights() -> None:
    x = images()
    seen = still(12, grey=1.0).random(x)
    assert torch.allclose(seen, (x.float() @ LUMA)[..., None].expand_as(seen), atol=1e-2)


def test_each_change_of_colour_alone() -> None:
    x = 80 + 80 * torch.rand(3, 12, 12, 3, generator=torch.Generator().manual_seed(0))  # far from being clamped
    one, none, by = torch.ones(3), torch.zeros(3), torch.tensor([0.7, 1.0, 1.3])
    no = torch.zeros(3, dtype=torch.bool)
    grey = (x @ LUMA)[..., None]
    each = by[:, None, None, None]

    def seen(*change: torch.Tensor) -> torch.Tensor:
        return coloured(planes(x), *colours(*change, no))[:, :, 0].permute(0, 2, 3, 1)

    mean = grey.mean((1, 2, 3), keepdim=True)
    assert torch.allclose(seen(one, one, one, none), x, atol=1e-3)
    assert torch.allclose(seen(by, one, one, none), each * x, atol=1e-2)
    assert torch.allclose(seen(one, by, one, none), each * x + (1 - each) * mean, atol=1e-2)
    assert torch.allclose(seen(one, one, by, none), each * x + (1 - each) * grey, atol=1e-2)
    assert torch.allclose(seen(one, one, one, by), views.recoloured(x[:, None], by, one)[:, 0], atol=1e-2)
    assert torch.allclose(seen(one, one, one, one * 2 * math.pi / 3), x.roll(1, 3), atol=1e-2)


def test_all_changes_are_those_one_after_another() -> None:
    generator = torch.Generator().manual_seed(0)
    x = 100 + 50 * torch.rand(6, 8, 8, 3, generator=generator)
    factors = 0.9 + 0.2 * torch.rand(3, 6, generator=generator)
    turn, grey = torch.linspace(-0.6, 0.6, 6), torch.arange(6) % 3 == 0
    brightness, contrast, saturation = factors[..., None, None, None]
    y = brightness * x
    y = contrast * y + (1 - contrast) * (y @ LUMA).mean((1, 2))[:, None, None, None]
    y = saturation * y + (1 - saturation) * (y @ LUMA)[..., None]
    y = views.recoloured(y[:, None], turn, torch.ones(6))[:, 0]
    y = torch.where(grey[:, None, None, None], (y @ LUMA)[..., None], y)
    seen = coloured(planes(x), *colours(*factors, turn, grey))[:, :, 0].permute(0, 2, 3, 1)
    assert torch.allclose(seen, y, atol=1e-2)


def test_colours_change_as_often_and_as_much_as_said() -> None:
    torch.manual_seed(0)
    n, strength = 4000, 0.5
    drawn = draw_colours(n, strength, 0.0, CPU)
    changed = (drawn.matrix - torch.eye(3)).abs().amax((1, 2)) > 1e-5
    assert float(changed.float().mean()) == pytest.approx(JITTER, abs=0.03)
    assert torch.equal(changed, drawn.lift.abs() > 1e-7)  # together
    most = VALUES * strength
    gains = drawn.matrix.sum(2)[:, 0]  # of grey: brightness times contrast; with the lift: brightness
    brightness = gains + drawn.lift
    for factor in (brightness, gains / brightness):
        assert 1 - most - 1e-4 <= factor.min() <= 1 - 0.95 * most
        assert 1 + 0.95 * most <= factor.max() <= 1 + most + 1e-4
        assert float(factor[changed].mean()) == pytest.approx(1, abs=0.02)
    yellow_and_violet = torch.tensor([1.0, 1.0, -2.0]) / 6**0.5, torch.tensor([1.0, -1.0, 0.0]) / 2**0.5
    along, across = yellow_and_violet
    turned = drawn.matrix @ along
    grey_free = turned - turned.mean(1, keepdim=True)
    angle = torch.atan2(grey_free @ across, grey_free @ along).abs()
    assert 0.95 < float(angle.max()) / (2 * math.pi * HUE * strength) <= 1 + 1e-3
    assert float(angle[changed].mean()) == pytest.approx(math.pi * HUE * strength, rel=0.05)


# --- blur ---


def test_a_certain_blur_keeps_a_constant_image_and_roughly_the_mean_of_any() -> None:
    constant = torch.full((5, 32, 32, 3), 77, dtype=torch.uint8)
    assert torch.allclose(still(32, blur=1.0).random(constant), constant.float(), atol=1e-2)
    x = images(50, side=32)
    torch.manual_seed(0)
    seen = still(32, blur=1.0).random(x)
    assert torch.allclose(seen.mean((1, 2)), x.float().mean((1, 2)), atol=1.5)
    softer = seen.std((1, 2)) / x.float().std((1, 2))
    assert softer.max() < 1.001
    assert softer.min() < 0.5


@pytest.mark.parametrize(("size", "kernel"), [(8, 3), (32, 3), (64, 7), (224, 23)])
def test_a_blur_is_a_gaussian_as_wide_as_a_tenth_of_the_side(size: int, kernel: int) -> None:
    torch.manual_seed(0)
    blur, middle, reach = draw_blurs(60, size, 1.0, CPU), size // 2, kernel // 2
    row = blur[:, middle]
    assert torch.allclose(blur.sum(2), torch.ones(60, size), atol=1e-5)
    assert (row[:, : middle - reach] == 0).all()
    assert (row[:, middle + reach + 1 :] == 0).all()
    assert (row[:, middle + reach] > 0).any()
    sigma = (-0.5 / (row[:, middle + 1] / row[:, middle]).log()).sqrt()  # of e^{-1 / (2 sigma^2)}
    assert sigma.nan_to_num(0.1).max() <= 2.001
    assert float(sigma.quantile(0.5)) == pytest.approx(1.05, abs=0.3)
    if reach > 1:
        wide = sigma > 0.5
        ratio = (row[wide, middle + 2] / row[wide, middle]).log() / (row[wide, middle + 1] / row[wide, middle]).log()
        assert torch.allclose(ratio, torch.full_like(ratio, 4), atol=1e-2)  # a Gaussian at distances 2 and 1


def test_a_blur_is_a_convolution_of_the_reflected_image() -> None:
    torch.manual_seed(0)
    x, blur = planes(images(3, side=64))[:, :, 0], draw_blurs(3, 64, 1.0, CPU)
    seen = blur[:, None] @ x @ blur[:, None].transpose(2, 3)
    for image, got, taps in zip(x, seen, blur[:, 32, 29:36]):
        padded = F.pad(image[None], (3, 3, 3, 3), mode="reflect")
        kernel = (taps[:, None] * taps).expand(3, 1, 7, 7)
        assert torch.allclose(got, F.conv2d(padded, kernel, groups=3)[0], atol=1e-2)


def test_a_blur_is_as_likely_as_said_and_else_changes_nothing() -> None:
    torch.manual_seed(0)
    same = (draw_blurs(1000, 16, 0.5, CPU) == torch.eye(16)).flatten(1).all(1)
    assert 440 < int(same.sum()) < 560
    assert torch.equal(draw_blurs(3, 16, 0.0, CPU), torch.eye(16).expand(3, 16, 16))


# --- crops between borders ---


def test_a_padded_crop_is_a_slice_and_every_slice_occurs() -> None:
    x = images(1, side=6)
    padded = F.pad(x[0].float(), (0, 0, 1, 1, 1, 1))
    torch.manual_seed(0)
    found = set()
    for seen in crop_and_flip(x.expand(400, -1, -1, -1), 6, padding=1):
        slices = [
            (top, left, flipped)
            for top in range(3)
            for left in range(3)
            for flipped in (False, True)
            if torch.equal(seen.flip(1) if flipped else seen, padded[top : top + 6, left : left + 6])
        ]
        assert len(slices) == 1
        found.add(slices[0])
    assert len(found) == 18


def test_without_borders_a_crop_of_the_whole_is_the_image_or_its_mirror() -> None:
    x = images()
    assert torch.equal(crop_and_flip(x, 12, padding=0, flip=0.0), x.float())
    assert torch.equal(crop_and_flip(x, 12, padding=0, flip=1.0), x.flip(2).float())
    assert crop_and_flip(x, 12).dtype == torch.float32


def test_frames_of_a_clip_are_cropped_alike() -> None:
    clips = images(12).view(4, 3, 12, 12, 3)
    torch.manual_seed(0)
    seen = crop_and_flip(clips, 12)
    assert seen.shape == clips.shape
    for frame in range(3):
        torch.manual_seed(0)
        assert torch.equal(seen[:, frame], crop_and_flip(clips[:, frame], 12))


def test_padded_crops_take_images_whose_planes_lie_together() -> None:
    x = images()
    apart = x.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    torch.manual_seed(0)
    expected = crop_and_flip(x, 12)
    torch.manual_seed(0)
    assert torch.equal(crop_and_flip(apart, 12), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_recording_gives_other_views_on_each_replay() -> None:
    x = images(8, side=32).cuda()

    def both() -> tuple[torch.Tensor, torch.Tensor]:
        return SimCLR(32).random(x), crop_and_flip(x, 32)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        both()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = both()
    replays = []
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        replays.append([seen.clone() for seen in recorded])
    for first, second in zip(*replays):
        assert 0 <= first.min() <= first.max() <= 255
        assert not torch.allclose(first, second, atol=1)


# --- the whole of an image ---


@pytest.mark.parametrize("size", [6, 12, 20])
def test_a_whole_image_is_scaled_as_torch_scales_it_and_left_alone_where_it_fits(size: int) -> None:
    x = images(side=12)
    expected = F.interpolate(x.permute(0, 3, 1, 2).float(), (size, size), mode="bilinear", antialias=True)
    torch.testing.assert_close(scaled(x, size).float(), expected.permute(0, 2, 3, 1), atol=1e-3, rtol=0)
    assert (scaled(x, size) is x) == (size == 12)
    clips = torch.stack([x, x.flip(1)], dim=1)
    torch.testing.assert_close(scaled(clips, size)[:, 0].float(), scaled(x, size).float())
    assert torch.equal(SimCLR(size).whole(x), scaled(x, size).float())


def test_views_of_a_larger_image_show_pixels_that_a_smaller_one_has_lost() -> None:
    """Single columns of black and white: crops as wide as a view keep them, of the shrunk image none could."""
    stripes = (torch.arange(32) % 2 * 255).to(torch.uint8).expand(1, 32, 32)[..., None].expand(64, 32, 32, 3)
    cut = SimCLR(16, strength=0.0, flip=0.0, grey=0.0, blur=0.0, scale=(0.25, 0.25), ratio=(1.0, 1.0))
    assert cut.random(stripes).unique().tolist() == [0, 255]
    assert float(cut.random(scaled(stripes, 16)).std()) < 30
