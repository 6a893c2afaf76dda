"""The command line: one typed function a command. torch is imported only by the commands that need it."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedreel.cli.sites import add_commands
from fedreel.cli.video import add_commands as add_video_commands
from fedreel.errors import FedreelError

if TYPE_CHECKING:
    from fedreel.config import Recipe

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Federated video understanding: train on video that may not leave its owners, then use the models.",
)
data_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make, check and decode data.")
app.add_typer(data_app, name="data")

Out = Annotated[Path, typer.Option("--out", help="Folder for the results.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Change a setting: section.key=value. Repeatable.")]


@app.command()
def run(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (see `fedreel list`) or a .toml file.")],
    data: Annotated[str | None, typer.Option("--data", help="A folder of your own data [the recipe's].")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Run directory [runs/RECIPE-DATA-METHOD-SEED].")] = None,
    set: Settings = None,
    engine: Annotated[str | None, typer.Option(help="Where client work runs.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of initial weights, sampling and batches.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Train a model federatedly and write a run directory with metrics, model and report."""
    from fedreel.config import load_recipe, read_setting

    options = {"data.source": data, "engine.name": engine, "device": device, "seed": seed}
    given = {key: value for key, value in options.items() if value is not None}
    resolved = load_recipe(recipe, {**dict(map(read_setting, set or [])), **given})
    words = (Path(recipe).stem, *([Path(data).resolve().stem] if data else []), resolved.method["name"])
    folder = out or Path("runs") / f"{'-'.join(words)}-{resolved.seed}"
    _run(resolved, folder, resume, quiet)


@app.command()
def demo(out: Out = Path("runs/demo")) -> None:
    """Run a small job of every system on the playground; ends with one page that links their reports."""
    from fedreel.demo import demo as start

    page = start(out)
    typer.echo(f"\nOpen {page.resolve()}")


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Put runs side by side: mean and sd over seeds, and the settings in which they differ."""
    from fedreel.report.compare import cell_text, compare_table

    table = compare_table(runs)
    if as_json:
        typer.echo(json.dumps(table, indent=1))
    else:
        _print_table(table["columns"], [[cell_text(row.get(c)) for c in table["columns"]] for row in table["rows"]])
        for left_out in table["skipped"]:
            typer.echo(f"left out {left_out['run']}: {left_out['why']}", err=True)
        for note in table["notes"]:
            typer.echo(note, err=True)


@app.command()
def report(run: Annotated[Path, typer.Argument(help="A run directory.")]) -> None:
    """Write report.html anew from a run's files, finished or not."""
    from fedreel.report import write

    if not (run / "recipe.toml").exists():
        raise FedreelError("this is not a run directory", where=str(run), expected="a folder with recipe.toml")
    typer.echo(write(run))


@app.command()
def ledger(
    run: Annotated[Path, typer.Argument(help="A run directory, a site's folder, or a ledger.jsonl.")],
    client: Annotated[str | None, typer.Option(help="Only this client.")] = None,
    rounds: Annotated[bool, typer.Option("--rounds", help="One line a departure instead of totals.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON lines.")] = False,
) -> None:
    """What left each client: which tensors and numbers, how much, for what."""
    from fedreel.core.ledger import departures, tensors, totals

    path = run if run.is_file() else run / "ledger.jsonl"
    if as_json:
        for row in departures(path, client):
            typer.echo(json.dumps(row))
        return
    if rounds:
        rows = [
            [str(r["round"]), r["client"], r["purpose"], str(r["bytes"]), ", ".join(r["numbers"])]
            for r in departures(path, client)
        ]
        _print_table(["round", "client", "purpose", "bytes", "numbers"], rows)
    else:
        _print_table(["client", "purpose", "departures", "bytes", "kinds", "numbers"], totals(path, client))
    for name, rows in tensors(path, client):
        typer.echo(f"\nTensors of layout {name}:")
        _print_table(["name", "shape", "type", "bytes"], rows)


