"""What an object holds, however deep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def tensors_in(thing: Any) -> dict[int, int]:
    """Address -> bytes of every tensor in containers and attributes, and in theirs."""
    found: dict[int, int] = {}
    seen: set[int] = set()
    left = [thing]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            if one.nbytes:
                found[one.data_ptr()] = max(one.nbytes, found.get(one.data_ptr(), 0))
        elif isinstance(one, Mapping):
            left += [*one.values()]
        elif isinstance(one, list | tuple):
            left += [*one]
        else:
            left += [*getattr(one, "__dict__", {}).values()]
    return found
