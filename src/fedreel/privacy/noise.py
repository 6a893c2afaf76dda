"""Random numbers that follow from a secret and from nothing else: who knows the recipe, or has seen some, knows none.

SHAKE-256 of the secret and a label is the stream of bits, so the same order draws the same noise again: what is sent
twice is no second look at the data."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import numpy as np

_BLOCK = 1 << 20  # numbers that are made at once


class Secret:
    """A key, and streams of numbers made of it: one for each label."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @staticmethod
    def kept(path: Path) -> Secret:
        """The key in a file, which nobody else may read; made when it is first wanted."""
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            temp = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
            with open(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(32))
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temp, path)  # whoever comes first: another process may make one too
            except FileExistsError:
                pass
            finally:
                temp.unlink()
        return Secret(path.read_bytes())

    @staticmethod
    def of_seed(seed: int) -> Secret:
        """For experiments: it can be repeated, and is no secret."""
        return Secret(seed.to_bytes(32, "big"))

    def uniform(self, count: int, *label: object) -> np.ndarray:
        """Numbers from 0 to 1, 0 left out, on a grid of 2^-53."""
        blocks = [self._block(min(_BLOCK, count - at), at, label) for at in range(0, count, _BLOCK)]
        return np.concatenate(blocks) if blocks else np.empty(0)

    def normal(self, count: int, *label: object) -> np.ndarray:
        """Numbers of the standard normal distribution, by Box and Muller's transform."""
        half = (count + 1) // 2
        both = self.uniform(2 * half, *label)
        radius, angle = np.sqrt(-2 * np.log(both[:half])), 2 * np.pi * both[half:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]

    def _block(self, count: int, at: int, label: Sequence[object]) -> np.ndarray:
        text = repr((*map(str, label), at)).encode()
        bits = hashlib.shake_256(len(self._key).to_bytes(2, "big") + self._key + text).digest(8 * count)
        return ((np.frombuffer(bits, dtype="<u8") >> np.uint64(11)) + 1.0) * 2.0**-53
