"""Torch's random numbers, which are one sequence for the whole process, for each of several that take turns in it."""

from __future__ import annotations

import torch


class OwnRandom:
    """Within it torch's random numbers are those of one of them. On a GPU it is the state itself that is exchanged, not
    its value: a recorded step draws from the state it was recorded with."""

    def __init__(self, device: torch.device) -> None:
        self._own = torch.default_generator.get_state()
        self._gpu = torch.cuda.default_generators[device.index or 0] if device.type == "cuda" else None
        self._own_there = self._gpu.clone_state() if self._gpu is not None else torch.Generator()

    def __enter__(self) -> None:
        self._exchange()

    def __exit__(self, *_: object) -> None:
        self._exchange()

    def _exchange(self) -> None:
        others = torch.default_generator.get_state()
        torch.default_generator.set_state(self._own)
        self._own = others
        if self._gpu is not None:
            others_there = self._gpu.graphsafe_get_state()
            self._gpu.graphsafe_set_state(self._own_there)
            self._own_there = others_there
