"""The primitives as they are used here, against numbers that were published, and the masks made of them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `secure`")
from fedreel.core.secure import masks
from fedreel.core.secure.crypto import (
    derived,
    key_stream,
    new_secret,
    new_signing_key,
    public_line,
    public_of,
    read_signing_key,
    seal,
    shared_key,
    sign,
    signed,
    unseal,
    write_signing_key,
)
from fedreel.core.secure.masks import Vector, mask


def test_x25519_is_that_of_rfc_7748() -> None:
    """Section 5.2: one iteration from the base point."""
    nine = bytes([9, *bytes(31)])
    assert public_of(nine).hex() == "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"


def test_hkdf_is_that_of_rfc_5869() -> None:
    """Test case 3: SHA-256, neither salt nor info."""
    assert derived(b"\x0b" * 22, b"").hex() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"


def test_the_stream_is_that_of_rfc_8439() -> None:
    """Appendix A.1, vector 1: a key of zeros, block 0."""
    expected = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert key_stream(bytes(32)).update(bytes(64)).hex() == expected


def test_sealing_is_that_of_rfc_8439() -> None:
    """Section 2.8.2, nonce in front."""
    key, nonce = bytes(range(0x80, 0xA0)), bytes.fromhex("070000004041424344454647")
    sealed = bytes.fromhex(
        "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d6"
        "3dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b36"
        "92ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc"
        "3ff4def08e4b7a9de576d26586cec64b61161ae10b594f09e26a7e902ecbd0600691"
    )
    context = bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
    said = unseal(key, nonce + sealed, context)
    assert said is not None
    assert said.startswith(b"Ladies and Gentlemen of the class of '99")
    assert unseal(key, nonce + sealed, b"") is None
    assert unseal(key, nonce + sealed[:-1] + b"\0", context) is None
    assert unseal(key, b"short", context) is None
    assert unseal(key, seal(key, b"text", b"here"), b"here") == b"text"


def test_two_secrets_make_one_key_for_each_purpose() -> None:
    one, two = new_secret(), new_secret()
    assert shared_key(one, public_of(two), b"p") == shared_key(two, public_of(one), b"p")
    assert shared_key(one, public_of(two), b"p") != shared_key(one, public_of(two), b"q")
    with pytest.raises(ValueError):  # noqa: PT011 (in words of the library)
        shared_key(one, bytes(32), b"p")  # a point of low order gives a key that everybody knows


def test_a_signature_is_good_for_its_key_and_its_text() -> None:
    key, other = new_signing_key(), new_signing_key()
    again = read_signing_key(write_signing_key(key))
    mark = sign(again, b"text")
    assert signed(public_line(key), b"text", mark)
    assert not signed(public_line(other), b"text", mark)
    assert not signed(public_line(key), b"next", mark)
    assert not signed(public_line(key), b"text", b"rubbish")
    assert not signed("ssh-rsa rubbish", b"text", mark)


@pytest.mark.parametrize("bits", [32, 64])
def test_masks_are_the_stream_and_cancel_exactly(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "_CHUNK", 24)  # several pieces
    key = bytes(range(32))
    vector = Vector.zeros(4, 23, bits)
    mask(vector, key, 1)
    stream = key_stream(key).update(bytes(4 * 8 + 23 * bits // 8))
    assert vector.head.tobytes() + vector.body.tobytes() == stream  # on a machine with the low byte first
    other = Vector.zeros(4, 23, bits)
    mask(other, key, -1)
    vector.add(other)
    assert not vector.head.any()
    assert not vector.body.any()


def test_a_vector_adds_modulo() -> None:
    vector = Vector(np.array([2**64 - 1], np.uint64), np.array([2**32 - 1], np.uint32))
    vector.add(Vector(np.array([3], np.uint64), np.array([3], np.uint32)))
    assert (vector.head[0], vector.body[0]) == (2, 2)
    again = Vector.frombytes(vector.tobytes(), 1, 32)
    assert (again.head[0], again.body[0]) == (2, 2)
