"""Where a moment lies: ways to say it, their losses, the spans read from them, and their temporal classes."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.tasks.moments.detection import Detected, answers, detection_loss

OVERLAP = 0.5  # of two answers to the same question, the worse goes if they overlap more
SHORTEST, STEP, OVERLAPS = 1 / 12, math.sqrt(2), 4  # candidates: shares of the video, from one length to the next
BEND = 0.1  # a share of the video: errors of distances count by their square below it, by their size above
SHARPNESS = 0.1  # of the targets over candidates: softmax(IoU / SHARPNESS)


class Located(NamedTuple):
    """What a head found, for B questions and T positions. Shares are of the video's length."""

    scores: Tensor  # (B, T) logits of being inside the moment
    start: Tensor | None  # (B, T) log-probabilities of the first position; none where times are regressed
    end: Tensor | None  # (B, T) of the last
    features: Tensor  # (B, width) mean over positions of what the head sees
    times: Tensor | None = None  # (B, 2) anchor-free: start and end in shares, read where the score is highest
    distances: Tensor | None = None  # (B, T, 2) anchor-free: from the middle of each position to either end, in shares
    spans: Tensor | None = None  # (B, K) proposal: log-probabilities of the candidates
    candidates: Tensor | None = None  # (K, 2) proposal: their first and last positions
    detected: Detected | None = None  # qd-detr: answers as a set; scores are saliencies


def loss(located: Located, spans: Tensor, times: Tensor) -> Tensor:
    """Mean over the batch. `spans` (B, 2) are the first and last position of the moments, `times` (B, 3) their start
    and end and the video's duration, in seconds.

    All forms learn which positions are inside. Beside that, a pointer learns both positions by cross entropy; anchor-
    free distances are learned at positions inside, by smooth L1; a proposal model learns softmax(IoU / SHARPNESS) over
    its candidates by cross entropy, as neighbours of the best span are nearly as good; a set of answers is learned as
    in `detection_loss`."""
    inside = _inside(spans, located.scores)
    scored = F.binary_cross_entropy_with_logits(located.scores, inside)
    truth = times[:, :2] / times[:, 2:]
    if located.detected is not None:
        return scored + detection_loss(located.detected, located.scores, truth, inside)
    if located.distances is not None:
        return scored + _distance_loss(located.distances, truth, inside)
    if located.spans is not None and located.candidates is not None:
        shares = _shares(located.candidates, located.scores)
        target = (_iou(shares, truth[:, None]) / SHARPNESS).softmax(-1)
        return scored - (target * located.spans).sum(-1).mean()
    start, end = _ends(located)
    return scored + F.nll_loss(start, spans[:, 0]) + F.nll_loss(end, spans[:, 1])


def decode(
    located: Located, top: int = 1, max_share: float = 1.0, answer: Literal["likeliest", "overlap"] = "likeliest"
) -> tuple[Tensor, Tensor]:
    """The best spans (B, top, 2), in shares of the video, and their scores (B, top): log-probabilities of the span or,
    anchor-free, of the position to be inside; of a set, of the answer to be right. Of spans that overlap by more than
    OVERLAP only the best is given; where too few are left, scores are -inf. Spans longer than `max_share` are left out;
    anchor-free ones and those of a set are shortened.

    `answer="overlap"`: best is the span whose overlap with the moment is expected to be the highest, by the model's own
    probabilities of all spans; the logarithm of that is its score. The likeliest span may stand alone, away from most
    of what is likely. Anchor-free answers have no such probabilities: theirs stay as they are."""
    times, scores = _answers(located, max_share)
    if answer == "overlap" and located.distances is None:
        scores = _expected_overlap(located, times)
    found = []
    for _ in range(top):
        best, place = scores.max(dim=1)
        chosen = times.gather(1, place[:, None, None].expand(-1, 1, 2))
        found.append((chosen, best[:, None]))
        if len(found) < top:
            near = (_iou(times, chosen) > OVERLAP).scatter(1, place[:, None], True)
            scores = scores.masked_fill(near, -math.inf)
    return torch.cat([t for t, _ in found], dim=1), torch.cat([s for _, s in found], dim=1)


