"""Published weights: which files are read, what of them is loaded, and that nothing in them runs."""

from __future__ import annotations

import logging
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedreel.config import load_recipe
from fedreel.data.torch_file import read_tensors
from fedreel.errors import DataError, RecipeError
from fedreel.models.backbone import Backbone, Published
from fedreel.models.classifier import Classifier, export_torchvision
from fedreel.models.efficientnet import EfficientNetLite0
from fedreel.models.pretrained import load_pretrained, load_weights
from fedreel.models.r3d import R3D, R3DConfig
from fedreel.models.resnet import ResNet, ResNet18Config, ResNet34Config
from fedreel.runs.run import _without_init
from fedreel.tasks.pretrain.task import Pretrain
from fedreel.tasks.recognition.task import Recognition
from fedreel.tasks.summary.task import Summary
from support.networks import tiny_r3d


def save_older(tensors: Any, path: Path) -> None:
    torch.save(tensors, path, _use_new_zipfile_serialization=False)


WRITERS: list[tuple[str, Callable[[Any, Path], None]]] = [
    ("weights.safetensors", save_file),
    ("weights.pth", torch.save),
    ("weights.pt", save_older),
]
TORCH = pytest.mark.parametrize("write", [torch.save, save_older])


@pytest.mark.parametrize(("name", "write"), WRITERS)
def test_weights_make_the_way_through_a_file(
    name: str, write: Callable[[Any, Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    source, target = ResNet(ResNet18Config(width=8)), ResNet(ResNet18Config(width=8))
    source(torch.randn(2, 3, 32, 32))  # statistics and counters of their own
    write(export_torchvision(source, nn.Linear(64, 1000)), tmp_path / name)
    load_pretrained(target, str(tmp_path / name))
    found, expected = target.state_dict(), source.state_dict()
    assert all(torch.equal(found[n], tensor) for n, tensor in expected.items())
    assert found["bn1.num_batches_tracked"] == 1
    assert caplog.messages == [f"not used of {tmp_path / name}: fc.bias, fc.weight"]
    load_pretrained(target, str(tmp_path / name))
    assert len(caplog.messages) == 1  # told once


def test_a_small_stem_keeps_its_first_convolution_and_takes_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    source, target = ResNet(ResNet18Config(width=8)), ResNet(ResNet18Config(width=8, small_stem=True))
    own = target.conv1.weight.clone()
    save_file(export_torchvision(source), tmp_path / "weights.safetensors")
    with caplog.at_level(logging.WARNING, logger="fedreel.models.pretrained"):
        load_pretrained(target, str(tmp_path / "weights.safetensors"))
    assert len(caplog.records) == 1
    assert "conv1.weight stays as initialised" in caplog.text
    assert torch.equal(target.conv1.weight, own)
    rest = {n: t for n, t in source.state_dict().items() if n != "conv1.weight"}
    assert all(torch.equal(target.state_dict()[n], tensor) for n, tensor in rest.items())


@pytest.mark.parametrize("small_stem", [False, True])
def test_weights_of_another_network_are_refused_and_change_nothing(
    small_stem: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = ResNet(ResNet18Config(width=8, small_stem=small_stem))
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    less = export_torchvision(ResNet(ResNet18Config(width=8)))
    del less["layer3.0.conv1.weight"], less["conv1.weight"]
    for wrong, match in (
        (export_torchvision(ResNet(ResNet34Config(width=8))), r"unexpected: layer1\.2"),
        (export_torchvision(ResNet(ResNet18Config(width=4))), r"bn1\.weight \(4,\) instead of \(8,\)"),
        (export_torchvision(EfficientNetLite0()), r"missing: conv1\.weight"),
        (less, r"missing: conv1\.weight, layer3\.0\.conv1\.weight"),
    ):
        torch.save(wrong, tmp_path / "weights.pth")
        with pytest.raises(DataError, match=match):
            load_pretrained(target, str(tmp_path / "weights.pth"))
    assert all(torch.equal(target.state_dict()[name], tensor) for name, tensor in before.items())
    assert not caplog.records


def test_only_the_stem_s_kernel_may_differ(tmp_path: Path) -> None:
    torch.save(
        {**export_torchvision(ResNet(ResNet18Config(width=8))), "bn1.bias": torch.zeros(9)}, tmp_path / "weights.pth"
    )
    with pytest.raises(DataError, match=r"another shape: bn1.bias"):
        load_pretrained(ResNet(ResNet18Config(width=8, small_stem=True)), str(tmp_path / "weights.pth"))


def test_the_weights_that_come_with_fedreel_are_loaded_into_either_stem() -> None:
    large, small = EfficientNetLite0(), EfficientNetLite0(small_stem=True)
    for backbone in (large, small):
        load_pretrained(backbone, "imagenet")
    assert all(torch.equal(small.state_dict()[name], tensor) for name, tensor in large.state_dict().items())
    assert large._bn1.running_var.std() > 0


def test_backbones_without_a_package_ask_for_a_file() -> None:
    for backbone, name in ((ResNet(ResNet18Config(width=2)), "ResNet"), (tiny_r3d(width=2), "R3D")):
        with pytest.raises(RecipeError, match=rf"(?s)weights of {name}.*path of a file"):
            load_pretrained(backbone, "imagenet")


def test_what_is_no_file_of_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.pth").mkdir()
    for name in ("weights.bin", "broken.safetensors", "broken.pth", "empty.pt"):
        (tmp_path / name).write_bytes(b"" if name == "empty.pt" else b"PK, or so it seems")
    for name in ("folder.pth", "absent.pth", "imagnet", "weights.bin", "broken.safetensors", "broken.pth", "empty.pt"):
        with pytest.raises(DataError, match=name):
            load_pretrained(ResNet(ResNet18Config(width=2)), str(tmp_path / name))


# Files of others: names, order, what is left over


def ctp_names(backbone: R3D) -> dict[str, Tensor]:
    """The weights as Catch-the-Patch's code names them, written out by hand rather than by the loader's table."""
    words = {"conv1.0": "conv1.conv", "conv1.1": "bn1", "conv2.0": "conv2.conv", "conv2.1": "bn2"}
    words |= {"downsample.0": "downsample.conv", "downsample.1": "downsample_bn"}
    words |= {"stem.0": "stem.conv", "stem.1": "stem.bn"}
    renamed = {}
    for name, tensor in backbone.state_dict().items():
        ours = next(word for word in words if word in name)
        renamed["backbone." + name.replace(ours, words[ours])] = tensor.clone()
    return renamed


def seen(width: int = 4, blocks: tuple[int, int, int, int] = (2, 2, 1, 1)) -> R3D:
    """A network whose every tensor is its own, statistics and counters too."""
    backbone = R3D(R3DConfig(width=width, blocks=blocks, bn_eps=1e-3))
    backbone(torch.randn(2, 3, 8, 32, 32))
    return backbone


def same(one: nn.Module, other: nn.Module) -> bool:
    found = other.state_dict()
    return all(torch.equal(found[name], tensor) for name, tensor in one.state_dict().items())


@TORCH
def test_a_checkpoint_of_catch_the_patch_is_loaded_by_its_names(
    write: Callable[[Any, Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    source, target, file = seen(), seen(), tmp_path / "epoch_90.pth"
    named = ctp_names(source)
    assert {"backbone.stem.conv.weight", "backbone.stem.bn.running_var", "backbone.layer2.0.downsample_bn.bias"} < {
        *named
    }
    assert {"backbone.layer1.0.conv1.conv.weight", "backbone.layer2.0.downsample.conv.weight"} < {*named}
    state = {**named, "head.fc1.weight": torch.zeros(3), "head.fc1.bias": torch.zeros(3)}
    meta = {"epoch": 90, "time": "Tue", "mmcv_version": "1.0.2", "score": np.float64(0.5)}
    momentum = {"state": {0: {"momentum_buffer": torch.ones(7)}}, "param_groups": [{"lr": 0.01}]}
    write({"meta": meta, "state_dict": state, "optimizer": momentum}, file)
    load_pretrained(target, str(file))
    assert same(source, target)
    assert caplog.messages == [f"not used of {file}: head.fc1.bias, head.fc1.weight"]


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_fedvssl_s_released_file_is_loaded_by_its_order(
    protocol: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One array of objects, the whole state dict in order, the head last."""
    torch.manual_seed(0)
    source, target, file = seen(), seen(), tmp_path / "round-540.npz"
    arrays = [tensor.numpy() for tensor in [*source.state_dict().values(), torch.zeros(5, 2), torch.zeros(5)]]
    objects = np.empty(len(arrays), dtype=object)
    objects[:] = arrays
    with zipfile.ZipFile(file, "w") as archive:
        head = b"{'descr': '|O', 'fortran_order': False, 'shape': (%d,), }" % len(arrays)
        head += b" " * (-(len(head) + 11) % 64) + b"\n"
        size = len(head).to_bytes(2, "little")
        archive.writestr("arr_0.npy", b"\x93NUMPY\x01\x00" + size + head + pickle.dumps(objects, protocol))
    assert len(np.load(file, allow_pickle=True)["arr_0"]) == len(arrays)  # numpy reads the same file
    load_pretrained(target, str(file))
    assert same(source, target)
    places = [f"number {len(arrays) - 2} (5, 2)", f"number {len(arrays) - 1} (5,)"]
    assert caplog.messages == [f"not used of {file}: {', '.join(places)}"]


def test_numpy_s_files_are_read_as_numpy_writes_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    source = seen()
    arrays = {name: tensor.numpy() for name, tensor in source.state_dict().items()}
    objects = np.empty(len(arrays), dtype=object)
    objects[:] = list(arrays.values())
    np.savez(tmp_path / "objects.npz", objects)
    np.savez(tmp_path / "numbered.npz", *arrays.values())  # arr_0 to arr_79: arr_10 after arr_9
    np.savez(tmp_path / "named.npz", **arrays)
    for name in ("objects.npz", "numbered.npz", "named.npz"):
        target = seen()
        load_pretrained(target, str(tmp_path / name))
        assert same(source, target)


def test_tensors_without_names_must_be_as_many_and_of_the_same_shapes(tmp_path: Path) -> None:
    tensors = [*seen().state_dict().values()]
    target = seen()
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    np.savez(tmp_path / "few.npz", *(t.numpy() for t in tensors[:-1]))
    with pytest.raises(DataError, match=rf"{len(tensors) - 1} tensors without names"):
        load_pretrained(target, str(tmp_path / "few.npz"))
    np.savez(tmp_path / "shifted.npz", *(t.numpy() for t in [*tensors[1:], tensors[0]]))
    with pytest.raises(DataError, match=r"of another shape: stem\.0\.weight \(4,\) instead of \(4, 3, 3, 7, 7\)"):
        load_pretrained(target, str(tmp_path / "shifted.npz"))
    assert all(torch.equal(target.state_dict()[name], tensor) for name, tensor in before.items())


def test_a_numpy_file_runs_nothing(tmp_path: Path) -> None:
    proof, objects = tmp_path / "proof", np.empty(1, dtype=object)
    objects[0] = MakesFolder(proof)
    np.savez(tmp_path / "a.npz", objects)
    np.savez_compressed(tmp_path / "b.npz", np.zeros(4))
    (tmp_path / "c.npz").write_bytes(b"PK, or so it seems")
    for name, match in (("a.npz", r"a call of '\w+\.mkdir'"), ("b.npz", "is compressed"), ("c.npz", "not a zip")):
        with pytest.raises(DataError, match=match):
            load_pretrained(seen(), str(tmp_path / name))
    assert not proof.exists()


def test_a_model_of_this_package_gives_its_backbone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    source, target = Classifier(seen(), 5), seen()
    save_file(source.state_dict(), tmp_path / "global.safetensors")
    load_pretrained(target, str(tmp_path / "global.safetensors"))
    assert same(source.backbone, target)


def test_axes_of_length_one_may_be_written_or_not() -> None:
    class Point(Backbone):
        published = Published(renamed=((r"^gcn\.", ""),), elsewhere=("cls_head.", "A"))

        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(3, 2, bias=False)

        def features(self, x: Tensor) -> Tensor:
            return self.mix(x)

    weight = torch.arange(6.0).view(2, 3, 1, 1)
    point = Point()
    assert load_weights(point, {"backbone.gcn.mix.weight": weight, "backbone.A": weight, "cls_head.b": weight}) == [
        "backbone.A",
        "cls_head.b",
    ]
    assert torch.equal(point.mix.weight, weight.view(2, 3))
    with pytest.raises(DataError, match=r"mix.weight \(3, 2\) instead of \(2, 3\)"):
        load_weights(point, {"mix.weight": weight.view(3, 2)})


def test_a_run_begins_with_the_weights_it_is_given(tmp_path: Path) -> None:
    torch.manual_seed(0)
    source = seen()
    torch.save({"state_dict": ctp_names(source)}, tmp_path / "ctp.pth")
    settings = R3DConfig(width=4, blocks=(2, 2, 1, 1), bn_eps=1e-3, init=str(tmp_path / "ctp.pth"))
    for task in (Pretrain(backbone=settings), Recognition(classes=3, backbone=settings)):
        assert same(source, task.model().backbone)


def test_a_whole_model_is_loaded_by_name_or_order_and_what_is_left_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    source = Summary(width=4, hidden=4, blocks=1).model()
    extra = torch.zeros(3)
    torch.save({f"module.{n}": t for n, t in source.state_dict().items()} | {"more": extra}, tmp_path / "named.pth")
    np.savez(tmp_path / "ordered.npz", *(t.numpy() for t in (*source.state_dict().values(), extra)))
    for name, left in (("named.pth", "more"), ("ordered.npz", f"number {len(source.state_dict())} (3,)")):
        file = str(tmp_path / name)
        model = Summary(width=4, hidden=4, blocks=1, init=file).model()
        assert all(torch.equal(t, model.state_dict()[n]) for n, t in source.state_dict().items())
        assert f"not used of {file}: {left}" in caplog.text


def test_a_model_of_other_settings_is_refused_tensor_by_tensor(tmp_path: Path) -> None:
    source = Summary(width=4, hidden=4, blocks=1).model().state_dict()
    source.pop("head.out.bias")
    torch.save(source, tmp_path / "w.pth")
    with pytest.raises(DataError) as caught:
        Summary(width=6, hidden=4, blocks=1, init=str(tmp_path / "w.pth")).model()
    assert "missing: head.out.bias" in caught.value.found
    assert "backbone.embed.weight (4, 64) instead of (6, 64)" in caught.value.found


def test_what_a_finished_model_began_with_is_not_read_again() -> None:
    assert _without_init(load_recipe("cfedvs", {"task.init": "gone.pth"})).task["init"] == ""
    backbone = _without_init(load_recipe("fedvssl", {"task.backbone.init": "gone.pth"})).task["backbone"]
    assert (backbone["init"], backbone["width"]) == ("", 8)


# PyTorch's files


class MakesFolder:
    """Read by a common reader, it would make a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@TORCH
def test_a_program_in_a_file_is_refused_and_does_not_run(write: Callable[[Any, Path], None], tmp_path: Path) -> None:
    file, proof = tmp_path / "weights.pth", tmp_path / "proof"
    write({**export_torchvision(ResNet(ResNet18Config(width=2))), "fc.bias": MakesFolder(proof)}, file)
    assert str(proof).encode() in file.read_bytes()
    with pytest.raises(DataError, match=r"a call of '\w+\.mkdir'"):
        load_pretrained(ResNet(ResNet18Config(width=2)), str(file))
    assert not proof.exists()


@TORCH
def test_all_kinds_of_tensors_come_back(write: Callable[[Any, Path], None], tmp_path: Path) -> None:
    grid = torch.arange(24.0).view(4, 6)
    tensors = {
        "transposed": grid.T,
        "corner of the same": grid[1:3, 2:5],
        "parameter": nn.Parameter(torch.randn(3)),
        "number": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "half": torch.randn(5).half(),
        "brain": torch.randn(5).bfloat16(),
        "flags": torch.tensor([True, False]),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    }
    write(tensors, tmp_path / "a.pth")
    found = read_tensors(tmp_path / "a.pth")
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor)


@TORCH
@pytest.mark.parametrize(
    "content",
    [
        [torch.zeros(2)],
        {"weights": {"a": torch.zeros(2)}, "epoch": 3},
        {"state_dict": {"a": torch.zeros(2), "epoch": 3}},
        {3: torch.zeros(2)},
        {("a", "b"): torch.zeros(2)},
        {"a": torch.zeros(1).expand(1000)},  # takes more memory than its file
        {"a": torch.zeros(2, dtype=torch.complex64)},
        "text",
        nn.Linear(2, 2),
    ],
)
def test_files_of_anything_else_are_refused(write: Callable[[Any, Path], None], content: Any, tmp_path: Path) -> None:
    write(content, tmp_path / "a.pth")
    with pytest.raises(DataError, match=r"(?s)a\.pth.*state dict.*save_file"):
        read_tensors(tmp_path / "a.pth")


@TORCH
def test_a_damaged_file_is_an_error_or_still_a_file_of_tensors(
    write: Callable[[Any, Path], None], tmp_path: Path
) -> None:
    draw, path = random.Random(0), tmp_path / "a.pth"
    write({"a": torch.zeros(3, 2), "b": torch.tensor(1)}, path)
    whole, refused = path.read_bytes(), 0
    for _ in range(600):
        damaged = bytearray(whole)
        for _ in range(draw.choice([1, 2, 8])):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged if draw.random() < 0.8 else damaged[: draw.randrange(len(damaged))])
        try:
            found = read_tensors(path)
        except DataError:
            refused += 1
        else:
            assert all(isinstance(t, Tensor) for t in found.values())
    assert refused > 100


def rewritten(source: Path, change: Callable[[bytes], bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    """A zip whose program is changed."""
    target = source.with_name("changed.pth")
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", compression) as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, change(content) if name.endswith("data.pkl") else content)
    return target


def test_tensors_that_reach_beyond_their_numbers_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(6.0).view(2, 3)}, tmp_path / "a.pth")
    shape, stride = b"K\x02K\x03\x86", b"K\x03K\x01\x86"  # (2, 3) in two bytes each, and a pair of them
    assert torch.equal(read_tensors(rewritten(tmp_path / "a.pth", bytes))["a"], torch.arange(6.0).view(2, 3))
    for old, new in ((shape, b"K\x02K\x04\x86"), (stride, b"K\x04K\x01\x86"), (stride, b"M\xff\xffK\x01\x86")):

        def change(program: bytes, old: bytes = old, new: bytes = new) -> bytes:
            assert program.count(old) == 1
            return program.replace(old, new)

        with pytest.raises(DataError, match="among 6 numbers"):
            read_tensors(rewritten(tmp_path / "a.pth", change))


def test_a_compressed_file_is_not_unpacked(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1000)}, tmp_path / "a.pth")
    with pytest.raises(DataError, match="is compressed"):
        read_tensors(rewritten(tmp_path / "a.pth", bytes, zipfile.ZIP_DEFLATED))


def test_instructions_that_torch_does_not_write_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1)}, tmp_path / "a.pth")
    for program, found in (
        (b"cos\nsystem\n(X\x02\x00\x00\x00lstR.", "a call of 'os.system'"),
        (b"(Vls\nios\nsystem\n.", "the instruction UNICODE"),
        (b"(ios\nsystem\n.", "the instruction INST"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "a call of 'os.system'"),
        (b"}", "cannot be read"),
    ):
        with pytest.raises(DataError, match=found):
            read_tensors(rewritten(tmp_path / "a.pth", lambda _, program=program: program))
