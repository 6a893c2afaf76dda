"""Lays real clips out as owners who have labelled a few: for `fedreel reproduce recognition few --data OUT`.

    python bench/few_clips.py VIDEO OUT [--users 8] [--splits 4]

VIDEO holds mlr511, utdmhad_depth and survfight. Each becomes folders SET-N with N of an owner's clips to learn from,
the classes in turn, and up to 24 others of the same owner to test on: the same whatever N is. Owners are the first
users of mlr511, the subjects of utdmhad_depth, and four made up for survfight. Each begins with another class, evenly
spread, so that together they have all classes even where N is smaller than the number of these: `learned` is the share
of test clips whose class somebody learns, which no top1 can exceed. With --splits every SET-N has folders split-0,
split-1, ..., one for each seed: what is learned from and tested on moves on through an owner's clips, in the order of
the files. Neighbours may be of one film, so clips that are left over lie between the two, on both sides. The last line
is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections import Counter, defaultdict
from itertools import chain, product, zip_longest
from pathlib import Path

SIZES, TESTED, USERS, SITES = (8, 16, 32), 24, 8, 4
Owned = dict[str, dict[str, list[Path]]]  # owner -> class -> clips


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("video", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--users", type=int, default=USERS, help="how many of mlr511's twelve")
    parser.add_argument(
        "--splits", type=int, default=0, help="so many divisions into clips to learn from and to test on"
    )
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    shares: dict[str, float] = {}
    for name, owned in sets(args.video.resolve(), args.users).items():
        for size, split in product(SIZES, range(args.splits) if args.splits else [None]):
            places = chosen(owned, size, split, args.splits)
            folder = f"{name}-{size}" if split is None else f"{name}-{size}/split-{split}"
            shares[folder] = learned(places)
            for target, source in places.items():
                place = args.out / folder / target
                place.parent.mkdir(parents=True, exist_ok=True)
                if not place.is_symlink():
                    os.symlink(source, place)
                counts[f"{folder} {target.partition('/')[0]}"] += 1
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
    return {name: owned for name, owned in found.items() if owned}


def chosen(owned: Owned, size: int, split: int | None = None, splits: int = 1) -> dict[str, Path]:
    """Where clips go. An owner's clips, the classes in turn: the last are tested on, the first learned from; of a
    `split` both begin further on, and what is left lies between them on both sides."""
    places = {}
    for number, (owner, classes) in enumerate(sorted(owned.items())):
        names = sorted(classes)
        first = number * len(names) // len(owned)
        turns = chain.from_iterable(zip_longest(*(classes[label] for label in names[first:] + names[:first])))
        clips = [path for path in turns if path is not None]
        labels = {path: label for label, paths in classes.items() for path in paths}
        end = len(clips)
        if split is not None:
            begin = split * len(clips) // splits
            clips = clips[begin:] + clips[:begin]
            end -= (len(clips) - max(SIZES) - TESTED) // 2
        for part, some in (("train", clips[:size]), ("test", clips[max(SIZES) : end][-TESTED:])):
            places |= {f"{part}/{owner}/{labels[path]}/{path.name}": path for path in some}
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
