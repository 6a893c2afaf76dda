"""The sections of a recipe that are the same for every task, method and engine, and the ranges of their numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fedreel.errors import RecipeError
from fedreel.fields import AtServer, BelowData, Text, Word

Division = Annotated[dict[str, Any], Text("word", divides=True)]


@dataclass(frozen=True)
class TrainConfig:
    """[train]: what a client does with its data."""

    epochs: int = 1
    batch_size: int = 16
    shuffle: bool = True
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.05
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    clip_norm: float = 0.0  # 0 = no clipping
    precision: Literal["fp32", "bf16"] = "fp32"  # bf16: autocast on a GPU
    cuda_graph: bool = True  # on a GPU, record the training step and replay it
    fuse: bool = False  # have PyTorch's compiler make a few kernels of the training step
    keep_optimizer: bool = False  # keep the optimizer's state between rounds where it is: at the client, or the server
    schedule: Literal["constant", "cosine", "step"] = "constant"  # by rounds
    milestones: tuple[int, ...] = ()
    decay: float = 0.1

    def __post_init__(self) -> None:
        check_ranges(self, "train", epochs=(1, math.inf), batch_size=(1, math.inf), lr=(0, math.inf))
        check_ranges(self, "train", momentum=(0, 1), weight_decay=(0, math.inf), clip_norm=(0, math.inf))


@dataclass(frozen=True)
class RoundConfig:
    """[round]: how often, with whom, and what a round does about clients that fail."""

    rounds: int = 10
    fraction: float = 1.0  # share of the clients sampled each round
    clients: int = 0  # or their number; 0 = use the fraction
    evaluate_every: int = 1
    min_answers: float = 0.5  # share of the ordered clients that must answer
    repeat: int = 2  # how often those who failed are asked again if too few answered
    time_limit: float = 0.0  # seconds for one client's answer; 0 = no limit
    aggregation: Literal["mean", "median", "trimmed-mean", "krum"] = "mean"  # how the clients' models become one
    trim: float = 0.2  # trimmed-mean: share cut off at each end
    byzantine: int = 1  # krum: how many bad clients to withstand
    max_change: float = 100.0  # admission: ||update - sent|| <= max_change * (1 + ||sent||), of what is trained
    max_count: float = 1e9  # admission: no client has more samples, frames or steps than this
    max_weight: float = 10.0  # at real sites: no model counts for more than so many times the middle one; 0: it may
    keep_models: int = 0  # how many global models to keep, evenly over the rounds: round-0010, round-0020, ...
    mean_over: Literal["all", "trained"] = "all"  # whose tests are in the means; trained: those who have trained yet
    trust: bool = True  # after the last round, ask how far the model is to be trusted; not where nothing is tested
    test_clients: int = 0  # how many clients are asked to test, others each time; 0: all
    divergence: bool = False  # note how far each client's model is from the global one: its backbone, its head

    def __post_init__(self) -> None:
        check_ranges(self, "round", rounds=(1, math.inf), fraction=(0, 1), clients=(0, math.inf), min_answers=(0, 1))
        check_ranges(self, "round", trim=(0, 0.499), byzantine=(0, math.inf))
        check_ranges(self, "round", max_change=(0, math.inf), max_count=(1, 1e15))
        if self.max_weight != 0:
            check_ranges(self, "round", max_weight=(1, math.inf))
        check_ranges(
            self,
            "round",
            **dict.fromkeys(("evaluate_every", "repeat", "time_limit", "keep_models", "test_clients"), (0, math.inf)),
        )


@dataclass(frozen=True)
class DataConfig:
    """[data]: whose data, and how it is divided. `partition` names a partitioner and its settings."""

    source: AtServer = "playground"  # or a folder
    public: AtServer = ""  # the server's own data, for methods that use some: a source; empty: another playground
    role: Word = "videos"  # at real sites: which of its folders a site uses (its site.toml maps roles to folders)
    owner: AtServer = ""  # the owner of samples that name none
    labels: tuple[Word, ...] = ()  # class names in order; empty: those found, sorted
    lists: BelowData = ""  # lists of the videos to use, a file or folder below the source or not; empty: those in it
    fold: int = 1  # the number of the lists to use where several exclude each other: trainlist01, trainlist02, ...
    size: Word = "small"  # of the playground
    seed: int = 0  # of the playground and the division; kept apart from the run's seed
    partition: Division = field(default_factory=lambda: {"name": "by-owner"})
    test_share: float = 0.25  # where the data do not say what is for testing
    quality: int = 0  # videos are kept as raw frames (0), or as JPEG pictures of this quality, up to 100: much smaller
    memory: float = 0.0  # GB of clients' data kept in the device's memory; 0: a quarter of it. Clips beyond it stream
    validate: bool = False  # test on a part of the training data, to choose settings by: the test part is left alone
    hold_out: Literal["drawn", "last"] = "drawn"  # which clips of an owner, where none are marked, are tested on: the
    # last of each class by name are of other films than those before, where neighbours may be of one

    def __post_init__(self) -> None:
        check_ranges(self, "data", seed=(0, 2**63 - 1), test_share=(0, 0.99))
        check_ranges(self, "data", quality=(0, 100), memory=(0, math.inf), fold=(1, math.inf))


@dataclass(frozen=True)
class PrivacyConfig:
    """[privacy]: how little can be learned about one unit, a client or an example, from all that a run gives away."""

    unit: Literal["client", "example"] = "client"
    epsilon: float = 0.0  # the budget of the run; 0: what the noise comes to
    delta: float = 1e-5
    noise: float = 0.0  # its standard deviation, in clips; 0: as little as epsilon allows
    clip: float = 1.0  # L2 norm beyond which a client's change, or the gradient of an example, is scaled down
    clip_quantile: float = 0.0  # clients: the clip follows this quantile of their changes; 0: it stays
    sampling: Literal["poisson", "fixed", "known"] = "poisson"  # of clients; known: anybody may know who takes part
    accountant: Literal["pld", "rdp"] = "pld"
    tests: Literal["noised", "off", "open"] = "noised"  # clients' test results; open: epsilon is not about them
    test_noise: float = 10.0  # of a test, in what one unit can change
    seeded: bool = False  # noise and samples follow the recipe's seed: an experiment that can be repeated, no secret

    def __post_init__(self) -> None:
        check_ranges(self, "privacy", epsilon=(0, math.inf), delta=(1e-300, 0.5), noise=(0, math.inf))
        check_ranges(self, "privacy", clip=(1e-12, math.inf), clip_quantile=(0, 0.99), test_noise=(1e-3, math.inf))
        if not self.epsilon and (not self.noise or self.unit == "example"):
            raise RecipeError(
                "there is no budget" + (", and each client makes its noise of it" if self.unit == "example" else ""),
                where="[privacy] epsilon",
                expected="a number above 0" + ("" if self.unit == "example" else ", or privacy.noise"),
            )
        of_clients = {"noise": 0.0, "clip_quantile": 0.0, "sampling": "poisson", "test_noise": 10.0}
        idle = [name for name, usual in of_clients.items() if getattr(self, name) != usual]
        if self.unit == "example" and idle:
            raise RecipeError(
                "each client makes its own noise of the budget, for tests too, and its clip stays: this does nothing",
                where=f"[privacy] {idle[0]}",
                expected='as it is by default, with unit = "example"',
            )


@dataclass(frozen=True)
class TransferConfig:
    """[transfer]: in which form models travel, for lines on which every byte counts."""

    up: Literal["full", "bf16", "int8", "top-k"] = "full"  # a client's change: as it is, rounded, or its largest part
    keep: float = 0.01  # top-k: share of the numbers that travel
    feedback: bool = True  # what rounding leaves out stays with its client, which adds it to its next change
    together: bool = False  # means of a site's or an actor's clients travel, where the method sees sums only
    down: Literal["full", "changes"] = "full"  # at real sites: models, or what is new against what the site has

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise RecipeError(
                "keep is out of range", where="[transfer] keep", expected="above 0, up to 1", found=str(self.keep)
            )


@dataclass(frozen=True)
class SecureConfig:
    """[secure]: whether the server learns only the sum of a round's updates, and on which grid they are summed."""

    sums: bool = False
    clip: float = 1.0  # no number of the model changes by more than this at a client in a round
    bits: int = 32  # of each number on its way; 64 for many thousands of clients, or a finer grid
    weight_cap: float = 1e4  # no client counts for more samples, or frames: whatever models are weighed by

    def __post_init__(self) -> None:
        check_ranges(self, "secure", clip=(1e-9, 1e9), weight_cap=(1, 1e7))
        if self.bits not in (32, 64):
            raise RecipeError("bits is out of range", where="[secure] bits", expected="32 or 64", found=str(self.bits))


