"""What methods say that they come to where settings leave nothing of what they add: the same run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedreel.core.method import Method
from fedreel.methods.cfedvs import CFedVS
from fedreel.methods.fedagm import FedAGM
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedavgm import FedAvgM
from fedreel.methods.fedca import FedCA
from fedreel.methods.fedgroup import FedGroup
from fedreel.methods.fedlid import FedLID
from fedreel.methods.fedprox import FedProx
from fedreel.methods.fedsimclr import FedSimCLR
from fedreel.methods.fedvmr import FedVMR
from fedreel.methods.fsar import FSAR
from fedreel.methods.ifca import IFCA
from fedreel.methods.loss import LossWeighted
from fedreel.methods.moon import MOON
from fedreel.registry import METHODS
from support.toy import federate


@pytest.mark.parametrize(
    ("method", "plain"),
    [
        (FedProx(weight_by="equal", mu=0.0), FedAvg(weight_by="equal")),
        (MOON(mu=0.0, temperature=0.1), FedAvg()),
        (FedAGM(lambda_=0.0, tau=1.0, mu=0.0), FedAvg()),
        (FedAGM(weight_by="equal", lambda_=0.0, tau=1.0, mu=0.5), FedProx(weight_by="equal", mu=0.5)),
        (FedAvgM(beta=0.0), FedAvg()),
        (FSAR(blocks=0, kd=3.0, grains="mean", teacher_topology="client"), FSAR(blocks=0)),
        (LossWeighted(weight_by="samples"), FedAvg()),
        (FedLID(server="none", when="once", statistics="clients", keep_projector=False), FedLID(server="none")),
        (FedCA(dictionary=0, beta=0.0), FedSimCLR()),
        (FedVMR(lambda_=0.0, bins=2, memory=0.1, direction="world"), FedVMR(lambda_=0.0)),
        (FedVMR(weight_by="samples", temperature=3.0, share=1.0), FedVMR(weight_by="samples")),
    ],
    ids=repr,
)
def test_a_run_of_what_a_method_comes_to_ends_with_the_same_model(
    method: Method, plain: Method, tmp_path: Path
) -> None:
    assert method.comes_to() == plain
    ends = [federate(tmp_path / str(i), one)[0].weights for i, one in enumerate((method, plain))]
    assert all(torch.allclose(ends[0][name], ends[1][name], atol=1e-5) for name in ends[1])


@pytest.mark.parametrize("method", [CFedVS(groups=1), FedGroup(groups=1, share="none"), IFCA(groups=1)], ids=repr)
def test_one_community_is_everybody(method: CFedVS | FedGroup | IFCA) -> None:
    assert method.comes_to() == FedAvg(method.weight_by)


@pytest.mark.parametrize("name", METHODS)
def test_with_its_own_settings_a_method_is_itself(name: str) -> None:
    method: Method = METHODS.lookup(name)()
    assert method.comes_to() == method
