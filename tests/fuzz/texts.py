"""Harnesses for files of text: recordings, annotations, lists, tables, recipes, keys, records of runs."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedreel.config import make_recipe, read_toml
from fedreel.core.exchange import Policy
from fedreel.core.ledger import departures, tensors, totals
from fedreel.data import clip_index, clip_lists
from fedreel.data.hugging_face import read_config, read_scale
from fedreel.data.shards import Shards, build
from fedreel.models import bert
from fedreel.report.digest import Digest
from fedreel.report.page import write as write_report
from fedreel.runs.reading import read_metrics, read_summary
from fedreel.sites.keys import make_site_keys, read_site_key
from fedreel.sites.site import SiteFolder
from fedreel.tasks.moments.annotations import read_annotations
from fedreel.tasks.moments.text import Words
from fedreel.tasks.skeleton import ntu, pku, uestc
from fedreel.tasks.summary import annotations as scored
from fedreel.tasks.summary.data import SummaryVideo
from fedreel.tasks.use.models import read_card
from fuzz.harness import Harness
from fuzz.mutate import spoil_json, spoil_lines, spoil_text
from support import skeleton_files

RECIPE = b"""system = "x"
seed = 3
track = ["tensorboard"]

[task]
name = "recognition"
frames = 8

[method]
name = "fedprox"
mu = 0.1

[round]
rounds = 3
fraction = 0.5
aggregation = "trimmed-mean"

