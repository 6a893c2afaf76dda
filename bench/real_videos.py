"""Lay the video sets out as `fedreel reproduce fedvssl --data OUT` wants them: what is learned from under OUT/pretrain,
by owner, and the labelled sets under OUT/downstream.

    python bench/real_videos.py VIDEO OUT [--with-depth]

VIDEO holds mlr511, utdmhad_depth and survfight. Of mlr511, users 1 to 9 are learned from and searched in, users 10 to
12 ask; of utdmhad_depth, the odd subjects are searched in and the even ones ask; of survfight, every second clip of a
class asks. With --with-depth the odd subjects of utdmhad_depth are owners to learn from, too.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections import Counter
from pathlib import Path

SEEN = 9  # users of mlr511


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("video", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--with-depth", action="store_true")
    args = parser.parse_args()
    places = {target: source for source, targets in arranged(args.video, args.with_depth) for target in targets}
    for target, source in places.items():
        (args.out / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, args.out / target)
    counts = Counter("/".join(Path(t).parts[: 2 if t.startswith("pretrain") else 3]) for t in places)
    for name, count in sorted(counts.items()):
        print(f"{name:28} {count:5}")
    print(json.dumps({"bench": "real_videos", "files": counts}))


def arranged(video: Path, with_depth: bool) -> list[tuple[Path, list[str]]]:
    """Every video with the places it goes to."""
    found: list[tuple[Path, list[str]]] = []
    for path in sorted((video / "mlr511").glob("user*/*/*.mp4")):
        user, sign, name = path.parts[-3:]
        seen = int(user.removeprefix("user")) <= SEEN
        targets = [f"downstream/mlr511/{'train' if seen else 'test'}/{sign}/{user}-{name}"]
        found.append((path, targets + ([f"pretrain/{user}/{sign}/{name}"] if seen else [])))
    for path in sorted((video / "utdmhad_depth").glob("*.mp4")):
        match = re.fullmatch(r"a(\d+)_s(\d+)_t\d+", path.stem)
        assert match, path
        action, subject = f"a{int(match[1]):02}", int(match[2])
        targets = [f"downstream/utdmhad_depth/{'train' if subject % 2 else 'test'}/{action}/{path.name}"]
        learned = [f"pretrain/subject{subject}/{action}/{path.name}"] if with_depth and subject % 2 else []
        found.append((path, targets + learned))
    for kind in ("fight", "noFight"):
        for i, path in enumerate(sorted((video / "survfight" / kind).glob("*.mp4"))):
            found.append((path, [f"downstream/survfight/{'test' if i % 2 else 'train'}/{kind}/{path.name}"]))
    return found


if __name__ == "__main__":
    main()
