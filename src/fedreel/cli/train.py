"""Commands that train: a recipe, the demo, the tables of papers; and what there is to train."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedreel.cli.options import Out, Quiet, RecipeName, Resume, Seed, Settings
from fedreel.cli.say import say
from fedreel.cli.tables import print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedreel.config import Recipe
    from fedreel.reproduce.plan import Planned


def add_commands(app: typer.Typer) -> None:
    app.command()(run)
    app.command()(demo)
    app.command("list")(list_)
    app.command()(tune)
    app.command()(reproduce)


def run(
    recipe: RecipeName,
    data: Annotated[str | None, typer.Option("--data", help="A folder of your own data [the recipe's].")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Run directory [runs/RECIPE-DATA-METHOD-SEED].")] = None,
    set: Settings = None,
    engine: Annotated[str | None, typer.Option(help="Where client work runs.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    seed: Seed = None,
    resume: Resume = False,
    quiet: Quiet = False,
) -> None:
    """Train a model federatedly and write a run directory with metrics, model and report."""
    from fedreel.config import load_recipe, read_setting

    options = {"data.source": data, "engine.name": engine, "device": device, "seed": seed}
    given = {key: value for key, value in options.items() if value is not None}
    resolved = load_recipe(recipe, {**dict(map(read_setting, set or [])), **given})
    words = (Path(recipe).stem, *([Path(data).resolve().stem] if data else []), resolved.method["name"])
    folder = out or Path("runs") / f"{'-'.join(words)}-{resolved.seed}"
    run_recipe(resolved, folder, resume, quiet)


def demo(out: Out = Path("runs/demo")) -> None:
    """Train a small model of every system on generated files; one page shows what the models can do."""
    import fedreel.demo

    try:
        page = fedreel.demo.demo(out)
    except KeyboardInterrupt:
        say("\nInterrupted. What is finished is kept: run the same command again to go on.", err=True)
        raise typer.Exit(130) from None
    say(f"\nOpen {page.resolve()}")


def list_(
    what: Annotated[str, typer.Argument(help="recipes, methods, tasks, engines, backbones or all.")] = "all",
) -> None:
    """What there is: recipes, methods, tasks, engines, backbones, with one line each."""
    from fedreel.cli.catalogue import catalogue

    for title, rows in catalogue(what).items():
        say(f"{title}:")
        for name, text in rows:
            say(f"  {name:<20} {text}")


def tune(recipe: RecipeName, set: Settings = None) -> None:
    """What is trained and sent, for each setting of task.backbone.tune; nothing is trained."""
    from fedreel.cli.tuning import COLUMNS, tuning_table
    from fedreel.config import load_recipe, read_setting

    print_table(COLUMNS, tuning_table(load_recipe(recipe, dict(map(read_setting, set or [])))))


def reproduce(
    system: Annotated[str, typer.Argument(help="A system.")] = "",
    tables: Annotated[list[str] | None, typer.Argument(metavar="TABLE...", help="Tables and figures of it.")] = None,
    scale: Annotated[str, typer.Option(help="smoke, small, paper; medium where a system has it.")] = "smoke",
    data: Annotated[Path | None, typer.Option(help="Data folder or file; the playground if not given.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder [runs/reproduce/SYSTEM-TABLE-SCALE].")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    jobs: Annotated[int, typer.Option(help="Cells run at once, each in a process of its own.")] = 1,
    together: Annotated[
        bool,
        typer.Option(
            "--together",
            help="The seeds of a row, and rates tried for it, in one process, their clients stacked: for small"
            " networks on a GPU (engine vector). --jobs then counts rows.",
        ),
    ] = False,
    rows: Annotated[
        str,
        typer.Option(help="Only rows with this text in name or setting; 'A & B': both; 'A | B': one; '=A': all of it."),
    ] = "",
    seeds: Annotated[int | None, typer.Option(min=1, help="So many seeds [the scale's].")] = None,
    set: Settings = None,
    cells: Annotated[
        Path | None, typer.Option(help="Text file: finished cells in it are not run, and others are added to it.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Run nothing: print how many cells and tries are done, and how many left.")
    ] = False,
    claims: Annotated[
        Path | None, typer.Option(help="Run nothing: print which claims of the papers hold by the tables stored here.")
    ] = None,
) -> None:
    """Run the sweeps of tables and print them beside the paper's numbers. Finished cells are not run again, and what
    several tables show is run once."""
    if claims is not None:
        from fedreel.reproduce.claims_page import page

        say(page(claims), nl=False)
        return
    import fedreel.reproduce
    from fedreel.config import read_setting
    from fedreel.errors import RecipeError
    from fedreel.reproduce.plan import plan
    from fedreel.reproduce.show import columns_and_rows

    if not system or not tables:
        raise RecipeError(
            "there is nothing to reproduce",
            expected="a system and one or more of its tables, e.g. fedreel reproduce fsar table1",
            hint=f"systems: {', '.join(fedreel.reproduce.reproducible())}",
        )
    folder = out or Path("runs") / "reproduce" / "-".join((system, *tables, scale))
    changed = dict(map(read_setting, set or []))
    asked: dict[str, Any] = {"scale": scale, "data": data, "out": folder, "rows": rows, "seeds": seeds, "set": changed}
    if dry_run:
        _print_plan(plan(system, *tables, **asked, cells=cells), jobs)
        return
    try:
        asked |= {"cells": cells, "device": device, "jobs": jobs, "together": together}
        contents = fedreel.reproduce.reproduce(system, *tables, **asked)
    except KeyboardInterrupt:
        say("\nInterrupted. Finished cells are kept: run the same command again to go on.", err=True)
        raise typer.Exit(130) from None
    for table, content in contents.items():
        say(f"{system} {table}, {scale}")
        print_table(*columns_and_rows(content))
        for note in content["notes"]:
            say(note)
        say(f"{folder / f'{table}.json'}\n{folder / f'{table}.html'}")


def _print_plan(rows: Sequence[Planned], jobs: int) -> None:
    from fedreel.reproduce import work
    from fedreel.reproduce.plan import COLUMNS, NOTE, ROW_COLUMNS, by_row, by_table, by_work

    print_table([*COLUMNS], by_table(rows, jobs))
    if left := by_row(rows, jobs):
        print_table([*ROW_COLUMNS], left)
    say(NOTE)
    if samples := by_work(rows):
        print_table([*work.COLUMNS], samples)
        say(work.NOTE)


def run_recipe(recipe: Recipe, folder: Path, resume: bool, quiet: bool) -> None:
    """Run it; an interruption says how to go on."""
    from fedreel import api
    from fedreel.cli.outcome import outcome

    try:
        result = api.run(recipe, folder, resume=resume, quiet=quiet)
    except KeyboardInterrupt:
        again = shlex.join(["fedreel", "run", str(folder / "recipe.toml"), "--out", str(folder), "--resume"])
        begun = (folder / "recipe.toml").exists()
        said = f"The last checkpoint stands; go on with: {again}" if begun else "Nothing has been run yet."
        say(f"\nInterrupted. {said}", err=True)
        raise typer.Exit(130) from None
    say("\n".join(outcome(result.path, result.summary, recipe)))
