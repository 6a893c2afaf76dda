"""Few labelled clips an owner, divided otherwise with each seed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedreel.reproduce import wanted

BENCH = Path(__file__).parent.parent / "bench"


@pytest.mark.parametrize("divided", [True, False])
def test_a_seed_has_its_own_division_where_folders_have_some(divided: bool, tmp_path: Path) -> None:
    for split in range(4) if divided else ():
        (tmp_path / "films-8" / f"split-{split}").mkdir(parents=True)
    (tmp_path / "films-8").mkdir(exist_ok=True)
    (sweep,) = wanted("recognition", "few", scale="small", data=tmp_path, out=tmp_path, rows="", seeds=None, over={})
    for row in sweep.rows:
        sources = [Path(sweep.cell(row, seed).settings["data.source"]) for seed in (0, 1, 2, 3)]
        expected = [tmp_path / "films-8" / f"split-{seed}" if divided else tmp_path / "films-8" for seed in range(4)]
        assert sources == expected


def test_divisions_move_on_and_leave_clips_between_what_is_learned_and_tested(tmp_path: Path) -> None:
    videos = [
        tmp_path / "video" / "survfight" / kind / f"{i:03}.mp4" for kind in ("fight", "noFight") for i in range(150)
    ]
    for path in videos:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    script = [
        sys.executable,
        str(BENCH / "few_clips.py"),
        str(tmp_path / "video"),
        str(tmp_path / "few"),
        "--splits",
        "4",
    ]
    printed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert json.loads(printed.splitlines()[-1])["learned"]["fights-8/split-3"] == 1.0
    begun = set()
    for split in range(4):
        folder = tmp_path / "few" / "fights-32" / f"split-{split}"
        for owner, kind in ((f"site{n}", kind) for n in range(4) for kind in ("fight", "noFight")):
            learned, tested = (_numbers(folder / part / owner / kind) for part in ("train", "test"))
            assert (len(learned), len(tested)) == (16, 12)
            apart = [min((a - b) % 150, (b - a) % 150) for a in learned for b in tested]
            assert min(apart) > 4 * 4  # an owner has every fourth film: at least four of them lie between
        begun.add(frozenset(_numbers(folder / "test" / "site0" / "fight")))
        assert _numbers(tmp_path / "few" / "fights-8" / f"split-{split}" / "test" / "site0" / "fight") == _numbers(
            folder / "test" / "site0" / "fight"
        )
    assert len(begun) == 4


def _numbers(folder: Path) -> set[int]:
    return {int(path.stem) for path in folder.iterdir()}
