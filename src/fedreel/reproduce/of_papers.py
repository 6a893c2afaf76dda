"""The tables and figures of the papers: which have been run here, and what of them needs data that nobody here has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedreel.reproduce.stored import lines

NOT_HERE = """## Data that are not here

Nobody here has the papers' own data in whole, so their numbers stand beside ours for orientation only. `--scale paper`
runs every table on them, as the papers did."""
WHICH = """### Tables and figures

All tables and figures of the papers that have numbers or curves. None can be run here on the paper's own data in whole;
the last column is what cannot be run on the data that stand in for them either. *Run here*: data and scale of stored
tables, some of them with a part of the rows. Numbers of older settings are in the pages of the systems alone."""
NOTHING, NOT_STORED = "–", "not with today's settings"


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of a paper."""

    name: str  # as `fedreel reproduce SYSTEM NAME` has it
    shows: str
    lacks: str = NOTHING  # what of it cannot be run on other data either, and what that needs


@dataclass(frozen=True)
class Paper:
    system: str  # as `fedreel reproduce` has it
    title: str
    data: str
    here: str  # what stands in for them
    exhibits: tuple[Exhibit, ...]


WEIGHTS = "rows that begin with ResNet-18's ImageNet weights: torchvision's file of them"
ACTIVITYNET = "the half on ActivityNet Captions: its annotations and features"
PROXY = "a proxy of the other set: features of TVSum and SumMe by one network"
PAPERS = (
    Paper(
        "fedvssl",
        "FedVSSL",
        "Kinetics-400 to learn from; UCF-101 and HMDB-51 to test on",
        "signs of 12 people (MLR511), depth clips of 8 people (UTD-MHAD), surveillance clips",
        (
            Exhibit("table1", "three pretexts, in one place and federated"),
            Exhibit(
                "table2",
                "how videos are divided among clients",
                "8 and 4 classes a client, and the released lists: Kinetics' 400 classes (of ten signs: two and one)",
            ),
            Exhibit("table3", "FedAvg, Loss and FedU beside training in one place"),
            Exhibit("table4", "FedVSSL's alpha and beta"),
            Exhibit("fig2", "loss landscapes"),
            Exhibit("fig3", "retrieval with noise on the weights"),
            Exhibit("fig4", "retrieval by rounds"),
            Exhibit("fig5", "how far backbones and heads move apart"),
        ),
    ),
    Paper(
        "fedlid",
        "FedLID",
        "all of CIFAR-100 and Tiny-ImageNet, at 224 pixels; torchvision's ResNet-18",
        "140 images a class of CIFAR-100, 50 of Tiny-ImageNet, at 32 to 64 pixels; EfficientNet-Lite0",
        (
            Exhibit("table1", "FedLID beside a supervised server, Dirichlet 1", WEIGHTS),
            Exhibit("table2", "FedSimCLR, FedCA and FedLID, Dirichlet 1", WEIGHTS),
            Exhibit("table3", "as table 1, Dirichlet 0.5", WEIGHTS),
            Exhibit("table4", "as table 2, Dirichlet 0.5", WEIGHTS),
            Exhibit("table5", "a tenth of the labels", WEIGHTS),
            Exhibit("fig3", "accuracy by rounds, Dirichlet 1", WEIGHTS),
            Exhibit("fig4", "accuracy by rounds, Dirichlet 0.5", WEIGHTS),
        ),
    ),
    Paper(
        "fedvmr",
        "FedVMR",
        "Charades-STA with its training part, ActivityNet Captions",
        "the test part of Charades-STA, split, with CLIP features; ActivityNet's rows are not run",
        (
            Exhibit("table1", "FedVMR beside FedAvg, FedProx, FedCMR and training in one place", ACTIVITYNET),
            Exhibit("table2", "rounds and time by the number of groups, Charades-STA"),
            Exhibit("fig2", "recall by rounds", ACTIVITYNET),
            Exhibit("fig3", "recall by rounds and number of groups, Charades-STA"),
        ),
    ),
    Paper(
        "cfedvs",
        "CFed-VS",
        "GoogLeNet features of TVSum and of SumMe's 25 videos",
        "EfficientNet-Lite0 features of TVSum, DINO features of 14 videos of SumMe",
        (
            Exhibit("table1", "FedAvg with fewer and fewer classes a client"),
            Exhibit("table2", "CFed-VS beside FedAvg, FedProx, IFCA and FedGroup", PROXY),
            Exhibit("table3", "F1 of models in one place", "the five published splits: their files"),
            Exhibit("table4", "rank correlations of models in one place", "the five published splits: their files"),
            Exhibit("fig2", "weights by frames or by videos, by rounds"),
            Exhibit("fig5", "communities by rounds", PROXY),
            Exhibit("fig6", "number of groups", PROXY),
            Exhibit("fig7", "number of clients", f"20 and 30 clients on SumMe: more than 14 of its videos; {PROXY}"),
        ),
    ),
    Paper(
        "fsar",
        "FSAR",
        "NTU RGB+D 60 and 120, PKU-MMD I and II, UESTC",
        "NW-UCLA, UTD-MHAD, MSR Action3D, UTKinect, MSR Daily",
        (
            Exhibit("table1", "FSAR beside five methods, with four networks"),
            Exhibit("table2", "nearest neighbours on a set that took no part"),
            Exhibit("table3", "parts of the topology"),
            Exhibit("table4", "coefficients that clients learn"),
            Exhibit("fig2", "accuracy by rounds, vanilla and FSAR"),
            Exhibit("fig5", "likeness of clients' models by depth"),
            Exhibit("fig7", "accuracy by rounds, without a part of FSAR"),
            Exhibit("fig8", "topologies after the first and the last round"),
            Exhibit("fig9", "how many of the teacher's blocks a stream passes"),
            Exhibit("fig10", "loss landscapes"),
        ),
    ),
)


def sections(stored: Sequence[Mapping[str, Any]]) -> list[str]:
    """Markdown: what stands in for the papers' data, then every table and figure."""
    data = [(paper.title, paper.data, paper.here) for paper in PAPERS]
    rows = [
        (paper.title, exhibit.name, exhibit.shows, _run(paper.system, exhibit.name, stored), exhibit.lacks)
        for paper in PAPERS
        for exhibit in paper.exhibits
    ]
    return [
        NOT_HERE,
        lines([("system", "data of the paper", "what stands in for them here"), *data]),
        WHICH,
        lines([("system", "table or figure", "what it shows", "run here", "needs what nobody here has"), *rows]),
    ]


def _run(system: str, table: str, stored: Sequence[Mapping[str, Any]]) -> str:
    """On which data, and at which scales, a table has been run."""
    of_table = [s for s in stored if s["command"].split()[2] == system and s["table"] == table]
    return "; ".join(dict.fromkeys(f"{s['data']}, {s['scale']}" for s in of_table)) or NOT_STORED
