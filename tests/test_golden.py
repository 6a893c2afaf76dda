"""Golden runs: every registered method on the toy must end where it ended when these values were printed. They were
printed by `python tests/test_golden.py`; a change here is a change of behaviour and must be meant."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from fedreel.config import TrainConfig
from fedreel.registry import METHODS
from support.toy import federate

GOLDEN = {
    "centralised": (0.68702, 9.32042),
    "cfedvs": (0.53869, 3.45900),
    "fedagm": (0.65454, 6.93158),
    "fedavg": (0.58047, 3.48734),
    "fedbn": (0.55332, 2.39179),
    "fedgroup": (0.46194, 3.81969),
    "fedprox": (0.57935, 3.45025),
    "fedu": (0.58047, 3.48734),
    "cyclic": (0.79893, 6.24951),
    "fedcmr": (0.58047, 3.48734),
    "fedvmr": (0.75907, 3.16377),
    "fedca": (0.57996, 4.51895),
    "fedlid": (0.51899, 4.36773),
    "fedsimclr": (0.58047, 3.48734),
    "fedvssl": (0.50311, 3.34986),
    "fsar": (0.74376, 7.85607),
    "ifca": (0.49642, 2.99345),
    "local-only": (0.52940, 0.00000),
    "loss": (0.56674, 3.22707),
    "moon": (0.55716, 3.39083),
    "ditto": (0.51540, 3.48734),
    "fedadagrad": (0.56508, 2.92436),
    "fedadam": (0.56158, 2.89291),
    "fedavgm": (0.93642, 9.31637),
    "feddyn": (0.74855, 7.93121),
    "fednova": (0.58034, 3.30031),
    "fedper": (0.49745, 3.39989),
    "fedrep": (0.41143, 3.28040),
    "fedyogi": (0.56156, 2.89323),
    "scaffold": (1.21625, 8.31573),
}


def outcome(folder: Path, name: str) -> tuple[float, float]:
    """Training loss of the last round, and the norm of the global model."""
    train = TrainConfig(batch_size=4, lr=0.2, momentum=0.9, epochs=2)
    fed, notes = federate(folder, METHODS.lookup(name)(), rounds=5, fraction=0.75, seed=7, train=train)
    return notes.of("train")[-1]["loss"], fed.weights.norm()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_ends_where_it_ended(tmp_path: Path, name: str) -> None:
    assert outcome(tmp_path, name) == pytest.approx(GOLDEN[name], rel=2e-3, abs=1e-6)


if __name__ == "__main__":
    for method in sorted(METHODS):
        with tempfile.TemporaryDirectory() as temp:
            loss, norm = outcome(Path(temp), method)
            print(f'    "{method}": ({loss:.5f}, {norm:.5f}),')
