"""A few mutated inputs for every reader and message; `make fuzz N=1000000` tries many."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("flwr")
pytest.importorskip("av")
from fuzz.harness import Bench
from fuzz.readers import HARNESSES

FEW, FEWER = 60, 8  # inputs; fewer where each is a film or a page
SLOW = ("mp4", "mp4 look", "avi", "report metrics", "report summary", "report recipe", "report ledger")


@pytest.mark.parametrize("name", HARNESSES)
def test_a_reader_takes_its_seeds_and_refuses_the_rest_in_our_words(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bench = Bench(HARNESSES[name])
        try:
            for seed in bench.seeds:
                bench.accepts(seed)  # or the last step of the reader would never be tried
            assert list(bench.tries(1, range(FEWER if name in SLOW else FEW))) == []
        finally:
            bench.close()
