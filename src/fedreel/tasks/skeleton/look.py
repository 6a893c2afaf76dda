"""Sets of skeletons looked over for `fedreel data check`."""

from __future__ import annotations

from pathlib import Path

from fedreel.data.check import Finding, Report
from fedreel.data.clip_index import Clip
from fedreel.errors import DataError
from fedreel.tasks.skeleton.motions import find_sets, is_skeletons, read_set
from fedreel.tasks.skeleton.recordings import set_name


def look_over(folder: Path) -> Report | None:
    """What a folder's sets hold; None if it is no folder of skeletons."""
    if not is_skeletons(folder):
        return None
    report = Report(folder, "skeletons", [], how=["every recording read"])
    for path in find_sets(folder):
        try:
            motions = read_set(path)
        except DataError as error:
            report.problems.append(Finding(path.name, ": ".join(filter(None, (error.problem, error.found)))))
            continue
        report.clips += [Clip(m.name, motions.classes[m.label], set_name(path), m.split) for m in motions.motions]
        report.sizes[f"{len(motions.joints)} joints"] += len(motions.motions)
        for left_out in motions.dropped:
            line = f", line {left_out.line}" if left_out.line else ""
            report.remarks.append(Finding(f"{left_out.where}{line}", f"left out: {left_out.reason}"))
    return report
