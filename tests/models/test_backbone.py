"""The seam of a backbone: chosen by name, checked like other sections, brought by packages, refused where it does not
fit."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from fedreel.config import build, load_recipe, make_recipe, settings_of
from fedreel.core.job import check_fit, make_task, resolved
from fedreel.errors import FedreelError, RecipeError
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fsar import FSAR
from fedreel.models.backbone import Backbone, BackboneConfig, Clips, Images
from fedreel.models.r3d import R3DConfig
from fedreel.models.resnet import ResNet18Config
from fedreel.registry import BACKBONES
from fedreel.runs.run import load, run
from fedreel.tasks.image.task import Image
from fedreel.tasks.pretrain.task import Pretrain
from fedreel.tasks.recognition.task import Recognition
from fedreel.tasks.skeleton.joints import KINECT_V1
from fedreel.tasks.skeleton.network import Skeleton
from fedreel.tasks.skeleton.task import SkeletonRecognition
from fedreel.tasks.vision.export import export
from support.backbones import Still, StillConfig
from support.networks import small_r3d
from support.tiny import SETTINGS, cli, sets

TUNED = {"tune": "all", "lora": {"rank": 8, "alpha": 16.0, "targets": []}}  # as every backbone has it
PLUGIN = Path(__file__).parent.parent / "plugin"
SAMPLES: dict[str, tuple[Any, tuple[int, ...]]] = {  # what the task says of its input, and such an input
    "clips": (Clips(8, 32), (2, 3, 8, 32, 32)),
    "images": (Images(32), (2, 3, 32, 32)),
    "skeletons": (Skeleton(len(KINECT_V1.names), KINECT_V1.bones, KINECT_V1.centre), (2, 3, 13, 20, 1)),
}
TASKS: dict[str, tuple[type, str]] = {
    "recognition": (Recognition, "clips"),
    "pretrain": (Pretrain, "clips"),
    "image": (Image, "images"),
    "skeleton": (SkeletonRecognition, "skeletons"),
}


OF_TRANSFORMERS = ("videomae", "vjepa2", "vit", "dinov2", "clip-image")


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGIN))


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_gives_features_of_the_width_it_declares(name: str) -> None:
    if name in OF_TRANSFORMERS:
        pytest.importorskip("transformers", reason="the extra hf is not installed")
    config = BACKBONES.lookup(name)(**({"patch": 16, "depth": 1} if name in OF_TRANSFORMERS else {}))
    sample, shape = SAMPLES[config.takes]
    network = config.network(sample).eval()
    x = torch.randn(shape)
    with torch.no_grad():
        assert network(x).shape == (2, network.out_channels)
        assert network.features(x).shape[1] == network.out_channels


@pytest.mark.parametrize("name", BACKBONES)
def test_settings_written_out_make_the_same_backbone(name: str) -> None:
    config = BACKBONES.lookup(name)()
    written = settings_of(config)
    assert {*written} == {f.name for f in fields(config)}
    assert build(type(config), json.loads(json.dumps(written)), name) == config


# brought by a package


def test_a_package_s_backbone_trains_and_is_loaded_again(plugin: None, data: Path, tmp_path: Path) -> None:
    settings = {**SETTINGS, "task.backbone": "still", "data.source": data, "round.rounds": 1}
    assert cli("run", "recognition", *sets(settings), "--out", tmp_path / "run", "--quiet").code == 0
    written = load_recipe(tmp_path / "run" / "recipe.toml")
    assert written.task["backbone"] == {"name": "still", "width": 2, "stride": 4, **TUNED}
    network = load(tmp_path / "run").model.backbone
    assert isinstance(network, Still)
    assert network.sample == Clips(frames=4, size=16)  # as the task has them
    torch.manual_seed(written.seed)
    begun = make_task(written).model().backbone
    assert isinstance(begun, Still)
    assert not torch.equal(network.convolution.bias, begun.convolution.bias)  # it learned
    listed = cli("list", "backbones").out
    assert "  still                clips: A backbone as somebody else's package brings it" in listed


def test_an_object_needs_no_name_to_train(data: Path, tmp_path: Path) -> None:
    task = Recognition(classes=2, size=16, frames=4, backbone=StillConfig(width=5))
    recipe = load_recipe("recognition", {"data.source": data, "round.rounds": 1, "device": "cpu"})
    out = run(recipe, tmp_path / "run", quiet=True, task=task).path
    assert load_recipe(out / "recipe.toml").task["backbone"] == {
        "name": "StillConfig",
        "width": 5,
        "stride": 4,
        **TUNED,
    }
    with pytest.raises(RecipeError, match="there is no backbone 'StillConfig'"):
        load(out)


def test_a_class_is_known_by_its_name_wherever_a_package_took_it_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop.py").write_text("from support.backbones import StillConfig as Standing\n")
    (tmp_path / "shop-1.dist-info").mkdir()
    (tmp_path / "shop-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1\n")
    (tmp_path / "shop-1.dist-info" / "entry_points.txt").write_text("[fedreel.backbones]\nstanding = shop:Standing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert BACKBONES.name_of(StillConfig) == "standing"
    assert BACKBONES.name_of(R3DConfig) == "r3d"


def test_a_package_that_registers_something_else_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKBONES, "still", "support.backbones:Still")
    with pytest.raises(RecipeError, match="registered something else") as caught:
        make_task(load_recipe("recognition", ["task.backbone=still"]))
    assert caught.value.expected == "a BackboneConfig"
    with pytest.raises(RecipeError, match="choose frames or r3d"):
        Recognition(backbone=ResNet18Config())


# where it does not fit


@pytest.mark.parametrize("task", TASKS)
def test_a_backbone_of_another_kind_is_refused_with_those_that_fit(task: str) -> None:
    cls, kind = TASKS[task]
    fit = [name for name in BACKBONES.names() if BACKBONES.lookup(name).takes == kind]
    for name in (n for n in BACKBONES if n not in fit):
        config = BACKBONES.lookup(name)()
        said = f"the backbone {name} takes {config.takes}, but this task has {kind}: choose {' or '.join(fit)}"
        with pytest.raises(RecipeError) as caught:
            cls(backbone=config)
        assert caught.value.problem == said
    assert fit


def test_it_is_refused_before_any_data_are_read(tmp_path: Path) -> None:
    settings = {"task.backbone": "resnet18", "data.source": tmp_path / "nowhere"}
    said = cli("run", "recognition", *sets(settings), "--out", tmp_path / "run")
    assert said.code == 2
    assert "the backbone resnet18 takes images, but this task has clips: choose frames or r3d" in said.err
    assert not (tmp_path / "run").exists()


def test_catch_the_patch_says_what_it_wants() -> None:
    assert Pretrain(pretext="vcop", backbone=StillConfig()).backbone == StillConfig()
    with pytest.raises(RecipeError, match="map twice as fine") as caught:
        Pretrain(pretext="ctp", backbone=StillConfig())
    assert caught.value.expected == "r3d, or the pretext speed or vcop"


def test_distillation_by_blocks_says_what_it_wants() -> None:
    @dataclass(frozen=True)
    class Joints(BackboneConfig):
        takes: ClassVar = "skeletons"

        def network(self, sample: Skeleton) -> Backbone:
            return StillConfig().network(Clips(1, 1))

    task = SkeletonRecognition(classes=3, backbone=Joints())
    with pytest.raises(RecipeError, match="not split into blocks"):
        check_fit(task, FSAR())
    check_fit(task, FSAR(blocks=0))
    check_fit(SkeletonRecognition(classes=3), FSAR())


WRONG: dict[str, tuple[Any, str]] = {
    "name": ({"name": "r3b"}, "there is no backbone 'r3b' where: fedreel.backbones next: did you mean 'r3d'?"),
    "bare name": ("resnet81", "did you mean 'resnet18'?"),
    "name of code": ({"name": "os:system"}, "there is no backbone 'os:system'"),
    "no name": ({"name": ["r3d"]}, "wrong type of value where: [task.backbone] name expected: str"),
    "no section": (3, "[task] recognition, backbone expected: a section, or a name found: 3 (int)"),
    "key": ({"name": "r3d", "widht": 1}, "unknown key 'widht' where: [task.backbone] r3d next: did you mean 'width'?"),
    "key of another": ({"name": "r3d", "small_stem": True}, "unknown key 'small_stem' where: [task.backbone] r3d"),
    "type": ({"name": "r3d", "width": "wide"}, "[task.backbone] r3d, width expected: int found: 'wide' (str)"),
    "length": ({"name": "r3d", "blocks": [1, 1]}, "blocks expected: tuple[int, int, int, int]"),
    "range": ({"name": "r3d", "width": 0}, "width is out of range where: [task.backbone] width expected: 1 or more"),
    "range of several": ({"name": "r3d", "blocks": [1, 1, 0, 1]}, "blocks is out of range"),
    "choice": ({"name": "stgcn", "topology": "grpah"}, "did you mean 'graph'?"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_in_the_section_is_named(what: str) -> None:
    backbone, said = WRONG[what]
    recipe = make_recipe({"task": {"name": "recognition", "backbone": backbone}, "method": {"name": "fedavg"}})
    with pytest.raises(RecipeError) as caught:
        make_task(recipe)
    assert said in " ".join(str(caught.value).split())


# what a recipe and its overrides come to


OVERRIDES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "none": ([], {"name": "stgcn", "width": 8, "topology": "both"}),
    "a setting": (["task.backbone.width=4"], {"name": "stgcn", "width": 4, "topology": "both"}),
    "the same name": (["task.backbone.name=stgcn"], {"name": "stgcn", "width": 8, "topology": "both"}),
    "another name": (["task.backbone.name=ctrgcn"], {"name": "ctrgcn"}),
    "in any order": (["task.backbone.width=24", "task.backbone.name=msg3d"], {"name": "msg3d", "width": 24}),
    "a bare name": (["task.backbone=msg3d", "task.backbone.width=24"], {"name": "msg3d", "width": 24}),
    "a whole section": (["task.backbone={name = 'mstgcn', width = 4}"], {"name": "mstgcn", "width": 4}),
    "the same task": (["task.name=skeleton"], {"name": "stgcn", "width": 8, "topology": "both"}),
    "the last of several": (["task.backbone=msg3d", "task.backbone=ctrgcn"], {"name": "ctrgcn"}),
}


@pytest.mark.parametrize("what", OVERRIDES)
def test_another_backbone_does_not_inherit_the_settings_of_the_recipe_s(what: str, tmp_path: Path) -> None:
    overrides, expected = OVERRIDES[what]
    path = tmp_path / "job.toml"
    path.write_text(
        '[task]\nname = "skeleton"\nclasses = 3\n[task.backbone]\nname = "stgcn"\nwidth = 8\ntopology = "both"\n'
        '[method]\nname = "fsar"\n'
    )
    recipe = load_recipe(path, overrides)
    spelled = recipe.task["backbone"]
    assert ({"name": spelled} if isinstance(spelled, str) else spelled) == expected
    assert recipe.task["classes"] == 3
    config = make_task(recipe).backbone  # type: ignore[attr-defined]
    assert config == BACKBONES.lookup(expected["name"])(**{k: v for k, v in expected.items() if k != "name"})


def test_another_task_does_not_inherit_the_backbone() -> None:
    recipe = load_recipe("recognition", ["task.name=image"])
    assert recipe.task == {"name": "image"}
    assert make_task(recipe).backbone == ResNet18Config()  # type: ignore[attr-defined]
    both = load_recipe("recognition", ["task.backbone=resnet34", "task.name=image"])
    assert both.task == {"name": "image", "backbone": "resnet34"}


def test_an_override_that_is_a_section_stays_as_it_was() -> None:
    own = {"name": "r3d", "width": 4}
    recipe = load_recipe("recognition", {"task.backbone": own, "task.backbone.stem_size": 3})
    assert recipe.task["backbone"] == {"name": "r3d", "width": 4, "stem_size": 3}
    assert own == {"name": "r3d", "width": 4}


def test_a_bare_name_in_a_file_can_be_added_to(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('[task]\nname = "recognition"\nbackbone = "r3d"\n[method]\nname = "fedavg"\n')
    assert make_task(load_recipe(path)).backbone == R3DConfig()  # type: ignore[attr-defined]
    recipe = load_recipe(path, ["task.backbone.width=4"])
    assert make_task(recipe).backbone == R3DConfig(width=4)  # type: ignore[attr-defined]
    with pytest.raises(RecipeError, match="'name' is a value, not a section"):
        load_recipe(path, ["task.name.x=1"])


@dataclass(frozen=True)
class Narrow(Recognition):
    """A task whose default is not the backbone's."""

    backbone: BackboneConfig = replace(R3DConfig(), width=3)  # noqa: RUF009


