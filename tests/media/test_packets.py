"""Demuxing: a file cut short is found without decoding it, and what a header says beside the pictures does no harm."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from fedreel.media.packets import open_file, opened
from fedreel.media.video import read
from support.films import film
from support.shared import SHARED

CONTAINERS = {
    "a.mp4": {"movflags": "+faststart"},
    "fragments.mp4": {"movflags": "frag_keyframe+empty_moov"},
    "a.mkv": {},
    "a.webm": {"codec": "libvpx"},
    "a.avi": {"codec": "mpeg4"},
    "a.flv": {"codec": "flv1"},
}


def noise(path: Path, **how: object) -> Path:
    pixels = np.random.default_rng(0).integers(0, 255, (60, 32, 48, 3)).astype(np.uint8)
    return film(path, list(pixels), **how)  # type: ignore[arg-type]


def demuxed(path: Path) -> tuple[int, str]:
    with opened(path) as pictures:
        for _ in pictures.packets():
            pass
    return pictures.count, pictures.fault


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_cut_is_found_without_decoding(name: str, tmp_path: Path) -> None:
    path = noise(tmp_path / name, **CONTAINERS[name])
    assert demuxed(path) == (60, "")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 3 // 4])
    count, fault = demuxed(path)
    assert 20 < count < 60
    assert "breaks off" in fault or "header promises" in fault


def test_a_title_in_another_encoding_is_no_fault(tmp_path: Path) -> None:
    path = noise(tmp_path / "a.avi", codec="mpeg4", title="Turnkunst")
    content = path.read_bytes()
    assert content.count(b"Turnkunst") == 1
    path.write_bytes(content.replace(b"Turnkunst", b"T\xfcr\xd3ffner"))
    assert len(read(path)[0]) == 60


@pytest.mark.parametrize(("version", "told"), [("18.1.0", {"metadata_errors": "replace"}), ("19.0.2", {})])
def test_only_older_versions_of_pyav_are_told_about_encodings(
    version: str, told: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, object]] = []
    monkeypatch.setattr(av, "__version__", version)
    monkeypatch.setattr(av, "open", lambda path, **settings: given.append(settings))
    open_file(tmp_path / "a.mp4", options={})
    assert given == [{"options": {}, **told}]


def test_a_real_file_whose_title_is_in_another_encoding() -> None:
    paths = [*(SHARED / "video" / "wild").glob("hmdb51_*.avi")]
    if not paths:
        pytest.skip("no video/wild here; set FEDREEL_DATA")
    for path in paths:
        assert demuxed(path)[1] == ""
        assert len(read(path)[0]) > 50
