"""Harnesses for files of arrays: npz, npy, h5, pickles, weights, archives, checkpoints, private state."""

from __future__ import annotations

import io
import pickle
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import safetensors.numpy
import safetensors.torch
import torch

from fedreel.core.pool import Roll
from fedreel.core.server import ServerState
from fedreel.core.state import PrivateStore, State
from fedreel.core.weights import Weights
from fedreel.core.world import Device, read_devices, write_devices
from fedreel.data.archive import extract
from fedreel.data.device_traces import read_fedscale
from fedreel.data.kept_arrays import kept
from fedreel.data.weights_file import read_file
from fedreel.runs.checkpoint import Checkpoints, Snapshot
from fedreel.tasks.image.cifar import read_cifar
from fedreel.tasks.moments.features import open_features
from fedreel.tasks.moments.text import Words
from fedreel.tasks.skeleton import npz, pickled, prepare, uestc
from fedreel.tasks.summary.annotations import _annotated
from fedreel.tasks.summary.data import read_summary
from fedreel.tasks.use.trust import read_trust
from fuzz.harness import Harness
from fuzz.mutate import spoil_bytes, spoil_json, spoil_npy, spoil_safetensors, spoil_zip
from support import skeleton_files


def saved(save: Callable[..., None], **arrays: Any) -> bytes:
    out = io.BytesIO()
    save(out, **arrays)
    return out.getvalue()


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def h5(fill: Callable[[h5py.File], object]) -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        fill(file)
    return out.getvalue()


def summary(file: h5py.File) -> None:
    group = file.create_group("video_1")
    group["picks"], group["n_frames"], group["n_steps"] = np.arange(0, 20, 2), 20, 10
    group["change_points"], group["n_frame_per_seg"] = np.array([[0, 9], [10, 19]]), np.array([10, 10])
    group.create_dataset("user_summary", data=np.eye(2, 20), compression="gzip")
    group["gtscore"], group["gtsummary"] = np.linspace(0, 1, 10), np.ones(10)
    group["features"] = np.ones((10, 4), np.float32)
    group["video_name"] = "Air_Force_One"
    group.attrs["owner"] = "anna"


def tvsum(file: h5py.File) -> None:
    struct = file.create_group("tvsum50")
    file["name"], file["score"] = np.array([[97], [98]], np.uint16), np.ones((2, 5))
    for key, target in (("video", "name"), ("user_anno", "score")):
        struct.create_dataset(key, (1, 1), h5py.ref_dtype)[0, 0] = file[target].ref


def feature_h5(file: h5py.File) -> None:
    file["a"] = np.ones((3, 4), np.float32)
    file.create_group("b")["c3d_features"] = np.zeros((2, 4))


def features_of(path: Path) -> object:
    found = open_features(path)
    return [found.get(name) for name in found.ids[:5]]


def torch_file(**how: Any) -> bytes:
    out = io.BytesIO()
    model = {"a.weight": torch.ones(2, 3), "a.n": torch.tensor(3)}
    torch.save({"state_dict": model, "epoch": 3, "lr": [0.1]}, out, **how)
    return out.getvalue()


def cifar(**table: Any) -> bytes:
    return pickle.dumps(table, protocol=2)


CIFAR_META = cifar(fine_label_names=["cat", "dog"])


@cache
def cifar_part() -> bytes:
    return cifar(data=np.zeros((2, 3072), np.uint8), fine_labels=[0, 1])


def in_cifar(folder: Path) -> None:
    (folder / "meta").write_bytes(CIFAR_META)
    (folder / "train").write_bytes(cifar_part())


def pyskl() -> bytes:
    points = np.ones((1, 3, 25, 3), np.float32)
    rows = [{"frame_dir": f"S001C001P00{n}R001A00{n}", "label": n, "keypoint": points} for n in (1, 2)]
    return pickle.dumps(
        {"split": {"xsub_train": [rows[0]["frame_dir"]], "xsub_val": [rows[1]["frame_dir"]]}, "annotations": rows},
        protocol=4,
    )


def capacities() -> bytes:
    return pickle.dumps({i: {"computation": 20.0 * i, "communication": 8e3} for i in (1, 2)}, protocol=4)


def behaviours() -> bytes:
    trace = {"duration": 5, "inactive": [40, 90], "finish_time": 100, "active": [10, 60], "model": "a phone"}
    return pickle.dumps({7: trace}, protocol=4)


