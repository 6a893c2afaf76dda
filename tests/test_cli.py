"""The command line: what it says and how it ends, for right words and wrong ones."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from fedreel import playground
from fedreel.config import recipe_names
from fedreel.registry import BACKBONES, ENGINES, METHODS, TASKS
from support.tiny import SETTINGS, Said, cli, sets, videos

COMMANDS = [
    "run",
    "demo",
    "compare",
    "report",
    "ledger",
    "list",
    "reproduce",
    "data",
    "data make",
    "data check",
    "data shard",
    "summarize",
    "find",
    "search",
    "recognize",
    "export",
    "evaluate",
]


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """FedAvg with two seeds and FedProx with one."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    made = []
    for method, seed in (("fedavg", 0), ("fedavg", 1), ("fedprox", 0)):
        made.append(folder / f"{method}-{seed}")
        settings = {**SETTINGS, "data.source": data, "method.name": method, "seed": seed}
        assert cli("run", "recognition", *sets(settings), "--out", made[-1], "--quiet").code == 0
    return made


def refused(*args: object) -> str:
    """What the user is told, on one line; status 2, nothing on stdout, no traceback."""
    said = cli(*args)
    assert said.code == 2, said
    assert said.out == ""
    assert "Traceback" not in said.err
    return " ".join(said.err.split())


# help and lists


@pytest.mark.parametrize("own", ["", "0"])
def test_what_torch_s_libraries_read_is_there_before_torch_and_a_user_s_own_stays(own: str) -> None:
    names = ("MIMALLOC_PURGE_DELAY", "GOMP_SPINCOUNT")
    code = f"import fedreel, os, sys; print(*(os.environ[n] for n in {names}), 'torch' in sys.modules)"
    env = {name: value for name, value in os.environ.items() if name not in names}
    env |= dict.fromkeys(names, own) if own else {}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*[own or "10000"] * 2, "False"]


