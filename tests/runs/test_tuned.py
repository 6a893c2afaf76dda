"""Runs that train a part of their backbone: what travels, what is kept, how they resume, and how they are used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedreel.api import run
from fedreel.core.ledger import departures
from fedreel.errors import RunError
from fedreel.runs.run import load
from fedreel.runs.rundir import RunDir
from fedreel.tasks.vision.export import export, export_lora
from support.networks import small_r3d
from support.tiny import SETTINGS, cli, sets, videos

LORA = {"task.backbone.tune": "lora", "task.backbone.lora.rank": 1, "task.backbone.lora.alpha": 1.0}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return videos(tmp_path_factory.mktemp("videos"))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for task.backbone.init."""
    torch.manual_seed(11)
    file = tmp_path_factory.mktemp("weights") / "r3d.safetensors"
    save_file(small_r3d().network(None).state_dict(), file)  # type: ignore[arg-type]
    return file


@pytest.fixture(scope="module")
def lora_run(data: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("lora") / "run", data, weights, **LORA)


def trained(out: Path, data: Path, weights: Path, **settings: Any) -> Path:
    fixed = {
        **SETTINGS,
        "data.source": str(data),
        "task.backbone.init": str(weights),
        "task.backbone.blocks": [1] * 4,
        "task.backbone.stem_size": 7,
    }
    return run("recognition", out, set={**fixed, **settings}).path


def test_bytes_are_those_of_what_is_trained_and_only_that_is_kept(lora_run: Path, weights: Path) -> None:
    model = load_file(lora_run / "model" / "global.safetensors")
    assert all(".lora_" in name or name.startswith("head.") for name in model)
    size = sum(tensor.nbytes for tensor in model.values())
    summary = json.loads((lora_run / "summary.json").read_text())
    sent = [row for row in departures(lora_run / "ledger.jsonl") if "weights" in row["kinds"]]
    assert [row["bytes"] - 8 * len(row["numbers"]) for row in sent] == [size] * 4  # two clients, two rounds
    assert summary["bytes_up"] == sum(row["bytes"] for row in sent)
    checkpoint = load_file(max((lora_run / "checkpoint").glob("0*")) / "tensors.safetensors")
    assert {name.removeprefix("models/global/") for name in checkpoint} == {*model}


def test_what_was_frozen_is_the_file_to_the_bit_and_the_run_needs_it_no_more(lora_run: Path, weights: Path) -> None:
    given = load_file(weights)
    loaded = load(lora_run)
    assert loaded.card["not_trained"] == []
    assert loaded.card["frozen"]["init"] == str(weights)
    state = loaded.model.backbone.state_dict()  # type: ignore[union-attr, operator]
    assert all(torch.equal(state[name], given[name]) for name in given)
    kept = load_file(lora_run / "model" / "frozen.safetensors")
    assert {*kept} == {f"backbone.{name}" for name in given}


def test_a_run_whose_frozen_weights_were_changed_is_not_loaded(lora_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in (lora_run / "model").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    kept = load_file(folder / "frozen.safetensors")
    kept["backbone.stem.0.weight"][0] += 1
    save_file(kept, folder / "frozen.safetensors")
    with pytest.raises(RunError, match="not trained has other weights than in training"):
        load(folder)


def test_a_resumed_run_ends_the_same_to_the_bit(
    lora_run: Path, data: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        pass

    def killed(folder: RunDir, progress: Any, sync: Any) -> None:
        done(folder, progress, sync)
        folder.settle()
        raise Killed

    done = RunDir.round_done
    monkeypatch.setattr(RunDir, "round_done", killed)
    with pytest.raises(Killed):
        trained(tmp_path / "run", data, weights, **LORA)
    monkeypatch.undo()
    again = run(tmp_path / "run" / "recipe.toml", tmp_path / "run", resume=True).path
    ended, whole = (load_file(path / "model" / "global.safetensors") for path in (again, lora_run))
    assert all(torch.equal(ended[name], whole[name]) for name in whole)


def test_a_run_does_not_go_on_with_other_frozen_weights(
    data: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own.safetensors"
    file.write_bytes(weights.read_bytes())

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunDir, "round_done", killed)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", data, file, **LORA)
    monkeypatch.undo()
    other = {name: tensor + 1 for name, tensor in load_file(file).items()}
    save_file(other, file)
    with pytest.raises(RunError, match="other weights than when this run began"):
        run(tmp_path / "run" / "recipe.toml", tmp_path / "run", resume=True)


def test_lora_is_exported_for_peft_and_merged_for_torchvision(lora_run: Path, tmp_path: Path) -> None:
    said = cli("export", "--model", lora_run, "--out", tmp_path / "adapter", "--peft")
    assert (said.code, said.out.splitlines()[-1]) == (0, str(tmp_path / "adapter"))
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    trained = load_file(lora_run / "model" / "global.safetensors")
    assert len(tensors) == len([name for name in trained if ".lora_" in name])
    for name, tensor in tensors.items():
        assert torch.equal(tensor, trained[name.replace("base_model.model.", "backbone.")])
    export(lora_run, tmp_path / "merged.safetensors")
    backbone = small_r3d(init=str(tmp_path / "merged.safetensors")).network(None).eval()
    x = torch.randn(1, 3, 4, 16, 16)
    adapted = load(lora_run).model.backbone
    assert torch.allclose(backbone(x), adapted(x), atol=1e-5)  # type: ignore[operator]


def test_a_run_without_lora_has_none_to_export(data: Path, weights: Path, tmp_path: Path) -> None:
    out = trained(tmp_path / "run", data, weights, **{"task.backbone.tune": "head", "round.rounds": 1})
    with pytest.raises(RunError, match="this run has trained no LoRA"):
        export_lora(out, tmp_path / "adapter")


def test_a_table_says_what_each_way_sends(data: Path) -> None:
    rank = {"task.backbone.lora.rank": 1}
    said = cli("tune", "recognition", *sets({**SETTINGS, **rank, "data.source": data, "method.name": "fedper"}))
    assert said.code == 0
    for text in ("all", "norm", "lora", "100.00%", "nothing would travel"):
        assert text in said.out
