"""Moment retrieval: a video and a sentence in, the span of the video that the sentence describes out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedreel.config import DataConfig, check_ranges
from fedreel.core.abilities import Accountable, Temporal, Trials
from fedreel.core.task import ClientData, Examples, Outputs, Task, Tensors
from fedreel.data.features import known_card
from fedreel.errors import DataError, RecipeError
from fedreel.fields import FileName, MakerName, WeightsName
from fedreel.metrics.familiarity import sequence_look
from fedreel.models.pretrained import load_whole
from fedreel.models.sentences import SentenceEncoder, encoder_card, encoder_width, make_encoder
from fedreel.tasks.moments.examples import Batch, Moments, temporal_classes
from fedreel.tasks.moments.grounding import Grounder, Located, loss, temporal_distribution
from fedreel.tasks.moments.judging import Said, judged
from fedreel.tasks.moments.metrics import MEASURES, iou, prior_only
from fedreel.tasks.moments.population import MomentPopulation
from fedreel.tasks.moments.sources import open_moments
from fedreel.tasks.moments.text import Words

BY_WORDS = "words"


@dataclass(frozen=True)
class MomentOutputs(Outputs):
    """Beside the rest, what the network says of where the moment lies."""

    located: Located


@dataclass(frozen=True)
class MomentRetrieval(Task, Temporal, Accountable):
    """A light network on `length` windows of a video's features and the words of a sentence. With `sentences = "words"`
    these are read one by one: `words` is a file of words with vectors (GloVe as .npz or text) or without, one a line;
    if none is given, words are those of the training sentences, with vectors that are learnt. Any other name is a
    frozen encoder, which knows every word and reads each in its sentence. `use_video = false` is the control that knows
    only the sentence."""

    sends: ClassVar = {"frames": "count"}
    metrics: ClassVar = (*MEASURES, "score", "loss", "highlight_map", "highlight_hit")
    ranges: ClassVar = dict.fromkeys((*MEASURES, "highlight_map", "highlight_hit"), (0.0, 1.0))

    form: Literal["pointer", "anchor-free", "proposal", "qd-detr"] = "pointer"
    encoder: Literal["conv", "lstm", "none", "attention"] = "conv"  # none: over words, not over a video's positions
    features: MakerName = "plain"  # or another extractor, or the name of those that come with the data
    width_in: int = 64  # how many there are of a window
    fps: float = 2.0  # rows of features a second, where they are made here
    standardise: bool = False  # the features of each window, by their own mean and deviation
    length: int = 64
    window: float = 0.0  # seconds: longer videos are cut into overlapping windows of so many; 0: none is (qd-detr)
    sentences: MakerName = "words"  # or the encoder minilm, bert:FOLDER or clip:FOLDER
    words: FileName = ""
    vocabulary: int = 1000  # the most words that vectors are learnt for
    word_width: int = 300
    most_words: int = 15  # of a sentence; of an encoder's tokens
    least: int = 1  # a word of the training sentences that occurs less often is unknown
    width: int = 256
    dropout: float = 0.2
    use_video: bool = True
    prior: bool = True  # whether the sentence alone may speak for a place in the video; not without, for encoder lstm
    max_share: float = 1.0  # of the video that an answer may be long
    answer: Literal["likeliest", "overlap"] = "likeliest"  # span, or that of the highest expected overlap
    init: WeightsName = ""  # a file of weights of the whole network to begin with; empty: random

    def __post_init__(self) -> None:
        whole = ("width_in", "length", "word_width", "most_words", "least", "width")
        check_ranges(self, "task", **dict.fromkeys(whole, (1, math.inf)))
        check_ranges(self, "task", vocabulary=(2, math.inf), dropout=(0, 1), max_share=(0.01, 1), fps=(1e-6, math.inf))
        check_ranges(self, "task", window=(0, math.inf))
        if self.window and self.form != "qd-detr":
            raise RecipeError(
                "only the form qd-detr learns that a moment may lie in another window",
                where="[task] window",
                expected="0, or task.form = 'qd-detr'",
                found=f"{self.window} with {self.form}",
            )
        if self.sentences != BY_WORDS and self.words:
            raise RecipeError(
                "an encoder of sentences has no use for a list of words",
                where="[task] words",
                expected=f"task.words = '', or task.sentences = '{BY_WORDS}'",
                found=f"{self.words} beside the encoder '{self.sentences}'",
            )

        if self.init and self.sentences == BY_WORDS and not self.words:
            raise RecipeError(
                "vectors are learnt for the words of these training sentences; those of a file belong to other words",
                where="[task] init",
                expected="'', or task.words = FILE, or an encoder of sentences",
                found=f"{self.init} without a list of words",
            )

    def model(self) -> Grounder:
        network = Grounder(
            self.width_in,
            self.length,
            *self._words(),
            self.width,
            self.dropout,
            self.encoder,
            self.form,
            self.use_video,
            self.max_share,
            self.answer,
            self.standardise,
            self.prior,
        )
        return load_whole(network, self.init)

    def population(self, data: DataConfig, seed: int) -> MomentPopulation:
        found = open_moments(data, self.features, self.fps)
        given = self._reader()
        population = MomentPopulation(
            found.queries,
            found.features,
            given,
            data,
            seed,
            length=self.length,
            most=self.most_words,
            least=self.least,
            window=self.window,
            repairs=found.repairs,
        )
        words = len(population.words) if isinstance(population.words, Words) and not given else 0
        for fits, setting, own, there in (
            (found.features.width == self.width_in, "width_in", self.width_in, found.features.width),
            (words <= self.vocabulary, "vocabulary", self.vocabulary, words),
        ):
            if not fits:
                raise DataError(
                    "the data do not fit the task",
                    where=f"{data.source}, [task] {setting}",
                    expected=str(own),
                    found=str(there),
                    hint=f"set task.{setting}={there}",
                )
        return population

    def forward(self, model: nn.Module, batch: Batch) -> MomentOutputs:
        located: Located = model(batch[0], batch[1])
        return MomentOutputs(located.features, located.scores, located)

    def loss(self, outputs: Outputs, batch: Batch) -> Tensor:
        return loss(cast(MomentOutputs, outputs).located, batch[2], batch[3])

    def evaluate(self, model: nn.Module, examples: Examples, batch_size: int) -> dict[str, float]:
        """R(1, m) as r3, r5 and r7, the mean IoU, and `score`, by which FedVMR weighs models; see `judged`."""
        said: list[tuple[Tensor, ...]] = []
        total = 0.0
        for batch in examples.batches(batch_size):
            outputs = self.forward(model, batch)
            total += float(self.loss(outputs, batch)) * len(batch[0])
            shares, scores = cast(Grounder, model).decode(outputs.located)
            seconds = batch[3][:, 2:]
            salient = outputs.located.scores.double().sigmoid()
            said.append((shares[:, 0] * seconds, scores[:, 0], salient, batch[3][:, :2], seconds[:, 0]))
        if not said:
            return {"n": 0.0}
        columns = (torch.cat(parts).double().cpu().numpy() for parts in zip(*said))
        return {**judged(Said(*columns), examples), "loss": total / len(examples)}

    def trials(self, model: nn.Module, data: ClientData, batch_size: int) -> Iterator[Trials]:
        """A score is the overlap with the moment, of windows of long videos in those that hold it; one who has learned
        nothing but where the client's own training moments lie answers all with the same part of the video."""
        learned = _present(data.train).times.double().cpu().numpy()
        same = prior_only(learned[:, :2] / learned[:, 2:])["miou"]
        for batch in _present(data.test).batches(batch_size):
            shares = cast(Grounder, model).decode(self.forward(model, batch).located)[0][:, 0].double().cpu().numpy()
            times = batch[3].double().cpu().numpy()
            overlaps = (iou(found * times[:, 2:], times[:, :2]) for found in (shares, np.array([same])))
            yield Trials(*(torch.from_numpy(overlap) for overlap in overlaps))

    def looks(
        self, model: nn.Module, examples: Examples, batch_size: int, generator: torch.Generator | None = None
    ) -> Iterator[Tensor]:
        videos = cast(Moments, examples).videos
        for (some,) in Tensors((videos,)).batches(batch_size, generator):
            yield sequence_look(some)

    def card(self) -> dict[str, Any]:
        features = {**known_card(self.features, self.width_in), "fps": self.fps}
        if self.sentences == BY_WORDS:
            read: dict[str, Any] = {"words": self.words or "those of training"}
        else:
            read = {"sentences": encoder_card(self.sentences)}
        return {"input": {"features": features, "length": self.length, **read}}

    def _words(self) -> tuple[int, int, Tensor | None]:
        """How many words the network has vectors for, their width, and the vectors where these are given."""
        if self.sentences != BY_WORDS:
            return 0, encoder_width(self.sentences), None
        known = _read(self.words) if self.words else None
        if known is None or known.vectors is None:
            return len(known) if known else self.vocabulary, self.word_width, None
        return len(known), known.vectors.shape[1], torch.from_numpy(known.vectors)

    def _reader(self) -> Words | SentenceEncoder | None:
        """What reads sentences; none where the words are those of training."""
        if self.sentences != BY_WORDS:
            return make_encoder(self.sentences)
        return _read(self.words) if self.words else None

    # for methods that look at where moments lie

    def temporal_distribution(self, outputs: Outputs, bins: int) -> Tensor:
        return temporal_distribution(cast(MomentOutputs, outputs).located, bins)

    def temporal_counts(self, examples: Examples, bins: int) -> Tensor:
        mine = cast(Moments, examples)
        classes = torch.from_numpy(temporal_classes(mine.times[mine.present].cpu().numpy(), bins))
        return torch.bincount(classes, minlength=bins**2).float()

    def sample(self, examples: Examples, share: float) -> dict[str, Tensor]:
        mine = cast(Moments, examples)
        videos = torch.randperm(len(mine.videos))[: max(1, round(share * len(mine.videos)))]
        drawn = torch.isin(mine.which.cpu(), videos) & mine.present.cpu()
        rows = drawn.nonzero().flatten().to(mine.which.device)
        columns = {"video": mine.videos[mine.which[rows]], "words": mine.words[rows], "spans": mine.spans[rows]}
        return {name: column.cpu() for name, column in {**columns, "times": mine.times[rows]}.items()}

    def categories(self, examples: Examples) -> int:
        return len(torch.unique(cast(Moments, examples).groups))


@lru_cache(maxsize=4)
def _read(path: str) -> Words:
    return Words.read(Path(path).expanduser())


def _present(examples: Examples) -> Moments:
    """Without the windows of long videos in which there is nothing of the moment."""
    mine = cast(Moments, examples)
    return mine if bool(mine.present.all()) else mine.select(mine.present.nonzero().flatten())
