"""Which jobs secure sums are possible for: asked before any data are read. No need for `cryptography`."""

from __future__ import annotations

from collections.abc import Mapping

from fedreel.config import PrivacyConfig, Recipe, SecureConfig
from fedreel.core.method import Method
from fedreel.core.task import Task
from fedreel.errors import RecipeError
from fedreel.registry import METHODS

NUMBERS = ("count", "loss", "metric", "derived-number", "label-statistics")  # kinds of numbers that can be summed
_WHY = {  # beside those that need each update for what they are
    "ifca": "its clients choose among several models, and the choice itself must not be seen",
    "cfedvs": "it groups clients by how far each is from the others",
}


def check_sums(recipe: Recipe, task: Task, method: Method) -> None:
    """Raise a RecipeError that names what cannot work under secure sums, and the way out."""
    if not recipe.secure.sums:
        return
    name = recipe.method.get("name", type(method).__name__)
    if method.sees == "each":
        possible = [known for known in METHODS.names() if getattr(METHODS.lookup(known), "sees", "each") == "sum"]
        raise RecipeError(
            f"{name} needs each single update: {_WHY.get(name, 'it is not a mean of what the clients made')}",
            where="[secure] sums",
            expected=f"a method that needs only the sum: {', '.join(possible)}",
            hint="choose another method, or take `sums = true` out",
        )
    if recipe.round.aggregation != "mean":
        raise RecipeError(
            f"{recipe.round.aggregation} compares single updates, which nobody sees under secure sums",
            where="[round] aggregation",
            expected="mean",
            hint="secure.clip and secure.weight_cap bound what one client can do",
        )
    if recipe.privacy is not None:
        _check_noise(recipe.privacy, recipe.secure)
    if recipe.transfer is not None and (recipe.transfer.up != "full" or recipe.transfer.together):
        raise RecipeError(
            "under masks every number of a change has to travel, on the grid of the sum",
            where="[transfer] up and together",
            expected='"full" and false, with [secure] sums',
            hint="fewer bytes: secure.bits = 32, or train a part of the model (task.backbone.tune)",
        )
    if recipe.round.divergence:
        raise RecipeError(
            "how far each client's model is from the global one is not seen under secure sums",
            where="[round] divergence",
            expected="false",
        )
    for item, kind in {**method.sends, **task.sends}.items():
        if kind not in (*NUMBERS, "weights"):
            raise RecipeError(
                f"clients of {name} send '{item}' ({kind}) beside the model, which cannot be summed",
                where="[secure] sums",
                expected=f"nothing but {', '.join(NUMBERS)} and weights",
            )


def _check_noise(privacy: PrivacyConfig, secure: SecureConfig) -> None:
    """What noise that clients make in parts does not go with."""
    told = (
        ("unit", privacy.unit != "client", "client", "the noise in parts is for changes of whole clients"),
        (
            "sampling",
            privacy.sampling != "known",
            "known",
            "the clients of a secure sum are told who takes part: no sample is secret, and every round counts in full",
        ),
        ("clip_quantile", privacy.clip_quantile > 0, "0", "nobody sees how many changes are within the clip"),
        (
            "tests",
            privacy.tests == "noised",
            "off, or open (epsilon is then not about them)",
            "the server would see each client's results before it adds noise to them",
        ),
    )
    for setting, wrong, expected, why in told:
        if wrong:
            found = str(getattr(privacy, setting))
            raise RecipeError(
                why, where=f"[privacy] {setting}", expected=f"{expected}, with [secure] sums", found=found
            )
    for setting in ("clip", "weight_cap"):
        if getattr(secure, setting) != getattr(SecureConfig, setting):
            raise RecipeError(
                "with [privacy] clients count alike, and how far numbers go follows from its clip and noise: this does "
                "nothing",
                where=f"[secure] {setting}",
                expected="as it is by default, with [privacy]",
                hint="privacy.clip bounds what a client changes",
            )


def parts(task: Task, method: Method) -> tuple[dict[str, str], tuple[str, ...]]:
    """What is summed beside the model: numbers with their kinds, and names of tensors in the model's shape. What an
    update may lack cannot be, and stays with the client."""
    sends: Mapping[str, str] = {**method.sends, **task.sends}
    told = {name: kind for name, kind in sorted(sends.items()) if name not in method.may_lack}
    numbers = {name: kind for name, kind in told.items() if kind in NUMBERS}
    return numbers, tuple(name for name, kind in told.items() if kind == "weights")
