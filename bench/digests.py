"""Prints a digest of what every recipe trains in a few rounds: two checkouts that print the same train the same bits.

python bench/digests.py [--rounds 2] [RECIPE ...]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from pathlib import Path

import torch

import fedreel

RECIPES = ("recognition", "fedvssl", "fedlid", "fedvmr", "cfedvs", "fsar")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="*", default=RECIPES)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    digests = {}
    for name in given.recipes:
        with tempfile.TemporaryDirectory() as folder:
            result = fedreel.run(name, Path(folder) / "run", set={"round.rounds": given.rounds}, device="cpu")
            files = sorted((result.path / "model").glob("*.safetensors"))
            content = b"".join(file.name.encode() + file.read_bytes() for file in files)
            digest = hashlib.sha256(content + json.dumps(result.summary["metrics"], sort_keys=True).encode())
        digests[name] = digest.hexdigest()[:16]
        print(f"{name:<20} {digests[name]}", flush=True)
    print(json.dumps(digests))


if __name__ == "__main__":
    main()
