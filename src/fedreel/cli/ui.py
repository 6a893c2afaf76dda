"""Commands of the page to work in: start it, and look at its queue."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from fedreel.cli.say import say
from fedreel.cli.tables import print_table
from fedreel.errors import FedreelError

Runs = Annotated[Path, typer.Option("--runs", help="The folder of the runs.")]


def add_commands(app: typer.Typer) -> None:
    app.command()(ui)
    app.command()(jobs)


def ui(
    runs: Runs = Path("runs"),
    data: Annotated[
        list[Path] | None, typer.Option("--data", help="A folder of videos that the pages may show. Repeatable.")
    ] = None,
    server: Annotated[Path | None, typer.Option("--server", help="A server's folder, to see its sites.")] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8377,
    name: Annotated[
        list[str] | None, typer.Option(help="With --host: a name by which browsers reach it. Repeatable.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="A certificate (PEM), with --tls-key.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="Its private key.")] = None,
    unencrypted: Annotated[
        bool, typer.Option("--unencrypted", help="With --host and no TLS: let others on the way read along.")
    ] = False,
    most: Annotated[float, typer.Option("--upload-limit", min=0, help="GB that an uploaded file may have.")] = 4.0,
) -> None:
    """Open a page to work in: watch, start and compare runs, try models on videos, look at data and sites."""
    from fedreel.ui.places import Places
    from fedreel.ui.serve import serve

    if bool(tls_cert) != bool(tls_key):
        raise FedreelError("TLS needs both", expected="--tls-cert FILE and --tls-key FILE")
    for folder in data or []:
        if not folder.is_dir():
            raise FedreelError("this is not a folder", where=f"--data {folder}")
    if server is not None and not (server / "server.toml").is_file():
        raise FedreelError("this is not a server's folder", where=f"--server {server}", hint="fedreel server init")
    places = Places(runs.resolve(), tuple(folder.resolve() for folder in data or []), server and server.resolve())
    serve(
        places,
        host=host,
        port=port,
        names=tuple(name or ()),
        tls=(tls_cert, tls_key) if tls_cert and tls_key else None,
        unencrypted=unencrypted,
        most_upload=round(most * 1e9),
        say=say,
    )


def jobs(runs: Runs = Path("runs")) -> None:
    """The queue of `fedreel ui`: what waits, runs and has ended."""
    from fedreel.machine.words import clock
    from fedreel.ui.jobs import read_jobs
    from fedreel.ui.places import Places

    rows = []
    for job in read_jobs(Places(runs.resolve()).own / "jobs"):
        took = clock((job.ended or time.time()) - job.began, 0) if job.began else ""
        what = f"{job.recipe} --resume" if job.resume else " ".join((job.recipe, *job.settings))
        rows.append([str(int(job.id)), job.state, Path(job.out).name, took, what])
    print_table(["job", "state", "run", "time", "recipe"], rows)
