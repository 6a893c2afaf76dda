"""Before the first round: who is there, which clients each site has, and whether its data fit the job."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedreel.config import as_table
from fedreel.core.blueprint import Blueprint
from fedreel.core.job import Job
from fedreel.engines.flower.link import Link
from fedreel.engines.flower.pipe import Frame
from fedreel.errors import RunError, plain

_ANSWER = 600.0  # seconds that a site may take to look at its data
_CLIENTS, _NAME = 10_000, 200  # clients of a site, letters of a client's name
_APPROVAL = 10.0  # seconds after which a site is asked again whose owner has not approved the job yet
_TRIES = 3  # how often a site is asked whose Flower processes fail over it


@dataclass(frozen=True)
class Roster:
    """Sites with their clients, and the node at which each client is reached."""

    sites: Mapping[str, tuple[str, ...]]
    nodes: Mapping[str, str]

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(sorted(self.nodes))


def call_roster(
    job: Job,
    link: Link,
    made: Blueprint,
    wanted: Mapping[str, str],
    wait: float,
    approval: float = 0.0,
    tell: Callable[[Sequence[str]], None] = lambda sites: None,
) -> Roster:
    """Ask every wanted site (name -> node id). Raises one error that names each site that does not fit. For `approval`
    seconds sites are waited for whose owners have to approve the job; `tell` hears which these are."""
    _wait_for(link, wanted, wait)
    model = {"layout": made.travelling.id, "frozen": made.digest}
    head = {"type": "roster", "run": job.run_id, "start": job.start, "recipe": as_table(job.recipe), **model}

    def ask(site: str) -> int:
        return link.send("send", content=Frame(head), node=wanted[site], ttl=_ANSWER)

    asked, tries = {ask(site): site for site in wanted}, dict.fromkeys(wanted, 1)
    answers: dict[str, dict[str, Any]] = {}
    deadline = time.monotonic() + _ANSWER
    waiting, patience = dict[str, float](), time.monotonic() + approval
    while len(answers) < len(wanted) and (waiting or time.monotonic() < deadline):
        for site in [site for site, again in waiting.items() if time.monotonic() >= again]:
            asked[ask(site)], waiting[site] = site, time.monotonic() + _ANSWER
        frame = link.event(1.0)
        if frame is None or frame.head["number"] not in asked:
            continue
        site = asked[frame.head["number"]]
        if frame.head["what"] == "reply":
            content, before = frame.head["content"], set(waiting)
            waiting.pop(site, None)
            if isinstance(content, dict) and content.get("waiting") is True and time.monotonic() < patience:
                waiting[site] = time.monotonic() + _APPROVAL
            else:
                answers[site], deadline = content, time.monotonic() + _ANSWER
            if set(waiting) != before:
                tell(sorted(waiting))
        elif tries[site] < _TRIES:
            tries[site] += 1
            asked[ask(site)] = site
        else:
            answers[site] = {"problem": frame.head.get("reason", "no answer")}
    return make_roster(wanted, {site: answers.get(site, {"problem": "no answer in time"}) for site in wanted})


def make_roster(wanted: Mapping[str, str], answers: Mapping[str, Mapping[str, Any]]) -> Roster:
    """The roster of what sites answered, or an error with every reason against it."""
    answers = {site: a if isinstance(a, dict) else {} for site, a in answers.items()}
    problems = {site: str(a["problem"]) for site, a in answers.items() if "problem" in a}
    fit = {site: a for site, a in answers.items() if site not in problems}
    problems |= {site: "its answer cannot be read" for site, a in fit.items() if not _readable(a)}
    fit = {site: a for site, a in fit.items() if site not in problems}
    holder: dict[str, str] = {}
    for site, answer in fit.items():
        if not answer["clients"]:
            problems[site] = "it has no clients"
        for client in answer["clients"]:
            if client in holder:
                problems[site] = (
                    f"its client '{client}' is also at site '{holder[client]}'; rename the owner at one of them, or set"
                    ' `clients = "site"` in its site.toml'
                )
            holder.setdefault(client, site)
    differ = {site: a["agreement"] for site, a in fit.items()}
    if len(set(differ.values())) > 1:
        usual = max(differ.values(), key=list(differ.values()).count)
        for site, digest in differ.items():
            if digest != usual:
                problems.setdefault(
                    site, "its class names are not those of the other sites; name them all in the recipe: data.labels"
                )
    if problems:
        raise RunError(
            f"{len(problems)} of {len(answers)} sites cannot take part",
            found="\n             ".join(f"{site}: {text}" for site, text in sorted(problems.items())),
            hint="`fedreel site check` at the site tells more; set engine.sites to continue without it",
        )
    return Roster({s: tuple(a["clients"]) for s, a in fit.items()}, {c: wanted[s] for c, s in holder.items()})


def _readable(answer: Mapping[str, Any]) -> bool:
    clients = answer.get("clients")
    return (
        isinstance(clients, list)
        and len(clients) <= _CLIENTS
        and all(isinstance(c, str) and c and len(c) <= _NAME and plain(c) == c for c in clients)
        and isinstance(answer.get("agreement"), str)
    )


def _wait_for(link: Link, wanted: Mapping[str, str], wait: float) -> None:
    deadline = time.monotonic() + wait
    while missing := {site for site, node in wanted.items() if node not in (here := link.nodes())}:
        if time.monotonic() > deadline:
            raise RunError(
                "not all sites are connected",
                expected=", ".join(sorted(wanted)),
                found=f"missing: {', '.join(sorted(missing))} ({len(here)} connected)",
                hint="start them (`fedreel site start`), or name the ones to continue with: --sites",
            )
        time.sleep(1)
