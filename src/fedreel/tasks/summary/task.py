"""Video summarization: a video's steps in, the importance of each out; the best shots that fit make the summary."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedreel.config import DataConfig, check_ranges
from fedreel.core.abilities import Accountable, Flippable, Sequences, Trials
from fedreel.core.task import ClientData, Examples, Outputs, Task
from fedreel.data.features import known_card, make_features
from fedreel.errors import DataError, RecipeError
from fedreel.fields import BelowData, MakerName, WeightsName
from fedreel.metrics.familiarity import sequence_look
from fedreel.models.pretrained import load_whole
from fedreel.tasks.summary.annotations import with_split, with_user_scores
from fedreel.tasks.summary.data import How, Spread, SummaryVideo, find_public, find_summary, read_summary
from fedreel.tasks.summary.metrics import RATIO, mean_defined, score
from fedreel.tasks.summary.split import Batch, SummaryPopulation, Videos
from fedreel.tasks.summary.summarizers import Summarizer, make_summarizer

_WIDTHS = {"plain": 64, "efficientnet-lite0": 1280}


@dataclass(frozen=True)
class Summary(Task, Sequences, Accountable, Flippable):
    """A summarizer on steps of `width_in` features. `width`, `blocks`, `heads`, `attention`, `block` and `positions`
    are the Mixture Transformer's; vsLSTM takes `hidden` and `dropout`, the attention model `dropout`, novelty nothing.
    The paper's features are GoogLeNet's (width_in 1024) at 2 steps a second."""

    sends: ClassVar = {"frames": "count"}
    metrics: ClassVar = ("f1", "tau", "rho", "loss")
    ranges: ClassVar = {"f1": (0.0, 1.0), "tau": (-1.0, 1.0), "rho": (-1.0, 1.0)}

    summarizer: Literal["vslstm", "attention", "mixture_transformer", "novelty"] = "mixture_transformer"
    features: MakerName = "plain"  # or efficientnet-lite0, run:FOLDER, or a name for features that come with the data
    width_in: int = 64  # how many there are of a step
    fps: float = 1.0  # steps a second
    standardise: bool = False  # each feature to mean 0 and deviation 1, over a file
    how: How = "auto"  # F1: mean over users, or max
    spread: Spread = "auto"  # a step's score: held until the next pick, or the nearest pick's
    fragments: int = 0  # cut every video into so many parts; 0 = whole videos
    splits: BelowData = ""  # a json file of splits, data.seed says which; relative to the data's folder
    annotations: BelowData = ""  # the set's original annotations, for users' scores; relative to the data's folder
    ratio: float = RATIO  # of a video that its summary may keep
    width: int = 64
    blocks: int = 2
    heads: int = 1
    hidden: int = 64
    dropout: float = 0.3
    attention: Literal["mixture", "literal", "plain"] = "mixture"
    block: Literal["pre-norm", "literal"] = "pre-norm"  # literal: as the paper's Eq. 4 has it
    positions: bool = False
    init: WeightsName = ""  # a file of weights of the whole summarizer to begin with; empty: random

    def __post_init__(self) -> None:
        check_ranges(self, "task", **dict.fromkeys(("width_in", "width", "heads", "hidden"), (1, math.inf)))
        check_ranges(self, "task", blocks=(0, math.inf), fragments=(0, math.inf), dropout=(0, 1), ratio=(0.01, 1))
        check_ranges(self, "task", fps=(1e-6, math.inf))
        known = _WIDTHS.get(self.features, self.width_in)
        if known != self.width_in:
            raise RecipeError(
                "the features have another width than the task",
                where="[task] width_in",
                expected=f"{known} for the features '{self.features}'",
                found=str(self.width_in),
                hint="if the data come with features of their own, give these a name: task.features=NAME",
            )

    def model(self) -> Summarizer:
        options: dict[str, Any] = {}
        if self.summarizer != "novelty":
            options["dropout"] = self.dropout
        if self.summarizer in ("vslstm", "mixture_transformer"):
            options["hidden"] = self.hidden
        if self.summarizer == "mixture_transformer":
            options |= {"width": self.width, "blocks": self.blocks, "heads": self.heads}
            options |= {"attention": self.attention, "block": self.block, "positions": self.positions}
        return load_whole(make_summarizer(self.summarizer, self.width_in, **options), self.init)

    def population(self, data: DataConfig, seed: int) -> SummaryPopulation:
        path = find_summary(data)
        videos = self._fitting(self._read(path), str(path))
        if self.annotations:
            videos = with_user_scores(videos, path.parent / self.annotations)
        if self.splits:
            videos = with_split(videos, path.parent / self.splits, data.seed)
        of_a_run = self.features.startswith("run:")
        card = known_card(self.features, self.width_in) if of_a_run else {"name": self.features, "width": self.width_in}
        return SummaryPopulation(videos, data, seed, features=card, fragments=self.fragments, ratio=self.ratio)

    def sequences(self, examples: Examples) -> list[Tensor]:
        assert isinstance(examples, Videos)
        return examples.sequences

    def topics(self, examples: Examples) -> Tensor:
        assert isinstance(examples, Videos)
        return torch.tensor(examples.topics)

    def public(self, data: DataConfig, seed: int) -> Videos:
        """The server's own videos, what clients measure their distance to first: whole videos that no client trains on.
        Of another file, those marked for testing or else all; of the clients' own, those held out for testing."""
        path = find_public(data)
        try:
            videos = self._fitting(self._read(path), str(path))
        except RecipeError as error:
            hint = "set data.public to an h5 file with the same features"
            raise RecipeError(error.problem, expected=error.expected, found=error.found, hint=hint) from error
        if data.source != "playground" and path.samefile(find_summary(data)):
            held_out = self.population(data, seed).held_out
            videos = [v for v in videos if v.source in held_out]
        else:
            videos = [v for v in videos if v.split == "test"] or videos
        if not videos:
            hint = "set data.test_share, or data.public to another file"
            raise DataError("no video is held out for testing, so none can be the proxy", where=str(path), hint=hint)
        rng = np.random.default_rng([seed, 0x9B1C])
        first = int(rng.integers(len(videos)))
        others = rng.permutation(np.delete(np.arange(len(videos)), first))
        return Videos.of([videos[i] for i in (first, *others)])

    def forward(self, model: nn.Module, batch: Batch) -> Outputs:
        """Logits are the scores (B, N), 0 to 1; features the mean (B, width) of what the head sees of real steps."""
        x, mask = batch[0], batch[1]
        bare = len(x) == 1 and not x.is_cuda  # no padding; on a GPU there may be some (see Videos)
        features, scores = model.features_and_scores(x, None if bare else mask)  # type: ignore[operator]
        if bare:
            return Outputs(features.mean(dim=1), scores)
        return Outputs((features * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True), scores)

    def loss(self, outputs: Outputs, batch: Batch) -> Tensor:
        """Mean over videos of the mean squared error over their real steps."""
        return _errors(outputs, batch).mean()

    def evaluate(self, model: nn.Module, examples: Examples, batch_size: int) -> dict[str, float]:
        """Means over videos; a measure that is defined for none of them is left out."""
        assert isinstance(examples, Videos)
        found: dict[str, list[float]] = {"f1": [], "tau": [], "rho": [], "loss": []}
        for batch in examples.batches(batch_size):
            outputs = self.forward(model, batch)
            found["loss"] += _errors(outputs, batch).tolist()
            scores = outputs.logits.double().cpu().numpy()
            for row, which in zip(scores, batch[3].tolist()):
                truth = examples.truths[which]
                result = score(row[: len(truth.picks)], truth, self.ratio)
                for name in ("f1", "tau", "rho"):
                    found[name].append(getattr(result, name))
        means = {name: mean_defined(values) for name, values in found.items()}
        return {**{name: mean for name, mean in means.items() if not math.isnan(mean)}, "n": float(len(examples))}

    def trials(self, model: nn.Module, data: ClientData, batch_size: int) -> Iterator[Trials]:
        """A score is Kendall's tau with people's scores, 0 on average of scores drawn at random."""
        videos = data.test
        assert isinstance(videos, Videos)
        for batch in videos.batches(batch_size):
            rows = self.forward(model, batch).logits.double().cpu().numpy()
            truths = [videos.truths[which] for which in batch[3].tolist()]
            found = torch.tensor([score(row[: len(t.picks)], t, self.ratio).tau for row, t in zip(rows, truths)])
            defined = found[found.isfinite()].double()
            yield Trials(defined, torch.zeros_like(defined))

    def flipped(self, examples: Examples) -> Videos:
        """What mattered most matters least: scores are from 0 to 1."""
        assert isinstance(examples, Videos)
        targets = [1 - target for target in examples.targets]
        return Videos(examples.sequences, targets, examples.truths, examples.sources, examples.topics, examples.whole)

    def looks(
        self, model: nn.Module, examples: Examples, batch_size: int, generator: torch.Generator | None = None
    ) -> Iterator[Tensor]:
        """Nothing where features are standardised over a file: of a single video's own, that would leave no look."""
        assert isinstance(examples, Videos)
        for rows in () if self.standardise else examples.sequences:
            yield sequence_look(rows[None])

    def card(self) -> dict[str, Any]:
        features = {**known_card(self.features, self.width_in), "fps": self.fps, "standardised": self.standardise}
        return {"input": {"features": features}, "summary": {"model": self.summarizer, "ratio": self.ratio}}

    def _read(self, path: Path) -> list[SummaryVideo]:
        stamp = path.stat().st_mtime_ns, path.stat().st_size
        return [*_kept(path.resolve(), stamp, self.features, self.how, self.spread, self.standardise)]

    def _fitting(self, videos: list[SummaryVideo], where: str) -> list[SummaryVideo]:
        """The videos, if what they say of themselves is what the task says."""
        width = videos[0].features.shape[1]
        rate = float(np.median([v.rate for v in videos if v.rate] or [self.fps]))
        for name, own, found, good in (
            ("features", self.width_in, width, width == self.width_in),
            ("steps a second", self.fps, round(rate, 3), 0.9 < rate / self.fps < 1.1),
        ):
            if not good:
                setting = "width_in" if name == "features" else "fps"
                raise DataError(
                    f"the data have another number of {name} than the task",
                    where=where,
                    expected=str(own),
                    found=str(found),
                    hint=f"set task.{setting}={found}",
                )
        return videos


@lru_cache(maxsize=2)
def _kept(path: Path, stamp: object, features: str, how: How, spread: Spread, standardise: bool) -> list[SummaryVideo]:
    """All videos of a file as it is now. A run reads the clients' file and the server's, which may be one, and a sweep
    has many runs; to read a file takes as long as a round of a short one."""
    return read_summary(path, partial(make_features, features), how=how, spread=spread, standardise=standardise)


def _errors(outputs: Outputs, batch: Batch) -> Tensor:
    """The mean squared error of each video over its real steps, (B,)."""
    mask, target = batch[1], batch[2]
    square = (outputs.logits - target).square().masked_fill(~mask, 0.0)
    return square.sum(dim=1) / mask.sum(dim=1)
