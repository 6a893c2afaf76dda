"""Commands for data: make a playground, check a folder, decode videos once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedreel.cli.options import Out
from fedreel.cli.say import say
from fedreel.errors import FedreelError
from fedreel.machine.progress import ProgressBar
from fedreel.tasks.use.options import Fold, Lists

data_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make, check and decode data.")


def add_commands(app: typer.Typer) -> None:
    app.add_typer(data_app, name="data")


@data_app.command("make")
def data_make(
    what: Annotated[str, typer.Argument(help="playground")],
    out: Out,
    seed: Annotated[int, typer.Option(help="Another seed, another world.")] = 0,
    size: Annotated[str, typer.Option(help="tiny, small, medium, or demo: what fedreel demo uses.")] = "small",
) -> None:
    """Generate a world of videos with labels for every task."""
    from fedreel import playground
    from fedreel.errors import nearest

    if what != "playground":
        raise FedreelError(f"cannot make '{what}'", hint=nearest(what, ["playground"]))
    say(playground.make(out, seed, size, progress=lambda text: say(text, err=True)))


@data_app.command("check")
def data_check(
    folder: Annotated[Path, typer.Argument(help="A folder of videos, shards, skeletons or a playground.")],
    thorough: Annotated[bool, typer.Option("--thorough", help="Decode every frame; takes much longer.")] = False,
    lists: Lists = "",
    fold: Fold = 1,
) -> None:
    """Look at a data folder: what is there, what is broken, what would surprise a training run."""
    from fedreel.data.check import check

    with ProgressBar() as progress:
        result = check(folder, thorough, progress.counting("looking"), lists, fold)
    say("\n".join(result.lines()))
    if not result.ok:
        raise typer.Exit(1)


@data_app.command("shard")
def data_shard(
    source: Annotated[Path, typer.Argument(help="A folder of videos, or a zip or tar of one.")],
    out: Out,
    size: Annotated[int, typer.Option(help="Pixels of the shorter side; the other is in proportion.")] = 64,
    frames: Annotated[int | None, typer.Option(help="Keep so many evenly spaced frames of each clip [all].")] = None,
    quality: Annotated[int, typer.Option(help="Of JPEG pictures, 1 to 100 (90 is good); 0: raw frames.")] = 0,
    layout: Annotated[str, typer.Option(help="What the folders mean.")] = "auto",
    lists: Lists = "",
    fold: Fold = 1,
) -> None:
    """Decode videos once into shards: frames, raw or as JPEG pictures, that are mapped into memory.
    Broken files are skipped and listed."""
    from fedreel.data import archive, clip_index, shards

    out = out.resolve()
    if source.is_file():
        source = archive.extract(source, out.with_name(out.name + "-videos"))
    found = clip_index.look_up(source, layout, lists, fold)
    with ProgressBar() as progress:
        tell = progress.counting(f"decoding {source}")
        done = shards.build(
            found.clips, source, out, side=size, frames=frames, quality=quality, progress=tell, gaps=found.gaps
        )
    for line in found.gaps.lines():
        say(line, err=True)
    for broken in done.broken:
        say(f"skipped {broken.path}: {broken.reason}", err=True)
    say(f"{len(done)} clips in {out}, {len(done.broken)} skipped")


@data_app.command("devices")
def data_devices(
    capacities: Annotated[Path, typer.Argument(help="FedScale's client_device_capacity.")],
    out: Out,
    behaviours: Annotated[
        Path | None, typer.Option(help="FedScale's client_behave_trace: when devices can be reached [always].")
    ] = None,
) -> None:
    """Make a file of devices, for `world.devices`, of traces as FedScale publishes them."""
    from fedreel.core.world import write_devices
    from fedreel.data.device_traces import read_fedscale
    from fedreel.machine.files import write_atomic

    devices = read_fedscale(capacities, behaviours)
    write_atomic(out, write_devices(devices))
    say(f"{out}: {len(devices)} devices. Use them with --set world.devices={out}")