@app.command()
def summarize(
    video: Annotated[Path, typer.Argument(help="A video file.")],
    model: Annotated[Path, typer.Option("--model", help="A run directory of the task summary.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the summary to this mp4.")] = None,
    storyboard: Annotated[Path | None, typer.Option(help="Write a page with pictures of the chosen shots.")] = None,
    score_only: Annotated[Path | None, typer.Option(help="Write scores and shots as JSON, and no video.")] = None,
    ratio: Annotated[float, typer.Option(help="Share of the frames that the summary may keep.")] = 0.15,
    community: Annotated[str, typer.Option(help="auto, global, or the name of a community or client.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "cpu",
) -> None:
    """Summarise a video with a trained model: its most important shots as an mp4, and a storyboard."""
    from fedreel.tasks.summary.summarize import summarize as start
    from fedreel.tasks.use.progress import Shown

    if not (out or storyboard or score_only) or (out and score_only):
        problem = "--score-only writes no video, so -o has no place" if out else "there is nothing to write"
        raise FedreelError(problem, expected="-o, --storyboard or --score-only", hint="fedreel summarize --help")
    with Shown() as shown:
        made = start(video, model, out, storyboard, ratio, community, device, scores=score_only, tell=shown)
    for note in made.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"{made.seconds:.1f} s in {len(made.chosen)} of {len(made.shots)} shots, by the model {made.community}")
    for place in filter(None, (out, storyboard, score_only)):
        typer.echo(place)


@app.command()
def recognize(
    file: Annotated[str, typer.Argument(help="A motion (or FILE.npz#NAME); an image or video, or a folder of them.")],
    model: Annotated[Path, typer.Option("--model", help="A run directory of the task skeleton, image or recognition.")],
    client: Annotated[str, typer.Option(help="Whose classifier is asked [the only client's, or all clients'].")] = "",
    page: Annotated[Path | None, typer.Option(help="Write a page of what was seen, with the ranking.")] = None,
    gif: Annotated[Path | None, typer.Option(help="Write the moving skeleton to this GIF.")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write all classes and their probabilities.")] = None,
    top: Annotated[int, typer.Option(help="How many of the likeliest classes to show.")] = 5,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "cpu",
) -> None:
    """Say which action a moving skeleton shows, or what images or videos show, with a trained model; and draw it."""
    from fedreel.tasks.skeleton.recognize import recognize as start
    from fedreel.tasks.use.progress import Shown

    with Shown() as shown:
        made = start(file, model, client, top=top, page=page, gif=gif, json=as_json, device=device, tell=shown)
    for line in made.notes():
        typer.echo(line, err=True)
    for line in made.lines(top):
        typer.echo(line)
    for place in filter(None, (page, gif, as_json)):
        typer.echo(place)


@app.command()
def find(
    video: Annotated[Path, typer.Argument(help="A video file.")],
    sentence: Annotated[str, typer.Argument(help="What to find, in words.")],
    model: Annotated[Path, typer.Option("--model", help="A run directory of the task moments.")],
    top: Annotated[int, typer.Option(help="How many moments to give, the likeliest first.")] = 3,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the moments as mp4 into this folder.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write a page with the time line and a picture of each.")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write all that was found.")] = None,
    client: Annotated[str, typer.Option(help="Whose private part of the model is used, if it has one.")] = "",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "cpu",
) -> None:
    """Find the moments of a video that a sentence describes, with a trained model; and cut them out."""
    from fedreel.tasks.moments.find import find as start
    from fedreel.tasks.summary.page import clock
    from fedreel.tasks.use.progress import Shown

    with Shown() as shown:
        made = start(
            video, sentence, model, top=top, out=out, page=page, json=as_json, client=client, device=device, tell=shown
        )
    for note in made.notes:
        typer.echo(f"note: {note}", err=True)
    for m in made.moments:
        typer.echo(f"{m.rank:>2}  {clock(m.start)} - {clock(m.end)}  {100 * m.score:5.1f} %")
    clips = [out / m.clip for m in made.moments] if out else []
    for place in filter(None, (*clips, page, as_json)):
        typer.echo(place)


@app.command("list")
def list_(what: Annotated[str, typer.Argument(help="recipes, methods, tasks, engines or all.")] = "all") -> None:
    """What there is: recipes, methods, tasks, engines, with one line each."""
    from fedreel.cli.catalogue import catalogue

    for title, rows in catalogue(what).items():
        typer.echo(f"{title}:")
        for name, text in rows:
            typer.echo(f"  {name:<20} {text}")


