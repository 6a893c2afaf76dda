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
    assert asked == [True]
    assert caught.value.expected.startswith(f'[models] "{NAME}" = "FOLDER"')
    with pytest.raises(DataError, match="not here"):
        SiteFolder(tmp_path, SiteConfig("north", models={NAME: str(tmp_path / "gone")})).weights(task(NAME))