def temporal_distribution(located: Located, nb: int, ordered: bool = True) -> Tensor:
    """q^Y of each question: probabilities (B, nb * nb) of the temporal classes nb * (bin of the start) + (bin of the
    end), differentiable. Bins are equal parts of the video; a time on the border of two counts for the later one, as in
    the classes of annotations. `ordered`: start and end of a pointer or anchor-free model are independent; pairs with
    the end before the start are left out, and the rest made to sum to 1."""
    b, t = located.scores.shape
    if located.times is not None or located.detected is not None:
        times, weights = _weighted_times(located)
        q = _soft_bins(times.flatten(0, 1), nb)
        if ordered:
            q = q.triu()
            q = q / q.sum((1, 2), keepdim=True)
        return (weights.unsqueeze(-2) @ q.reshape(b, -1, nb * nb)).squeeze(-2)
    first, last = _bins(t, nb, located.scores)
    if located.spans is not None and located.candidates is not None:
        i, j = located.candidates.unbind(1)
        classes = (first[i].unsqueeze(2) * last[j].unsqueeze(1)).reshape(-1, nb * nb)
        return located.spans.exp() @ classes
    start, end = _ends(located)
    pairs = start.unsqueeze(2) + end.unsqueeze(1)
    if ordered:
        late = torch.ones(t, t, dtype=torch.bool, device=pairs.device).tril(-1)
        pairs = pairs.masked_fill(late, torch.finfo(pairs.dtype).min)
    joint = pairs.flatten(1).softmax(1).reshape(b, t, t)
    return (first.T @ joint @ last).reshape(b, nb * nb)


def candidates(length: int, max_share: float = 1.0) -> Tensor:
    """First and last positions (K, 2) of the spans a proposal model chooses from: lengths from SHORTEST up by factors
    of STEP, each moving by a part of OVERLAPS of itself, so short spans are many and long ones few. The longest that
    is allowed is always among them."""
    most = max(1, math.floor(max_share * length + 1e-9))
    lengths, size = {most}, max(1.0, SHORTEST * length)
    while size < most:
        lengths.add(round(size))
        size *= STEP
    spans = set()
    for n in sorted(lengths):
        moves = round(OVERLAPS * (length - n) / n)
        spans |= {(i, i + n - 1) for i in (round(m * (length - n) / max(moves, 1)) for m in range(moves + 1))}
    return torch.tensor(sorted(spans))