@app.command()
def reproduce(
    system: Annotated[str, typer.Argument(help="A system.")],
    tables: Annotated[list[str], typer.Argument(metavar="TABLE...", help="Tables and figures of it.")],
    scale: Annotated[str, typer.Option(help="smoke, small, paper; medium where a system has it.")] = "smoke",
    data: Annotated[Path | None, typer.Option(help="Data folder or file; the playground if not given.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder [runs/reproduce/SYSTEM-TABLE-SCALE].")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    jobs: Annotated[int, typer.Option(help="Cells run at once, each in a process of its own.")] = 1,
    rows: Annotated[
        str, typer.Option(help="Only rows with this text in name or setting; 'A & B': both; 'A | B': one.")
    ] = "",
    seeds: Annotated[int | None, typer.Option(min=1, help="So many seeds [the scale's].")] = None,
    set: Settings = None,
) -> None:
    """Run the sweeps of tables and print them beside the paper's numbers. Finished cells are not run again, and what
    several tables show is run once."""
    from fedreel.config import read_setting
    from fedreel.reproduce import reproduce as start
    from fedreel.reproduce.show import columns_and_rows

    folder = out or Path("runs") / "reproduce" / "-".join((system, *tables, scale))
    try:
        found = start(
            system,
            *tables,
            scale=scale,
            data=data,
            out=folder,
            device=device,
            jobs=jobs,
            rows=rows,
            seeds=seeds,
            set=dict(map(read_setting, set or [])),
        )
    except KeyboardInterrupt:
        typer.echo("\nInterrupted. Finished cells are kept: run the same command again to go on.", err=True)
        raise typer.Exit(130) from None
    for table, content in found.items():
        typer.echo(f"{system} {table}, {scale}")
        _print_table(*columns_and_rows(content))
        for note in content["notes"]:
            typer.echo(note)
        typer.echo(f"{folder / f'{table}.json'}\n{folder / f'{table}.html'}")


@data_app.command("make")
def data_make(
    what: Annotated[str, typer.Argument(help="playground")],
    out: Out,
    seed: Annotated[int, typer.Option(help="Another seed, another world.")] = 0,
    size: Annotated[str, typer.Option(help="small or medium.")] = "small",
) -> None:
    """Generate a world of videos with labels for every task."""
    from fedreel import playground
    from fedreel.errors import nearest

    if what != "playground":
        raise FedreelError(f"cannot make '{what}'", hint=nearest(what, ["playground"]))
    typer.echo(playground.make(out, seed, size, progress=lambda text: typer.echo(text, err=True)))


@data_app.command("check")
def data_check(
    folder: Annotated[Path, typer.Argument(help="A folder of videos, shards, skeletons or a playground.")],
    thorough: Annotated[bool, typer.Option("--thorough", help="Decode every frame; takes much longer.")] = False,
) -> None:
    """Look at a data folder: what is there, what is broken, what would surprise a training run."""
    from fedreel.cli.bar import bar
    from fedreel.data.check import check

    with bar("looking") as tell:
        result = check(folder, thorough, tell)
    typer.echo("\n".join(result.lines()))
    if not result.ok:
        raise typer.Exit(1)


@data_app.command("shard")
def data_shard(
    source: Annotated[Path, typer.Argument(help="A folder of videos, or a zip or tar of one.")],
    out: Out,
    size: Annotated[int, typer.Option(help="Height and width in pixels.")] = 64,
    frames: Annotated[int | None, typer.Option(help="Keep so many evenly spaced frames of each clip [all].")] = None,
    layout: Annotated[str, typer.Option(help="What the folders mean.")] = "auto",
) -> None:
    """Decode videos once into uint8 shards that are mapped into memory. Broken files are skipped and listed."""
    from fedreel.cli.bar import bar
    from fedreel.data import archive, clip_index, shards

    out = out.resolve()
    if source.is_file():
        source = archive.extract(source, out.with_name(out.name + "-videos"))
    clips = clip_index.find(source, layout)
    with bar(f"decoding {source}") as tell:
        done = shards.build(clips, source, out, size=(size, size), frames=frames, progress=tell)
    for broken in done.broken:
        typer.echo(f"skipped {broken.path}: {broken.reason}", err=True)
    typer.echo(f"{len(done)} clips in {out}, {len(done.broken)} skipped")


@app.command()
def submit(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (see `fedreel list`) or a .toml file.")],
    out: Out,
    server: Annotated[Path, typer.Option(help="The server's folder.")] = Path("server"),
    sites: Annotated[str, typer.Option(help="Only these sites, separated by commas [all enrolled].")] = "",
    set: Settings = None,
    seed: Annotated[int | None, typer.Option(help="Seed of initial weights, sampling and batches.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Run a recipe at real sites, through the server of this machine; results arrive in --out as for a local run."""
    from fedreel.config import load_recipe

    names = [name.strip() for name in sites.split(",") if name.strip()]
    given = load_recipe(recipe, list(set or []))
    engine = {**given.engine, "name": "flower", "server": str(server.resolve())}
    chosen = replace(
        given, engine=engine | ({"sites": names} if names else {}), seed=seed if seed is not None else given.seed
    )
    _run(chosen, out, resume, quiet)


add_commands(app)
add_video_commands(app)


def main() -> None:
    """Errors meant for the user are printed without a traceback; status 2."""
    try:
        app()
    except FedreelError as error:
        typer.echo(f"fedreel: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("\nInterrupted.", err=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away
        sys.stderr.close()
        sys.exit(141)


def _run(recipe: Recipe, folder: Path, resume: bool, quiet: bool) -> None:
    """Run it; an interruption says how to go on."""
    from fedreel import api
    from fedreel.cli.outcome import outcome

    try:
        result = api.run(recipe, folder, resume=resume, quiet=quiet)
    except KeyboardInterrupt:
        again = shlex.join(["fedreel", "run", str(folder / "recipe.toml"), "--out", str(folder), "--resume"])
        begun = (folder / "recipe.toml").exists()
        said = f"The last checkpoint stands; go on with: {again}" if begun else "Nothing has been run yet."
        typer.echo(f"\nInterrupted. {said}", err=True)
        raise typer.Exit(130) from None
    typer.echo("\n".join(outcome(result.path, result.summary, recipe.task)))


def _print_table(columns: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, header_style="bold")
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 1000  # a file or a pipe gets whole cells, whatever the table's width
    console.print(table)
