"""`fedreel site check`: everything that can go wrong at a site, looked at before a job comes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedreel.errors import FedreelError
from fedreel.sites.call import call_server, check_welcome
from fedreel.sites.site import SiteFolder

Say = Callable[[str], None]


def check(site: SiteFolder, recipe: str | None, say: Say) -> bool:
    """Say what is found; whether all is well."""
    from fedreel.core.exchange import Policy

    policy = Policy.read(site.path / "policy.toml")
    say(f"site     {site.config.name} in {site.path}")
    say(f"policy   {f'never lets out {kinds}' if (kinds := ', '.join(policy.refuse)) else 'refuses nothing'}")
    allowed = f"only {', '.join(policy.jobs.allow)} without approval" if policy.jobs.allow else "each needs approval"
    say(f"jobs     {allowed}")
    _peers(site, policy.min_cohort, say)
    good = all([_server(site, say), *(_data(site, role, say) for role in site.config.data)])
    if not site.config.data:
        say('data     none yet: add [data] videos = "FOLDER" to site.toml, or give --data')
        good = False
    if recipe is not None and site.config.data:
        good = _job(site, recipe, say) and good
    say("All is well. Next: fedreel site start" if good else "Not ready: see above.")
    return good


def _peers(site: SiteFolder, min_cohort: int, say: Say) -> None:
    """Whose keys are pinned here. Only jobs with secure sums need any."""
    from fedreel.sites.peers import fingerprint, peers

    known = peers(site)
    for name, line in known.items():
        say(f"peer     {name} {fingerprint(line)}")
    if len(known) + 1 < min_cohort:
        needed = f"{min_cohort - 1} or more (min_cohort)"
        say(f"peers    {len(known)} known; a job with secure sums needs {needed}: fedreel site add-peer SITE.PUB")


def _server(site: SiteFolder, say: Say) -> bool:
    config = site.config
    if not config.server or not config.ca:
        say("server   not named yet: --server HOST:PORT --ca ca.crt")
        return True
    try:
        key = site.path / "site.pub"
        check_welcome(
            call_server(config.server, Path(config.ca), " ".join(key.read_text().split()[:2])), config.server, key
        )
    except FedreelError as error:
        say(f"server   NO: {error}")
        return False
    say(f"server   {config.server} answers, its certificate is good, and it knows this site")
    return True


def _data(site: SiteFolder, role: str, say: Say) -> bool:
    from fedreel.data.check import check as look

    try:
        folder = site.folder_of(role)
        report = look(folder)
    except FedreelError as error:
        say(f"data     {role}: NO: {error}")
        return False
    for line in report.lines():
        say(f"data     {role}: {line}")
    return report.ok


def _job(site: SiteFolder, name: str, say: Say) -> bool:
    """Build what a job would build here, and say what it would take out."""
    from fedreel.config import load_recipe
    from fedreel.core.exchange import KINDS

    try:
        read = load_recipe(name)
        worker = site.worker(read, "check")
    except FedreelError as error:
        say(f"job      {name}: NO: {error}")
        return False
    population = worker.population
    state = site.approvals().state_of(read)
    say(f"job      {name}: {state}" + (f"; then: fedreel site approve {name}" if state == "waits for approval" else ""))
    say(f"job      {name}: {len(population.clients)} clients here: {', '.join(population.clients[:12])}")
    for client in population.clients:
        data = population.data(client)
        say(f"job      {client}: {len(data.train)} samples to train on, {len(data.test)} to test on")
    leaves = {**worker.leaves(), "metrics on test data": "metric"}
    size = worker.travelling.nbytes
    for item, kind in leaves.items():
        refused = "; THE POLICY REFUSES IT" if kind in worker.door.policy.refuse else ""
        extent = f", {len(worker.travelling.tensors)} tensors, {size:,} bytes a time" if item == "weights" else ""
        say(f"leaves   {item}: {kind} ({KINDS[kind]}){extent}{refused}")
    for kind in dict.fromkeys(worker.vouches().values()):
        refused = "; the policy refuses it, so that it is left out" if kind in worker.door.policy.refuse else ""
        say(f"trust    asked for at the end: {kind} ({KINDS[kind]}){refused}")
    return not any(kind in worker.door.policy.refuse for kind in worker.leaves().values())
