"""Commands for real sites: `fedreel server ...` where the method runs, `fedreel site ...` where the data lie."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from fedreel.cli.options import Out, Quiet, RecipeName, Resume, Seed, Settings
from fedreel.cli.say import say
from fedreel.cli.train import run_recipe
from fedreel.errors import FedreelError

server_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The server that sites call: certificates, enrolled sites."
)
site_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="A site that keeps its data: keys, policy, what left."
)

ServerPath = Annotated[Path, typer.Option("--server", help="The server's folder.")]
SitePath = Annotated[Path, typer.Option("--site", help="The site's folder.")]
Data = Annotated[
    list[str] | None, typer.Option("--data", help="Folder of the data, or ROLE=FOLDER for one role. Repeatable.")
]
Address = Annotated[str | None, typer.Option("--server", help="HOST:PORT of the server.")]
Ca = Annotated[Path | None, typer.Option("--ca", help="The server's CA certificate (ca.crt).")]


JobName = Annotated[str, typer.Argument(metavar="JOB", help="A job as `fedreel site jobs` names it, or a recipe.")]


def add_commands(app: typer.Typer) -> None:
    app.add_typer(server_app, name="server")
    app.add_typer(site_app, name="site")
    app.command()(submit)
    app.command()(status)


@server_app.command("init")
def server_init(
    folder: Annotated[Path, typer.Argument(help="The folder to create.")] = Path("server"),
    host: Annotated[list[str] | None, typer.Option(help="Name or address by which sites reach it. Repeatable.")] = None,
    port: Annotated[int, typer.Option(help="Port for the sites.")] = 8000,
    listen: Annotated[str, typer.Option(help="Interface to listen on.")] = "0.0.0.0",
    cert: Annotated[Path | None, typer.Option(help="A certificate you have (PEM), with --key and --ca.")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key.")] = None,
    ca: Annotated[Path | None, typer.Option(help="The CA that signed it.")] = None,
    renew: Annotated[bool, typer.Option("--renew", help="Make new server certificates under the existing CA.")] = False,
) -> None:
    """Make a server's folder, with a new CA and server certificate or with ones that you supply."""
    from fedreel.sites import server

    if renew:
        server.renew(folder)
        say("The server has new certificates. Next: restart it (fedreel server start)")
        return
    given = [cert, key, ca]
    if any(given) and not all(given):
        raise FedreelError("a certificate of your own needs all three", expected="--cert, --key and --ca")
    if not any(given) and not host:
        raise FedreelError("by which name or address do sites reach this server?", expected="--host NAME")
    made = server.init(folder, host or [], port, listen, (cert, key, ca) if cert and key and ca else None)
    say(f"Made {made.path}: certificates for {', '.join(made.config.hosts)}, port {port}.")
    say(f"Next: fedreel server start {folder}")
    say(f"Give {made.path / 'ca.crt'} to the sites; enroll the site.pub they send you: fedreel server enroll")


@server_app.command("start")
def server_start(folder: Annotated[Path, typer.Argument(help="The server's folder.")] = Path("server")) -> None:
    """Run the server until interrupted."""
    from fedreel.sites import server

    try:
        server.start(server.ServerFolder(folder), _say)
    except KeyboardInterrupt:
        say("\nThe server has stopped. Runs continue when it is started again.")


@server_app.command("enroll")
def server_enroll(
    public_key: Annotated[Path, typer.Argument(help="The site.pub that a site's owner sent.")],
    folder: ServerPath = Path("server"),
    name: Annotated[str | None, typer.Option(help="A name other than the one in the key.")] = None,
) -> None:
    """Let a site in."""
    from fedreel.sites import server

    opened = server.ServerFolder(folder)
    enrolled = server.enroll(opened, public_key, name)
    say(f"The site '{enrolled}' is enrolled ({len(opened.sites())} in all).")
    say("Next, at the site: fedreel site start --data DIR --server HOST:PORT --ca ca.crt")


