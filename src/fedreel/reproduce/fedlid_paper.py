"""The numbers that FedLID's paper prints, and names of its rows and settings."""

from __future__ import annotations

from collections.abc import Mapping

SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)  # of the labels of the server's images
IID, NON_IID = "Dirichlet 1", "Dirichlet 0.5"  # as the paper calls them
PRINTED: dict[str, dict[str, float]] = {  # mean accuracy over local clients: Tables 1 and 3
    IID: {"20": 42.15, "40": 41.79, "60": 42.74, "80": 43.81, "100": 43.98, "FedLID": 47.52},
    NON_IID: {"20": 32.83, "40": 33.08, "60": 32.84, "80": 34.32, "100": 35.16, "FedLID": 48.88},
}
QUOTED = {  # Tables 2 and 4: FedSimCLR, FedCA, both from FedCA's paper
    IID: {"FedSimCLR": 34.18, "FedCA": 39.47},
    NON_IID: {"FedSimCLR": 33.63, "FedCA": 38.94},
}
FEW = {IID: (32.09, 33.51), NON_IID: (22.46, 24.12)}  # Table 5: FedCA, FedLID with 10 % of labels
LITE0, RESNET18 = "ImageNet, EfficientNet-Lite0", "ImageNet, ResNet-18"  # initial weights; the second is the paper's
SUPERVISED: Mapping[str, float] = {f"supervised server, {100 * share:.0f} %": share for share in SHARES}
BEST = [*SUPERVISED][-1]
NONE, ONCE = "no server training", "server without labels, once"  # which the paper does not run
QUOTED_METHODS = ("FedSimCLR", "FedCA")
OTHERS_CLIENTS = 5  # in FedCA's paper
AHEAD = "ahead of supervised"  # by how much clients are better than those of a server with all labels


def printed(split: str, name: str) -> dict[str, float]:
    """Of a row of Tables 1 and 3; nothing of those that the paper does not have."""
    share = name.rpartition(", ")[2].removesuffix(" %") if name in SUPERVISED else name
    numbers = PRINTED[split]
    return {"trained": numbers[share], AHEAD: round(numbers[share] - numbers["100"], 2)} if share in numbers else {}


def by_paper(split: str, name: str, table: str = "", metric: str = "trained") -> float:
    """What the paper prints of a method, in Table 5 or in the tables with all labels."""
    if table == "table5":
        return dict(zip(("FedCA", "FedLID"), FEW[split]))[name]
    return QUOTED[split][name] if name in QUOTED_METHODS else printed(split, name)[metric]


def others_setting(split: str) -> dict[str, str]:
    """Rows with the network and clients of FedCA's paper."""
    return {"split": f"{split}, {OTHERS_CLIENTS} clients", "init": "random, ResNet-50"}
