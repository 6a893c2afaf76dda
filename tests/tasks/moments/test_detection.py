"""Moments as a set: overlap in closed form, the cheapest match by brute force, losses by hand, and what is unfit."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedreel.tasks.moments.attention import Attention, Layer, waves
from fedreel.tasks.moments.detection import (
    MARGIN,
    TEMPERATURE,
    Detected,
    costs,
    detection_loss,
    ends,
    giou,
    saliency_loss,
)
from fedreel.tasks.moments.detr import QUERIES, DetrBackbone, DetrHead
from fedreel.tasks.moments.grounding import Grounder
from fedreel.tasks.moments.grounding_heads import Located, decode, temporal_distribution


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).uniform(0.05, 0.95, shape))


def pair(start: float, end: float) -> Tensor:
    return torch.tensor([start, end], dtype=torch.float64)


def test_generalised_overlap_in_closed_form() -> None:
    assert giou(pair(0, 1), pair(0, 1)) == 1
    assert giou(pair(0, 2), pair(1, 3)) == pytest.approx(1 / 3)  # no gap: the plain overlap
    assert giou(pair(0, 1), pair(0.25, 0.75)) == pytest.approx(0.5)
    assert giou(pair(0, 1), pair(3, 4)) == pytest.approx(-0.5)  # half of the hull is gap
    assert giou(pair(0, 1), pair(1, 2)) == 0
    assert giou(pair(0, 1e-9), pair(1, 1 + 1e-9)) == pytest.approx(-1)


def test_generalised_overlap_is_symmetric_and_the_same_anywhere_at_any_scale() -> None:
    a, b = (drawn(seed, 50, 2).sort(1).values for seed in (0, 1))
    found = giou(a, b)
    torch.testing.assert_close(found, giou(b, a))
    torch.testing.assert_close(found, giou(3 * a + 7, 3 * b + 7))
    assert ((found > -1) & (found <= 1)).all()


@pytest.mark.parametrize("moments", [1, 2, 3])
def test_the_cheapest_match_is_that_of_brute_force_and_of_scipy(moments: int) -> None:
    """A question has one moment here: the cheapest answer is then the whole of the matching."""
    assignment = pytest.importorskip("scipy.optimize", reason="scipy is not installed").linear_sum_assignment
    for seed in range(20):
        spans, logits, truth = drawn(seed, 5, 2), drawn(seed + 99, 5), drawn(seed + 999, moments, 2)
        table = torch.stack([costs(spans[None], logits[None], t[None])[0] for t in truth]).numpy()  # (moments, answers)
        best = min(permutations(range(5), moments), key=lambda p: sum(table[i, j] for i, j in enumerate(p)))
        assert [*assignment(table)[1]] == [*best]
        if moments == 1:
            assert int(costs(spans[None], logits[None], truth).argmin()) == best[0]


def test_a_cost_by_hand() -> None:
    spans, logits = torch.tensor([[[0.5, 0.2]]]), torch.tensor([[0.0]])
    assert costs(spans, logits, torch.tensor([[0.5, 0.4]])) == pytest.approx(10 * 0.2 - 0.5 - 4 * 0.5)


def test_the_loss_of_a_right_answer_is_that_of_its_labels_alone() -> None:
    truth = torch.tensor([[0.2, 0.6]], dtype=torch.float64)
    spans = torch.tensor([[[[0.4, 0.4], [0.9, 0.1]]]], dtype=torch.float64)
    logits = torch.tensor([[[1.0, -2.0]]], dtype=torch.float64)
    inside = torch.tensor([[0.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    saliency = torch.tensor([[-50.0, 50.0, 50.0, -50.0]], dtype=torch.float64)
    labels = (math.log1p(math.exp(-1.0)) + 0.1 * math.log1p(math.exp(-2.0))) / 2
    found = detection_loss(Detected(spans, logits), saliency, truth, inside)
    assert float(found) == pytest.approx(4 * labels + math.log(2))  # two positions share what is salient
    twice = Detected(spans.expand(2, -1, -1, -1), logits.expand(2, -1, -1))
    assert float(detection_loss(twice, saliency, truth, inside)) == pytest.approx(8 * labels + math.log(2))


def test_only_the_matched_answer_is_moved() -> None:
    spans = torch.tensor([[[[0.3, 0.2], [0.5, 0.3], [0.9, 0.1]]]], requires_grad=True)
    inside = torch.tensor([[0.0, 1.0, 1.0, 0.0]])
    loss = detection_loss(Detected(spans, torch.zeros(1, 1, 3)), torch.zeros(1, 4), torch.tensor([[0.3, 0.7]]), inside)
    (gradient,) = torch.autograd.grad(loss, spans)
    assert gradient[0, 0].abs().sum(1).gt(0).tolist() == [False, True, False]


def test_saliencies_by_hand() -> None:
    inside = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    s = torch.tensor([[0.3, 0.0, 0.4]], dtype=torch.float64)
    margin = (0.0 + (MARGIN + 0.4 - 0.3)) / 2
    alone = -math.log(math.exp(0.3 / TEMPERATURE) / sum(math.exp(x / TEMPERATURE) for x in (0.3, 0.0, 0.4)))
    assert float(saliency_loss(s, inside, None, None)) == pytest.approx(margin + alone)
    unfit = torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64)
    among = sum(math.exp(x / TEMPERATURE) for x in (0.3, 0.0, 0.4, 1.0, -1.0, 0.0))
    refused = sum(math.log1p(math.exp(x)) for x in (1.0, -1.0, 0.0)) / 3
    both = margin - math.log(math.exp(0.3 / TEMPERATURE) / among) + refused
    assert float(saliency_loss(s, inside, unfit, torch.tensor([True]))) == pytest.approx(both)
    same = saliency_loss(s, inside, unfit, torch.tensor([False]))  # the same sentence is no other
    assert float(same) == pytest.approx(margin + alone)


def test_a_moment_that_fills_the_video_has_a_finite_loss() -> None:
    everything = torch.ones(2, 4)
    found = saliency_loss(torch.zeros(2, 4), everything, torch.zeros(2, 4), torch.tensor([False, False]))
    assert float(found) == pytest.approx(math.log(4))


def network(**changes: object) -> Grounder:
    torch.manual_seed(0)
    settings = {"width": 16, "dropout": 0.0, "encoder": "attention", "form": "qd-detr"} | changes
    return Grounder(3, 8, 20, 5, **settings)  # type: ignore[arg-type]


def test_in_training_each_video_is_read_with_the_sentence_before_it_in_the_batch() -> None:
    net = network()
    video, words = torch.randn(3, 8, 3), torch.tensor([[2, 3, 0], [4, 5, 6], [4, 5, 6]])
    found = net.train()(video, words)
    assert found.detected.other.tolist() == [True, True, False]  # the third has the same sentence as the second
    with torch.no_grad():
        crossed = net.eval()(video, words.roll(1, 0)).scores
    torch.testing.assert_close(found.detected.unfit, crossed)
    assert net.eval()(video, words).detected.unfit is None


def test_padding_says_nothing_and_questions_do_not_see_each_other() -> None:
    net = network().eval()
    video, words = torch.randn(2, 8, 3), torch.tensor([[2, 3, 0], [4, 5, 6]])
    both = net(video, words)
    longer = net(video[:1], torch.tensor([[2, 3, 0, 0, 0, 0]]))
    torch.testing.assert_close(both.detected.spans[:, :1], longer.detected.spans)
    torch.testing.assert_close(both.scores[:1], longer.scores)


def test_before_training_answers_are_spread_evenly_and_where_the_sentence_is_blind_the_video_does_not_count() -> None:
    net = network(use_video=False).eval()
    one, other = (net(torch.randn(1, 8, 3), torch.tensor([[2, 3]])) for _ in range(2))
    torch.testing.assert_close(one.detected.spans, other.detected.spans)
    centres = one.detected.spans[-1, 0, :, 0]
    torch.testing.assert_close(centres, (torch.arange(QUERIES) + 0.5) / QUERIES)


def located(spans: list[list[float]], logits: list[float]) -> Located:
    detected = Detected(torch.tensor([[spans]]), torch.tensor([[logits]]))
    return Located(torch.zeros(1, 8), None, None, torch.zeros(1, 4), detected=detected)


def test_answers_are_ordered_by_how_right_they_are_and_near_ones_are_left_out() -> None:
    found = located([[0.2, 0.2], [0.21, 0.2], [0.8, 0.2]], [2.0, 1.0, 0.0])
    times, scores = decode(found, 3)
    torch.testing.assert_close(times[0, :2], torch.tensor([[0.1, 0.3], [0.7, 0.9]]))
    torch.testing.assert_close(scores[0, :2], F.logsigmoid(torch.tensor([2.0, 0.0])))
    assert scores[0, 2] == -math.inf
    short, _ = decode(found, 1, max_share=0.1)
    torch.testing.assert_close(short[0, 0], torch.tensor([0.15, 0.25]))
    at_border, _ = decode(located([[0.05, 0.4]], [0.0]))
    torch.testing.assert_close(at_border[0, 0], torch.tensor([0.0, 0.25]))


def test_the_answer_of_the_highest_expected_overlap_is_the_one_that_others_are_near() -> None:
    found = located([[0.8, 0.2], [0.3, 0.2], [0.3, 0.2]], [0.1, 0.0, 0.0])
    p = torch.tensor([0.1, 0.0, 0.0]).softmax(0)
    times, score = decode(found, 1, answer="overlap")
    torch.testing.assert_close(times[0, 0], torch.tensor([0.2, 0.4]))
    assert float(score.exp()) == pytest.approx(float(p[1] + p[2]))


def test_temporal_classes_of_a_set_are_a_mixture() -> None:
    one, other = [0.25, 0.2], [0.75, 0.2]
    q = [temporal_distribution(located([s], [0.0]), 4) for s in (one, other)]
    torch.testing.assert_close(q[0].sum(), torch.tensor(1.0))
    mixed = temporal_distribution(located([one, other], [math.log(3.0), 0.0]), 4)
    torch.testing.assert_close(mixed, 0.75 * q[0] + 0.25 * q[1])


def test_attention_is_that_of_torch() -> None:
    torch.manual_seed(0)
    own, theirs = Attention(64), torch.nn.MultiheadAttention(64, 2, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([own.query.weight, own.key.weight, own.value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([own.query.bias, own.key.bias, own.value.bias]))
        theirs.out_proj.load_state_dict(own.out.state_dict())
        x, y, v = torch.randn(2, 3, 64), torch.randn(2, 5, 64), torch.randn(2, 5, 64)
        real = torch.tensor([[True] * 5, [True, True, False, False, False]])
        torch.testing.assert_close(own(x, y, v, real), theirs(x, y, v, key_padding_mask=~real)[0])


def test_ends_and_waves() -> None:
    torch.testing.assert_close(ends(torch.tensor([0.5, 0.2])), torch.tensor([0.4, 0.6]))
    found = waves(torch.linspace(0, 1, 9), 16)
    assert found.shape == (9, 16)
    torch.testing.assert_close(found.square().sum(1), torch.full((9,), 8.0))  # sin^2 + cos^2, eight times
    assert len(torch.unique(found.round(decimals=4), dim=0)) == 9
    assert isinstance(Layer(8, 0.0)(torch.randn(1, 2, 8), torch.zeros(2, 8)), Tensor)


def test_clients_keep_encoders_under_names_that_methods_know() -> None:
    net = network()
    assert isinstance(net.backbone, DetrBackbone)
    assert isinstance(net.head, DetrHead)
    kept = {name for name in net.backbone.state_dict() if name.split(".")[0] in net.backbone.model_parts}
    assert kept
    assert any(name.startswith("across") for name in net.backbone.state_dict())