class Trunk(nn.Module):
    """Each position with the sentence in view, (B, T, width)."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.position, self.sentence = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, q: Tensor) -> Tensor:
        y: Tensor = self.dropout((self.position(x) + self.sentence(q).unsqueeze(-2)).relu())
        return y


class PointerHead(nn.Module):
    """A score, a start logit and an end logit for each position."""

    def __init__(self, width: int, length: int, dropout: float, max_share: float, prior: bool) -> None:
        super().__init__()
        self.trunk, self.out = Trunk(width, dropout), nn.Linear(width, 3)

    def forward(self, x: Tensor, q: Tensor) -> Located:
        scores, start, end = self.out(self.trunk(x, q)).unbind(-1)
        return Located(scores, start.log_softmax(-1), end.log_softmax(-1), x.mean(-2))


class AnchorFreeHead(nn.Module):
    """A score and two distances for each position."""

    def __init__(self, width: int, length: int, dropout: float, max_share: float, prior: bool) -> None:
        super().__init__()
        self.trunk, self.out = Trunk(width, dropout), nn.Linear(width, 3)
        with torch.no_grad():
            self.out.bias[1:] = -2.0  # distances begin at an eighth of the video, not at seven tenths

    def forward(self, x: Tensor, q: Tensor) -> Located:
        out = self.out(self.trunk(x, q))
        scores, distances = out[..., 0], F.softplus(out[..., 1:])
        best = scores.argmax(-1, keepdim=True).unsqueeze(-1).expand(-1, 1, 2)
        times = _from_distances(distances).gather(1, best).squeeze(1)
        return Located(scores, None, None, x.mean(-2), times=times, distances=distances)


class ProposalHead(nn.Module):
    """prior(sentence)[span] + match(sentence; means of the span, of what lies before it, of what comes after). Without
    a prior, the ends of the video stand for what lies beyond them: a span is not known by its place."""

    def __init__(self, width: int, length: int, dropout: float, max_share: float, prior: bool) -> None:
        super().__init__()
        self.spans: Tensor
        self.means: Tensor
        self.register_buffer("spans", candidates(length, max_share), persistent=False)
        self.register_buffer("means", _means(self.spans, length, border=prior), persistent=False)
        self.trunk, self.score = Trunk(width, dropout), nn.Linear(width, 1)
        self.parts, self.sentence = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)
        self.match = nn.Linear(width, 1, bias=False)
        self.prior_hidden = nn.Linear(width, width) if prior else None
        self.prior = nn.Linear(width, len(self.spans)) if prior else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, q: Tensor) -> Located:
        seen = self.trunk(x, q)
        # A mean of projected positions is the projection of their mean, and there are fewer positions than spans.
        parts = self.parts(seen).unflatten(-1, (3, -1)).transpose(-3, -2).flatten(-3, -2)
        pooled = self.dropout((self.means @ parts + self.sentence(q).unsqueeze(-2)).relu())
        match = self.match(pooled).squeeze(-1)
        if self.prior is not None and self.prior_hidden is not None:
            match = match + self.prior(self.dropout(self.prior_hidden(q).relu()))
        spans = match.log_softmax(-1)
        start, end = (_marginal(spans, self.spans[:, side], x.shape[-2]) for side in (0, 1))
        return Located(self.score(seen).squeeze(-1), start, end, x.mean(-2), spans=spans, candidates=self.spans)


HEADS: dict[str, type[nn.Module]] = {"pointer": PointerHead, "anchor-free": AnchorFreeHead, "proposal": ProposalHead}


def _distance_loss(distances: Tensor, truth: Tensor, inside: Tensor) -> Tensor:
    """Mean over moments of the mean over positions inside, so that a long moment counts no more than a short one."""
    middles = _middles(distances)
    target = torch.stack([middles - truth[:, :1], truth[:, 1:] - middles], dim=-1).clamp_min(0.0)
    errors = F.smooth_l1_loss(distances, target, reduction="none", beta=BEND).sum(-1) / BEND
    return ((errors * inside).sum(1) / inside.sum(1)).mean()


def _answers(located: Located, max_share: float) -> tuple[Tensor, Tensor]:
    """Everything that could be the answer: times (B, N, 2) in shares, and scores (B, N)."""
    scores = located.scores
    if located.detected is not None:
        times, logits = answers(located.detected)
        length = (times[..., 1:] - times[..., :1]).clamp_min(torch.finfo(times.dtype).eps)
        middle = times.mean(-1, keepdim=True)
        return middle + (times - middle) * (max_share / length).clamp_max(1.0), F.logsigmoid(logits)
    if located.distances is not None:
        length = located.distances.sum(-1, keepdim=True)
        return _from_distances(located.distances * (max_share / length).clamp_max(1.0)), F.logsigmoid(scores)
    if located.spans is not None and located.candidates is not None:
        pairs, found = located.candidates, located.spans
    else:
        start, end = _ends(located)
        i, j = torch.triu_indices(scores.shape[1], scores.shape[1], device=scores.device)
        pairs, found = torch.stack([i, j], dim=1), start[:, i] + end[:, j]
    most = max(1, math.floor(max_share * scores.shape[1] + 1e-9))
    short = pairs[:, 1] - pairs[:, 0] < most
    return _shares(pairs[short], scores).expand(len(scores), -1, 2), found[:, short]


def _expected_overlap(located: Located, times: Tensor) -> Tensor:
    """The logarithm (B, N) of that of answers (B, N, 2), with spans as likely as the model says. But for a set of
    answers, these are the same for all questions."""
    spans, log_probabilities = _answers(located, 1.0)
    if located.detected is not None:
        overlaps = _iou(spans.unsqueeze(2), times.unsqueeze(1))
        expected = (located.detected.logits[-1].softmax(1).unsqueeze(1) @ overlaps).squeeze(1)
        return expected.clamp_min(torch.finfo(expected.dtype).tiny).log()
    expected = log_probabilities.softmax(1) @ _iou(spans[:1, :, None], times[:1, None]).squeeze(0)
    return expected.clamp_min(torch.finfo(expected.dtype).tiny).log()


def _weighted_times(located: Located) -> tuple[Tensor, Tensor]:
    """Times (B, N, 2) in shares that a model answers, and their weights (B, N), which sum to 1."""
    if located.detected is not None:
        times, logits = answers(located.detected)
        return times, logits.softmax(-1)
    assert located.times is not None
    return located.times.unsqueeze(1), torch.ones_like(located.times[:, :1])


def _ends(located: Located) -> tuple[Tensor, Tensor]:
    assert located.start is not None
    assert located.end is not None
    return located.start, located.end


def _inside(spans: Tensor, like: Tensor) -> Tensor:
    places = torch.arange(like.shape[1], device=like.device)
    return ((places >= spans[:, :1]) & (places <= spans[:, 1:])).to(like.dtype)


def _shares(pairs: Tensor, like: Tensor) -> Tensor:
    """First and last positions (K, 2) as times in shares of the video."""
    return torch.stack([pairs[:, 0], pairs[:, 1] + 1], dim=1).to(like.dtype) / like.shape[1]


def _from_distances(distances: Tensor) -> Tensor:
    middles = _middles(distances)
    return torch.stack([middles - distances[..., 0], middles + distances[..., 1]], dim=-1).clamp(0.0, 1.0)


def _middles(distances: Tensor) -> Tensor:
    t = distances.shape[1]
    return (torch.arange(t, device=distances.device, dtype=distances.dtype) + 0.5) / t


def _iou(a: Tensor, b: Tensor) -> Tensor:
    common = torch.minimum(a[..., 1], b[..., 1]) - torch.maximum(a[..., 0], b[..., 0])
    union = torch.maximum(a[..., 1], b[..., 1]) - torch.minimum(a[..., 0], b[..., 0])
    return common.clamp_min(0.0) / union.clamp_min(torch.finfo(union.dtype).tiny)


def _bins(length: int, nb: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Which bin a start (T, nb) and an end (T, nb) at each position falls into, in whole numbers: bin(i / T) and
    bin((j + 1) / T), where bin(x) = min(nb - 1, floor(nb * x))."""
    places = torch.arange(length, device=like.device)
    first, last = nb * places // length, (nb * (places + 1) // length).clamp_max(nb - 1)
    return F.one_hot(first, nb).to(like.dtype), F.one_hot(last, nb).to(like.dtype)


