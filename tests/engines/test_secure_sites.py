"""Secure sums at five sites of two clients each, in one process, over the bytes that would travel: whoever gets lost in
whatever phase, the end is that of the local engine to the bit. With Flower in between: test_sites_end_to_end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest

pytest.importorskip("flwr", reason="needs the extra `sites`")
from fedreel.config import PrivacyConfig, SecureConfig
from fedreel.core.blueprint import Blueprint
from fedreel.core.federation import Federation
from fedreel.core.job import Job
from fedreel.core.privacy import make_disclosure
from fedreel.core.secure.rounds import server_sums
from fedreel.engines.flower.engine import FlowerEngine
from fedreel.engines.flower.link import Link
from fedreel.engines.flower.roster import call_roster
from fedreel.errors import RunError
from fedreel.machine.device import pick_device
from fedreel.methods.fedavg import FedAvg
from fedreel.privacy.accounting import Release, epsilon
from fedreel.registry import TASKS
from fedreel.sites.site import SiteFolder, init
from support.conformance_engines import NearLink
from support.flower_site import allow_all, make_peers, toy_recipe
from support.sums import Losing, federate_securely
from support.synthetic import PHASES
from support.toy import Notes, PlainToy, Toy

TASK = Toy(clients=10)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, SiteFolder]]:
    root = tmp_path_factory.mktemp("sites")
    for number in range(5):
        data = root / f"data{number}"
        data.mkdir()
        (data / "clients.txt").write_text(f"c{number} c{number + 5}")
        init(root / f"s{number}", f"s{number}", {"*": str(data)}, "", "")
        allow_all(root / f"s{number}")
    make_peers(root / f"s{number}" for number in range(5))
    with mock.patch.dict(TASKS, {"toy": "support.toy:Toy", "plain-toy": "support.toy:PlainToy"}):
        yield {f"s{number}": SiteFolder.open(root / f"s{number}") for number in range(5)}


def summed(
    sites: dict[str, SiteFolder],
    out: Path,
    lost: list[tuple[str, str]],
    privacy: PrivacyConfig | None = None,
    task: Toy = TASK,
) -> tuple[Federation, Notes]:
    """One round at the sites."""
    section = {"name": "toy" if task is TASK else "plain-toy", "clients": 10}
    given = toy_recipe(1, task=section, method={"name": "fedavg"}, secure=SecureConfig(sums=True), privacy=privacy)
    recipe = replace(
        given,
        train=replace(given.train, momentum=0.0, keep_optimizer=False),
        round=replace(given.round, evaluate_every=0, repeat=0, min_answers=0.5),
    )
    job = Job(recipe, task, FedAvg(), pick_device("cpu"), out, out.name)
    link, notes = cast(Link, NearLink(sites)), Notes()
    blueprint = Blueprint(job.task, job.method, job.recipe.seed, job.device)
    roster = call_roster(job, link, blueprint, {name: name for name in sites}, 10.0)
    engine: Any = Losing(cast(Any, FlowerEngine(job, blueprint, link, roster, 300.0)), lost)
    engine.slots = 10
    sums = server_sums(job, blueprint.travelling, False)
    told = make_disclosure(recipe, task, 10, out)
    fed = Federation(engine, job.method, recipe.round, recipe.seed, watchers=[notes], sums=sums, disclosure=told)
    job.method.run(fed)
    return fed, notes


@pytest.mark.parametrize(("phase", "gone"), [("keys", 0), ("masked", 1), *((phase, 3) for phase in PHASES)])
def test_sites_end_as_one_machine_does_whoever_gets_lost(
    phase: str, gone: int, sites: dict[str, SiteFolder], tmp_path: Path
) -> None:
    lost = [(phase, client) for client in ("c4", "c0", "c9")[:gone]]
    here, _ = federate_securely(tmp_path / "here", FedAvg(), lost=lost)
    there, notes = summed(sites, tmp_path / f"{phase}{gone}", lost)
    assert there.weights.equal(here.weights)
    absent = sorted(client for _, client in lost) if phase in PHASES[:3] else []
    assert notes.of("secure")[0]["lost"] == absent
    assert not [row for row in notes.of("note") if "simulation" in row["text"]]


def test_two_sites_are_too_few(sites: dict[str, SiteFolder], tmp_path: Path) -> None:
    two = {name: sites[name] for name in ("s0", "s1")}
    with pytest.raises(RunError, match=r"(?s)too few take part in the sum.*at least 4 clients, of at least 3 sites"):
        summed(two, tmp_path / "two", [])


def test_sites_make_the_noise_of_secrets_of_their_own_and_count_it(
    sites: dict[str, SiteFolder], tmp_path: Path
) -> None:
    """One has room for one run in its budget: in the second its clients do not train, and the others have the noise."""
    pytest.importorskip("dp_accounting", reason="needs the extra 'privacy'")
    privacy, task = PrivacyConfig(noise=2.0, clip=0.01, sampling="known", tests="off"), PlainToy(clients=10)
    policy = sites["s1"].path / "policy.toml"
    before, once = policy.read_text(), epsilon([Release(2.0, 1)], 1e-5)
    policy.write_text(f'{before}\n[privacy]\nmax_epsilon = {1.1 * once}\nunit = "client"\n')
    try:
        first, told = summed(sites, tmp_path / "first", [], privacy, task)
        second, again = summed(sites, tmp_path / "second", [], privacy, task)
    finally:
        policy.write_text(before)
    start = Blueprint(task, FedAvg(), 0, pick_device("cpu")).start
    for fed, count in ((first, 10), (second, 8)):
        most = 0.01 + 6 * 2.0 * 0.01 * math.sqrt(count / 7) / count  # clipped changes, and six deviations
        assert 0 < max(float((fed.weights[name] - start[name]).abs().max()) for name in start) < most
    assert [row["epsilon"] for row in told.of("privacy")] == pytest.approx([once])
    assert [notes.of("secure")[0]["lost"] for notes in (told, again)] == [[], ["c1", "c6"]]
    keys = [path.read_bytes() for path in sites["s1"].path.parent.rglob("clients.key")]
    assert len(keys) == len({*keys}) >= 9  # of each site and run; who refuses needs none
