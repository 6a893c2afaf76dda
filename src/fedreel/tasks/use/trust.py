"""How far a model's answer is to be trusted: by what owners' held-out samples said of it when its training ended."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedreel.core.assessment import model_for
from fedreel.errors import RunError
from fedreel.metrics.familiarity import Space, projected
from fedreel.runs.run import TRUST, Loaded

Verdict = Literal["yes", "no", "not known"]
NOT_KNOWN: Verdict = "not known"  # of a run that was not asked, or whose owners did not let it out


@dataclass(frozen=True)
class Trust:
    """What is said with an answer. `distance` is how far the source is from what the model learned from, in parts of
    the distance beyond which it is called unlike."""

    near_chance: Verdict = NOT_KNOWN  # whether in its own test the model was no better than guessing
    unlike: Verdict = NOT_KNOWN  # whether the source is unlike what it learned from
    distance: float | None = None
    false_alarms: float | None = None  # how often something that is not unlike is called so
    temperature: float | None = None  # that the confidence was calibrated with
    ece: float | None = None  # the expected calibration error of the model, calibrated


@dataclass(frozen=True)
class Record:
    """What is known of the model that answers."""

    known: dict[str, Any]
    space: Space | None

    @property
    def temperature(self) -> float:
        """What logits are divided by before they become probabilities."""
        return float(self.known.get("temperature", 1.0))

    @property
    def trust(self) -> Trust:
        """As far as no source is looked at."""
        near = self.known.get("near_chance")
        return Trust(
            near_chance=NOT_KNOWN if near is None else "yes" if near else "no",
            temperature=self.known.get("temperature"),
            ece=self.known.get("ece"),
        )

    @property
    def notes(self) -> list[str]:
        """What a user must know of the model, whatever the source."""
        if not self.known.get("near_chance"):
            return []
        score, chance, n = self.known["score"], self.known["chance"], self.known["samples"]
        if "temperature" in self.known:
            result = f"{100 * score:.0f} % of {n} held-out samples were right, and guessing gives {100 * chance:.0f} %"
        else:
            result = f"it scored {score:.2f} on {n} held-out samples, and guessing gives {chance:.2f}"
        return [f"this model's own test does not show that it is better than guessing: {result}"]

    def of(self, looks: Tensor) -> Trust:
        """With what a source looks like, (N, D): of several parts of it that in the middle counts."""
        farthest = self.known.get("farthest")
        if self.space is None or farthest is None:
            return self.trust
        distance = float(self.space.distances(projected(looks)).median()) / farthest
        unlike: Verdict = "yes" if distance > 1 else "no"
        return replace(self.trust, unlike=unlike, distance=distance, false_alarms=self.known.get("false_alarms"))


def read_trust(run: Path, loaded: Loaded, client: str, model: str = "") -> Record:
    """Of the model that `load_for` gave for this client, or of another by its name."""
    told = loaded.card.get("trust", {})
    own = bool(loaded.card["private"] and client)
    kind, name = ("clients", client) if own else ("models", model or model_for(loaded.card, client))
    known = told.get(kind, {}).get(name, {})
    file = (run / "model" if (run / "model").is_dir() else run) / TRUST
    if "farthest" not in known:
        return Record(known, None)
    try:
        tensors = load_file(file)
        mean, whitening = (tensors[f"{kind}/{name}/{what}"].double() for what in ("mean", "whitening"))
    except (OSError, KeyError, SafetensorError) as error:
        raise RunError(
            "what the model's training samples look like cannot be read",
            where=str(file),
            expected="the file that its run wrote beside the model",
            found=f"{type(error).__name__}: {error}",
            hint="copy the whole folder model/ of the run",
        ) from error
    return Record(known, Space(mean, whitening))


def unlike_note(trust: Trust, one: str) -> list[str]:
    """What a user must know of the source, which is `one`."""
    if trust.unlike != "yes" or trust.false_alarms is None or trust.distance is None:
        return []
    usual = 100 * (1 - trust.false_alarms)
    far = f"{trust.distance:.1f} times as far from the mean of these as {usual:.0f} % of held-out ones are"
    return [f"{one} is unlike those that the model learned from ({far}): its answer may mean nothing"]
