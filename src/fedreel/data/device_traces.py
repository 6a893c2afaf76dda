"""Traces of real devices as FedScale publishes them: how fast they are, and when they can be reached. Never run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from fedreel.core.world import Device
from fedreel.data.restricted_pickle import Refused, evaluate
from fedreel.errors import DataError

TRAINING = 3.0  # times what a device takes to look at a sample: FedScale's own factor for the way back
_SIZE = 1 << 28  # bytes; the published files have 20 and 180 MB


def read_fedscale(capacities: Path, behaviours: Path | None = None) -> list[Device]:
    """The devices of `client_device_capacity`: `computation` is milliseconds a sample, `communication` kilobits a
    second. With `client_behave_trace` they come and go as its phones do, in turn."""
    rows = _rows(capacities, "computation and communication of each device")
    traces = _rows(behaviours, "active, inactive and finish_time of each device") if behaviours is not None else []
    try:
        there = [_there(trace) for trace in traces]
        found = [_device(row, there[i % len(there)] if there else ((), 1.0)) for i, row in enumerate(rows)]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        where = str(behaviours or capacities)
        raise DataError("these are no traces of FedScale", where=where, found=repr(error)) from error
    if not found:
        raise DataError("there are no devices in the file", where=str(capacities))
    return found


def _device(row: Mapping[str, Any], there: tuple[tuple[tuple[float, float], ...], float]) -> Device:
    seconds, line = TRAINING * float(row["computation"]) / 1000, float(row["communication"]) * 1000 / 8
    if not 0 <= seconds < 1e9 or not 0 < line < 1e15:
        raise ValueError(f"a device of {seconds} s a sample and {line} bytes a second")
    return Device(seconds, line, *there) if there[0] else Device(seconds, line)


def _there(trace: Mapping[str, Any]) -> tuple[tuple[tuple[float, float], ...], float]:
    """From `active` to `inactive`, again and again after `finish_time`."""
    period = float(trace["finish_time"])
    pairs = tuple((float(begin), float(end)) for begin, end in zip(trace["active"], trace["inactive"]))
    if not 0 < period < 1e12 or not all(0 <= begin <= end <= period for begin, end in pairs):
        raise ValueError(f"a device that is there from {pairs[:3]} of {period} s")
    return pairs, period


def _rows(path: Path, expected: str) -> Sequence[Mapping[str, Any]]:
    try:
        if path.stat().st_size > _SIZE:
            raise DataError("the file is too large", where=str(path), expected=f"at most {_SIZE} bytes")
        value = evaluate(BytesIO(path.read_bytes()), {})
    except OSError as error:
        raise DataError("this file cannot be read", where=str(path), found=str(error)) from error
    except Refused as error:
        raise DataError("this is no plain pickle", where=str(path), expected=expected, found=str(error)) from None
    if not isinstance(value, dict) or not all(isinstance(row, dict) for row in value.values()):
        raise DataError("this is no table of devices", where=str(path), expected=expected)
    return [*value.values()]
