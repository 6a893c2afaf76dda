"""What of a backbone is trained: what the four ways freeze, what they leave as it was, and LoRA as peft has it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fedreel.config import TrainConfig
from fedreel.core.blueprint import Blueprint
from fedreel.core.job import check_fit
from fedreel.core.method import Method
from fedreel.core.optim import make_optimizer
from fedreel.core.task import Task
from fedreel.core.weights import bind
from fedreel.errors import RecipeError
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedbn import FedBN
from fedreel.methods.fedlid import FedLID
from fedreel.methods.fedper import FedPer
from fedreel.methods.fsar import FSAR
from fedreel.methods.moon import MOON
from fedreel.models.backbone import Backbone, BackboneConfig, Clips, Images
from fedreel.models.efficientnet import EfficientNetLite0Config
from fedreel.models.lora import Lora, adapted, add_lora, merged, peft_files
from fedreel.models.resnet import ResNet10Config
from fedreel.models.tune import tune, tune_all
from fedreel.tasks.image.task import Image
from fedreel.tasks.pretrain.task import Pretrain
from fedreel.tasks.recognition.task import Recognition
from fedreel.tasks.skeleton.stgcn import STGCNConfig
from fedreel.tasks.skeleton.task import SkeletonRecognition
from support.networks import small_r3d

WAYS = ("norm", "lora", "head")
TWO = Lora(rank=2, alpha=3.0)


def recognition(**settings: Any) -> Recognition:
    return Recognition(classes=2, frames=4, size=16, backbone=small_r3d(lora=TWO, **settings))


def blueprint(task: Task, method: Method | None = None) -> Blueprint:
    return Blueprint(task, method or FedAvg(), 3, torch.device("cpu"))


def shaken(network: nn.Module) -> nn.Module:
    """With other numbers than zero everywhere, B too, and in eval mode."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network.eval()


# what is frozen


@pytest.mark.parametrize(
    ("how", "kinds"),
    [
        ("all", {"parameter", "norm", "statistics"}),
        ("norm", {"norm", "statistics", "frozen"}),
        ("lora", {"parameter", "frozen"}),
        ("head", {"frozen"}),
    ],
)
def test_the_roles_of_a_backbone_s_tensors(how: str, kinds: set[str]) -> None:
    made = blueprint(recognition(tune=how))
    assert {t.role for t in made.weights.layout.tensors if t.part == "backbone"} == kinds
    assert {t.role for t in made.weights.layout.tensors if t.part == "head"} == {"parameter"}
    assert {*made.travelling.place} == {t.name for t in made.weights.layout.tensors if t.role != "frozen"}
    assert made.private.tensors == ()
    assert bool(made.digest) == (how != "all")


@pytest.mark.parametrize("how", WAYS)
def test_an_optimizer_holds_what_is_trained_and_a_step_moves_nothing_else(how: str) -> None:
    model = recognition(tune=how).model()
    weights = bind(model)
    optimizer = make_optimizer(model.parameters(), TrainConfig(lr=0.5))
    names = {id(p): n for n, p in model.named_parameters()}
    assert {names[id(p)] for p in optimizer.params} == {*weights.layout.trained.place}
    before = weights.clone()
    model.train()
    for _ in range(2):
        loss = model(torch.randn(4, 3, 4, 16, 16)).square().sum()
        optimizer.step(torch.autograd.grad(loss, optimizer.params, allow_unused=True))
    for t in weights.layout.tensors:
        assert torch.equal(weights[t.name], before[t.name]) == (t.role == "frozen"), t.name


def test_frozen_batch_norms_rest_in_training_and_trained_ones_do_not() -> None:
    x = torch.randn(2, 3, 4, 16, 16)
    resting = small_r3d(tune="head").built(Clips(4, 16))
    assert torch.equal(resting.train()(x), resting.eval()(x))
    awake = small_r3d(tune="norm").built(Clips(4, 16))
    assert not torch.equal(awake.train()(x), awake.eval()(x))
    assert resting.frozen_encoder
    assert not awake.frozen_encoder


def test_what_is_fresh_is_trained_in_every_way() -> None:
    class Pooled(Backbone):
        fresh = ("pool",)

        def __init__(self) -> None:
            super().__init__()
            self.body, self.pool, self.out_channels = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4)), 4

        def features(self, x: torch.Tensor) -> torch.Tensor:
            return self.pool(self.body(x))

    class PooledConfig(BackboneConfig):
        takes = "clips"

        def network(self, sample: Any) -> Pooled:
            return Pooled()

    trained = {"lora": {"body.lora_A.weight", "body.lora_B.weight"}, "head": set()}
    for how, more in trained.items():
        net = PooledConfig(tune=how, lora=TWO).built(None)  # type: ignore[arg-type]
        found = {n for n, p in net.named_parameters() if p.requires_grad}
        assert found == {"pool.0.weight", "pool.0.bias"} | more


def test_the_digest_is_of_the_frozen_weights_alone() -> None:
    one, same = blueprint(recognition(tune="head")), blueprint(recognition(tune="head"))
    with torch.no_grad():
        same.weights["head.fc.weight"].fill_(7)
    assert one.digest == same.digest
    other = blueprint(recognition(tune="head"))
    other.weights["backbone.stem.1.running_mean"][0] += 1e-6
    assert other.digest != one.digest


def test_a_server_s_own_model_has_the_same_frozen_weights() -> None:
    made = blueprint(recognition(tune="head"))
    torch.manual_seed(99)
    _, weights = made._tested
    assert all(torch.equal(weights[name], made.weights[name]) for name in made.frozen.place)