@dataclass(frozen=True)
class Demanding:
    """What has no default must be named."""

    backbone: BackboneConfig


def test_a_section_without_a_name_changes_the_default() -> None:
    made = build(Narrow, {"backbone": {"stem_size": 3}}, "[task]")
    assert made.backbone == R3DConfig(width=3, stem_size=3)
    named = build(Narrow, {"backbone": {"name": "r3d", "stem_size": 3}}, "[task]")
    assert named.backbone == R3DConfig(stem_size=3)
    with pytest.raises(RecipeError, match="'name' is missing"):
        build(Demanding, {"backbone": {"width": 3}}, "[task]")


@pytest.mark.parametrize("backbone", [None, "r3d", {"width": 4}, {"name": "r3d", "bn_eps": 1e-3}])
def test_the_resolved_recipe_has_all_settings_and_makes_the_same_task(backbone: Any) -> None:
    section = {} if backbone is None else {"backbone": backbone}
    recipe = make_recipe({"task": {"name": "recognition", **section}, "method": {"name": "fedavg"}})
    task = make_task(recipe)
    whole = resolved(recipe, task, FedAvg())
    assert {*whole.task["backbone"]} == {"name", *(f.name for f in fields(R3DConfig))}
    assert make_task(whole) == task
    assert resolved(whole, task, FedAvg()) == whole


# weights to begin with


def test_a_run_s_backbone_is_what_another_begins_with(data: Path, tmp_path: Path) -> None:
    settings = {**SETTINGS, "data.source": data, "round.rounds": 1}
    first = run(load_recipe("recognition", settings), tmp_path / "first", quiet=True).path
    export(first, tmp_path / "backbone.safetensors")
    config = load(first).task.backbone  # type: ignore[attr-defined]
    begun = replace(config, init=str(tmp_path / "backbone.safetensors")).network(Clips(4, 16))
    learned = load(first).model.backbone.state_dict()  # type: ignore[union-attr]
    assert all(torch.equal(tensor, learned[name]) for name, tensor in begun.state_dict().items())
    with pytest.raises(FedreelError, match="do not belong to this backbone"):
        small_r3d(3, init=str(tmp_path / "backbone.safetensors")).network(Clips(4, 16))
