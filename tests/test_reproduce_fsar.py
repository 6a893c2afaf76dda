"""FSAR's tables: which sets stand for the paper's pairs, and how many seeds there are."""

from __future__ import annotations

import pytest

from fedreel.reproduce.claims import ENOUGH
from fedreel.reproduce.fsar import SCALES, _pairs


@pytest.mark.parametrize(
    "names",
    [
        ("ntu120", "ntu60", "pku1", "pku2", "uestc"),
        ("NTU-120", "NTU-60", "PKU-MMD-I", "PKU-MMD-II", "UESTC"),
        ("ntu120_3danno", "ntu60_3danno", "pku_mmd_1", "pku_mmd_2", "uestc_rgbd"),
        ("nturgb+d_120", "nturgb+d_60", "PKUMMDv1", "PKUMMDv2", "uestc"),
        ("NTU RGB-D 120", "NTU RGB-D 60", "PKU-MMD part I", "PKU-MMD part II", "skeletons-UESTC"),
        ("a_ntu_120", "b_ntu_60", "pkummd_phase1", "pkummd_phase2", "uestc"),
    ],
)
def test_the_papers_own_sets_are_paired_as_in_fig_9(names: tuple[str, ...]) -> None:
    _, ntu60, pku1, _, uestc = names
    assert _pairs(names) == [(pku1, uestc), (pku1, ntu60)]


@pytest.mark.parametrize(
    "names",
    [
        ("owner-01", "owner-02", "owner-03", "owner-04", "owner-05"),
        ("msr_action3d", "msr_daily6", "nw_ucla", "utd_mhad", "utkinect"),
        ("ntu120", "ntu60", "pku2", "uestc"),  # without PKU-MMD I
        ("ntu60", "pku1", "pku_1", "uestc"),  # which of the two is it?
        ("ntu6", "ntu600", "pku11", "uestc"),
    ],
)
def test_other_sets_are_paired_by_their_order(names: tuple[str, ...]) -> None:
    assert _pairs(names) == [(names[0], names[-1]), (names[0], names[2])]


def test_of_fewer_than_four_sets_there_is_no_pair_beside_all() -> None:
    assert _pairs(("a", "b", "c")) == []
    assert _pairs(("ntu60", "pku1", "uestc")) == [("pku1", "uestc"), ("pku1", "ntu60")]


@pytest.mark.parametrize("scale", [name for name in SCALES if name != "smoke"])
def test_there_are_enough_seeds_for_a_claim(scale: str) -> None:
    assert len(SCALES[scale].seeds) >= ENOUGH
