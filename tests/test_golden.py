"""Golden runs: every registered method must end where it ended when these values were printed, on the toy or, where it
would be FedAvg there, on a task of its own. They were printed by `python tests/test_golden.py`; a change here is a
change of behaviour and must be meant."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent))

from fedreel.config import TrainConfig, WorldConfig
from fedreel.core.world import make_world
from fedreel.registry import METHODS
from fedreel.runs.reading import read_metrics
from support.conformance_jobs import Case, run_case, write_data
from support.toy import Toy, federate

JOBS = {  # for methods that on the toy are FedAvg
    "fedcmr": Case("fedcmr", "moments"),  # its encoders stay
    "fedsimclr": Case("fedsimclr", "image", task_settings={"objective": "views"}),  # it learns from views
    "fedu": Case("fedu", "image", {"mu": 0.025}),  # some clients move much farther than that, some much less
}
GOLDEN = {
    "centralised": (0.68702, 9.32042, 0.00000),
    "cfedvs": (0.53869, 3.45900, 0.00000),
    "cyclic": (0.79893, 6.24951, 0.00000),
    "ditto": (0.58047, 3.48734, 6.68084),
    "fedadagrad": (0.56508, 2.92436, 0.00000),
    "fedadam": (0.56158, 2.89291, 0.00000),
    "fedagm": (0.65454, 6.93159, 0.00000),
    "fedasync": (0.38593, 3.16099, 0.00000),
    "fedavg": (0.58047, 3.48734, 0.00000),
    "fedavgm": (0.93642, 9.31637, 0.00000),
    "fedbn": (0.55332, 2.39179, 5.59197),
    "fedbuff": (0.38405, 3.22951, 0.00000),
    "fedca": (0.57996, 4.51895, 0.00000),
    "fedcmr": (4.83904, 6.25911, 16.77853),
    "feddyn": (0.74855, 7.93121, 0.06881),
    "fedgroup": (0.46194, 3.81968, 0.00000),
    "fedlid": (0.51899, 4.36774, 0.00000),
    "fednova": (0.58034, 3.30031, 0.00000),
    "fedper": (0.49745, 3.39989, 3.36212),
    "fedprox": (0.57935, 3.45025, 0.00000),
    "fedrep": (0.41143, 3.28040, 2.64452),
    "fedsimclr": (1.60560, 28.61335, 0.00000),
    "fedu": (0.89997, 16.97570, 0.91046),
    "fedvmr": (0.68353, 3.26667, 0.00000),
    "fedvssl": (0.50311, 3.34986, 3.29093),
    "fedyogi": (0.56156, 2.89323, 0.00000),
    "fsar": (0.74376, 7.85607, 0.00000),
    "ifca": (0.49642, 2.99345, 0.00000),
    "local-only": (0.52940, 0.00000, 7.90678),
    "loss": (0.56674, 3.22707, 0.00000),
    "moon": (0.55716, 3.39083, 7.34012),
    "scaffold": (1.21625, 8.31572, 10.90836),
}


def outcome(folder: Path, name: str) -> tuple[float, ...]:
    """Training loss of the last round, the norm of the global model, and that of all that clients keep."""
    if name in JOBS:
        return outcome_of_job(folder, JOBS[name])
    train = TrainConfig(batch_size=4, lr=0.2, momentum=0.9, epochs=2)
    clock = make_world(WorldConfig(), 7, Toy().population(None, 0).describe(), train.epochs)  # for who does not wait
    fed, notes = federate(folder, METHODS.lookup(name)(), rounds=5, fraction=0.75, seed=7, train=train, world=clock)
    return notes.of("train")[-1]["loss"], fed.weights.norm(), kept(folder / "clients")


def outcome_of_job(folder: Path, case: Case) -> tuple[float, ...]:
    run = folder / "run"
    run_case(case, write_data(folder / "data", case.task), run, {"name": "local"}, rounds=3)
    loss = [row["loss"] for row in read_metrics(run, "train")][-1]
    return loss, norm([run / "model" / "global.safetensors"]), kept(run / "clients")


def kept(clients: Path) -> float:
    return norm([max(client.glob("*.safetensors")) for client in clients.glob("*") if [*client.glob("*.safetensors")]])


def norm(files: list[Path]) -> float:
    tensors = [tensor.flatten() for file in files for tensor in load_file(file).values() if tensor.is_floating_point()]
    return float(torch.cat([torch.zeros(1), *tensors]).double().norm())


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_ends_where_it_ended(tmp_path: Path, name: str) -> None:
    assert name in GOLDEN, (
        f"the method '{name}' has no golden value yet: run `python tests/test_golden.py {name}` and put the line that "
        "it prints into GOLDEN in this file; if it is FedAvg on the toy, give it a job in JOBS first"
    )
    assert outcome(tmp_path, name) == pytest.approx(GOLDEN[name], rel=2e-3, abs=1e-6)


@pytest.mark.parametrize("name", sorted(GOLDEN.keys() - {"fedavg"}))
def test_no_golden_value_is_that_of_fedavg(name: str) -> None:
    assert GOLDEN[name] != GOLDEN["fedavg"]


@pytest.mark.parametrize("name", ["fedcmr", "fedu"])  # fedsimclr is FedAvg of what its clients learn
def test_the_job_tells_a_method_from_fedavg(tmp_path: Path, name: str) -> None:
    plain = outcome_of_job(tmp_path, replace(JOBS[name], method="fedavg", settings={}))
    assert plain != pytest.approx(GOLDEN[name], rel=2e-3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for method in sys.argv[1:] or sorted(METHODS):
        with tempfile.TemporaryDirectory() as temp:
            print(f'    "{method}": ({", ".join(f"{value:.5f}" for value in outcome(Path(temp), method))}),')
