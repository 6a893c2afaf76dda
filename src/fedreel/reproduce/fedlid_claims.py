"""What FedLID's paper claims of its tables, and of rows of two of them. Directions are those of its numbers."""

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
    others_setting,
)
from fedreel.reproduce.spec import Claim

FROM = {"split": IID}, {"split": NON_IID}


def of_servers(split: str) -> tuple[Claim, ...]:
    """Tables 1 and 3, beside each other and beside Table 5, which has a tenth of the labels. The paper's gain over a
    supervised server is larger with Dirichlet 0.5 (39 % against 8 %): FedLID's clients are better there than with
    Dirichlet 1, those of a supervised server worse."""
    apart = (
        tuple(Claim(name, name, "trained", settings=FROM, second="table3") for name in SUPERVISED)
        if split == IID
        else tuple(
            Claim("FedLID", "FedLID", metric, settings=FROM[::-1], second="table1") for metric in ("trained", AHEAD)
        )
    )
    return (
        *(Claim("FedLID", other, "trained") for other in SUPERVISED),
        *(Claim("FedLID", other, "trained", ours=True) for other in (NONE, ONCE)),
        *(Claim(BEST, other, "trained") for other in SUPERVISED if other != BEST),
        *apart,
        *(Claim(name, "FedLID", "trained", second="table5") for name in ("FedLID", BEST)),
    )


def of_others(split: str) -> tuple[Claim, ...]:
    """Tables 2 and 4, as printed: each row with its own network, clients and measure; and beside Table 5."""
    theirs = others_setting(split)
    inits = [{"split": split, "init": init} for init in (RESNET18, LITE0)]
    return (
        Claim("FedCA", "FedSimCLR", "probe"),
        Claim("FedLID", "FedCA", "probe", ours=True),
        *(
            Claim("FedLID", other, "trained", settings=(ours, theirs), than="probe")
            for ours in inits
            for other in QUOTED_METHODS
        ),
        Claim("FedCA", "FedCA", "probe", second="table5"),
        *(
            Claim(other, "FedLID", "probe", settings=(theirs, ours), than="trained", second="table5")
            for ours in inits
            for other in QUOTED_METHODS
        ),
        *(_by_split() if split == IID else ()),
    )


def _by_split() -> tuple[Claim, ...]:
    """Table 2 beside Table 4: with FedLID's clients and with those of FedCA's paper."""
    pairs = [FROM, (others_setting(IID), others_setting(NON_IID))]
    return tuple(
        Claim(name, name, "probe", settings=pair, second="table4") for name in QUOTED_METHODS for pair in pairs
    )


OF_FEW = (  # Table 5
    Claim("FedLID", NONE, "trained", ours=True),
    Claim("FedLID", "FedCA", "trained", than="probe"),  # as printed
    Claim("FedLID", "FedCA", "probe", ours=True),
    Claim("FedLID", "FedLID", "trained", settings=FROM),
    Claim("FedCA", "FedCA", "probe", settings=FROM),
)
OF_EXTRA = (  # no table of the paper's
    Claim("FedLID", NONE, "trained", ours=True),
    Claim("FedLID", "FedCA", "probe", ours=True),
)
