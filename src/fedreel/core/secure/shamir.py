"""Shamir's secret sharing over a prime field: any `threshold` shares give the secret, one fewer tell nothing of it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

PRIME = 2**521 - 1  # a Mersenne prime, above every secret of 32 bytes
SHARE = 66  # bytes of a share


def split(secret: int, threshold: int, places: Sequence[int], prime: int = PRIME) -> dict[int, int]:
    """A share for each place (a number from 1 on): values of a random polynomial whose value at 0 is the secret."""
    if not 0 <= secret < prime or not 1 <= threshold <= len(set(places)) or not all(0 < p < prime for p in places):
        raise ValueError(f"{len(places)} places cannot hold this secret so that {threshold} of them give it")
    polynomial = [secret, *(secrets.randbelow(prime) for _ in range(threshold - 1))]
    return {place: value_at(polynomial, place, prime) for place in places}


def join(shares: Mapping[int, int], prime: int = PRIME) -> int:
    """The secret that these shares are of. With fewer than the threshold, or one that is false, it is any number."""
    factors = _factors(tuple(shares), prime)
    return sum(factor * share for factor, share in zip(factors, shares.values())) % prime


def value_at(polynomial: Sequence[int], place: int, prime: int) -> int:
    """Coefficients from the constant one on, by Horner's rule."""
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * place + coefficient) % prime
    return value


@lru_cache(64)  # most secrets of a round are joined from shares of the same clients
def _factors(places: tuple[int, ...], prime: int) -> tuple[int, ...]:
    """Lagrange's, for the value at 0."""
    factors = []
    for mine in places:
        above, below = 1, 1
        for other in places:
            if other != mine:
                above, below = above * other % prime, below * (other - mine) % prime
        factors.append(above * pow(below, -1, prime) % prime)
    return tuple(factors)
