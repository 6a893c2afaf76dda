"""The head of Catch-the-Patch on maps whose answer is known, and learning on planted clips."""

from __future__ import annotations

import torch
from torch import nn

from fedreel.models.r3d import R3D, R3DConfig
from fedreel.tasks.pretrain.patches import decode, draw_boxes, mean_iou, paste, targets, tracking_loss
from fedreel.tasks.pretrain.tracking import TrackHead
from fedreel.tasks.vision.clip_input import network_input
from support.networks import tiny_r3d


def test_the_paper_head_looks_at_a_map_of_14_x_14_through_5_x_5() -> None:
    with torch.device("meta"):
        backbone = R3D(R3DConfig(bn_eps=1e-3))
        backbone.last_stride = 1
        features = backbone.features(torch.empty(2, 3, 16, 112, 112))
        head = TrackHead(512, frames=16, time_extent=2)
        assert features.shape == (2, 512, 2, 14, 14)
        assert head(features, torch.empty(2, 3, 4), 112).shape == (2, 3, 16, 4)
    assert {name: tuple(p.shape) for name, p in head.named_parameters() if name.endswith("weight")} == {
        "squeeze.weight": (512, 512, 2, 1, 1),
        "fc1.weight": (512, 12800),
        "fc2.weight": (64, 512),
    }


def test_a_fresh_head_predicts_next_to_no_motion() -> None:
    torch.manual_seed(0)
    head = TrackHead(16, frames=16, time_extent=2, hidden=64)
    assert abs(head.fc1.weight.std().item() / 0.001 - 1) < 0.02
    assert abs(head.fc2.weight.std().item() / 0.001 - 1) < 0.05
    boxes = draw_boxes(2, 16, 112)
    still = decode(head(torch.rand(2, 16, 2, 14, 14), boxes[:, :, 0], 112), boxes[:, :, 0], 112)
    torch.testing.assert_close(still, boxes[:, :, :1].expand(-1, -1, 16, -1), atol=1e-3, rtol=0)


def test_each_patch_sees_its_own_clip_at_its_own_box() -> None:
    head = TrackHead(1, frames=1, time_extent=2, output=1, hidden=1)
    nn.init.constant_(head.squeeze.weight, 0.5)  # the mean over time
    nn.init.ones_(head.fc1.weight)
    nn.init.ones_(head.fc2.weight)
    column = torch.arange(8.0).expand(8, 8)
    features = torch.stack([column, 10 + column.T])[:, None, None].expand(-1, -1, 2, -1, -1)
    first = torch.tensor(
        [[8.0, 8.0, 24.0, 24.0], [24.0, 8.0, 40.0, 40.0]]
    )  # middles: columns 1.5 and 3.5, rows 1.5 and 2.5
    found = head(features, first.expand(2, 2, 4), 64)
    assert found[..., 0, 0].tolist() == [[1.5, 3.5], [11.5, 12.5]]
    assert torch.equal(found, found[..., :1].expand(-1, -1, 1, 4))
    nn.init.constant_(head.fc1.weight, -1)
    assert not head(-features, first.expand(2, 2, 4), 64).any(), "what is negative after squeezing time is cut off"


def test_the_map_is_found_at_any_size_of_frames() -> None:
    torch.manual_seed(0)
    head = TrackHead(4, frames=8, time_extent=1, hidden=8)
    nn.init.normal_(head.fc1.weight)
    nn.init.normal_(head.fc2.weight)
    features, boxes = torch.randn(1, 4, 1, 4, 4), torch.tensor([[[3.0, 5.0, 20.0, 17.0]]])
    torch.testing.assert_close(head(features, boxes, 32), head(features, 3.5 * boxes, 112))


def test_steps_on_planted_clips_lower_the_loss_and_find_the_patches() -> None:
    torch.manual_seed(0)
    boxes = draw_boxes(3, 4, 32)
    clips = network_input(paste(255 * torch.rand(3, 4, 32, 32, 3), boxes))
    backbone = tiny_r3d(width=4, stem_size=3)
    backbone.last_stride = 1
    head, truth = TrackHead(32, frames=4, time_extent=1, hidden=32), targets(boxes, 32)
    for layer in (head.fc1, head.fc2):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")  # the published one needs thousands of steps
    params = [*backbone.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(params, lr=0.003, momentum=0.9)
    losses, overlaps = [], []
    for _ in range(60):
        predicted = head(backbone.features(clips), boxes[:, :, 0], 32)
        loss = tracking_loss(predicted, truth)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, 40)
        optimizer.step()
        losses.append(loss.item())
        overlaps.append(mean_iou(decode(predicted.detach(), boxes[:, :, 0], 32), boxes).item())
    assert losses[-1] < 0.5 * losses[0]
    assert overlaps[-1] > 0.8 > overlaps[0]