# LoRA


@pytest.mark.parametrize(
    ("config", "x"),
    [
        (small_r3d(), torch.randn(2, 3, 4, 16, 16)),
        (ResNet10Config(width=2), torch.randn(2, 3, 32, 32)),
        (EfficientNetLite0Config(), torch.randn(1, 3, 33, 33)),
    ],
    ids=("r3d", "resnet10", "efficientnet"),
)
def test_lora_begins_as_the_base_and_merges_into_it(config: Any, x: torch.Tensor) -> None:
    torch.manual_seed(5)
    base, x = config.network(None).double().eval(), x.double()
    net = copy.deepcopy(base)
    tune(net, "lora", TWO)
    assert torch.equal(net.eval()(x), base(x))
    shaken(net)
    assert not torch.allclose(net(x), base(x), atol=1e-4)
    base.load_state_dict(merged(net))
    assert torch.allclose(net(x), base(x))
    tune_all(net)
    assert torch.equal(net(x), base(x))
    assert [*net.state_dict()] == [*base.state_dict()]
    assert all(p.requires_grad for p in net.parameters())


def test_lora_is_on_all_layers_or_on_those_whose_names_end_so() -> None:
    def names(*targets: str) -> list[str]:
        return add_lora(ResNet10Config(width=2).network(Images(32)), Lora(targets=targets))

    assert len(names()) == 12  # the stem, eight convolutions of blocks, three shortcuts
    assert names("conv2") == [f"layer{i}.0.conv2" for i in (1, 2, 3, 4)]
    assert names("layer1.0.conv2") == ["layer1.0.conv2"]
    with pytest.raises(RecipeError, match="no layer of this backbone has a name that ends with 'conv7'"):
        names("conv7")
    lite = EfficientNetLite0Config().network(Images(32))
    with pytest.raises(RecipeError, match="LoRA cannot be added") as caught:
        add_lora(lite, Lora(targets=("_depthwise_conv",)))
    assert caught.value.found == "a convolution of 32 groups"


def test_a_vit_b_sends_less_than_four_percent() -> None:
    """The transformer of 86 million numbers, counted without making them."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)

    with torch.device("meta"):
        vit = nn.Module()
        vit.patches = nn.Conv3d(3, 768, (2, 16, 16), stride=(2, 16, 16))
        vit.blocks = nn.Sequential(*(Block(768) for _ in range(12)))
        whole = sum(p.nbytes for p in vit.parameters())
        assert 85e6 < whole / 4 < 88e6
        tune(vit, "lora", Lora())
    assert sum(p.nbytes for p in vit.parameters() if p.requires_grad) < 0.04 * whole


def test_peft_gives_the_same_with_the_files(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs the package peft")
    for number, (base, x) in enumerate(
        [
            (nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Sequential(nn.Linear(5, 4))), torch.randn(2, 3)),
            (small_r3d().network(Clips(4, 16)), torch.randn(2, 3, 4, 16, 16)),
            (ResNet10Config(width=2).network(Images(32)), torch.randn(2, 3, 32, 32)),
        ]
    ):
        net = copy.deepcopy(base)
        add_lora(net, TWO)
        with torch.no_grad():
            for _, layer in adapted(net):
                layer.lora_B.weight.normal_()  # type: ignore[union-attr, operator]
        config, tensors = peft_files(net, TWO)
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps(config))
        save_file(tensors, folder / "adapter_model.safetensors")
        theirs = peft.PeftModel.from_pretrained(base, str(folder)).eval()
        assert torch.allclose(theirs(x), net.eval()(x), atol=1e-5, rtol=1e-5)
        theirs.save_pretrained(str(folder / "again"))
        again = load_file(folder / "again" / "adapter_model.safetensors")
        assert {*again} == {*tensors}
        assert all(torch.equal(again[name], tensors[name]) for name in tensors)


# where it makes no sense


def skeletons(**settings: Any) -> SkeletonRecognition:
    return SkeletonRecognition(classes=2, backbone=STGCNConfig(width=4, tune="head"), **settings)


@pytest.mark.parametrize(
    ("task", "method", "problem"),
    [
        (recognition(tune="head"), FedPer(), "nothing would travel"),
        (recognition(tune="head"), FedLID(), "tensors that are not trained"),
        (recognition(tune="lora"), FedBN(), "tensors that are not trained"),
        (recognition(tune="head"), MOON(), "never change"),
        (skeletons(own_classifier=False), FSAR(), "tensors that are not trained"),
        (skeletons(), FedAvg(), "nothing would travel"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_method_that_has_nothing_to_do_says_so(task: Task, method: Method, problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        check_fit(task, method)


def test_other_methods_take_it() -> None:
    check_fit(recognition(tune="head"), FedAvg())
    check_fit(recognition(tune="lora"), FedPer())
    check_fit(recognition(tune="norm"), FedBN())
    check_fit(skeletons(own_classifier=False), FedAvg())


def test_a_task_that_teaches_the_backbone_alone_wants_it_trained() -> None:
    with pytest.raises(RecipeError, match="pretraining teaches the backbone"):
        Pretrain(backbone=small_r3d(tune="head"))
    with pytest.raises(RecipeError, match="views teach the backbone"):
        Image(objective="views", backbone=ResNet10Config(tune="head"))


def test_a_backbone_without_norms_says_so() -> None:
    with pytest.raises(RecipeError, match="no norms to train"):
        tune(nn.Sequential(nn.Linear(2, 2)), "norm", Lora())