def devices_json() -> bytes:
    return write_devices([Device(0.5, 1e6), Device(0.25, 2e6, ((1.0, 2.0),), 10.0)]).encode()


def in_devices(folder: Path) -> None:
    (folder / "client_device_capacity").write_bytes(capacities())


def read_traces(path: Path) -> object:
    return read_fedscale(path.parent / "client_device_capacity", path)


def labels_pickle() -> bytes:
    return pickle.dumps((["S001C001P001R001A001", "x"], [0, 1]), protocol=4)


def positions() -> bytes:
    return npy(np.ones((2, 3, 4, 25, 1), np.float32))


def in_arrays(folder: Path) -> None:
    (folder / "train_label.pkl").write_bytes(labels_pickle())
    (folder / "train_position.npy").write_bytes(positions())


def tensors() -> bytes:
    return safetensors.torch.save({"a": torch.ones(2, 3), "b": torch.zeros(2, dtype=torch.int64)})


def zipped() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b.txt", b"hello" * 10)
        archive.writestr("c.txt", b"")
    return out.getvalue()


def tarred(mode: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=f"w:{mode}") as archive:  # type: ignore[call-overload]
        for name, data in (("a/b.txt", b"hello" * 10), ("c.txt", b"")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def unpacked(path: Path) -> object:
    return extract(path, path.parent / "out", max_bytes=1 << 24)


def checkpoint() -> Snapshot:
    w = Weights.of({"a.w": torch.randn(3, 4), "n": torch.tensor(2)})
    return Snapshot.of(
        ServerState(2, {"global": w}, {"past": [w], "groups": {"x": ["c0"]}}, trained=Roll(["c0"])), {"metrics": 5}
    )


def in_checkpoint(folder: Path) -> None:
    Checkpoints(folder).save(checkpoint())


@cache
def checkpoint_file(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        in_checkpoint(Path(folder))
        return (Path(folder) / "000002" / name).read_bytes()


def resumed(path: Path) -> object:
    return Checkpoints(path.parent.parent).load(torch.device("cpu"))


@cache
def private() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        PrivateStore(Path(folder)).save("c0", (1, 1), State({"model/a": torch.ones(2)}, {"seen": 3.0}))
        return next(Path(folder).rglob("*.safetensors")).read_bytes()


def in_store(folder: Path) -> None:
    PrivateStore(folder).save("c0", (1, 1), State({"model/a": torch.ones(2)}, {"seen": 3.0}))


def kept_state(path: Path) -> object:
    return PrivateStore(path.parent.parent).newest("c0")


class LoadedCard:
    """As much of a loaded model as reading its trust asks for."""

    card = {"private": [], "trust": {"models": {"global": {"farthest": 3.0}}}}


def trusted(path: Path) -> object:
    return read_trust(path.parent, LoadedCard(), "")  # type: ignore[arg-type]


def space() -> bytes:
    return safetensors.torch.save({"models/global/mean": torch.zeros(3), "models/global/whitening": torch.eye(3)})


def mat(compressed: bool, **matrices: np.ndarray) -> bytes:
    from scipy.io import savemat

    out = io.BytesIO()
    savemat(out, matrices, do_compression=compressed)
    return out.getvalue()


def mats(**matrices: np.ndarray) -> list[bytes]:
    return [mat(True, **matrices), mat(False, **matrices)]


def prepared() -> bytes:
    words = {name: np.array(["x", "y"]) for name in ("classes", "splits", "names", "subjects", "sensor")}
    dropped = {"dropped_where": np.array(["w"]), "dropped_line": np.array([0]), "dropped_reason": np.array(["r"])}
    return saved(np.savez, x=np.ones((2, 3), np.float32), labels=np.arange(2), **words, **dropped)


def kept_set(path: Path) -> object:
    return prepare._kept(path, (3,))


SKELETONS = skeleton_files.arrays(joints=[f"j{k}" for k in range(4)], split=np.array(["train", "test"] * 2))
FEATURES = {
    "ids": np.array(["a", "b"]),
    "offsets": np.array([0, 2, 3]),
    "features": np.ones((3, 4), np.float32),
    "duration": np.ones(2),
}
WORDS = {"words": np.array(["a", "door"]), "vectors": np.ones((2, 3), np.float32)}
ZIP = spoil_zip(spoil_npy)
HARNESSES = (
    Harness("skeleton npz", lambda: [saved(np.savez, **SKELETONS)], npz.read, ZIP, "a.npz"),
    Harness("skeleton npz deflated", lambda: [saved(np.savez_compressed, **SKELETONS)], npz.read, ZIP, "a.npz"),
    Harness("feature npz", lambda: [saved(np.savez, **FEATURES)], features_of, ZIP, "a.npz"),
    Harness(
        "feature npy",
        lambda: [npy(np.ones((3, 4), np.float32))],
        lambda path: features_of(path.parent),
        spoil_npy,
        "a/v.npy",
    ),
    Harness("feature h5", lambda: [h5(feature_h5)], features_of, file="a.h5"),
    Harness("words npz", lambda: [saved(np.savez, **WORDS)], Words.read, ZIP, "w.npz"),
    Harness("kept array", lambda: [npy(np.ones((3, 4), np.float32))], kept, spoil_npy, "a.npy"),
    Harness("prepared npz", lambda: [prepared()], kept_set, ZIP, "a.npz"),
    Harness(
        "uestc mat",
        lambda: mats(m=np.ones((4, 75))),
        lambda path: uestc.read(path.parent),
        file="a3_d0_p001_c1_skeleton.mat",
    ),
    Harness(
        "summe mat",
        lambda: mats(user_score=np.ones((6, 2))),
        lambda path: [*_annotated(path.parent.parent)],
        file="GT/a.mat",
    ),
    Harness("summary h5", lambda: [h5(summary)], read_summary, file="a.h5"),
    Harness("tvsum mat", lambda: [h5(tvsum)], lambda path: [*_annotated(path)], file="a.mat"),
    Harness("pyskl pickle", lambda: [pyskl()], pickled.read_pyskl, file="a.pkl"),
    Harness("device capacities", lambda: [capacities()], read_fedscale, file="client_device_capacity"),
    Harness("device traces", lambda: [behaviours()], read_traces, spoil_bytes, "client_behave_trace", in_devices),
    Harness("devices", lambda: [devices_json()], read_devices, spoil_json, "devices.json"),
    Harness(
        "label pickle",
        lambda: [labels_pickle()],
        lambda path: pickled.read_arrays(path.parent),
        spoil_bytes,
        "train_label.pkl",
        in_arrays,
    ),
    Harness(
        "skeleton npy",
        lambda: [positions()],
        lambda path: pickled.read_arrays(path.parent),
        spoil_npy,
        "train_position.npy",
        in_arrays,
    ),
    Harness(
        "cifar", lambda: [cifar_part()], lambda path: read_cifar(path.parent, "train"), spoil_bytes, "train", in_cifar
    ),
    Harness(
        "cifar meta", lambda: [CIFAR_META], lambda path: read_cifar(path.parent, "train"), spoil_bytes, "meta", in_cifar
    ),
    Harness("torch zip", lambda: [torch_file()], read_file, spoil_zip(spoil_bytes), "a.pth"),
    Harness("torch older", lambda: [torch_file(_use_new_zipfile_serialization=False)], read_file, spoil_bytes, "a.pth"),
    Harness(
        "weights npz",
        lambda: [saved(np.savez, a=np.ones(3)), saved(np.savez, l=np.array([np.ones(2), np.ones(3)], object))],
        read_file,
        ZIP,
        "a.npz",
    ),
    Harness("safetensors", lambda: [tensors()], read_file, spoil_safetensors, "a.safetensors"),
    Harness("zip", lambda: [zipped()], unpacked, file="a.zip", clean=("out",)),
    Harness("tar", lambda: [tarred("")], unpacked, file="a.tar", clean=("out",)),
    Harness("tar.gz", lambda: [tarred("gz")], unpacked, file="a.tar.gz", clean=("out",)),
    Harness("tar.xz", lambda: [tarred("xz"), tarred("bz2")], unpacked, file="a.tar.xz", clean=("out",)),
    Harness(
        "checkpoint state",
        lambda: [checkpoint_file("state.json")],
        resumed,
        spoil_json,
        "000002/state.json",
        in_checkpoint,
    ),
    Harness(
        "checkpoint tensors",
        lambda: [checkpoint_file("tensors.safetensors")],
        resumed,
        spoil_safetensors,
        "000002/tensors.safetensors",
        in_checkpoint,
    ),
    Harness(
        "private state", lambda: [private()], kept_state, spoil_safetensors, "c0/000001-000001.safetensors", in_store
    ),
    Harness("trust", lambda: [space()], trusted, spoil_safetensors, "trust.safetensors"),
)
