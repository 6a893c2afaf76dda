"""Filling in hidden tubes: what is hidden, and that the loss is VideoMAE's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

tf = pytest.importorskip("transformers", reason="the extra hf is not installed")

import fedreel  # noqa: E402
from fedreel.errors import RecipeError  # noqa: E402
from fedreel.models.backbone import Clips  # noqa: E402
from fedreel.models.videomae import VideoMAEConfig  # noqa: E402
from fedreel.tasks.pretrain.masking import Fill, cubes, tubes  # noqa: E402
from fedreel.tasks.pretrain.task import Pretrain  # noqa: E402
from fedreel.tasks.vision.clip_views import Views  # noqa: E402

TINY = VideoMAEConfig(width=24, depth=1, heads=2, mlp=40, patch=8)
TASK = Pretrain(pretext="mae", frames=4, size=32, backbone=TINY, mask=0.75, stride=1)
SETTINGS = {
    "data.size": "tiny",
    "round.rounds": 1,
    "round.clients": 2,
    "train.epochs": 1,
    "task.pretext": "mae",
    "task.differences": False,
    "task.frames": 4,
    "task.size": 32,
    "task.backbone": {"name": "videomae", "width": 24, "depth": 1, "heads": 2, "mlp": 40, "patch": 8},
}


def asked(batch: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return TASK.augment((torch.randint(0, 256, (batch, 4, 36, 36, 3), dtype=torch.uint8),))


def test_the_authors_setting_hides_176_of_196_places() -> None:
    fill = Fill(16, Views(224), (8, 14, 14))
    assert (fill.places, fill.visible, fill.hidden) == (196, 20, 176)


def test_every_token_is_either_seen_or_hidden_and_a_tube_is_one_of_them_throughout() -> None:
    fill = Fill(8, Views(32), (4, 4, 4), share=0.75)
    order = fill.order(5, torch.device("cpu"))
    seen, hidden = (tubes(part, fill.grid) for part in order.split([fill.visible, fill.hidden], dim=1))
    for one, other in zip(seen, hidden):
        assert sorted([*one.tolist(), *other.tolist()]) == [*range(64)]
        assert {token % 16 for token in one.tolist()}.isdisjoint(token % 16 for token in other.tolist())
        assert len(one) == 4 * 4
    assert len({tuple(row) for row in order.tolist()}) > 1, "clips hide different places"


def test_cubes_are_normalised_pixels_in_the_order_of_tokens() -> None:
    clips = torch.rand(2, 4, 16, 16, 3) * 255
    found = cubes(clips, (2, 2, 2))
    cube = clips[1, 2:4, 8:16, 0:8].reshape(-1, 3) / 255  # the second step's lower left
    expected = (cube - cube.mean(0)) / (cube.std(0) + 1e-6)
    assert torch.allclose(found[1, 6], expected.flatten(), atol=1e-5)


def test_the_loss_is_that_of_transformers_on_the_same_weights_and_mask() -> None:
    torch.manual_seed(0)
    model = TASK.model()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    theirs = tf.VideoMAEForPreTraining(model.backbone.config)
    encoder = {f"videomae.{name}": tensor for name, tensor in model.backbone.state_dict().items()}
    theirs.load_state_dict({**encoder, **model.head.state_dict()})
    question = asked()
    asks = TASK._asks
    assert isinstance(asks, Fill)
    masked = torch.ones(3, 2, 16, dtype=torch.bool)
    for row, order in zip(masked, question[1]):
        row[:, order[: asks.visible]] = False
    ours = TASK.loss(TASK.forward(model, question), question)
    expected = theirs(TASK._input(question[0]).transpose(1, 2), masked.flatten(1)).loss
    assert abs(float(ours - expected)) < 1e-5
    assert float(ours) > 0.5


def test_what_is_hidden_does_not_reach_the_encoder() -> None:
    model = TASK.model().eval()
    clips, order = asked()
    visible = tubes(order[:, : TASK._asks.visible], TASK._asks.grid)  # type: ignore[attr-defined]
    other = clips.clone()
    for clip, hidden in zip(other, order[:, TASK._asks.visible :]):  # type: ignore[attr-defined]
        for place in hidden.tolist():
            row, column = 8 * (place // 4), 8 * (place % 4)
            clip[:, row : row + 8, column : column + 8] = 0
    with torch.no_grad():
        one, two = (model.backbone.visible(TASK._input(c), visible) for c in (clips, other))  # type: ignore[operator]
    assert not torch.equal(clips, other)
    assert torch.allclose(one, two, atol=1e-6)


def test_it_learns() -> None:
    torch.manual_seed(0)
    model, question = TASK.model(), asked(2)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for _ in range(40):
        loss = TASK.loss(TASK.forward(model, question), question)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss))
    assert losses[-1] < 0.9 * losses[0]


class Asked(TorchDispatchMode):
    """Operations that wait for the device: what they do, or the size of what they give, depends on values."""

    waits = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal", "lift_fresh")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        by_mask = name.startswith("index") and any(t is not None and t.dtype == torch.bool for t in _indices(args))
        if name in self.waits or by_mask:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def _indices(args: Any) -> Any:
    return args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()


def test_a_step_can_be_recorded_it_never_waits_for_the_device() -> None:
    clips = torch.randint(0, 256, (3, 4, 36, 36, 3), dtype=torch.uint8)
    model = TASK.model()
    with Asked() as asks:
        question = TASK.augment((clips,))
        TASK.loss(TASK.forward(model, question), question).backward()
    assert asks.found == []
    with Asked() as asks:  # transformers' own way to choose tokens
        torch.zeros(2, 3)[torch.tensor([[True, False, True]] * 2)]
    assert asks.found


def test_what_does_not_fit_is_refused_before_any_data_are_read() -> None:
    with pytest.raises(RecipeError, match="look at some of its tokens alone") as caught:
        Pretrain(pretext="mae")
    assert caught.value.expected == "videomae, or the pretext speed or vcop"
    with pytest.raises(RecipeError, match="must see pictures"):
        replace(TASK, differences=True)
    for share in (0.0, 1.0):
        with pytest.raises(RecipeError, match="something be hidden"):
            replace(TASK, mask=share)
    with pytest.raises(RecipeError, match="this size does not fit"):
        replace(TASK, size=30)


@pytest.mark.parametrize(("method", "stays"), [("fedvssl", True), ("fedavg", False)])
def test_the_decoder_stays_or_travels_as_other_heads_do(tmp_path: Path, method: str, stays: bool) -> None:
    out = tmp_path / "run"
    fedreel.run("fedvssl", out, set={**SETTINGS, "method": {"name": method}}, quiet=True)
    private = fedreel.load(out).card["private"]
    assert ("head.mask_token" in private) is stays
    assert not any(name.startswith("backbone.") for name in private)


def test_an_encoder_that_learned_so_begins_a_recognition(tmp_path: Path) -> None:
    fedreel.run("fedvssl", tmp_path / "run", set=SETTINGS, quiet=True)
    learned = fedreel.load(tmp_path / "run").model.backbone.state_dict()
    file = tmp_path / "run" / "model" / "global.safetensors"
    again = replace(TINY, init=str(file)).network(Clips(4, 32))
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in learned.items())