def test_help_and_the_reading_commands_do_not_import_torch(runs: list[Path], tmp_path: Path) -> None:
    """In a process of its own; one command after another, so that its start is paid once."""
    commands = [[*c.split(), "--help"] for c in ["", *COMMANDS]]
    commands += [["list", "recipes"], ["ledger", str(runs[0])], ["compare", *map(str, runs)], ["report", str(runs[0])]]
    server, begun = tmp_path / "server", tmp_path / "begun"
    if find_spec("cryptography"):
        assert cli("server", "init", server, "--host", "localhost").code == 0
        begun.mkdir()
        (begun / "metrics.jsonl").write_text('{"round": 4, "phase": "train"}\n')
        (server / "jobs").mkdir(exist_ok=True)
        for number, run in enumerate([runs[0], begun]):
            (server / "jobs" / f"{number}.json").write_text(json.dumps({"out": str(run)}))
        commands.append(["status", "--server", str(server)])
    script = f"""
import importlib.util, sys
from fedreel.cli import main
if importlib.util.find_spec("flwr"):
    import fedreel.sites.gate, fedreel.sites.node  # processes that stay at a server and a site
for args in {commands!r}:
    sys.argv = ["fedreel", *args]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, (args, ended.code)
    slow = {{"torch", "av", "h5py", "numba"}} & set(sys.modules)
    assert not slow, (args, slow)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for command in COMMANDS:
        assert f"Usage: fedreel {command} " in done.stdout
    if find_spec("cryptography"):
        assert f"job      {runs[0]}: finished, " in done.stdout
        assert f"job      {begun}: not finished, 4 rounds done" in done.stdout


def test_list_names_everything_with_a_line_each() -> None:
    said = cli("list")
    assert said.code == 0
    lines = {line.split()[0]: line.split(None, 1)[1] for line in said.out.splitlines() if line.startswith("  ")}
    assert {*lines} == {*recipe_names(), *METHODS.names(), *TASKS.names(), *ENGINES.names(), *BACKBONES.names()}
    assert "McMahan" in lines["fedavg"]
    assert lines["fedavg"].endswith("[sees sums]")
    assert lines["ifca"].endswith("[sees each update]")
    assert lines["fedvmr"].endswith("[sees each update; needs a task that finds moments in time]")
    for name in ("fedadam", "fedyogi", "fedadagrad"):  # in one module: each for itself, and whole
        assert lines[name].lower().startswith(f"{name} (reddi et al. 2021): ")
        assert lines[name].partition(" [")[0].endswith(".")
    only = cli("list", "methods").out.splitlines()
    assert only[0] == "methods:"
    assert [line.split()[0] for line in only[1:]] == METHODS.names()


# wrong words


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run", "recogniton"], "did you mean 'recognition'?"),
        (["run", "nowhere.toml"], "the file does not exist where: nowhere.toml"),
        (["rnu"], "Did you mean 'run'?"),
        (["run", "recognition", "--sed", "1"], "--seed"),
        (["run", "recognition", "--seed", "one"], "'one' is not a valid int"),
        (["list", "method"], "did you mean 'methods'?"),
        (["reproduce", "recogniton", "methods"], "did you mean 'recognition'?"),
        (["reproduce", "recognition", "metods"], "did you mean 'methods'?"),
        (["reproduce", "recognition", "methods", "--scale", "papr"], "did you mean 'paper'?"),
        (["compare", "nowhere"], "this is not a run directory where: nowhere"),
        (["report", "nowhere"], "this is not a run directory where: nowhere"),
        (["ledger", "nowhere"], "there is no ledger here"),
        (["data", "check", "nowhere"], "there is no such data folder where: nowhere"),
        (["data", "shard", "nowhere", "--out", "x"], "there is no such data folder where: nowhere"),
        (["data", "make", "playgroud", "--out", "x"], "did you mean 'playground'?"),
        (["data", "make", "playground", "--out", "x", "--size", "smal"], "did you mean 'small'?"),
        (["data", "make", "playground", "--out", "x", "--seed", "-1"], "cannot be negative"),
    ],
)
def test_wrong_words_end_with_status_2_and_a_hint(
    args: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(*args).replace("│ ", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("method.mmentum=1", "unknown key 'mmentum' where: [method] fedavg"),
        ("task.framse=1", "did you mean 'frames'?"),
        ("task.backbone.widht=1", "unknown key 'widht' where: [task.backbone] r3d next: did you mean 'width'?"),
        ("trian.lr=1", "did you mean 'train'?"),
        ("train.optimizer=sdg", "did you mean 'sgd'?"),
        ("round.rounds=many", "expected: int found: 'many' (str)"),
        ("round.rounds=0", "expected: 1 or more found: 0"),
        ("task.frames=0", "frames is out of range"),
        ("task.projection=-3", "projection is out of range"),
        ("method.name=fedavgg", "did you mean 'fedavg'?"),
        ("task.name=recogniton", "did you mean 'recognition'?"),
        ("engine.name=locall", "did you mean 'local'?"),
        ("engine.spede=1", "unknown key 'spede' where: [engine] auto"),
        ("data.partition.name=dirichlett", "did you mean 'dirichlet'?"),
        ("data.partition.name=[1]", "unknown partition"),
        ("track=['wandbb']", "did you mean 'wandb'?"),
        ("device=cudaa", "did you mean 'cuda'?"),
        ("device=cpu:x", "cannot be used"),
        ("data.source=/no/such/folder", "the data folder does not exist where: /no/such/folder"),
        ("policy=/no/policy.toml", "the file does not exist where: /no/policy.toml"),
        ("nonsense", "expected: section.key=value"),
        ("=1", "expected: section.key=value"),
        ("train.lr.x=1", "'lr' is a value, not a section"),
        ("train=1", "expected: a section"),
    ],
)
def test_wrong_settings_end_with_status_2_and_a_hint(data: Path, tmp_path: Path, setting: str, said: str) -> None:
    settings = sets({**SETTINGS, "data.source": data})
    assert said in refused("run", "recognition", *settings, "--set", setting, "--out", tmp_path / "run", "--quiet")
    assert not (tmp_path / "run" / "recipe.toml").exists()


def test_a_recipe_file_of_ones_own(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[task\n")
    assert f"this is not valid TOML where: {path}" in refused("run", path, "--out", tmp_path / "run")
    path.write_text('[task]\nname = "recognition"\n[method]\nname = "fedavg"\n')
    said = cli("run", path, *sets({**SETTINGS, "data.source": data}), "--out", tmp_path / "run", "--quiet")
    assert said.code == 0


def test_the_folder_has_a_name_where_none_is_given(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    args = sets({**SETTINGS, "data.source": data, "round.rounds": 1})
    assert cli("run", "recognition", *args, "--seed", 4, "--quiet").code == 0
    assert (tmp_path / "runs" / "recognition-fedavg-4" / "summary.json").exists()


# reading runs


def table(said: Said) -> list[list[str]]:
    """The cells of the (first) table on stdout."""
    assert said.code == 0, said
    first = said.out.split("└")[0]
    return [
        [c.strip() for c in line.strip("┃│").replace("┃", "│").split("│")]
        for line in first.splitlines()
        if line[0] in "┃│"
    ]


def test_compare_puts_equal_recipes_in_one_row(runs: list[Path]) -> None:
    head, *rows = table(cli("compare", *runs))
    assert head[:2] == ["system", "method"]
    cells = [dict(zip(head, row)) for row in rows]
    assert [(c["method"], c["n"], c["seeds"]) for c in cells] == [("fedavg", "2", "0, 1"), ("fedprox", "1", "0")]
    told = json.loads(cli("compare", "--json", *runs).out)
    accuracy = [json.loads((r / "summary.json").read_text())["metrics"]["top1"] for r in runs]
    assert told["rows"][0]["top1"]["mean"] == pytest.approx((accuracy[0] + accuracy[1]) / 2)
    assert told["rows"][1]["top1"] == {"mean": accuracy[2], "sd": None, "n": 1}


def test_compare_says_what_it_left_out(runs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_bytes((runs[0] / "recipe.toml").read_bytes())
    said = cli("compare", runs[0], runs[0], tmp_path)
    assert len(table(said)) == 2
    assert f"left out {tmp_path}: summary.json is missing" in said.err
    assert "seed 0 occurs more than once" in said.err
    assert "none of these runs can be compared" in refused("compare", tmp_path)


def test_ledger_adds_up_to_the_bytes_of_the_summary(runs: list[Path]) -> None:
    summary = json.loads((runs[0] / "summary.json").read_text())
    head, *rows = table(cli("ledger", runs[0]))
    cells = [dict(zip(head, row)) for row in rows]
    assert {(c["client"], c["purpose"], c["departures"]) for c in cells} == {
        (client, purpose, times)
        for client in ("owner0", "owner1")
        for purpose, times in (("train", "2"), ("evaluate", "2"), ("calibration_sums", "1"), ("calibration_bins", "1"))
    }
    trained = [c for c in cells if c["purpose"] == "train"]
    assert sum(int(c["bytes"].replace(",", "")) for c in trained) == summary["bytes_up"]
    assert {c["numbers"] for c in trained} == {"frames, loss, samples"}
    assert "backbone.layer4.0.downsample.1.num_batches_tracked" in cli("ledger", runs[0]).out  # whole, not cut


def test_ledger_of_one_client_by_rounds_and_as_json(runs: list[Path]) -> None:
    head, *rows = table(cli("ledger", runs[0], "--client", "owner1", "--rounds"))
    assert head == ["round", "client", "purpose", "bytes", "numbers"]
    assert [row[:3] for row in rows] == [
        *([str(r), "owner1", purpose] for r in (1, 2) for purpose in ("train", "evaluate")),
        *(["3", "owner1", purpose] for purpose in ("calibration_sums", "calibration_bins")),
    ]
    lines = cli("ledger", runs[0], "--client", "owner1", "--json").out.splitlines()
    found = [json.loads(line) for line in lines]
    assert [str(r["bytes"]) for r in found] == [row[3] for row in rows]
    everyone = cli("ledger", runs[0] / "ledger.jsonl", "--json").out.splitlines()
    assert len(everyone) == 12
    assert set(lines) < set(everyone)
    assert "did you mean 'owner1'" in refused("ledger", runs[0], "--client", "ownr1")


def test_report_is_written_anew(runs: list[Path]) -> None:
    path = runs[1] / "report.html"
    before = path.read_text()
    path.unlink()
    said = cli("report", runs[1])
    assert said.code == 0
    assert said.out.strip() == str(path)
    assert path.read_text() == before


# data


def test_check_tells_good_from_bad(data: Path, tmp_path: Path) -> None:
    said = cli("data", "check", data)
    assert said.code == 0
    assert "12 clips" in said.out
    (videos(tmp_path / "bad") / "owner0" / "class0" / "1.mp4").write_bytes(b"junk")
    said = cli("data", "check", tmp_path / "bad")
    assert said.code == 1
    assert "owner0/class0/1.mp4: this file cannot be read as video" in said.out
    (tmp_path / "empty").mkdir()
    assert f"no videos here where: {tmp_path / 'empty'}" in refused("data", "check", tmp_path / "empty")


def test_shards_of_a_folder_and_of_a_zip_train_the_same(data: Path, tmp_path: Path, runs: list[Path]) -> None:
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        for path in sorted(data.rglob("*.mp4")):
            archive.write(path, path.relative_to(data))
    for source, out in ((data, "a"), (tmp_path / "data.zip", "b")):
        said = cli("data", "shard", source, "--out", tmp_path / out, "--size", 16)
        assert said.code == 0, said
        assert f"12 clips in {tmp_path / out}, 0 skipped" in said.out
        args = sets({**SETTINGS, "data.source": tmp_path / out})
        assert cli("run", "recognition", *args, "--out", tmp_path / f"run-{out}", "--quiet").code == 0
        model = Path("model", "global.safetensors")
        assert (tmp_path / f"run-{out}" / model).read_bytes() == (runs[0] / model).read_bytes()
    assert cli("data", "check", tmp_path / "a").code == 0
    told = refused("run", "recognition", *args, "--set", "task.size=32", "--out", tmp_path / "run-c")
    assert "expected: a shorter side of 32 pixels found: 16 pixels" in told


def test_shard_lists_what_it_skips(tmp_path: Path) -> None:
    (videos(tmp_path / "d", owners=[0]) / "owner0" / "class1" / "2.mp4").write_bytes(b"junk")
    said = cli("data", "shard", tmp_path / "d", "--out", tmp_path / "s", "--size", 16, "--frames", 4)
    assert said.code == 0
    assert "5 clips in" in said.out
    assert "skipped owner0/class1/2.mp4: " in said.err
    assert "no layout 'ownr/class'" in refused(
        "data", "shard", tmp_path / "d", "--out", tmp_path / "t", "--layout", "ownr/class"
    )


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_that_reaches_out_is_refused(tmp_path: Path, kind: str) -> None:
    archive = tmp_path / f"data.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("a/b/0.mp4", b"x")
            file.writestr("../escaped.mp4", b"x")
    else:
        with tarfile.open(archive, "w") as tar:
            tar.addfile(tarfile.TarInfo("../escaped.mp4"), io.BytesIO(b""))
    (tmp_path / "work").mkdir()
    told = cli("data", "shard", archive, "--out", tmp_path / "work" / "out")
    assert told.code == 2
    assert "a member is not safe" in told.err
    assert "../escaped.mp4" in told.err
    assert list((tmp_path / "work").iterdir()) == []
    assert not (tmp_path / "escaped.mp4").exists()


def test_make_a_playground_and_look_it_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {f.name: 1 for f in dataclasses.fields(playground.Size)}
    few |= {"action_train": 8, "action_test": 8, "image_shapes": 2, "image_textures": 2, "image_train": 4}
    size = playground.Size(**{**few, "name": "tiny"})  # type: ignore[arg-type]
    monkeypatch.setitem(playground.SIZES, "tiny", size)
    monkeypatch.setattr(playground, "cores", lambda: 1)
    said = cli("data", "make", "playground", "--out", tmp_path / "p", "--size", "tiny")
    assert said.code == 0, said.err
    assert said.out.strip() == str(tmp_path / "p")
    assert {p.name for p in (tmp_path / "p").iterdir()} >= {"actions", "moments", "summary", "skeletons", "images"}
    parts = [*playground.declared_parts()]
    assert f"making {parts[-1]} ({len(parts)} of" in said.err
    assert "seed 3" in refused("data", "make", "playground", "--out", tmp_path / "p", "--size", "tiny", "--seed", 3)
