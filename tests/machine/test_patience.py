"""How soon to look again."""

from __future__ import annotations

import time

import pytest

from fedreel.machine.patience import Patience


def test_pauses_grow_with_the_silence_and_stay_within_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((100.0, 100.0, 101.0, 110.0, 125.0, 200.0, 200.0, 205.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    patience = Patience(share=0.1, least=0.2, most=3.0)
    assert [patience.pause() for _ in range(5)] == pytest.approx([0.2, 0.2, 1.0, 2.5, 3.0])
    patience.over()
    assert patience.pause() == pytest.approx(0.5)
