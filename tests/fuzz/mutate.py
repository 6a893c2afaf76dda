"""Ways to spoil an input that a reader accepts: bytes, words of a text, values of JSON, members of an archive."""

from __future__ import annotations

import copy
import io
import json
import random
import re
import struct
import zipfile
from collections.abc import Callable
from typing import Any

Mutate = Callable[[bytes, random.Random], bytes]

NUMBERS: tuple[int, ...] = (
    *(0, 1, -1, 2, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, -(2**63)),
    2**64,
)
WORDS = (
    *("", " ", "0", "-1", "1e999", "nan", "-inf", "1" * 400, "9" * 20, "\x00", "\x1b[2J", "\ufeff", "ä", "\ud83d"),
    "null",
    *("true", "[]", "{}", '"', "'", "\\", "/", "../../x", "%s", "\n", "\t", "#", ",", "=", "[", "]", "x" * 3000),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 0.5, 1e308, -1e308, 2**63, 2**70, -(2**70)),
    *(float("nan"), float("inf"), float("-inf")),
    *("", "x", "\x1b[2J", "\x00", "../..", "x" * 3000, [], {}, [[]], [None], {"": None}, [1] * 50, {"a": {"b": {}}}),
)
INNER = re.compile(rb"[0-9.+-]+|[A-Za-z_]+|[^\sA-Za-z0-9]")


def spoil_bytes(data: bytes, rng: random.Random) -> bytes:
    """One to a few changes anywhere."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(len(out) + 1)
        size = min(rng.choice((1, 1, 2, 4, 8, 64, 512)), max(len(out) - at, 0))
        match rng.randrange(8):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(out):
                out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 2:
                del out[at : at + size]
            case 3:
                out[at:at] = rng.randbytes(size)
            case 4:
                other = rng.randrange(len(out) + 1)
                out[at:at] = out[other : other + size]
            case 5:
                number = rng.choice(NUMBERS) & (2**64 - 1)
                form = rng.choice(("<Q", ">Q", "<I", ">I", "<H", ">H"))
                packed = struct.pack(form, number & (2 ** (8 * struct.calcsize(form)) - 1))
                out[at : at + len(packed)] = packed
            case 6:
                out[at : at + size] = bytes(size)
            case _:
                del out[at:]
    return bytes(out)


def spoil_text(data: bytes, rng: random.Random) -> bytes:
    """Words, numbers and signs replaced, doubled or dropped; lines too."""
    if rng.random() < 0.3:
        return spoil_bytes(data, rng)
    out = data
    for _ in range(rng.choice((1, 1, 2, 4))):
        found = [*INNER.finditer(out)]
        if not found:
            return spoil_bytes(out, rng)
        one = rng.choice(found)
        new = rng.choice((*WORDS, *map(str, NUMBERS), one[0].decode("latin-1") * 2)).encode("utf-8", "surrogatepass")
        match rng.randrange(6):
            case 0:
                lines = out.split(b"\n")
                at = rng.randrange(len(lines))
                lines[at:at] = [lines[rng.randrange(len(lines))]] * rng.choice((1, 3))
                out = b"\n".join(lines)
            case 1:
                lines = out.split(b"\n")
                del lines[rng.randrange(len(lines))]
                out = b"\n".join(lines)
            case _:
                out = out[: one.start()] + new + out[one.end() :]
    return out


def spoil_tree(tree: Any, rng: random.Random) -> Any:
    """One value of a JSON tree replaced, dropped, doubled, or put one level deeper; the tree is changed."""
    root = [tree]
    place: Any
    place, key = root, 0
    while isinstance(place[key], dict | list) and place[key] and rng.random() < 0.85:
        place = place[key]
        key = rng.choice([*place]) if isinstance(place, dict) else rng.randrange(len(place))
    match rng.randrange(7):
        case 0 if place is not root:
            del place[key]
        case 1 if isinstance(place, list) and place is not root:
            place.insert(key, copy.deepcopy(place[key]))
        case 2 if isinstance(place, dict):
            place[rng.choice(WORDS)] = copy.deepcopy(place[key])
        case 3:
            place[key] = [place[key]]
        case 4 if isinstance(place[key], int | float) and not isinstance(place[key], bool):
            place[key] = rng.choice(NUMBERS)
        case 5 if isinstance(place[key], str):
            place[key] = rng.choice(WORDS)
        case _:
            place[key] = copy.deepcopy(rng.choice(VALUES))
    return root[0]


def spoil_json(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.2:
        return spoil_text(data, rng)
    tree = json.loads(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        tree = spoil_tree(tree, rng)
    return json.dumps(tree).encode()


def spoil_lines(data: bytes, rng: random.Random) -> bytes:
    """Of JSON lines one is spoiled."""
    lines = data.splitlines()
    at = rng.randrange(len(lines))
    lines[at] = spoil_json(lines[at], rng)
    return b"\n".join(lines) + rng.choice((b"\n", b""))


def spoil_zip(member: Mutate) -> Mutate:
    """What is in an archive is spoiled and packed again, so that sums are right; or the archive itself is."""

    def spoil(data: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.25:
            return spoil_bytes(data, rng)
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
            infos = old.infolist()
            chosen = rng.choice(infos).filename
            for info in infos:
                content = old.read(info)
                if info.filename == chosen:
                    if rng.random() < 0.1:
                        continue
                    content = member(content, rng)
                new.writestr(info.filename, content, info.compress_type)
        return out.getvalue()

    return spoil


def spoil_npy(data: bytes, rng: random.Random) -> bytes:
    """The header of an array, which is Python's text, or any bytes."""
    if rng.random() < 0.4 or len(data) < 20:
        return spoil_bytes(data, rng)
    (length,) = struct.unpack("<H", data[8:10])
    text = spoil_text(data[10 : 10 + length], rng)[: length + 40]
    if rng.random() < 0.7:
        text = text.rstrip(b" \n").ljust(length - 1) + b"\n"
    return data[:8] + struct.pack("<H", len(text) & 0xFFFF) + text + data[10 + length :]


def spoil_safetensors(data: bytes, rng: random.Random) -> bytes:
    """The JSON at the beginning, with its length put right, or any bytes."""
    (length,) = struct.unpack("<Q", data[:8])
    if rng.random() < 0.3:
        return spoil_bytes(data, rng)
    head = spoil_json(data[8 : 8 + length].rstrip(), rng)
    return struct.pack("<Q", len(head)) + head + data[8 + length :]
