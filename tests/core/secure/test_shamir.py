"""Shamir's shares by brute force on small fields, where everything can be counted."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

pytest.importorskip("cryptography", reason="needs the extra `secure`")
from fedreel.core.secure.shamir import PRIME, SHARE, join, split, value_at


@pytest.mark.parametrize(("threshold", "places"), [(1, 1), (2, 3), (3, 4), (7, 10)])
def test_any_threshold_of_the_shares_give_the_secret(threshold: int, places: int) -> None:
    secret = int.from_bytes(bytes(range(32)), "big")
    shares = split(secret, threshold, range(1, places + 1))
    for some in itertools.combinations(shares, threshold):
        assert join({place: shares[place] for place in some}) == secret
    assert all(share < 1 << (8 * SHARE) for share in shares.values())


@pytest.mark.parametrize("prime", [5, 7])
def test_one_share_fewer_tells_nothing_of_the_secret(prime: int) -> None:
    """Over all polynomials of degree 2, every pair of shares goes equally often with every secret."""
    seen: dict[tuple[int, int], Counter[int]] = {}
    for polynomial in itertools.product(range(prime), repeat=3):
        pair = value_at(polynomial, 1, prime), value_at(polynomial, 3, prime)
        seen.setdefault(pair, Counter())[polynomial[0]] += 1
    assert len(seen) == prime**2
    assert all(counts == Counter(dict.fromkeys(range(prime), 1)) for counts in seen.values())


def test_every_polynomial_of_a_small_field_is_drawn_and_joined() -> None:
    """split takes its coefficients from the whole field: with p = 3 and t = 2 each line through the secret comes."""
    lines = {tuple(split(1, 2, (1, 2), prime=3).values()) for _ in range(200)}
    assert lines == {(1, 1), (2, 0), (0, 2)}
    for secret, slope in itertools.product(range(3), repeat=2):
        shares = {place: value_at((secret, slope), place, 3) for place in (1, 2)}
        assert join(shares, prime=3) == secret


def test_a_hand_worked_example() -> None:
    """f(x) = 4 + 2 x over GF(7): f(1) = 6, f(2) = 1, f(3) = 3."""
    assert [value_at((4, 2), x, 7) for x in (1, 2, 3)] == [6, 1, 3]
    assert join({1: 6, 3: 3}, prime=7) == 4


def test_the_field_is_prime_and_larger_than_any_secret() -> None:
    """2^521 - 1 by the test of Lucas and Lehmer."""
    s = 4
    for _ in range(521 - 2):
        s = (s * s - 2) % PRIME
    assert s == 0
    assert PRIME > 2**256


@pytest.mark.parametrize(
    ("secret", "threshold", "places"), [(PRIME, 1, [1]), (1, 3, [1, 2]), (1, 2, [1, 1]), (1, 1, [0])]
)
def test_what_cannot_be_shared_is_refused(secret: int, threshold: int, places: list[int]) -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        split(secret, threshold, places)
