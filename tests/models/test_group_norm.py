"""Group norm in place of batch norm: examples are apart, nothing is kept of a batch, weights are its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fedreel.errors import FedreelError
from fedreel.models.backbone import BackboneConfig, Clips, Images
from fedreel.models.r3d import R3DConfig
from fedreel.models.resnet import ResNet10Config


@pytest.mark.parametrize(
    ("config", "sample", "shape"),
    [
        (R3DConfig(width=16, norm="group"), Clips(8, 32), (4, 3, 8, 32, 32)),
        (ResNet10Config(norm="group", width=16), Images(32), (4, 3, 32, 32)),
    ],
)
def test_what_a_network_makes_of_an_example_is_its_own_in_training_too(
    config: BackboneConfig, sample: object, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    network = config.built(sample).train()
    x = torch.randn(shape)
    together = network(x)
    alone = torch.cat([network(one[None]) for one in x])
    assert torch.allclose(together, alone, atol=1e-4)
    assert not any("running" in name for name in network.state_dict())
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in network.modules())
    assert {m.num_channels // m.num_groups for m in network.modules() if isinstance(m, nn.GroupNorm)} == {16}


def test_weights_are_loaded_if_they_were_learned_with_group_norms(tmp_path: Path) -> None:
    batch, group = R3DConfig(width=16), R3DConfig(width=16, norm="group")
    for name, config in (("batch", batch), ("group", group)):
        save_file(config.built(Clips(8, 32)).state_dict(), tmp_path / f"{name}.safetensors")
    torch.manual_seed(9)
    loaded = replace(group, init=str(tmp_path / "group.safetensors")).built(Clips(8, 32)).state_dict()
    assert all(torch.equal(t, loaded[n]) for n, t in load_file(tmp_path / "group.safetensors").items())
    with pytest.raises(FedreelError):
        replace(group, init=str(tmp_path / "batch.safetensors")).built(Clips(8, 32))
