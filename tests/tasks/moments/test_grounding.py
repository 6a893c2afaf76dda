"""Moment models: padding, the control without video, stacked clients, and a small task that can be learned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedreel.errors import DataError, RecipeError
from fedreel.methods.fedvmr import divergence, smoothed
from fedreel.tasks.moments.grounding import Grounder, loss, temporal_distribution

D, T, WORDS = 6, 12, 9
FORMS = ("pointer", "anchor-free", "proposal")
every_form = pytest.mark.parametrize("form", FORMS)
every_encoder = pytest.mark.parametrize("encoder", ["conv", "lstm", "none"])


def small(form: str = "pointer", **options: Any) -> Grounder:
    torch.manual_seed(0)
    usual: dict[str, Any] = {"word_width": 5, "width": 8, "dropout": 0.0, "form": form}
    return Grounder(D, T, WORDS, **{**usual, **options}).double()


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def batch(n: int = 3, words: int = 4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sentences = torch.randint(1, WORDS, (n, words), generator=torch.Generator().manual_seed(2))
    spans = torch.tensor([[1, 4], [0, T - 1], [7, 7]])[:n]
    shares = torch.stack([spans[:, 0], spans[:, 1] + 1], dim=1).double() / T
    durations = torch.tensor([[30.0], [10.0], [24.0]], dtype=torch.float64)[:n]
    return normal(n, T, D), sentences, spans, torch.cat([shares * durations, durations], dim=1)


@every_form
@every_encoder
def test_every_form_says_where_the_moment_lies(form: str, encoder: str) -> None:
    model = small(form, encoder=encoder)
    video, words, spans, times = batch()
    located = model(video, words)
    assert located.scores.shape == (3, T)
    assert located.features.shape == (3, 8)
    if form == "anchor-free":
        assert located.start is None
        assert (located.distances >= 0).all()
        assert ((located.times >= 0) & (located.times <= 1)).all()
        assert (located.times[:, 0] <= located.times[:, 1]).all()
    else:
        assert located.times is None
        for side in (located.start, located.end):
            torch.testing.assert_close(side.exp().sum(1), torch.ones(3, dtype=torch.float64))
    loss(located, spans, times).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert [name for name, _ in model.named_children()] == ["backbone", "head"]


@every_form
@every_encoder
def test_padded_words_change_nothing(form: str, encoder: str) -> None:
    model = small(form, encoder=encoder)
    video, words, _, _ = batch()
    padded = torch.cat([words, torch.zeros(3, 5, dtype=torch.long)], dim=1)
    for own, other in zip(model(video, words), model(video, padded)):
        if own is not None:
            torch.testing.assert_close(own, other)


@every_form
@pytest.mark.parametrize("encoder", ["conv", "none"])
def test_without_a_prior_a_sentence_alone_speaks_for_no_place(form: str, encoder: str) -> None:
    """The same picture all along: every position and every span of it is as good as any other."""
    still = normal(3, 1, D).expand(3, T, D)
    for prior in (True, False):
        model = small(form, encoder=encoder, prior=prior)
        located = model(still, batch()[1])
        said = [located.scores, located.distances] if form == "anchor-free" else [located.scores]
        said += [located.start, located.end] if form == "pointer" else []
        said += [located.spans] if form == "proposal" else []
        same = [torch.allclose(t, t[:, :1].expand_as(t), atol=1e-12) for t in said]
        assert same == [not prior] * len(said)
        assert (model.backbone.positions is None) == (not prior)


def test_without_a_prior_a_pointer_moves_with_the_video() -> None:
    model = small("pointer", encoder="none", prior=False)
    video, words, _, _ = batch()
    order = torch.randperm(T, generator=torch.Generator().manual_seed(3))
    before, after = model(video, words), model(video[:, order], words)
    torch.testing.assert_close(before.start[:, order], after.start)
    torch.testing.assert_close(before.end[:, order], after.end)


def test_an_lstm_cannot_go_without_a_prior() -> None:
    with pytest.raises(RecipeError, match="knows where in the video it is"):
        small(encoder="lstm", prior=False)


@every_form
@every_encoder
def test_a_sentence_without_words_gives_numbers_and_gradients(form: str, encoder: str) -> None:
    model = small(form, encoder=encoder)
    video, words, spans, times = batch()
    words[1] = 0
    located = model(video, words)
    assert all(t is None or t.isfinite().all() for t in located)
    loss(located, spans, times).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    shorter = model(video[1:2], words[1:2, :2])
    torch.testing.assert_close(located.scores[1:2], shorter.scores)


@every_form
def test_the_control_ignores_the_video_and_the_model_does_not(form: str) -> None:
    video, words, _, _ = batch()
    other = torch.full_like(video, torch.nan)
    blind = small(form, use_video=False)
    for own, same in zip(blind(video, words), blind(other, words)):
        assert own is None or torch.equal(own, same)
    assert not torch.allclose(blind(video, words).scores, blind(video, words.roll(1, 0)).scores)
    assert not torch.allclose(blind(video, words).scores, blind(video, words).scores.flip(1))  # positions stay
    seeing = small(form)
    assert not torch.allclose(seeing(video, words).scores, seeing(video.roll(1, 0), words).scores)
    assert blind.state_dict().keys() == seeing.state_dict().keys()


def test_the_ends_of_proposals_are_sums_over_spans_and_anchor_free_times_are_the_first_answer() -> None:
    located = small("proposal")(*batch()[:2])
    for side, found in enumerate((located.start, located.end)):
        ends = torch.zeros(3, T, dtype=torch.float64).index_add(1, located.candidates[:, side], located.spans.exp())
        torch.testing.assert_close(found.exp(), ends)
    model = small("anchor-free")
    located = model(*batch()[:2])
    torch.testing.assert_close(model.decode(located)[0][:, 0], located.times)


@every_form
def test_answers_are_no_longer_than_allowed_and_lie_in_the_video(form: str) -> None:
    model = small(form, max_share=0.4)
    video, words, _, _ = batch()
    times, scores = model.decode(model(5 * video, words), top=4)
    assert times.shape == (3, 4, 2)
    assert scores.shape == (3, 4)
    lengths = times[..., 1] - times[..., 0]
    assert ((lengths > 0) & (lengths <= 0.4 + 1e-9)).all()
    assert ((times >= 0) & (times <= 1)).all()
    assert (scores[:, :-1] >= scores[:, 1:]).all()


@every_form
def test_the_distribution_of_every_form_sums_to_1_and_has_gradients(form: str) -> None:
    model = small(form)
    video, words, _, _ = batch()
    q = temporal_distribution(model(video, words), 4)
    torch.testing.assert_close(q.sum(1), torch.ones(3, dtype=torch.float64))
    assert (q.reshape(3, 4, 4).tril(-1) < 1e-15).all()
    divergence(smoothed(q.sum(0), 3), smoothed(torch.arange(16.0, dtype=torch.float64), 120)).backward()
    assert sum(float(p.grad.abs().sum()) for p in model.parameters() if p.grad is not None) > 0


@every_form
@pytest.mark.parametrize("encoder", ["conv", "lstm"])
def test_numbers_of_parameters_at_the_defaults(form: str, encoder: str) -> None:
    with torch.device("meta"):
        model = Grounder(512, 64, 2, form=form, encoder=encoder)  # type: ignore[arg-type]
    assert 1.5e6 < sum(p.numel() for p in model.parameters()) < 4e6  # without words


@every_form
@every_encoder
def test_clients_can_be_stacked(form: str, encoder: str) -> None:
    model = small(form, encoder=encoder)
    video, words, spans, times = batch()
    scales = torch.tensor([1.0, 0.5, 1.5], dtype=torch.float64)
    stacked = {n: torch.stack([p.detach() * s for s in scales]) for n, p in model.named_parameters()}

    def objective(params: dict[str, Tensor], video: Tensor, words: Tensor, spans: Tensor, times: Tensor) -> Tensor:
        located = functional_call(model, params, (video, words))
        return loss(located, spans, times) + temporal_distribution(located, 4)[:, 0].mean()

    inputs = [torch.stack([t, t.flip(0), t.roll(1, 0)]) for t in (video, words, spans, times)]
    together = vmap(grad(objective))(stacked, *inputs)
    for i in range(3):
        alone = grad(objective)({n: t[i] for n, t in stacked.items()}, *(t[i] for t in inputs))
        for name, gradient in alone.items():
            torch.testing.assert_close(together[name][i], gradient)


@every_form
@every_encoder
def test_the_state_holds_parameters_only_and_each_once(form: str, encoder: str) -> None:
    fixed = small(form, encoder=encoder, word_vectors=normal(WORDS, 5))
    learned = small(form, encoder=encoder)
    assert set(learned.state_dict()) - set(fixed.state_dict()) == {"backbone.sentence.vectors.weight"}
    for model in (fixed, learned):
        tensors = model.state_dict(keep_vars=True)
        assert set(tensors) == {name for name, _ in model.named_parameters()}
        assert len({t.data_ptr() for t in tensors.values()}) == len(tensors)


@pytest.mark.parametrize(("encoder", "seen"), [("none", 1), ("conv", T)])
def test_without_an_encoder_a_position_is_read_by_itself(encoder: str, seen: int) -> None:
    model = small(encoder=encoder)
    video, words, *_ = batch()
    other = video.clone()
    other[:, 5] += 1.0
    moved = (model(video, words).scores != model(other, words).scores).any(0)
    assert moved[5]
    assert moved.sum() == seen


@every_form
def test_standardised_features_have_no_scale_and_no_offset(form: str) -> None:
    video, words, *_ = batch()
    scale, offset = normal(3, T, 1, seed=5).exp(), normal(3, T, 1, seed=6)
    for standardise in (True, False):
        model = small(form, standardise=standardise)
        one, other = model(video, words).scores, model(10 * scale * video + offset, words).scores
        assert torch.allclose(one, other, atol=1e-3) is standardise


def test_given_word_vectors_are_used_and_not_changed() -> None:
    vectors = normal(WORDS, 5)
    model, (video, words, spans, times) = small(word_vectors=vectors), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss(model(video, words), spans, times).backward()
    optimizer.step()
    torch.testing.assert_close(model.backbone.sentence.vectors(words), vectors[words], rtol=1e-6, atol=1e-6)


@every_form
def test_dropout_is_for_training_only(form: str) -> None:
    model, (video, words, _, _) = small(form, dropout=0.5), batch()
    assert not torch.equal(model(video, words).scores, model(video, words).scores)
    model.eval()
    assert torch.equal(model(video, words).scores, model(video, words).scores)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "encoder", "steps", "lr"), [*((form, "conv", 50, 0.005) for form in FORMS), ("pointer", "lstm", 100, 0.02)]
)
def test_a_model_learns_to_find_what_the_sentence_names(form: str, encoder: str, steps: int, lr: float) -> None:
    # Each word stands for a pattern; a video shows two of them one after the other, and the sentence names one.
    generator = torch.Generator().manual_seed(0)
    patterns = 2 * normal(WORDS, D, seed=3)

    def planted(n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        shown = torch.stack([torch.randperm(WORDS - 2, generator=generator)[:2] + 2 for _ in range(n)])
        cut = torch.randint(3, T - 2, (n,), generator=generator)
        which = torch.randint(2, (n,), generator=generator)
        late = torch.arange(T) >= cut[:, None]
        video = patterns[torch.where(late, shown[:, 1:], shown[:, :1])]
        video = video + 0.3 * torch.randn(video.shape, generator=generator, dtype=torch.float64)
        spans = torch.stack([cut * which, torch.where(which == 1, T, cut) - 1], dim=1)
        words = torch.stack([torch.ones(n, dtype=torch.long), shown.gather(1, which[:, None])[:, 0]], dim=1)
        times = torch.cat([spans[:, :1], spans[:, 1:] + 1, torch.full((n, 1), T)], dim=1).double()
        return video, words, spans, times

    model = small(form, encoder=encoder, width=32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in range(steps):
        video, words, spans, times = planted(64)
        optimizer.zero_grad()
        loss(model(video, words), spans, times).backward()
        optimizer.step()
    video, words, _, times = planted(200)
    model.eval()
    with torch.no_grad():
        found, _ = model.decode(model(video, words))
    truth = times[:, :2] / T
    common = torch.minimum(found[:, 0, 1], truth[:, 1]) - torch.maximum(found[:, 0, 0], truth[:, 0])
    union = torch.maximum(found[:, 0, 1], truth[:, 1]) - torch.minimum(found[:, 0, 0], truth[:, 0])
    overlap = common.clamp_min(0) / union
    # The wrong half overlaps by 0 and the whole video by half: without the sentence, about .5 on average.
    assert overlap.mean() > 0.7


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(RecipeError, match="did you mean 'pointer'"):
        small("pointers")
    with pytest.raises(RecipeError, match="did you mean 'conv'"):
        small(encoder="convs")
    for options in ({"width": 7}, {"max_share": 0.0}, {"max_share": 1.5}):
        with pytest.raises(RecipeError, match="no moment model"):
            small(**options)
    with pytest.raises(DataError, match="9 words of 5 numbers"):
        small(word_vectors=torch.zeros(WORDS, 4))
    with pytest.raises(DataError, match="12 positions of 6 features"):
        small()(normal(1, T + 1, D), torch.ones(1, 2, dtype=torch.long))
