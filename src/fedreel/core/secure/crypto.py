"""The primitives of secure sums, all of them from `cryptography`: nothing here is of our own making."""

from __future__ import annotations

import os
from functools import lru_cache

from fedreel.errors import RunError

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ModuleNotFoundError as error:  # comes with the extra
    raise RunError("secure sums need the package `cryptography`", hint="pip install 'fedreel[secure]'") from error

KEY = 32  # bytes of a secret, a public key or a seed
SIGNATURE = 132  # bytes of a signature, enough for every curve that a site's key may be on
_NONCE = 12


def new_secret() -> bytes:
    """A fresh X25519 secret, or a seed: 32 bytes of the system's randomness."""
    return os.urandom(KEY)


def public_of(secret: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def shared_key(secret: bytes, public: bytes, purpose: bytes) -> bytes:
    """X25519, then HKDF-SHA256: a key for this purpose that only the holders of the two secrets can make. ValueError
    for a public key that is none."""
    common = X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))
    return derived(common, purpose)


def derived(secret: bytes, purpose: bytes) -> bytes:
    """HKDF-SHA256 of a secret."""
    return HKDF(algorithm=hashes.SHA256(), length=KEY, salt=None, info=purpose).derive(secret)


def seal(key: bytes, text: bytes, context: bytes) -> bytes:
    """ChaCha20-Poly1305; `context` is not in the result, but must be the same to open it."""
    nonce = os.urandom(_NONCE)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, text, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes | None:
    """What was sealed; None if it was not sealed so, or was changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], context)
    except (InvalidTag, ValueError):
        return None


def key_stream(key: bytes) -> CipherContext:
    """ChaCha20 from its first block on: what it makes of zeros is the stream."""
    return Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()


def new_signing_key() -> ec.EllipticCurvePrivateKey:
    """Of the kind that sites have (`fedreel site init`)."""
    return ec.generate_private_key(ec.SECP384R1())


def read_signing_key(text: bytes) -> ec.EllipticCurvePrivateKey:
    """A `site.key`; ValueError if it is none."""
    key = serialization.load_ssh_private_key(text, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an ECDSA key")
    return key


def write_signing_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    formats = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    return key.private_bytes(*formats)


def public_line(key: ec.EllipticCurvePrivateKey) -> str:
    """The public key as a `site.pub` has it, without its comment."""
    formats = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(*formats).decode()


def sign(key: ec.EllipticCurvePrivateKey, message: bytes) -> bytes:
    """Always of the same length: the signature's two numbers."""
    one, two = decode_dss_signature(key.sign(message, ec.ECDSA(hashes.SHA384())))
    return one.to_bytes(SIGNATURE // 2, "big") + two.to_bytes(SIGNATURE // 2, "big")


@lru_cache(4096)  # of clients in one process each would look at the same signatures
def signed(line: str, message: bytes, signature: bytes) -> bool:
    """Whether the holder of this public key (a line of a `site.pub`) has signed the message."""
    try:
        key = serialization.load_ssh_public_key(line.encode())
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        half = SIGNATURE // 2
        one, two = int.from_bytes(signature[:half], "big"), int.from_bytes(signature[half:], "big")
        key.verify(encode_dss_signature(one, two), message, ec.ECDSA(hashes.SHA384()))
    except (InvalidSignature, ValueError):
        return False
    return True