@server_app.command("expel")
def server_expel(
    name: Annotated[str, typer.Argument(help="A site's name.")], folder: ServerPath = Path("server")
) -> None:
    """Withdraw a site's key: it can no longer connect."""
    from fedreel.sites import server

    server.expel(server.ServerFolder(folder), name)
    say(f"The site '{name}' is no longer enrolled.")


@site_app.command("init")
def site_init(
    folder: Annotated[Path, typer.Argument(help="The folder to create.")] = Path("site"),
    name: Annotated[str | None, typer.Option(help="The site's name [the folder's].")] = None,
    data: Data = None,
    server: Address = None,
    ca: Ca = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Jobs that need no approval: 'METHOD on TASK', with * for any. Repeatable [none]."),
    ] = None,
) -> None:
    """Make a site's folder: key pair, policy file and configuration."""
    from fedreel.sites import site

    made = site.init(folder, name or folder.resolve().name, _roles(data), server or "", str(ca or ""), allow or [])
    say(f"Made {made.path}: site '{made.config.name}'.")
    say(f"Read {made.path / 'policy.toml'}: it says what may never leave, and which jobs need no approval.")
    say(f"Next: send {made.path / 'site.pub'} to the server's owner; then fedreel site check --site {folder}")


@site_app.command("check")
def site_check(
    recipe: Annotated[str | None, typer.Argument(help="A recipe: does its job fit here, and what would leave?")] = None,
    folder: SitePath = Path("site"),
    data: Data = None,
    server: Address = None,
    ca: Ca = None,
) -> None:
    """Check before anything is sent: data readable, formats right, server reachable, and what a job would take out."""
    from fedreel.sites.check import check
    from fedreel.sites.site import SiteFolder

    site = SiteFolder.open(folder, _roles(data), server, str(ca) if ca else None)
    if not check(site, recipe, _say):
        raise typer.Exit(1)


@site_app.command("jobs")
def site_jobs(folder: SitePath = Path("site")) -> None:
    """The jobs that a server has asked for: which wait for approval, which have it."""
    from fedreel.cli.tables import print_table
    from fedreel.sites.site import SiteFolder

    approvals = SiteFolder.open(folder).approvals()
    jobs = approvals.all()
    if not jobs:
        say("No job has come yet.")
        return
    times = [f"{datetime.fromtimestamp(job.since):%Y-%m-%d %H:%M}" for job in jobs]
    rows = [[j.digest[:12], j.state, j.title, str(j.rounds), str(j.epochs), j.role, at] for j, at in zip(jobs, times)]
    print_table(["job", "state", "method on task", "rounds", "epochs", "data", "since"], rows)
    for job in [job for job in jobs if job.state == "waiting"][:1]:
        say(f"What it would take out: fedreel site check {approvals.recipe_of(job)} --site {folder}")
        say(f"Next: fedreel site approve {job.digest[:12]} --site {folder}, or fedreel site refuse")


@site_app.command("approve")
def site_approve(which: JobName, folder: SitePath = Path("site")) -> None:
    """Let a job work here, under the policy. A recipe can be approved before the server sends it."""
    _decide(which, folder, "approved")


@site_app.command("refuse")
def site_refuse(which: JobName, folder: SitePath = Path("site")) -> None:
    """Do not work for a job, or no longer."""
    _decide(which, folder, "refused")


@site_app.command("budget")
def site_budget(folder: SitePath = Path("site")) -> None:
    """What private jobs have given away of this site's data so far, and what the policy allows."""
    from fedreel.cli.tables import print_table
    from fedreel.core.exchange import Policy
    from fedreel.sites.site import SiteFolder

    site = SiteFolder.open(folder)
    rules, budgets = Policy.read(site.path / "policy.toml").privacy, site.budgets()
    most = f"{rules.max_epsilon:g}" if rules.max_epsilon else "no limit"
    say(f"Unit: one {rules.unit}; delta {rules.delta:g}; epsilon allowed over all jobs on a role: {most}.")
    rows = [[role, client, f"{spent:.3f}"] for role, found in budgets.items() for client, spent in found.items()]
    if rows:
        print_table(["data", "client", "epsilon so far"], rows)
    else:
        say("No private job has worked here yet.")