def _soft_bins(times: Tensor, nb: int) -> Tensor:
    """(B, nb, nb): for start and end, a softmax over bins by the squared distance to their middles."""
    middles = (torch.arange(nb, device=times.device, dtype=times.dtype) + 0.5) / nb
    near = (-((times.unsqueeze(-1) - middles) ** 2) / (2 * (0.5 / nb) ** 2)).softmax(-1)
    return near[:, 0].unsqueeze(2) * near[:, 1].unsqueeze(1)


def _means(spans: Tensor, length: int, border: bool) -> Tensor:
    """(K, 3 T): rows that take means over each span, as much before it, and as much after it, as far as that lies in
    the video. Where none of it does, 0 or, without a `border`, the video's first or last position."""
    places, (i, j) = torch.arange(length), spans.T.unsqueeze(2)
    n = j - i + 1
    windows = [(i, j), (i - n, i - 1), (j + 1, j + n)]
    if not border:
        windows = [(a.clamp_max(length - 1), b.clamp_min(0)) for a, b in windows]
    masks = [((places >= a) & (places <= b)).to(torch.get_default_dtype()) for a, b in windows]
    return torch.cat([m / m.sum(1, keepdim=True).clamp_min(1) for m in masks], dim=1)


def _marginal(spans: Tensor, places: Tensor, length: int) -> Tensor:
    """Log-probabilities of positions to be a span's end; where no candidate ends, of the least number."""
    total = spans.exp() @ F.one_hot(places, length).to(spans.dtype)
    return total.clamp_min(torch.finfo(total.dtype).tiny).log()
