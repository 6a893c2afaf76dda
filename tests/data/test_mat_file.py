"""MATLAB's matrices: those that scipy wrote and reads; damaged files are refused, where scipy's reader crashes."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pytest

from fedreel.data import bounded
from fedreel.data.mat_file import read_matrices
from fuzz.mutate import spoil_bytes

scipy_io = pytest.importorskip("scipy.io", reason="files to read are written by scipy")
MATRICES = {
    "user_score": np.arange(12.0).reshape(3, 4),
    "f": np.arange(6, dtype=np.float32).reshape(2, 3),
    "one": np.array([[7]], np.uint8),
    "wide": np.arange(24, dtype=np.int16).reshape(2, 3, 4),
    "none": np.zeros((0, 3)),
    "a_rather_long_name": np.array([[-1, 2**40]]),
}


@pytest.mark.parametrize("compressed", [True, False])
def test_matrices_are_those_that_scipy_reads(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "a.mat"
    scipy_io.savemat(
        path, {**MATRICES, "word": "text", "cell": {"a": 1.0}, "z": np.array([[1j]])}, do_compression=compressed
    )
    theirs, ours = scipy_io.loadmat(path), read_matrices(path)
    assert {*ours} == {*MATRICES}
    for name in MATRICES:
        assert ours[name].dtype == theirs[name].dtype
        assert np.array_equal(ours[name], theirs[name])
        assert ours[name].shape == theirs[name].shape


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scipy_io.savemat(tmp_path / "a.mat", {"m": np.zeros((4000, 75))}, do_compression=True)
    assert read_matrices(tmp_path / "a.mat")["m"].shape == (4000, 75)
    monkeypatch.setattr(bounded, "FLOOR", 1 << 20)
    with pytest.raises(ValueError, match="unpacks to more than"):
        read_matrices(tmp_path / "a.mat")


def test_damaged_files_give_matrices_or_an_error(tmp_path: Path) -> None:
    out = io.BytesIO()
    scipy_io.savemat(out, MATRICES)
    rng, refused = random.Random(0), 0
    for _ in range(300):
        (tmp_path / "a.mat").write_bytes(spoil_bytes(out.getvalue(), rng))
        try:
            read_matrices(tmp_path / "a.mat")
        except ValueError:
            refused += 1
    assert 30 < refused < 300