@site_app.command("peers")
def site_peers(folder: SitePath = Path("site")) -> None:
    """The keys by which this site and those it sums with know each other."""
    from fedreel.cli.tables import print_table
    from fedreel.sites.peers import fingerprint, own_key, peers
    from fedreel.sites.site import SiteFolder

    site = SiteFolder.open(folder)
    say(f"This site: {site.config.name} {fingerprint(own_key(site))}")
    if known := peers(site):
        print_table(["site", "fingerprint"], [[name, fingerprint(line)] for name, line in known.items()])
    else:
        say("It knows no others. For secure sums: fedreel site add-peer SITE.PUB, with the key that its owner gave you")


@site_app.command("add-peer")
def site_add_peer(
    public_key: Annotated[Path, typer.Argument(help="The site.pub that another site's owner gave you.")],
    folder: SitePath = Path("site"),
    name: Annotated[str | None, typer.Option(help="The site's name, if it is not the one in the key.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Believe this key in place of the one before.")] = False,
) -> None:
    """Believe another site's key, so that secure sums may hold its part and yours. Not by way of the server."""
    from fedreel.sites.peers import add_peer
    from fedreel.sites.site import SiteFolder

    added, mark = add_peer(SiteFolder.open(folder), public_key, name, replace)
    say(f"The site '{added}' is known by {mark}")
    say("Compare this with its owner, who sees it by: fedreel site peers. Then start your site again.")


@site_app.command("start")
def site_start(
    folder: SitePath = Path("site"),
    data: Data = None,
    server: Address = None,
    ca: Ca = None,
    node_user: Annotated[
        str | None, typer.Option(help="User for Flower's processes, one who cannot read the data (needs root).")
    ] = None,
) -> None:
    """Run the site until interrupted."""
    from fedreel.sites.node import start
    from fedreel.sites.site import SiteFolder

    try:
        start(SiteFolder.open(folder, _roles(data), server, str(ca.resolve()) if ca else None), _say, node_user)
    except KeyboardInterrupt:
        say("\nThe site has stopped. What it keeps for runs is safe; start it again to continue.")


def submit(
    recipe: RecipeName,
    out: Out,
    server: ServerPath = Path("server"),
    sites: Annotated[str, typer.Option(help="Only these sites, separated by commas [all enrolled].")] = "",
    set: Settings = None,
    seed: Seed = None,
    resume: Resume = False,
    quiet: Quiet = False,
) -> None:
    """Run a recipe at real sites, through the server of this machine; results arrive in --out as for a local run."""
    from fedreel.config import load_recipe

    names = [name.strip() for name in sites.split(",") if name.strip()]
    given = load_recipe(recipe, list(set or []))
    engine = {**given.engine, "name": "flower", "server": str(server.resolve())}
    chosen = replace(
        given, engine=engine | ({"sites": names} if names else {}), seed=seed if seed is not None else given.seed
    )
    run_recipe(chosen, out, resume, quiet)


def status(folder: ServerPath = Path("server")) -> None:
    """The server, its sites, and the jobs that were submitted."""
    from fedreel.sites.status import show

    show(folder, _say)


def _decide(which: str, folder: Path, state: str) -> None:
    from fedreel.sites.site import SiteFolder

    job = SiteFolder.open(folder).approvals().decide(which, state)
    say(f"The job {job.digest[:12]} ({job.title}, {job.rounds} rounds) is {state}.")


def _roles(data: list[str] | None) -> dict[str, str]:
    """ROLE=FOLDER; a folder alone is for every role."""
    return {role if equals else "*": folder if equals else role for role, equals, folder in map(_split, data or [])}


def _split(text: str) -> tuple[str, str, str]:
    role, equals, folder = text.partition("=")
    return (role, equals, folder) if equals and "/" not in role else (text, "", "")


def _say(text: str) -> None:
    say(text)
