"""Weights to begin with at a site: its own folder, and nothing that would have to be fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="the extra flower is not installed")

from fedreel.errors import DataError
from fedreel.sites.site import SiteConfig, SiteFolder

NAME = "owner/videomae"


def task(init: str) -> dict[str, Any]:
    return {"name": "recognition", "backbone": {"name": "videomae", "init": init}}


def test_a_site_s_own_folder_stands_for_the_name_in_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    site = SiteFolder(tmp_path, SiteConfig("north", models={NAME: str(tmp_path / "mine")}))
    assert site.weights(task(NAME))["backbone"] == {"name": "videomae", "init": str(tmp_path / "mine")}
    for unchanged in (
        task(""),
        task("imagenet"),
        task("weights.safetensors"),
        {"name": "recognition", "backbone": "r3d"},
    ):
        assert site.weights(unchanged) == unchanged


def test_so_it_does_for_what_makes_features_and_reads_sentences(tmp_path: Path) -> None:
    site = SiteFolder(tmp_path, SiteConfig("north", models={NAME: str(tmp_path)}))
    given = {"name": "moments", "features": f"clip:{NAME}", "sentences": f"bert:{NAME}"}
    assert site.weights(given) == {"name": "moments", "features": f"clip:{tmp_path}", "sentences": f"bert:{tmp_path}"}
    for unchanged in ({"name": "moments", "features": "plain", "sentences": "minilm"}, {"sentences": "bert:folder"}):
        assert site.weights(unchanged) == unchanged


def test_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="the extra hf is not installed")
    asked: list[bool] = []

    def download(name: str, *, local_files_only: bool, **_: Any) -> str:
        asked.append(local_files_only)
        raise FileNotFoundError("not in the cache")

    monkeypatch.setattr(hub, "snapshot_download", download)
    site = SiteFolder(tmp_path, SiteConfig("north"))
    with pytest.raises(DataError, match="does not fetch it") as caught:
        site.weights(task(NAME))
    with pytest.raises(DataError, match="does not fetch it"):
        site.weights({"name": "moments", "sentences": f"clip:{NAME}2"})
    assert asked == [True, True]
    assert caught.value.expected.startswith(f'[models] "{NAME}" = "FOLDER"')
    with pytest.raises(DataError, match="not here"):
        SiteFolder(tmp_path, SiteConfig("north", models={NAME: str(tmp_path / "gone")})).weights(task(NAME))
