"""Lays real clips out as owners who have labelled a few: for `fedreel reproduce recognition few --data OUT`.

    python bench/few_clips.py VIDEO OUT [--users 8]

VIDEO holds mlr511, utdmhad_depth and survfight. Each becomes folders SET-N with N of an owner's clips to learn from,
the classes in turn, and up to 24 others of the same owner to test on: the same whatever N is. Owners are the first
users of mlr511, the subjects of utdmhad_depth, and four made up for survfight. Each begins with another class, evenly
spread, so that together they have all classes even where N is smaller than the number of these: `learned` is the share
of test clips whose class somebody learns, which no top1 can exceed. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections import Counter, defaultdict
from itertools import chain, zip_longest
from pathlib import Path

SIZES, TESTED, USERS, SITES = (8, 16, 32), 24, 8, 4
Owned = dict[str, dict[str, list[Path]]]  # owner -> class -> clips


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("video", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--users", type=int, default=USERS, help="how many of mlr511's twelve")
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    shares: dict[str, float] = {}
    for name, owned in sets(args.video.resolve(), args.users).items():
        for size in SIZES:
            places = chosen(owned, size)
            shares[f"{name}-{size}"] = learned(places)
            for target, source in places.items():
                place = args.out / f"{name}-{size}" / target
                place.parent.mkdir(parents=True, exist_ok=True)
                if not place.is_symlink():
                    os.symlink(source, place)
                counts[f"{name}-{size} {target.partition('/')[0]}"] += 1
    for what, count in counts.items():
        print(f"{what:28} {count:5}")
    for what, share in shares.items():
        print(f"{what + ' learned':28} {share:5.0%}")
    print(json.dumps({"bench": "few_clips", "files": counts, "learned": shares}))


def sets(video: Path, users: int) -> dict[str, Owned]:
    found: dict[str, Owned] = {name: defaultdict(lambda: defaultdict(list)) for name in ("fights", "signs", "depth")}
    for kind in ("fight", "noFight"):
        for i, path in enumerate(sorted((video / "survfight" / kind).glob("*.mp4"))):
            found["fights"][f"site{i % SITES}"][kind].append(path)
    for path in sorted((video / "mlr511").glob("user*/*/*.mp4")):
        if int(path.parts[-3].removeprefix("user")) <= users:
            found["signs"][path.parts[-3]][path.parts[-2]].append(path)
    for path in sorted((video / "utdmhad_depth").glob("*.mp4")):
        match = re.fullmatch(r"(a\d+)_(s\d+)_t\d+", path.stem)
        assert match, path
        found["depth"][match[2]][match[1]].append(path)
    return found


def chosen(owned: Owned, size: int) -> dict[str, Path]:
    """Where clips go. An owner's clips, the classes in turn: the last are tested on, the first learned from."""
    places = {}
    for number, (owner, classes) in enumerate(sorted(owned.items())):
        names = sorted(classes)
        first = number * len(names) // len(owned)
        turns = chain.from_iterable(zip_longest(*(classes[label] for label in names[first:] + names[:first])))
        clips = [path for path in turns if path is not None]
        labels = {path: label for label, paths in classes.items() for path in paths}
        for split, some in (("train", clips[:size]), ("test", clips[max(SIZES) :][-TESTED:])):
            places |= {f"{split}/{owner}/{labels[path]}/{path.name}": path for path in some}
    return places


def learned(places: dict[str, Path]) -> float:
    """The share of test clips whose class some owner has among the clips to learn from."""
    labels: dict[str, list[str]] = {"train": [], "test": []}
    for place in places:
        split, _, label, _ = place.split("/")
        labels[split].append(label)
    return sum(label in labels["train"] for label in labels["test"]) / len(labels["test"])


if __name__ == "__main__":
    main()
