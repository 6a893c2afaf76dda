"""FedVSSL (Rehman et al. 2022): its tables and figures, on the playground or on given videos.

Given videos are FOLDER/pretrain, which is learned from without labels, and FOLDER/downstream/NAME/{train,test}/CLASS,
one folder for each labelled set. The paper's numbers stand beside ours where these are called ucf101 and hmdb51."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedreel.config import load_recipe
from fedreel.reproduce import fedvssl_claims as said
from fedreel.reproduce.fedvssl_claims import FEDERATED
from fedreel.reproduce.fedvssl_data import adapt
from fedreel.reproduce.fedvssl_effort import effort, relate
from fedreel.reproduce.fedvssl_mae import MAE_SCALE, mae_rows
from fedreel.reproduce.fedvssl_paper import BEST, BY_METHOD, BY_MIXTURE, T3, T4
from fedreel.reproduce.fedvssl_rows import (
    CENTRES,
    MIXED,
    PAPER_CENTRE,
    beyond_speed,
    by_pretext,
    by_split,
    rows_of,
    with_momentum,
)
from fedreel.reproduce.fedvssl_work import work
from fedreel.reproduce.spec import Choose, Claim, Scale, Table
from fedreel.tasks.pretrain import analysis as pretraining

# What a table on given data means: the paper's optimiser (SGD without momentum, a constant rate, weight decay 1e-4,
# gradients of norm 40 at most), with nothing left of what the playground's recipe chose for itself.
PAPER_OPTIMISER: Mapping[str, Any] = {
    "train.epochs": 1,
    "train.momentum": 0.0,
    "train.schedule": "constant",
    "train.weight_decay": 1e-4,
    "train.clip_norm": 40.0,
}
# Federated rows see the data as often as the centralised one (in the paper: 27 times and 90 times), by 3 of 9 owners.
SMALL: Mapping[str, Any] = {
    **PAPER_OPTIMISER,
    "round.rounds": 270,
    "round.fraction": 0.33,
    "round.evaluate_every": 45,
    "train.batch_size": 8,
    "train.lr": 0.03,  # of rows whose rate is not chosen
    "train.precision": "bf16",
    "task.backbone.width": 64,
    "task.backbone.stem_size": 7,
    "task.frames": 8,
    "task.size": 56,
    "task.stored": 64,
    "task.differences": False,
    "task.norm": "imagenet",  # of Catch-the-Patch's authors, by whose program the paper trains all pretexts
    "task.jitter": 0.2,  # as Table 1 has it for speed, so that the tables share cells
}
HELD_OUT = Choose(  # by whole runs: after a third of the rounds Speed is at chance with every rate
    "loss",
    {"data.validate": True},
    "the pretext, of clips held out of the training part, once for each pretext and kind of row: FedAvg, FedVSSL (by"
    " 0.9, 0), with momentum, in one place",
    higher=False,
    without=("round.keep_models", "round.divergence"),
    beyond=("train.lr",),
)
# On the playground all eight owners take part in each round.
SCALES = {
    "smoke": Scale(
        "fedvssl",
        (0,),
        {
            "data.size": "tiny",
            "round.rounds": 2,
            "round.clients": 2,
            "round.evaluate_every": 1,
            "train.epochs": 1,
            "task.backbone.width": 4,
        },
        given={"task.most": 12},
        rows={"centralised": {**PAPER_CENTRE, "round.rounds": 2, "train.milestones": []}},
    ),
    "small": Scale(
        "fedvssl",
        (0, 1, 2, 3),
        given=SMALL,
        rows={  # VCOP is learned sooner than the others, so it gets fewer rounds
            "VCOP": {"round.rounds": 135, "task.gap": 2},
            "centralised": {**PAPER_CENTRE, "train.batch_size": 8},
            "=centralised": {"round.rounds": 90},
            "centralised & VCOP": {"round.rounds": 45, "train.milestones": [15, 30], "train.batch_size": 32},
            "centralised & CtP": {"train.batch_size": 32},
            "random weights": {"round.rounds": 1},
        },
        choose_given=HELD_OUT,
    ),
    "paper": Scale(
        "fedvssl-paper",
        (0, 1, 2),
        given={"data.partition": load_recipe("fedvssl-paper").data.partition},
        rows={"VCOP": {"train.lr": 1e-3}, "centralised": PAPER_CENTRE, "=centralised": {"round.rounds": 90}},
    ),
}
COMMON: Mapping[str, Any] = {
    "scales": SCALES,
    "factor": 100.0,
    "plain": ("passes", "rounds", "* seconds", "seconds", "tune rate", "sharpness", "* spread", "* moved", "loss"),
    "adapt": adapt,
    "work": work,
}
RECALLS = ("r1", "r1/*", "r5", "r5/*", "r1 pooled")
PROBES, TUNINGS = ("probe", "probe/*"), ("tune", "tune/*")
PRETEXT = ("*accuracy", "*iou", "unseen */*")  # which of the two a run has
NOTES = (
    "R@k and top-1 in percent. r1: a test video's nearest training video is of its class, by VCOP's features of ten"
    " clips (pooled: means over time and space); probe: a linear classifier on the frozen backbone; tune: after"
    " fine-tuning. With several sets: means over them, and each. accuracy (Speed, VCOP) or iou (CtP): the pretext,"
    " on clips of the same owners that were held out, and unseen, on the test videos of the downstream sets",
    "networks smaller than the paper's get probes on standardised features, and 60 epochs of fine-tuning (30 on the"
    " playground) instead of 150",
    "the same clients, initial weights and client sequence for all rows; the paper's numbers: Kinetics-400, then"
    " UCF-101 and HMDB-51",
)
RANDOM = "random weights: batch norms have taken their statistics from the data, nothing else is trained"


def _mae_scale(scale: Scale) -> Scale:
    """Without what is said of R3D: rows bring their backbones."""
    settings, given = ({k: v for k, v in d.items() if "backbone" not in k} for d in (scale.settings, scale.given))
    return replace(scale, settings=settings, given=given, **MAE_SCALE["smoke" if "data.size" in settings else "small"])


TABLES = {
    "table1": Table(
        rows=by_pretext,
        metrics=(*TUNINGS, *PROBES, *RECALLS, *PRETEXT),
        derive=(pretraining.recalls, pretraining.probes, pretraining.tunings, pretraining.unseen),
        notes=(
            *NOTES,
            RANDOM,
            "the paper's federated rows are FedAvg's; for CtP their R@1 is 29.29 where its Tables 3 and 4 have 32.62"
            " for the same split, perhaps by momentum: that is run for the table `momentum`",
            "the paper's printed differences for Speed are wrong; from its own numbers they are: HMDB fine-tuned -9.15;"
            " UCF R@1 +5.13, R@5 +5.03; HMDB R@1 +4.05, R@5 +7.25",
            "the paper has FedAvg ahead in R@1 with Speed and CtP, behind with VCOP",
        ),
        claims=said.OF_PRETEXTS,
        **COMMON,
    ),
    "table2": Table(
        rows=by_split,
        metrics=(*TUNINGS, *RECALLS, *PRETEXT),
        derive=(pretraining.recalls, pretraining.tunings, pretraining.unseen),
        notes=(
            *NOTES,
            "the split that was published with the paper slides by one class instead of four: its 100 clients hold 106"
            " of the 400 classes, most of them four times",
        ),
        claims=said.OF_SPLITS,
        **COMMON,
    ),
    "table3": Table(
        rows=rows_of(("random weights", *CENTRES, *FEDERATED), T3, BY_METHOD),
        metrics=(*RECALLS, *TUNINGS, *PROBES, *PRETEXT, "passes", "saved"),
        derive=(pretraining.recalls, pretraining.probes, pretraining.tunings, pretraining.unseen, effort),
        relate=relate,
        notes=(
            *NOTES,
            RANDOM,
            "passes: how often a training clip was learned from; saved: how much less than in one place",
        ),
        claims=said.OF_METHODS,
        **COMMON,
    ),
    "table4": Table(
        rows=rows_of(("FedAvg", *MIXED), T4, BY_MIXTURE),
        metrics=(*RECALLS, *TUNINGS, *PROBES, *PRETEXT),
        derive=(pretraining.recalls, pretraining.probes, pretraining.tunings, pretraining.unseen),
        notes=(
            *NOTES,
            "FedVSSL alpha, beta",
            "the paper's +6.66 (UCF) and +5.13 (HMDB) over training in one place are each the best of these rows, not"
            " one configuration",
        ),
        claims=said.of_mixtures(MIXED),
        **COMMON,
    ),
    "momentum": Table(
        rows=with_momentum,
        metrics=(*TUNINGS, *PROBES, *RECALLS, *PRETEXT),
        derive=(pretraining.recalls, pretraining.probes, pretraining.tunings, pretraining.unseen),
        notes=(*NOTES, "not a table of the paper, but perhaps what its Tables 1 and 2 show: momentum 0.9 at clients"),
        claims=said.OF_MOMENTUM,
        **COMMON,
    ),
    "pretexts": Table(
        rows=beyond_speed,
        metrics=(*TUNINGS, *PROBES, *RECALLS, *PRETEXT),
        derive=(pretraining.recalls, pretraining.probes, pretraining.tunings, pretraining.unseen),
        notes=(*NOTES, "not a table of the paper: FedVSSL with the pretexts that its Tables 3 and 4 do not have"),
        claims=tuple(Claim(BEST, "FedAvg", metric, ours=True) for metric in ("r1", "probe", "tune")),
        **COMMON,
    ),
    "mae": Table(
        rows=mae_rows,
        metrics=(*TUNINGS, *PROBES, *RECALLS, "loss", "passes", "rounds", "round seconds", "seconds", "tune rate"),
        derive=(pretraining.recalls, pretraining.probes, pretraining.chosen_tunings, pretraining.learned_from),
        notes=(
            *NOTES[:1],
            "not in the paper: filling in hidden tubes (VideoMAE) beside Speed, by FedVSSL 0.9, 0. loss is the"
            " pretext's, so it compares rows of one pretext only",
            "round seconds: of training in a round, the median of rounds that were timed before the others were run,"
            " one row at a time; seconds: that of all rounds. mae has as many rounds as fit into the seconds of Speed"
            " with the same backbone, unless its row says otherwise",
            "probes are on standardised features. Fine-tuning: 60 epochs (30 on the playground) of the same clips and"
            " views; R3D by SGD as in the other tables, VideoMAE by AdamW as its authors do it. The rate is chosen for"
            " each run among three, for all sets together, on a fifth of their training videos, in 20 epochs",
        ),
        claims=tuple(Claim("mae", "Speed", metric, ours=True) for metric in ("r1", "probe", "tune")),
        **{**COMMON, "scales": {name: _mae_scale(SCALES[name]) for name in ("smoke", "small")}},
    ),
    "settled": Table(
        rows=rows_of(("centralised", "FedAvg", *MIXED), (), {}),
        metrics=("r1", "r1 settled", "r5", "r5 settled", "r1 pooled", "r1 pooled settled", "probe", "probe settled"),
        derive=(pretraining.recalls, pretraining.probes, pretraining.settled),
        notes=(
            NOTES[0],
            "not in the paper: the runs of Table 4, before and after batch norms have taken their statistics anew from"
            " the training videos of each set (settled). Those of a mean of models are means, too; with beta over"
            " rounds as well",
        ),
        claims=tuple(
            Claim(row, "FedAvg", f"{metric} settled", ours=True) for row in MIXED for metric in ("r1", "probe")
        ),
        **COMMON,
    ),
    "tuned": Table(
        rows=rows_of(("random weights", "centralised", "FedAvg", BEST), (), {}),
        metrics=("tune", "tune longer", "tune fitted", "tune rate"),
        derive=(pretraining.tunings, pretraining.longer_tunings, pretraining.fitted_tunings),
        notes=(
            *NOTES,
            "not in the paper: runs of Table 3, fine-tuned as in the tables; for the paper's 150 epochs (longer); and"
            " at a rate that is chosen for each run among three, for all sets together, on a fifth of their training"
            " videos, in a third of the epochs (fitted). What a rate does depends on how large the weights are, and"
            " those of one row are larger than another's",
        ),
        claims=tuple(Claim("centralised", "FedAvg", f"tune {how}", ours=True) for how in ("longer", "fitted")),
        **COMMON,
    ),
    "fig2": Table(
        rows=rows_of(("centralised", "FedAvg", BEST), (), {}),
        metrics=("sharpness", "loss", *PRETEXT),
        derive=(pretraining.flatness,),
        notes=(
            "the landscapes are in the landscape.html of each cell",
            f"sharpness: mean rise of the pretext's loss within {pretraining.RADIUS} of the model, filter-normalised"
            " directions, always the same questions, batch norm by its statistics",
        ),
        **COMMON,
    ),
    "fig3": Table(
        rows=rows_of(("centralised", "FedAvg", BEST), (), {}),
        metrics=("r1 at *",),
        derive=(pretraining.perturbations,),
        notes=(
            "R@1 in percent when every weight of the backbone, batch norm's too, gets so many times a number from"
            " N(0, 1) added; running statistics stay; one draw for each run, of its seed",
        ),
        claims=said.OF_NOISE,
        **COMMON,
    ),
    "fig4": Table(
        rows=rows_of(("random weights", "centralised", "FedAvg", *MIXED), (), {}),
        metrics=("r1 after *", "rounds", *RECALLS, *PRETEXT, "passes", "saved"),
        derive=(pretraining.recalls, pretraining.recall_curve, effort),
        relate=relate,
        notes=(
            "rounds: until the pretext is answered as well as after training in one place, where that is reached; R@k"
            " of the last round; r1 after: R@1 by how much of the rounds were over. The paper draws R@1 by rounds;"
            " its federated runs reach the centralised one below round 100 (FedAvg) and 200 (all) of 540",
            "saved: passes over the data, less than in one place. The paper says 62.5 % of the GPU time; its 27 epochs"
            " of 90 are 70 % less",
        ),
        claims=said.of_rounds(MIXED),
        **COMMON,
    ),
    "fig5": Table(
        rows=rows_of(("FedAvg",), (), {}),
        metrics=("backbone spread", "head spread", "backbone moved", "head moved"),
        derive=(pretraining.divergences,),
        notes=(
            "spread: deviation over a round's clients of the L2 distance from the global model, mean over rounds. The"
            " paper finds it larger for the head; each round's distances are in the metrics.jsonl of the cells",
        ),
        claims=said.OF_MOVES,
        **COMMON,
    ),
}
