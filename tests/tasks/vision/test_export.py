"""The exported backbone: the run's own weights under torchvision's names, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedreel.core.state import PrivateStore
from fedreel.errors import DataError, RunError
from fedreel.models.pretrained import load_weights
from fedreel.models.r3d import R3D
from fedreel.runs.run import load
from fedreel.tasks.vision.export import export
from support.embedded import other_task, train
from support.tiny import cli


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("trained") / "run", data)


def test_the_file_makes_the_same_network_again(trained: Path, tmp_path: Path) -> None:
    names = export(trained, tmp_path / "new" / "b.safetensors")
    tensors = load_file(tmp_path / "new" / "b.safetensors")
    assert {*names} == {*tensors}
    assert {"stem.0.weight", "layer1.0.conv1.0.weight", "layer4.0.downsample.1.running_mean"} <= {*tensors}
    assert not any(name.startswith(("fc.", "head.", "backbone.")) for name in tensors)
    loaded = load(trained)
    task = loaded.task
    again = R3D(task.backbone)  # type: ignore[attr-defined]
    load_weights(again, tensors)
    clips = torch.rand(2, 3, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(again.eval()(clips), loaded.model.backbone(clips))  # type: ignore[operator]


def test_a_client_s_own_norms_are_in_it(data: Path, tmp_path: Path) -> None:
    private = train(tmp_path / "run", data, **{"method.name": "fedbn"})
    with pytest.raises(RunError, match="never left the clients"):
        export(private, tmp_path / "b.safetensors")
    assert not (tmp_path / "b.safetensors").exists()
    export(private, tmp_path / "b.safetensors", client="owner1")
    kept = PrivateStore(private / "clients").newest("owner1").tensors["model/backbone.stem.1.running_mean"]
    assert torch.equal(load_file(tmp_path / "b.safetensors")["stem.1.running_mean"], kept)


@pytest.mark.parametrize("task", ["summary", "skeleton"])
def test_other_backbones_are_refused(task: str, trained: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="none of torchvision's or transformers'") as error:
        export(other_task(trained, tmp_path / "run", task), tmp_path / "b.safetensors")
    assert task in error.value.found
    assert not (tmp_path / "b.safetensors").exists()


def test_places_that_cannot_be_are_refused(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="would be a folder"):
        export(trained, tmp_path)
    with pytest.raises(DataError, match="cannot be written"):
        export(trained, tmp_path / "file" / "b.safetensors")
    with pytest.raises(RunError, match="not a finished run"):
        export(tmp_path, tmp_path / "b.safetensors")


def test_the_command_names_the_file(trained: Path, tmp_path: Path) -> None:
    said = cli("export", "--model", trained, "-o", tmp_path / "b.safetensors")
    assert said.code == 0, said.err
    tensors = load_file(tmp_path / "b.safetensors")
    assert said.out.splitlines() == [f"{len(tensors)} tensors of the backbone", str(tmp_path / "b.safetensors")]