[data]
labels = ["a", "b"]
partition = { name = "by-owner" }
"""


@cache
def bodies() -> np.ndarray:
    return skeleton_files.bodies(4)


def pku_frames() -> str:
    return skeleton_files.pku(np.stack([bodies(), bodies()], axis=1))


def in_pku(folder: Path) -> None:
    for name in ("skeleton", "label"):
        (folder / name).mkdir()
    (folder / "skeleton" / "0002-L.txt").write_text(pku_frames())
    (folder / "label" / "0002-L.txt").write_text("1,0,2,1\n3,2,4,1\n")


def read_pku(path: Path) -> object:
    root = path.parent.parent
    layout = pku.find(root)
    assert layout is not None
    return pku.read(root, layout)


def listed(folder: Path) -> None:
    (folder / "run").mkdir()
    for name in ("a.mp4", "b.mp4"):
        (folder / "run" / name).touch()


def with_words(path: Path) -> object:
    return Words.read(path).encode("a door", 4)


def run_folder(folder: Path) -> None:
    (folder / "recipe.toml").write_bytes(RECIPE)
    (folder / "metrics.jsonl").write_bytes(metrics())
    (folder / "ledger.jsonl").write_bytes(ledger())
    (folder / "summary.json").write_bytes(summary())


@cache
def digest() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        run_folder(Path(folder))
        made = Digest(Path(folder))
        made._worth = 1
        for _ in range(3):
            made.round_done()
        return (Path(folder) / "digest.json").read_bytes()


def metrics() -> bytes:
    rows: list[dict[str, Any]] = [
        {"round": 0, "phase": "partition", "classes": ["a", "b"], "train": {"c0": [3, 4]}, "test": {"c0": [1, 1]}},
        {
            "round": 1,
            "phase": "train",
            "loss": 1.5,
            "clients": ["c0"],
            "ordered": 2,
            "answered": 1,
            "bytes_up": 10,
            "bytes_down": 10,
            "bytes_testing": 0,
            "seconds": 0.5,
        },
        {
            "round": 1,
            "phase": "test",
            "metrics": {"top1": 0.5, "top1_clients": 0.5},
            "clients": {"c0": {"top1": 0.5, "n": 2}},
            "seconds": 0.1,
        },
        {"round": 1, "phase": "refused", "client": "c1", "reason": "range", "detail": "number", "answered_round": 1},
        {"round": 1, "phase": "note", "text": "one of two"},
        {"round": 1, "phase": "communities", "members": {"c0": "community-0"}},
        {
            "round": 1,
            "phase": "trust",
            "overall": {
                "samples": 3,
                "score": 0.5,
                "chance": 0.5,
                "near_chance": True,
                "ece": 0.1,
                "ece_uncalibrated": 0.2,
                "bins": [[1.0, 0.5, 1.0]] * 15,
                "bins_uncalibrated": [[1.0, 0.5, 1.0]] * 15,
            },
            "bytes_testing": 1,
            "seconds": 0.1,
        },
    ]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def summary() -> bytes:
    told = {"system": "x", "method": "fedprox", "task": "recognition", "engine": "local", "device": "cpu", "seed": 3}
    more = {"rounds": 1, "clients": 2, "parameters": 5, "wall_seconds": 0.5, "bytes_up": 1, "bytes_down": 1}
    return json.dumps({**told, **more, "metrics": {"top1": 0.5}, "refused": {"range": 1}, "complete": True}).encode()


def ledger() -> bytes:
    layout = {"kind": "layout", "id": "ab", "tensors": [["w", [2, 3], "float32", 24]]}
    row = {
        "kind": "departure",
        "time": 1.5,
        "round": 1,
        "client": "c0",
        "purpose": "train",
        "layout": "ab",
        "bytes": 32,
        "numbers": {"samples": 3.0},
        "kinds": ["count", "weights"],
    }
    return b"".join(json.dumps(one).encode() + b"\n" for one in (layout, row, {**row, "purpose": "evaluate"}))


def read_ledger(path: Path) -> object:
    return departures(path), totals(path), [*tensors(path)]


def report(path: Path) -> object:
    return write_report(path.parent)


@cache
def shards_index() -> bytes:
    """Of shards that were built, with their part beside it."""
    return (_shards() / "index.json").read_bytes()


@cache
def _shards() -> Path:
    import tempfile

    from fedreel.data.clip_index import Clip
    from fedreel.media import video

    folder = Path(tempfile.mkdtemp(prefix="fuzz-shards-"))
    video.write(folder / "v" / "a.mp4", np.zeros((4, 32, 32, 3), np.uint8), 8)
    build([Clip("a.mp4", "anna", "run")], folder / "v", folder / "s", side=16)
    return folder / "s"


def with_parts(folder: Path) -> None:
    for part in _shards().glob("part-*"):
        (folder / part.name).write_bytes(part.read_bytes())


def open_shards(path: Path) -> object:
    shards = Shards.open(path.parent)
    return [shards.clip(i) for i in range(len(shards))] if len(shards) < 5 else None


@cache
def site_key() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        make_site_keys(Path(folder), "north")
        return (Path(folder) / "site.pub").read_bytes()


CAPTIONS = {"v_a": {"duration": 20.0, "timestamps": [[1, 4], [5, 9.5]], "sentences": ["opens a door", "sits"]}}
TACOS = {"a.avi": {"timestamps": [[30, 90]], "sentences": ["cuts it"], "fps": 29.4, "num_frames": 600}}
WINDOWS = {
    "qid": 1,
    "query": "a door",
    "duration": 150,
    "vid": "x_0_150",
    "relevant_clip_ids": [1],
    "saliency_scores": [[1, 2, 3]],
    "relevant_windows": [[2, 4]],
}
LABELS = {
    "database": {"a": {"duration": 20.0, "subset": "training", "annotations": [{"segment": [1, 2], "label": "x"}]}},
    "taxonomy": [],
    "version": "1",
}
KINETICS = {"abc": {"annotations": {"label": "run", "segment": [0.0, 10.0]}, "duration": 10.0, "subset": "training"}}
BERT = {
    "model_type": "bert",
    "vocab_size": 30,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
}
CARD = {"task": "recognition", "private": ["head.w"], "models": ["global"], "travelling": ["a"], "recipe": {}}
TVSUM = b"video1\tVT\t1,2,3,4\nvideo1\tVT\t2,2,3,1\n"
VIDEOS = [SummaryVideo("video_1", np.ones((2, 3)), np.zeros(2), None)]  # type: ignore[arg-type]
SPLITS = [{"train_keys": ["x/video_1"], "test_keys": []}]


def lengths(folder: Path) -> None:
    (folder / "videos.csv").write_text("id,length\nAO8RW,30.1\na,20\n")
    (folder / "train.txt").write_text("a 0.0 6.9##opens.\n")


def annotations_of(path: Path) -> object:
    return read_annotations(path)


HARNESSES = (
    Harness(
        "ntu skeleton",
        lambda: [skeleton_files.ntu([{"7": b} for b in bodies()]).encode()],
        lambda path: ntu.read(path.parent),
        spoil_text,
        "S001C001P001R001A001.skeleton",
    ),
    Harness("pku frames", lambda: [pku_frames().encode()], read_pku, spoil_text, "skeleton/0002-L.txt", in_pku),
    Harness("pku labels", lambda: [b"1,0,2,1\n3,2,4,1\n"], read_pku, spoil_text, "label/0002-L.txt", in_pku),
    Harness(
        "uestc skeleton",
        lambda: [skeleton_files.uestc(bodies()).encode()],
        lambda path: uestc.read(path.parent),
        spoil_text,
        "a3_d0_p001_c1_skeleton.txt",
    ),
    Harness(
        "index.csv",
        lambda: [b"path,label,owner,split\na.mp4,run,anna,train\nb.mp4,sit,ben,test\n"],
        clip_index.read_index,
        spoil_text,
        "index.csv",
    ),
    Harness(
        "ucf lists",
        lambda: [b"run/a.mp4 1\nrun/b.mp4 1\n"],
        clip_lists.read_lists,
        spoil_text,
        "trainlist01.txt",
        listed,
    ),
    Harness(
        "kinetics table",
        lambda: [b"label,youtube_id,time_start,time_end,split\nrun,abc,1,11,train\n"],
        clip_lists.read_lists,
        spoil_text,
        "kinetics_train.csv",
    ),
    Harness("kinetics json", lambda: [json.dumps(KINETICS).encode()], clip_lists.read_lists, spoil_json, "train.json"),
    Harness(
        "client json",
        lambda: [json.dumps({"anna": [{"name": "run/a.mp4", "label": 1}, "run/b.mp4"]}).encode()],
        clip_lists.read_lists,
        spoil_json,
        "clients.json",
    ),
    Harness(
        "charades lines",
        lambda: [b"AO8RW 0.0 6.9##a person opens a door.\nAO8RW 2 5##sits.\n"],
        annotations_of,
        spoil_text,
        "charades_sta_train.txt",
        lengths,
    ),
    Harness("activitynet captions", lambda: [json.dumps(CAPTIONS).encode()], annotations_of, spoil_json, "train.json"),
    Harness("tacos captions", lambda: [json.dumps(TACOS).encode()], annotations_of, spoil_json, "test.json"),
    Harness(
        "qvhighlights", lambda: [json.dumps(WINDOWS).encode() + b"\n"], annotations_of, spoil_lines, "a_train.jsonl"
    ),
    Harness(
        "activity labels",
        lambda: [json.dumps(LABELS).encode()],
        lambda path: read_annotations(path.parent / "train.txt", path),
        spoil_json,
        "labels.json",
        lengths,
    ),
    Harness(
        "videos.csv",
        lambda: [b"id,length,split,owner,scene\nAO8RW,30.1,train,anna,Hall / x\n"],
        lambda path: read_annotations(path.parent / "train.txt"),
        spoil_text,
        "videos.csv",
        lambda folder: (folder / "train.txt").write_text("AO8RW 0.0 6.9##opens.\n"),
    ),
    Harness("words", lambda: [b"a 0.1 0.2\ndoor 1 -2e-3\n", b"a\ndoor\n"], with_words, spoil_text, "words.txt"),
    Harness("tvsum tsv", lambda: [TVSUM], lambda path: [*scored._annotated(path)], spoil_text, "a.tsv"),
    Harness(
        "summary splits",
        lambda: [json.dumps(SPLITS).encode()],
        lambda path: scored.with_split(VIDEOS, path, 0),
        spoil_json,
        "splits.json",
    ),
    Harness("recipe", lambda: [RECIPE], lambda path: make_recipe(read_toml(path), "x"), spoil_text, "recipe.toml"),
    Harness(
        "policy",
        lambda: [b'refuse = ["features"]\nmax_bytes = 1000\nmin_samples = 3\n'],
        Policy.read,
        spoil_text,
        "policy.toml",
    ),
    Harness(
        "site.toml",
        lambda: [b'name = "n"\nserver = "h:1"\nca = "x"\nclients = "site"\n[data]\nvideos = "/x"\n'],
        lambda path: SiteFolder.open(path.parent),
        spoil_text,
        "site.toml",
    ),
    Harness("site.pub", lambda: [site_key()], read_site_key, spoil_text, "site.pub"),
    Harness("ledger", lambda: [ledger()], read_ledger, spoil_lines, "ledger.jsonl"),
    Harness("metrics", lambda: [metrics()], lambda path: [*read_metrics(path.parent)], spoil_lines, "metrics.jsonl"),
    Harness("report metrics", lambda: [metrics()], report, spoil_lines, "metrics.jsonl", run_folder),
    Harness("report digest", lambda: [digest()], report, spoil_json, "digest.json", run_folder),
    Harness("report summary", lambda: [summary()], report, spoil_json, "summary.json", run_folder),
    Harness("report recipe", lambda: [RECIPE], report, spoil_text, "recipe.toml", run_folder),
    Harness("report ledger", lambda: [ledger()], report, spoil_lines, "ledger.jsonl", run_folder),
    Harness("summary.json", lambda: [summary()], lambda path: read_summary(path.parent), spoil_json, "summary.json"),
    Harness("card", lambda: [json.dumps(CARD).encode()], lambda path: read_card(path.parent), spoil_json, "card.json"),
    Harness("shards index", lambda: [shards_index()], open_shards, spoil_json, "index.json", with_parts),
    Harness(
        "bert config",
        lambda: [json.dumps(BERT).encode()],
        lambda path: bert.read_config(path.parent),
        spoil_json,
        "config.json",
    ),
    Harness(
        "hub config",
        lambda: [json.dumps({"model_type": "vit", "hidden_size": 8}).encode()],
        lambda path: read_config(path.parent, ("vit",)),
        spoil_json,
        "config.json",
    ),
    Harness(
        "hub preprocessor",
        lambda: [json.dumps({"image_mean": [0.5] * 3, "image_std": [0.5] * 3}).encode()],
        lambda path: read_scale(path.parent),
        spoil_json,
        "preprocessor_config.json",
    ),
)
