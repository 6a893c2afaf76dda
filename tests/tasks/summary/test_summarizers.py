"""Summarizers: padding, closed forms, PyTorch's own layers, and what a mixture of maps can that one cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedreel.errors import RecipeError
from fedreel.tasks.summary.summarizers import Summarizer, literal_mixture, make_summarizer, mixture, plain

D = 12
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "vslstm": ("vslstm", {"hidden": 5}),
    "attention": ("attention", {}),
    "mixture": ("mixture_transformer", {"width": 8, "hidden": 6, "heads": 2}),
    "mixture_with_positions": ("mixture_transformer", {"width": 8, "hidden": 6, "positions": True}),
    "literal": ("mixture_transformer", {"width": 8, "hidden": 6, "attention": "literal"}),
    "literal_block": ("mixture_transformer", {"width": 8, "hidden": 6, "block": "literal"}),
    "plain": ("mixture_transformer", {"width": 8, "hidden": 6, "attention": "plain"}),
}
every_model = pytest.mark.parametrize("which", MODELS)


def small(which: str, **options: Any) -> Summarizer:
    torch.manual_seed(0)
    name, usual = MODELS[which]
    return make_summarizer(name, D, **{"dropout": 0.0, **usual, **options}).double()


def steps(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def lengths_mask(lengths: list[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def attention_map(q: Tensor, k: Tensor) -> Tensor:
    weights = (q @ k.T / q.shape[1] ** 0.5).exp()
    return weights / weights.sum(1, keepdim=True)


def mixture_map(q: Tensor, second: Tensor, k: Tensor) -> Tensor:
    product = attention_map(q, k) @ attention_map(second, k).T
    return product / product.sum(1, keepdim=True)


@every_model
def test_scores_lie_between_0_and_1_and_come_from_the_features(which: str) -> None:
    model, x = small(which), steps(2, 9, D)
    features, scores = model.features_and_scores(x)
    assert scores.shape == (2, 9)
    assert features.shape[:2] == (2, 9)
    assert ((scores > 0) & (scores < 1)).all()
    torch.testing.assert_close(model(x), scores)
    torch.testing.assert_close(model.head(features)[..., 0].sigmoid(), scores)
    assert [name for name, _ in model.named_children()] == ["backbone", "head"]


@every_model
def test_padding_changes_nothing(which: str) -> None:
    model, lengths = small(which), [7, 1, 4]
    mask, x = lengths_mask(lengths), steps(3, 7, D)
    features, scores = model.features_and_scores(x, mask)
    for i, n in enumerate(lengths):
        own_features, own_scores = model.features_and_scores(x[i : i + 1, :n])
        torch.testing.assert_close(features[i, :n], own_features[0])
        torch.testing.assert_close(scores[i, :n], own_scores[0])
        assert (scores[i, n:] == 0).all()
    torch.testing.assert_close(model(x * mask[..., None] + 1e3 * ~mask[..., None], mask), scores)


@every_model
def test_gradients_with_padding_are_those_of_the_video_alone(which: str) -> None:
    model, x = small(which), steps(1, 6, D)
    padded = torch.cat([x, torch.full((1, 3, D), 1e3, dtype=x.dtype)], dim=1)
    alone: list[Tensor] = []
    both: list[Tensor] = []
    for inputs, mask, grads in ((x, None, alone), (padded, torch.arange(9)[None] < 6, both)):
        model.zero_grad()
        model(inputs, mask).square().sum().backward()
        grads += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    assert len(alone) == len(list(model.parameters()))
    assert all(g.isfinite().all() for g in alone)
    for a, b in zip(alone, both, strict=True):
        torch.testing.assert_close(a, b)


@every_model
def test_clients_can_be_stacked(which: str) -> None:
    model, x = small(which), steps(3, 2, 5, D)
    mask = lengths_mask([5, 3]).expand(3, 2, 5)
    scales = torch.tensor([1.0, 0.5, 1.5], dtype=x.dtype)
    stacked = {n: torch.stack([p.detach() * s for s in scales]) for n, p in model.named_parameters()}

    def loss(params: dict[str, Tensor], x: Tensor, mask: Tensor) -> Tensor:
        return functional_call(model, params, (x, mask)).square().sum()

    together = vmap(grad(loss))(stacked, x, mask)
    for i in range(3):
        alone = grad(loss)({n: t[i] for n, t in stacked.items()}, x[i], mask[i])
        for name, gradient in alone.items():
            torch.testing.assert_close(together[name][i], gradient)


def test_the_vslstm_backbone_is_pytorchs_bidirectional_lstm_beside_the_input() -> None:
    model, x = small("vslstm"), steps(2, 7, D)
    lstm = nn.LSTM(D, 5, batch_first=True, bidirectional=True).double()
    with torch.no_grad():
        for name, own in model.backbone.forwards.named_parameters():
            lstm.get_parameter(name).copy_(own)
            lstm.get_parameter(f"{name}_reverse").copy_(model.backbone.backwards.get_parameter(name))
    torch.testing.assert_close(model.backbone(x), torch.cat([lstm(x)[0], x], dim=-1))


@pytest.mark.parametrize(
    ("which", "options", "feels_order"),
    [
        ("vslstm", {}, True),
        ("mixture", {"positions": True}, True),
        ("mixture", {}, False),
        ("literal", {}, False),
        ("plain", {}, False),
        ("attention", {}, False),
    ],
)
def test_the_order_of_steps_matters_to_an_lstm_and_with_positions_only(
    which: str, options: dict[str, Any], feels_order: bool
) -> None:
    model, x = small(which, **options), steps(1, 8, D)
    order = torch.tensor([3, 0, 7, 1, 2, 6, 5, 4])
    same = torch.allclose(model(x)[:, order], model(x[:, order]), rtol=1e-9, atol=1e-12)
    assert same is not feels_order


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("d", [64, 1024, 1280])
def test_numbers_of_parameters(d: int) -> None:
    with torch.device("meta"):
        lstm = make_summarizer("vslstm", d)
        vasnet = make_summarizer("attention", d)
        mixed, literal, single = (
            make_summarizer("mixture_transformer", d, width=w, blocks=3, heads=4, hidden=h, attention=a)
            for w, h, a in [(128, 32, "mixture"), (128, 32, "literal"), (128, 32, "plain")]
        )
    h = 256
    assert parameters(lstm.backbone) == 2 * (4 * h * (d + h) + 2 * 4 * h)
    assert parameters(lstm.head) == (2 * h + d) * h + h + h + 1
    assert parameters(vasnet.backbone) == 4 * d * d + 2 * d
    assert parameters(vasnet.head) == d * d + d + 2 * d + d + 1
    w, h = 128, 32
    block = 2 * 2 * w + 4 * w * w + (w * 2 * w + 2 * w) + (2 * w * w + w)
    assert parameters(single.backbone) == d * w + w + 3 * block
    assert parameters(single.head) == 2 * w + w * h + h + h + 1
    for model in (mixed, literal):
        assert parameters(model) == parameters(single) + 3 * w * w


def test_tensor_names_stay() -> None:
    assert list(small("vslstm").state_dict()) == [
        *(f"backbone.{way}.{part}_l0" for way in ("forwards", "backwards")
          for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")),
        "head.hidden.weight", "head.hidden.bias", "head.out.weight", "head.out.bias",
    ]  # fmt: skip
    assert list(small("attention").state_dict()) == [
        *(f"backbone.{part}.weight" for part in ("query", "key", "value", "out")),
        "backbone.norm.weight", "backbone.norm.bias", "head.hidden.weight", "head.hidden.bias",
        "head.norm.weight", "head.norm.bias", "head.out.weight", "head.out.bias",
    ]  # fmt: skip
    assert list(small("mixture", blocks=1).state_dict()) == [
        "backbone.embed.weight", "backbone.embed.bias",
        *(f"backbone.blocks.0.{part}_norm.{what}" for part in ("attention", "mlp") for what in ("weight", "bias")),
        *(f"backbone.blocks.0.attention.{part}.weight" for part in ("query", "key", "value", "out", "second")),
        *(f"backbone.blocks.0.mlp.{part}.{what}" for part in ("hidden", "out") for what in ("weight", "bias")),
        *(f"head.{part}.{what}" for part in ("norm", "hidden", "out") for what in ("weight", "bias")),
    ]  # fmt: skip


def test_the_mixture_is_the_product_of_two_attention_maps_with_rows_of_sum_1() -> None:
    q, second, k, v = (steps(9, 4, seed=i) for i in range(4))
    torch.testing.assert_close(mixture(q, second, k, v), mixture_map(q, second, k) @ v)
    product = attention_map(attention_map(q, k) @ v, attention_map(second, k) @ v)  # Eq. 5 on outputs
    torch.testing.assert_close(literal_mixture(q, second, k, v), product @ v)
    torch.testing.assert_close(plain(q, k, v), attention_map(q, k) @ v)


def test_maps_have_rows_of_sum_1_even_where_attention_is_extreme() -> None:
    q, second, k = (300 * steps(20, 4, seed=i) for i in range(3))
    direct = q.float().matmul(k.float().T).div(2).softmax(1) @ second.float().matmul(k.float().T).div(2).softmax(1).T
    assert (direct.sum(1) == 0).any()  # a product of maps that could not be renormalised in single precision
    for dtype in (torch.float32, torch.float64):
        a, b, c = (t.to(dtype).requires_grad_() for t in (q, second, k))
        m = mixture(a, b, c, torch.eye(20, dtype=dtype))
        assert (m >= 0).all()
        torch.testing.assert_close(m.sum(1), torch.ones(20, dtype=dtype))
        (m * steps(20, 20).to(dtype)).sum().backward()
        assert all(t.grad is not None and t.grad.isfinite().all() for t in (a, b, c))


def test_the_softmax_bottleneck_binds_one_map_but_not_a_mixture() -> None:
    # log P = q k^T / sqrt d minus one number a row: rank d + 1 at most, whatever the queries and keys.
    n, d = 20, 3
    q, second, k = (2 * steps(n, d, seed=i) for i in range(3))
    eye = torch.eye(n, dtype=q.dtype)
    assert int(torch.linalg.matrix_rank(plain(q, k, eye).log(), rtol=1e-9)) == d + 1
    assert int(torch.linalg.matrix_rank(mixture(q, second, k, eye).log(), rtol=1e-9)) > d + 2


def test_the_second_query_of_a_block_is_tanh_of_the_first_after_a_matrix() -> None:
    attention = small("mixture", heads=1, blocks=1).backbone.blocks[0].attention
    x = steps(1, 6, 8)
    q = attention.query(x)[0]
    expected = mixture_map(q, (q @ attention.second.weight.T).tanh(), attention.key(x)[0]) @ attention.value(x)[0]
    torch.testing.assert_close(attention(x)[0], attention.out(expected))


def test_literal_blocks_are_eq_4_by_hand() -> None:
    """H^l = MLP(LN(A^l) + A^(l-1)) + H^(l-1), and before the first block A and H are the embedded steps."""
    model, x = small("literal_block", blocks=3), steps(1, 6, D)
    body: Any = model.backbone
    h = a = body.embed(x)
    for block in body.blocks:
        now = block.attention(h)
        h, a = block.mlp(nn.functional.layer_norm(now, (8,)) + a) + h, now
    torch.testing.assert_close(model.features_and_scores(x)[0], h)
    usual = make_summarizer("mixture_transformer", D, width=8, hidden=6, blocks=3)
    assert sum(p.numel() for p in usual.parameters()) - sum(p.numel() for p in model.parameters()) == 3 * 2 * 8  # norms


def test_each_head_has_a_mixture_of_its_own() -> None:
    attention = small("mixture", heads=2, blocks=1).backbone.blocks[0].attention
    x = steps(1, 6, 8)
    q, k, v = attention.query(x)[0], attention.key(x)[0], attention.value(x)[0]
    second = attention.second(q).tanh()
    heads = [mixture_map(q[:, h], second[:, h], k[:, h]) @ v[:, h] for h in (slice(0, 4), slice(4, 8))]
    torch.testing.assert_close(attention(x)[0], attention.out(torch.cat(heads, dim=1)))


@pytest.mark.parametrize("which", ["vslstm", "attention", "mixture"])
def test_dropout_is_for_training_only(which: str) -> None:
    model, x = small(which, dropout=0.5), steps(1, 6, D)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


@every_model
def test_a_model_learns_to_tell_steps_apart(which: str) -> None:
    torch.manual_seed(0)
    model, x = small(which), steps(4, 10, D)
    target = (x[..., 0] > 0).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(80):
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05  # a constant score has 0.25


def test_unknown_names_and_options_are_refused() -> None:
    with pytest.raises(RecipeError, match="did you mean 'vslstm'"):
        make_summarizer("vlstm", D)
    with pytest.raises(RecipeError, match="did you mean 'blocks'"):
        make_summarizer("mixture_transformer", D, blokcs=3)
    with pytest.raises(RecipeError, match="no such option"):
        make_summarizer("vslstm", D, heads=2)
    with pytest.raises(RecipeError, match="no such attention"):
        make_summarizer("mixture_transformer", D, attention="double")
    with pytest.raises(RecipeError, match="no such block"):
        make_summarizer("mixture_transformer", D, block="post-norm")
    for width, positions in ((8, False), (9, True)):
        with pytest.raises(RecipeError, match="does not fit the heads"):
            make_summarizer("mixture_transformer", D, width=width, heads=3, positions=positions)
    assert make_summarizer("mixture_transformer", D, width=9, heads=3)(torch.zeros(1, 2, D)).shape == (1, 2)


def test_novelty_is_one_less_the_likeness_to_the_nearest_others() -> None:
    x = torch.randn(1, 9, 4, generator=torch.Generator().manual_seed(0))
    unit = torch.nn.functional.normalize(x[0], dim=1)
    found = []
    for i in range(9):
        cosines = sorted((float(unit[i] @ unit[j]) for j in range(9) if j != i), reverse=True)
        found.append(1 - sum(cosines[:5]) / 5)
    z = (torch.tensor(found) - torch.tensor(found).mean()) / torch.tensor(found).std(correction=0)
    torch.testing.assert_close(make_summarizer("novelty", 4)(x)[0], z.sigmoid(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_novelty_of_few_or_equal_steps_is_finite(steps: int) -> None:
    scores = make_summarizer("novelty", 3)(torch.ones(1, steps, 3))
    torch.testing.assert_close(scores, torch.full((1, steps), 0.5), atol=1e-2, rtol=0)


def test_novelty_of_a_padded_video_is_that_of_the_video() -> None:
    model = make_summarizer("novelty", 4)
    x = torch.randn(2, 9, 4, generator=torch.Generator().manual_seed(0))
    for real in (3, 7):
        mask = torch.arange(9).expand(2, 9) < torch.tensor([[real], [9]])
        found = model(x, mask)
        torch.testing.assert_close(found[0, :real], model(x[:1, :real])[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found[1], model(x[1:])[0], rtol=1e-4, atol=1e-5)
        assert not found[0, real:].any()