@dataclass(frozen=True)
class AttackConfig:
    """[attack]: clients of a simulation that lie in every round, to see what a rule withstands."""

    kind: Literal["label-flip", "sign-flip", "scaled", "free-rider"]
    clients: int = 1  # how many; which ones is drawn by the run's seed
    scale: float = 10.0  # scaled: how many times the honest update

    def __post_init__(self) -> None:
        check_ranges(self, "attack", clients=(1, math.inf), scale=(-1e6, 1e6))


@dataclass(frozen=True)
class WorldConfig:
    """[world]: how long clients would take on devices of their own. A clock that only their work moves tells the time;
    a simulation goes as fast as it can."""

    seconds: float = 0.1  # that a middling device takes to train on a sample
    spread: float = 1.0  # of devices: standard deviation of the logarithm of how slow they are
    line: float = 1e6  # bytes a second, up and down, of a middling line
    line_spread: float = 1.0
    devices: AtServer = ""  # in place of these four: a file of devices, from `fedreel data devices`
    drop: float = 0.0  # probability that a client who was ordered to train does not come back
    over: float = 0.0  # so many more clients are ordered to train in a round, in shares; the first to answer count
    deadline: float = 0.0  # seconds after which a round does not wait any longer; 0: it does

    def __post_init__(self) -> None:
        check_ranges(self, "world", seconds=(0, math.inf), spread=(0, 5), line=(1e-3, math.inf), line_spread=(0, 5))
        check_ranges(self, "world", drop=(0, 0.99), over=(0, 10), deadline=(0, math.inf))


def check_ranges(config: object, section: str, **ranges: tuple[float, float]) -> None:
    """Raise unless every named number of a section, or each of several, lies in its range, ends included (so that nan
    does not)."""
    for name, (low, high) in ranges.items():
        value = getattr(config, name)
        if not all(low <= number <= high for number in (value if isinstance(value, tuple) else (value,))):
            raise RecipeError(
                f"{name} is out of range",
                where=f"[{section}] {name}",
                expected=f"{low} or more" if high == math.inf else f"{low} to {high}",
                found=str(value),
            )
