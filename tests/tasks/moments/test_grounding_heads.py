"""What is read from a moment model: spans by brute force, temporal classes by hand, losses in closed form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedreel.methods.fedvmr import divergence, smoothed
from fedreel.tasks.moments.grounding import Located, candidates, decode, loss, temporal_distribution

T = 12


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def pointer(start: Tensor, end: Tensor) -> Located:
    return Located(torch.zeros_like(start), start.log_softmax(-1), end.log_softmax(-1), torch.zeros(len(start), 1))


def one_hot(spans: list[tuple[int, int]], length: int = T) -> Located:
    """A pointer that is certain."""
    start, end = torch.full((2, len(spans), length), -torch.inf, dtype=torch.float64)
    for row, (i, j) in enumerate(spans):
        start[row, i] = end[row, j] = 0.0
    return Located(torch.zeros_like(start), start, end, torch.zeros(len(spans), 1))


def classes(times: Tensor, nb: int) -> Tensor:
    """As the paper says: nb * bin(start) + bin(end), bin(x) = min(nb - 1, floor(nb * x)), times in shares."""
    bins = (nb * times).floor().clamp_max(nb - 1).long()
    return nb * bins[:, 0] + bins[:, 1]


def shared(i: int, j: int, a: int, b: int) -> float:
    """Positions that i to j and a to b have in common, of all in either."""
    one, other = {*range(i, j + 1)}, {*range(a, b + 1)}
    return len(one & other) / len(one | other)


@pytest.mark.parametrize("max_share", [1.0, 0.5, 0.01])
def test_decoding_a_pointer_is_brute_force_over_all_pairs(max_share: float) -> None:
    located = pointer(3 * normal(40, T), 3 * normal(40, T, seed=2))
    assert located.start is not None
    assert located.end is not None
    longest = max(1, int(max_share * T))
    times, scores = decode(located, max_share=max_share)
    for row in range(40):
        pairs = [(i, j) for i in range(T) for j in range(i, min(T, i + longest))]
        value, i, j = max((float(located.start[row, i] + located.end[row, j]), i, j) for i, j in pairs)
        assert times[row, 0].tolist() == pytest.approx([i / T, (j + 1) / T])
        assert scores[row, 0].item() == pytest.approx(value)


def test_the_answer_of_highest_expected_overlap_is_brute_force_over_all_pairs() -> None:
    located = pointer(2 * normal(10, T), 2 * normal(10, T, seed=2))
    assert located.start is not None
    assert located.end is not None
    times, scores = decode(located, max_share=0.5, answer="overlap")
    spans = [(i, j) for i in range(T) for j in range(i, T)]
    for row in range(10):
        masses = [float((located.start[row, i] + located.end[row, j]).exp()) for i, j in spans]
        value, i, j = max(
            (sum(m * shared(i, j, a, b) for m, (a, b) in zip(masses, spans)) / sum(masses), i, j)
            for i, j in spans
            if j - i < T // 2
        )
        assert times[row, 0].tolist() == pytest.approx([i / T, (j + 1) / T])
        assert scores[row, 0].exp().item() == pytest.approx(value)


def test_the_answer_of_highest_expected_overlap_is_where_most_of_what_is_likely_lies() -> None:
    pairs = torch.tensor([[0, 2], [6, 9], [6, 10], [7, 10]])
    spans = torch.tensor([[0.4, 0.2, 0.2, 0.2]], dtype=torch.float64).log()
    none = torch.zeros(1, T, dtype=torch.float64)
    located = Located(none, None, None, none, spans=spans, candidates=pairs)
    assert (T * decode(located)[0]).round().tolist() == [[[0, 3]]]
    times, scores = decode(located, answer="overlap")
    assert (T * times).round().tolist() == [[[6, 11]]]
    assert scores.exp().item() == pytest.approx(0.2 * (4 / 5 + 1 + 4 / 5))


def test_a_moment_never_ends_before_it_starts() -> None:
    start, end = torch.zeros(1, T), torch.zeros(1, T)
    start[0, 9], end[0, 2] = 5.0, 5.0  # the likeliest start lies after the likeliest end
    times, _ = decode(pointer(start, end))
    assert times[0, 0, 0] < times[0, 0, 1]


def test_further_answers_do_not_repeat_the_first() -> None:
    start, end = torch.zeros(1, 10), torch.zeros(1, 10)
    start[0, 0], start[0, 1], end[0, 3], end[0, 8] = 9.0, 8.0, 9.0, 6.0
    times, scores = decode(pointer(start, end), top=2)  # (0, 3), then (1, 3) overlaps it by 3 / 4, (0, 8) by 4 / 9
    torch.testing.assert_close(times, torch.tensor([[[0.0, 0.4], [0.0, 0.9]]]))
    assert scores[0, 0] > scores[0, 1]


def test_where_too_few_answers_are_left_their_scores_say_so() -> None:
    _, scores = decode(pointer(torch.zeros(1, 1), torch.zeros(1, 1)), top=3)
    assert scores.tolist() == [[0.0, -torch.inf, -torch.inf]]


def test_an_anchor_free_answer_is_read_at_the_highest_score() -> None:
    scores = torch.zeros(1, 4, dtype=torch.float64)
    scores[0, 2] = 3.0
    distances = torch.full((1, 4, 2), 0.9, dtype=torch.float64)
    distances[0, 2] = torch.tensor([0.25, 0.125])
    located = Located(scores, None, None, torch.zeros(1, 1), times=torch.zeros(1, 2), distances=distances)
    times, found = decode(located)  # the middle of position 2 of 4 is .625
    torch.testing.assert_close(times[0, 0], torch.tensor([0.375, 0.75], dtype=torch.float64))
    assert found.item() == pytest.approx(torch.tensor(3.0).sigmoid().log().item())


@pytest.mark.parametrize("nb", [2, 4, 5])
@pytest.mark.parametrize("ordered", [True, False])
def test_the_distribution_of_certain_pointers_is_the_histogram_of_their_answers(nb: int, ordered: bool) -> None:
    spans = [(i, j) for i in range(T) for j in range(i, T)]
    located = one_hot(spans)
    q = temporal_distribution(located, nb, ordered)
    torch.testing.assert_close(q.sum(1), torch.ones(len(spans), dtype=torch.float64))
    expected = torch.bincount(classes(decode(located)[0][:, 0], nb), minlength=nb * nb)
    torch.testing.assert_close(q.sum(0), expected.double())
    possible = torch.ones(nb, nb).triu().bool().flatten()
    assert (q.sum(0)[~possible] == 0).all()


def test_temporal_classes_by_hand() -> None:
    spans = [(0, 1), (0, 2), (3, 4), (9, 11), (0, 11), (6, 6)]  # of 12 positions, 3 in each quarter
    q = temporal_distribution(one_hot(spans), 4).reshape(-1, 4, 4)
    # 3 / 12 is on the border and counts for the second quarter, 12 / 12 for the last
    assert [tuple(row.nonzero()[0].tolist()) for row in q] == [(0, 0), (0, 1), (1, 1), (3, 3), (0, 3), (2, 2)]


def test_a_pointers_distribution_is_the_outer_product_of_pooled_ends() -> None:
    located = pointer(normal(5, T), normal(5, T, seed=2))
    assert located.start is not None
    assert located.end is not None
    start, end = located.start.exp(), located.end.exp()
    free, kept = torch.zeros(2, 5, 4, 4, dtype=torch.float64)
    for i in range(T):
        for j in range(T):
            mass = start[:, i] * end[:, j]
            a, b = 4 * i // T, min(3, 4 * (j + 1) // T)
            free[:, a, b] += mass
            kept[:, a, b] += mass if i <= j else 0
    torch.testing.assert_close(temporal_distribution(located, 4, ordered=False), free.flatten(1))
    kept /= kept.sum((1, 2), keepdim=True)
    torch.testing.assert_close(temporal_distribution(located, 4), kept.flatten(1))


def test_distributions_survive_logits_of_any_size() -> None:
    start, end = torch.zeros(1, T), torch.zeros(1, T)
    start[0, 9], end[0, 2] = 1e4, 1e4  # all the mass lies where the end is before the start
    start.requires_grad_()
    q = temporal_distribution(pointer(start, end), 4)
    torch.testing.assert_close(q.sum(), torch.tensor(1.0))
    (q * torch.arange(16)).sum().backward()
    assert start.grad is not None
    assert start.grad.isfinite().all()


def test_the_distribution_of_proposals_is_the_histogram_of_their_spans() -> None:
    pairs = candidates(T)
    spans = normal(3, len(pairs)).log_softmax(1)
    scores = torch.zeros(3, T, dtype=torch.float64)
    located = Located(scores, None, None, scores, spans=spans, candidates=pairs)
    every = torch.stack([pairs[:, 0], pairs[:, 1] + 1], dim=1).double() / T
    expected = torch.zeros(3, 16, dtype=torch.float64).index_add(1, classes(every, 4), spans.exp())
    torch.testing.assert_close(temporal_distribution(located, 4), expected)


def test_soft_bins_prefer_the_bin_that_holds_the_time() -> None:
    times = torch.tensor([[0.1, 0.6], [0.3, 0.4], [0.8, 0.95]])
    none = torch.zeros(3, T)
    q = temporal_distribution(Located(none, None, None, none, times=times), 4)
    assert q.argmax(1).tolist() == [2, 5, 15]
    raised = times.clone().requires_grad_()
    temporal_distribution(Located(none, None, None, none, times=raised), 4)[0, 3].backward()  # the end in the last bin
    assert raised.grad is not None
    assert raised.grad[0, 1] > 0


def test_smoothing_adds_one_to_every_count() -> None:
    torch.testing.assert_close(smoothed(torch.tensor([3.0, 0.0, 1.0]), 4), torch.tensor([4 / 7, 1 / 7, 2 / 7]))


def test_the_divergence_by_hand() -> None:
    q, p = torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.75])
    expected = 0.5 * torch.tensor(2.0).log() + 0.5 * torch.tensor(2 / 3).log()
    torch.testing.assert_close(divergence(q, p), expected)
    assert divergence(p, p).item() == pytest.approx(0.0, abs=1e-7)


def test_a_step_down_the_divergence_moves_predictions_toward_the_classes_of_all_clients() -> None:
    start, end = normal(20, T).requires_grad_(), normal(20, T, seed=2).requires_grad_()
    counts = torch.tensor([[5, 30, 5, 0], [0, 2, 14, 5], [0, 0, 2, 21], [0, 0, 0, 9]], dtype=torch.float64).flatten()
    p = smoothed(counts, counts.sum())

    def term() -> Tensor:
        q = temporal_distribution(pointer(start, end), 4).sum(0)
        return divergence(smoothed(q, 20), p)

    optimizer = torch.optim.SGD([start, end], lr=20.0)
    values = [term()]
    for _ in range(20):
        optimizer.zero_grad()
        values[-1].backward()
        optimizer.step()
        values.append(term())
    assert 0 < values[1] < values[0]
    assert 0 < values[-1] < 0.7 * values[0]


def test_candidates_are_many_where_short_and_none_is_too_long() -> None:
    for length in (1, 2, 7, 32, 64, 128):
        for share in (1.0, 0.5):
            spans = candidates(length, share)
            assert (spans[:, 0] >= 0).all()
            assert (spans[:, 0] <= spans[:, 1]).all()
            assert (spans[:, 1] < length).all()
            assert len(spans.unique(dim=0)) == len(spans)
            lengths = spans[:, 1] - spans[:, 0] + 1
            assert lengths.max() == max(1, int(share * length))
            if length >= 32:
                assert 100 < len(spans) < 150
                assert (lengths < length / 8).sum() > (lengths > length / 4).sum()


def test_candidates_hold_a_good_answer_to_nearly_every_moment() -> None:
    places = torch.rand(500, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    starts = places[:, 0] * 0.5
    truth = torch.stack([starts, starts + 0.08 + 0.42 * places[:, 1]], dim=1)
    spans = candidates(64)
    shares = torch.stack([spans[:, 0], spans[:, 1] + 1], dim=1) / 64
    common = torch.minimum(truth[:, None, 1], shares[:, 1]) - torch.maximum(truth[:, None, 0], shares[:, 0])
    union = torch.maximum(truth[:, None, 1], shares[:, 1]) - torch.minimum(truth[:, None, 0], shares[:, 0])
    assert ((common / union).max(dim=1).values > 0.7).double().mean() > 0.98


def test_the_pointers_loss_by_hand() -> None:
    located = pointer(torch.zeros(1, 4), torch.zeros(1, 4))  # nothing known: each of the three terms is a logarithm
    found = loss(located, torch.tensor([[1, 2]]), torch.tensor([[1.0, 3.0, 4.0]]))
    assert found.item() == pytest.approx(2 * torch.tensor(4.0).log().item() + torch.tensor(2.0).log().item())


def test_anchor_free_distances_are_learned_inside_the_moment_only() -> None:
    distances = torch.zeros(1, 4, 2, dtype=torch.float64)
    distances[0, 1], distances[0, 2] = torch.tensor([0.125, 0.375]), torch.tensor([0.375, 0.125])  # to .25 and .75
    found = []
    for outside in (0.0, 0.7):
        distances[0, 0] = distances[0, 3] = outside
        located = Located(torch.zeros(1, 4, dtype=torch.float64), None, None, torch.zeros(1, 1), distances=distances)
        found.append(loss(located, torch.tensor([[1, 2]]), torch.tensor([[2.0, 6.0, 8.0]], dtype=torch.float64)))
    assert found[0].item() == pytest.approx(torch.tensor(2.0).log().item())  # distances cost nothing
    assert found[1].item() == pytest.approx(found[0].item())
