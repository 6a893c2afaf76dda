"""What FedLID's paper claims of its tables, and of rows of two of them. Directions are those of its numbers, which
stand beside our rows whatever these began with: the paper's all began with ImageNet weights, or FedCA's with none."""

from __future__ import annotations

from fedreel.reproduce.fedlid_paper import (
    AHEAD,
    BEST,
    IID,
    LITE0,
    NON_IID,
    NONE,
    ONCE,
    QUOTED_METHODS,
    RESNET18,
    SUPERVISED,
    by_paper,
    others_setting,
)
from fedreel.reproduce.spec import Claim

FROM = {"split": IID}, {"split": NON_IID}


def of_servers(split: str) -> tuple[Claim, ...]:
    """Tables 1 and 3, beside each other and beside Table 5, which has a tenth of the labels. The paper's gain over a
    supervised server is larger with Dirichlet 0.5 (39 % against 8 %): FedLID's clients are better there than with
    Dirichlet 1, those of a supervised server worse."""
    return (
        *(_beside("FedLID", other, split) for other in SUPERVISED),
        *(Claim("FedLID", other, "trained", ours=True) for other in (NONE, ONCE)),
        *(_beside(BEST, other, split) for other in SUPERVISED if other != BEST),
        *_apart(split),
        *(
            Claim(name, "FedLID", "trained", second="table5", printed=(by_paper(split, name), few))
            for name in ("FedLID", BEST)
            for few in (by_paper(split, "FedLID", "table5"),)
        ),
    )


def _beside(better: str, worse: str, split: str) -> Claim:
    return Claim(better, worse, "trained", printed=(by_paper(split, better), by_paper(split, worse)))


def _apart(split: str) -> tuple[Claim, ...]:
    """What is said of the other split, too."""
    if split == IID:
        return tuple(
            Claim(name, name, "trained", settings=FROM, second="table3", printed=_both(name)) for name in SUPERVISED
        )
    ahead = (by_paper(NON_IID, "FedLID", metric=AHEAD), by_paper(IID, "FedLID", metric=AHEAD))
    return (
        Claim("FedLID", "FedLID", "trained", settings=FROM[::-1], second="table1", printed=_both("FedLID")[::-1]),
        Claim("FedLID", "FedLID", AHEAD, settings=FROM[::-1], second="table1", printed=ahead),
    )


def _both(name: str, table: str = "") -> tuple[float, float]:
    return by_paper(IID, name, table), by_paper(NON_IID, name, table)


def of_others(split: str) -> tuple[Claim, ...]:
    """Tables 2 and 4, as printed: each row with its own network, clients and measure; and beside Table 5."""
    theirs = others_setting(split)
    inits = [{"split": split, "init": init} for init in (RESNET18, LITE0)]
    lid, few = by_paper(split, "FedLID"), by_paper(split, "FedLID", "table5")
    ca, few_ca = by_paper(split, "FedCA"), by_paper(split, "FedCA", "table5")
    cases = [(name, ours, by_paper(split, name)) for ours in inits for name in QUOTED_METHODS]
    return (
        Claim("FedCA", "FedSimCLR", "probe", printed=(ca, by_paper(split, "FedSimCLR"))),
        Claim("FedLID", "FedCA", "probe", ours=True),
        *(
            Claim("FedLID", name, "trained", settings=(ours, theirs), than="probe", printed=(lid, known))
            for name, ours, known in cases
        ),
        Claim("FedCA", "FedCA", "probe", second="table5", printed=(ca, few_ca)),
        *(
            Claim(
                name, "FedLID", "probe", settings=(theirs, ours), than="trained", second="table5", printed=(known, few)
            )
            for name, ours, known in cases
        ),
        *(_by_split() if split == IID else ()),
    )


def _by_split() -> tuple[Claim, ...]:
    """Table 2 beside Table 4: with FedLID's clients and with those of FedCA's paper."""
    pairs = [FROM, (others_setting(IID), others_setting(NON_IID))]
    return tuple(
        Claim(name, name, "probe", settings=pair, second="table4", printed=_both(name))
        for name in QUOTED_METHODS
        for pair in pairs
    )


def _of_few(split: str) -> tuple[Claim, ...]:
    said, both = {"split": split}, (by_paper(split, "FedLID", "table5"), by_paper(split, "FedCA", "table5"))
    return (
        Claim("FedLID", NONE, "trained", ours=True, settings=(said, said)),
        Claim("FedLID", "FedCA", "trained", than="probe", settings=(said, said), printed=both),  # as printed
        Claim("FedLID", "FedCA", "probe", ours=True, settings=(said, said)),
    )


OF_FEW = (  # Table 5
    *_of_few(IID),
    *_of_few(NON_IID),
    Claim("FedLID", "FedLID", "trained", settings=FROM, printed=_both("FedLID", "table5")),
    Claim("FedCA", "FedCA", "probe", settings=FROM, printed=_both("FedCA", "table5")),
)
OF_EXTRA = (  # no table of the paper's
    Claim("FedLID", NONE, "trained", ours=True),
    Claim("FedLID", "FedCA", "probe", ours=True),
)
