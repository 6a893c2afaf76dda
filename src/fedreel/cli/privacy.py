"""What a private run would cost, before anything is trained: noise for an epsilon, epsilon of a noise."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from fedreel.cli.say import say
from fedreel.errors import RecipeError

if TYPE_CHECKING:
    from fedreel.privacy.accounting import Accountant, Release

privacy_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Differential privacy: plan a run.")
_POINTS, _WIDTH = 10, 40  # of the curve


def add_commands(app: typer.Typer) -> None:
    app.add_typer(privacy_app, name="privacy")


@privacy_app.callback()
def group() -> None:
    """Differential privacy: plan a run."""


@privacy_app.command()
def plan(
    epsilon: Annotated[float, typer.Option(help="The budget of the run; 0: what --noise comes to.")] = 0.0,
    delta: Annotated[float, typer.Option(help="Well below one over the number of clients, or examples.")] = 1e-5,
    rounds: Annotated[int, typer.Option(help="Rounds of the run.")] = 100,
    clients: Annotated[int, typer.Option(help="Clients in all: they are the units, unless --examples is given.")] = 0,
    fraction: Annotated[float, typer.Option(help="Share of the clients that a round draws.")] = 1.0,
    noise: Annotated[float, typer.Option(help="Its standard deviation, in clips; 0: what --epsilon needs.")] = 0.0,
    sampling: Annotated[str, typer.Option(help="poisson, fixed or known, as in [privacy].")] = "poisson",
    accountant: Annotated[str, typer.Option(help="pld or rdp, as in [privacy].")] = "pld",
    tests: Annotated[int, typer.Option(help="Tests with noise during the run, of all clients.")] = 0,
    test_noise: Annotated[float, typer.Option(help="Of a test, in what one client can change.")] = 10.0,
    examples: Annotated[int, typer.Option(help="Examples are the units: so many has the smallest client.")] = 0,
    batch_size: Annotated[int, typer.Option(help="With --examples: of train.")] = 16,
    epochs: Annotated[int, typer.Option(help="With --examples: of train.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """The noise that an epsilon needs, or the epsilon of a noise, and how epsilon grows over the rounds."""
    from fedreel.privacy.accounting import noise_for

    counted = _checked(epsilon, noise, clients, examples, sampling, accountant)
    releases = _releases(rounds, clients, fraction, sampling, tests, test_noise, examples, batch_size, epochs)
    used = noise or noise_for(epsilon, delta, lambda z: releases(z, rounds), counted)
    curve = _curve(lambda done: releases(used, done), rounds, delta, counted)
    if as_json:
        told = {"noise": used, "delta": delta, "rounds": rounds, "epsilon": curve[-1][1], "curve": curve}
        say(json.dumps(told))
        return
    unit = "example" if examples else "client"
    say(f"Unit: one {unit}. Noise: {used:.4g} times the clip on each round's sum.")
    if not examples:
        drawn = max(1, round(fraction * clients))
        say(f"On the mean change of the {drawn} clients that a round draws: {used / drawn:.3g} times the clip.")
    if tests and not examples:
        say(f"On each test: off by about {test_noise / clients:.2g}.")
    say(f"Epsilon at delta {delta:g}, by {accountant}:")
    top = max(spent for _, spent in curve)
    for done, spent in curve:
        say(f"  after round {done:>6}  {spent:8.3f}  {'#' * round(_WIDTH * spent / top)}")
    setting = "" if not examples else ', unit = "example"'
    budget = f"epsilon = {epsilon:g}" if not noise else f"noise = {noise:g}"
    say(f"In a recipe: [privacy] {budget}, delta = {delta:g}{setting}")


def _checked(epsilon: float, noise: float, clients: int, examples: int, sampling: str, accountant: str) -> Accountant:
    if (epsilon > 0) == (noise > 0):
        raise RecipeError("either a budget or a noise is to be given", expected="--epsilon or --noise, above 0")
    if (clients > 0) == (examples > 0):
        raise RecipeError("what is the unit?", expected="--clients N, or --examples N of the smallest client")
    if sampling not in ("poisson", "fixed", "known"):
        raise RecipeError("unknown sampling", where="--sampling", expected="poisson, fixed or known", found=sampling)
    if accountant not in ("pld", "rdp"):
        raise RecipeError("unknown accountant", where="--accountant", expected="pld or rdp", found=accountant)
    return "pld" if accountant == "pld" else "rdp"


def _releases(
    rounds: int,
    clients: int,
    fraction: float,
    sampling: str,
    tests: int,
    test_noise: float,
    examples: int,
    batch_size: int,
    epochs: int,
) -> Callable[[float, int], Sequence[Release]]:
    """What is given away by a noise in so many rounds, as runs count it."""
    from fedreel.config import PrivacyConfig, TrainConfig
    from fedreel.privacy.accounting import Release

    if examples:
        from fedreel.core.private_training import steps_of

        rate, each = steps_of(examples, TrainConfig(batch_size=batch_size), epochs)
        return lambda noise, done: [Release(noise, done * each, rate)]
    from fedreel.core.plan import Plan

    config = PrivacyConfig(noise=1.0, sampling=sampling, test_noise=test_noise)  # type: ignore[arg-type]
    drawn = min(clients, max(1, round(fraction * clients)))
    made = Plan(config, rounds, tests, drawn / clients, clients)
    return lambda noise, done: made.releases(noise, done, tests * done // rounds)


def _curve(
    releases: Callable[[int], Sequence[Release]], rounds: int, delta: float, accountant: Accountant
) -> list[tuple[int, float]]:
    from fedreel.privacy.accounting import epsilon

    points = sorted({max(1, rounds * i // _POINTS) for i in range(1, _POINTS + 1)})
    return [(done, epsilon(releases(done), delta, accountant)) for done in points]
