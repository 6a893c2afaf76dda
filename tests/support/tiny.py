"""A video data set of seconds, a recipe that fits it, and the command line in this process, for tests."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from fedreel.cli import main
from fedreel.media.video import write

SETTINGS = {
    "task.backbone.width": 2,
    "task.size": 16,
    "task.frames": 4,
    "task.differences": False,
    "train.batch_size": 8,
    "round.rounds": 2,
    "device": "cpu",
}


def videos(root: Path, owners: Iterable[int] = range(2), classes: int = 2, clips: int = 3) -> Path:
    """OWNER/CLASS/*.mp4 of 8 frames of 16 x 16 pixels: a bar that moves right, or down."""
    for owner in owners:
        for kind in range(classes):
            folder = root / f"owner{owner}" / f"class{kind}"
            folder.mkdir(parents=True)
            for clip in range(clips):
                frames = np.full((8, 16, 16, 3), 30 + 60 * owner, np.uint8)
                for t, frame in enumerate(frames):
                    at = (2 * t + clip) % 12
                    frame[(slice(None), slice(at, at + 4)) if kind % 2 else (slice(at, at + 4),)] = 220 - 40 * kind
                write(folder / f"{clip}.mp4", frames, 8)
    return root


def sets(settings: dict[str, Any]) -> list[str]:
    """Settings as `--set` arguments."""
    texts = {key: str(value).lower() if isinstance(value, bool) else value for key, value in settings.items()}
    return [word for key, value in texts.items() for word in ("--set", f"{key}={value}")]


class Said(NamedTuple):
    """How a command ended."""

    code: Any
    out: str
    err: str


def cli(*args: object) -> Said:
    """Run `fedreel ARGS` in this process. Anything that would be a traceback for the user comes through."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["fedreel", *map(str, args)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
            code: Any = 0
        except SystemExit as ended:
            code = ended.code or 0
    return Said(code, out.getvalue(), err.getvalue())
