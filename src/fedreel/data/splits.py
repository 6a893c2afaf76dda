"""What people call the parts of a data set, and what they are called here."""

from __future__ import annotations

from fedreel.errors import DataError, nearest

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validate", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def split_name(word: str, where: str) -> str:
    """train, val or test; '' where there is no word."""
    if word and word.lower() not in SPLITS:
        raise DataError(
            "a clip has an unknown split",
            found=word,
            where=where,
            expected="train, val or test",
            hint=nearest(word.lower(), SPLITS),
        )
    return SPLITS.get(word.lower(), "")
