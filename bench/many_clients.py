"""Lays real clips out as many clients who have few each: for `fedreel reproduce recognition private --data OUT`.

    python bench/many_clients.py VIDEO OUT

VIDEO holds mlr511: twelve users, ten signs, ten repetitions. Of every user's every sign the last repetition is tested
on, of two signs in three the one before it is kept to choose settings by, and the other thousand clips are dealt out at
random: ten to each of 100 clients (OUT/clients-100), one to each of 1,000 (OUT/clients-1000). The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections import Counter
from pathlib import Path

CLIENTS = (100, 1000)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("video", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    split = divided(args.video.resolve() / "mlr511")
    counts: Counter[str] = Counter()
    for clients in CLIENTS:
        for target, source in dealt(split, clients).items():
            place = args.out / f"clients-{clients}" / target
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.is_symlink():
                os.symlink(source, place)
            counts[f"clients-{clients} {target.partition('/')[0]}"] += 1
    for what, count in counts.items():
        print(f"{what:28} {count:5}")
    print(json.dumps({"bench": "many_clients", "files": counts}))


def divided(root: Path) -> dict[str, list[Path]]:
    """Clips by what they are for."""
    split: dict[str, list[Path]] = {"train": [], "val": [], "test": []}
    for number, sign in enumerate(sorted(root.glob("user*/*"))):
        *others, last = sorted(sign.glob("*.mp4"))
        split["test"].append(last)
        split["val"] += [others.pop()] if number % 3 else []
        split["train"] += others
    return split


def dealt(split: dict[str, list[Path]], clients: int) -> dict[str, Path]:
    """Where clips go: SPLIT/CLIENT/SIGN/clip.mp4, in turn to one client after another."""
    places = {}
    for name, clips in split.items():
        shuffled = random.Random(0).sample(clips, len(clips))
        for number, path in enumerate(shuffled):
            user, sign = path.parts[-3:-1]
            places[f"{name}/client{number % clients:04}/{sign}/{user}-{path.name}"] = path
    return places


if __name__ == "__main__":
    main()
