"""Sites that sum with each other: keys that their owners hand over, and a server that cannot come between."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("cryptography", reason="needs the extra `sites`")
pytest.importorskip("flwr", reason="needs the extra `sites`")
from fedreel.config import Recipe, SecureConfig, as_table, make_recipe
from fedreel.core.secure.messages import Session
from fedreel.core.secure.work import MESSAGE, SESSION, packed, text_of
from fedreel.core.update import ASK, SECURE, TRAIN, Answer, Failure, Order, Result
from fedreel.core.weights import Weights
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.wire import pack_orders, unpack_results
from fedreel.engines.flower.workplace import Workplace, for_others
from fedreel.errors import FedreelError, PolicyError
from fedreel.registry import TASKS
from fedreel.sites.approval import job_digest
from fedreel.sites.peers import add_peer, fingerprint, own_key, peers
from fedreel.sites.site import SiteFolder, init
from support.flower_site import allow_all, make_peers, toy_recipe
from support.tiny import cli

NAMES = ("north", "south", "east", "west")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "toy", "support.toy:Toy")


@pytest.fixture
def sites(tmp_path: Path, toy: None) -> dict[str, SiteFolder]:
    """Four sites with a client each."""
    made = {}
    for number, name in enumerate(NAMES):
        data = tmp_path / f"data-{name}"
        data.mkdir()
        (data / "clients.txt").write_text(f"c{number}")
        made[name] = init(tmp_path / name, name, {"*": str(data)}, "", "")
        allow_all(tmp_path / name)
    return made


def job(**changes: Any) -> Recipe:
    return toy_recipe(2, method={"name": "fedavg"}, secure=SecureConfig(sums=True), **changes)


def test_a_fingerprint_is_that_of_ssh(sites: dict[str, SiteFolder]) -> None:
    site = sites["north"]
    try:
        said = subprocess.run(["ssh-keygen", "-lf", site.path / "site.pub"], capture_output=True, text=True, check=True)
    except OSError:
        pytest.skip("there is no ssh-keygen")
    assert fingerprint(own_key(site)) in said.stdout


def test_keys_are_added_by_hand_and_shown(sites: dict[str, SiteFolder]) -> None:
    north, south = sites["north"], sites["south"]
    assert "It knows no others" in cli("site", "peers", "--site", north.path).out
    said = cli("site", "add-peer", south.path / "site.pub", "--site", north.path)
    assert said.code == 0, said.err
    assert fingerprint(own_key(south)) in said.out
    shown = cli("site", "peers", "--site", north.path).out
    assert fingerprint(own_key(north)) in shown
    assert fingerprint(own_key(south)) in shown
    assert peers(north) == {"south": own_key(south)}
    checked = cli("site", "check", "--site", north.path).out
    assert f"peer     south {fingerprint(own_key(south))}" in checked
    assert "1 known; a job with secure sums needs 2 or more (min_cohort)" in checked
    assert cli("site", "add-peer", south.path / "site.pub", "--site", north.path).code == 0  # again is no harm


def test_a_key_is_not_replaced_by_another_unasked(sites: dict[str, SiteFolder], tmp_path: Path) -> None:
    north, south, east = sites["north"], sites["south"], sites["east"]
    add_peer(north, south.path / "site.pub")
    with pytest.raises(FedreelError, match="another key is known for the site 'south'"):
        add_peer(north, east.path / "site.pub", "south")
    with pytest.raises(FedreelError, match="this is the key of 'south'"):
        add_peer(north, south.path / "site.pub", "west")
    with pytest.raises(FedreelError, match="this is the key of 'north'"):
        add_peer(north, north.path / "site.pub", "west")
    with pytest.raises(FedreelError, match="this site's own name"):
        add_peer(north, north.path / "site.pub")
    (tmp_path / "rubbish.pub").write_text("ssh-rsa AAAA")
    with pytest.raises(FedreelError, match="not a site's public key"):
        add_peer(north, tmp_path / "rubbish.pub")
    assert add_peer(north, east.path / "site.pub", "south", replace=True)[0] == "south"
    assert peers(north) == {"south": own_key(east)}


def test_a_site_that_knows_too_few_says_so_before_the_first_round(sites: dict[str, SiteFolder]) -> None:
    north = sites["north"]
    add_peer(north, sites["south"].path / "site.pub")
    with pytest.raises(PolicyError, match="knows the keys of 1 others"):
        north.worker(job(), "r")
    add_peer(north, sites["east"].path / "site.pub")
    assert north.worker(job(), "r").leaves() == {"name": "name", "update": "masked-sum"}


def test_an_approval_of_a_job_by_secure_sums_is_for_no_other(toy: None) -> None:
    plain = toy_recipe(2, method={"name": "fedavg"})
    assert job_digest(plain) != job_digest(job())
    assert job_digest(job()) != job_digest(replace(job(), secure=SecureConfig(sums=True, clip=2.0)))
    table = as_table(plain)
    del table["secure"]  # as recipes of former versions are
    assert job_digest(make_recipe(table)) == job_digest(plain)


class Server:
    """A server that may say what it likes, and the sites' workplaces."""

    def __init__(self, sites: dict[str, SiteFolder]) -> None:
        make_peers(site.path for site in sites.values())
        self.places = {
            name: Workplace(site.worker, name, for_others, site.runs, site.approvals().permit)
            for name, site in sites.items()
        }
        self.site_of = {f"c{number}": name for number, name in enumerate(sites)}
        self.step = 0
        self.session = Session("r", 1, 1, tuple(sorted(self.site_of)), ("equal",))

    def ask(self, client: str, question: str, message: str = "", **changes: Any) -> Result:
        self.step += 1
        session = changes.pop("session", self.session)
        models = changes.pop("models", {})
        args = {SESSION: packed(session.text), MESSAGE: packed(message)}
        given = {"round": session.round, "kind": SECURE, "question": question, "args": args, "models": models}
        order = Order(step=self.step, client=client, **{**given, **changes})
        frame = pack_orders([order], type="orders", run="r", start=1, recipe=as_table(job()))
        answer = self.places[self.site_of[client]].answer(Frame(frame.head, frame.arrays))
        assert "problem" not in answer.head, answer.head
        return unpack_results(answer, [order])[0]

    def said(self, client: str, question: str, message: str = "", **changes: Any) -> str:
        found = self.ask(client, question, message, **changes)
        assert isinstance(found, Answer), found
        return text_of(found.tensors[MESSAGE])


def refusal(found: Result) -> str:
    assert isinstance(found, Failure), found
    assert found.reason == "policy"
    return found.detail


@pytest.fixture
def server(sites: dict[str, SiteFolder]) -> Server:
    return Server(sites)


def directory(server: Server, change: Callable[[list[list[str]]], None] = lambda rows: None) -> str:
    rows = [json.loads(server.said(client, "keys")) for client in server.site_of]
    change(rows)
    return json.dumps(rows)


def test_a_site_lets_nothing_else_out_in_a_job_by_secure_sums(server: Server, sites: dict[str, SiteFolder]) -> None:
    model: Weights = sites["north"].worker(job(), "elsewhere").start
    for kind in (TRAIN, ASK):
        found = server.ask("c0", "" if kind == TRAIN else "keys", kind=kind, models={"global": model}, args={})
        assert isinstance(found, Failure)
    assert "no single one leaves" in refusal(server.ask("c0", "", kind=TRAIN, models={"global": model}, args={}))
    ledger = (
        [json.loads(line) for line in sites["north"].ledger.read_text().splitlines()]
        if sites["north"].ledger.exists()
        else []
    )
    assert not [row for row in ledger if row.get("purpose") == "train"]


def test_a_server_that_puts_itself_between_is_refused(server: Server, sites: dict[str, SiteFolder]) -> None:
    """It has keys of its own for everybody, signed by a site that is enrolled but no peer, or by nobody."""
    other = init(sites["north"].path.parent / "server", "mitm", {}, "", "")
    key = (other.path / "site.key").read_bytes()
    from fedreel.core.secure.crypto import new_secret, public_of, read_signing_key, sign
    from fedreel.core.secure.messages import Entry

    def between(rows: list[list[str]]) -> None:
        entry = Entry("c1", "south", public_of(new_secret()), public_of(new_secret()), b"")
        signature = sign(read_signing_key(key), entry.statement(server.session))
        rows[1] = replace(entry, signature=signature).row()

    said = refusal(server.ask("c0", "shares", directory(server, between)))
    assert "not signed by a site that is known here" in said


def test_other_runs_rounds_and_cohorts_are_refused(server: Server) -> None:
    whole = directory(server)
    assert server.said("c0", "shares", whole)
    for other in (replace(server.session, run="s"), replace(server.session, round=2)):
        assert "another run or round" in refusal(server.ask("c0", "keys", session=other, round=1))
    tiny = replace(server.session, cohort=("c0", "c1"), start=2)
    assert "so small a sum" in refusal(server.ask("c0", "keys", session=tiny))
    for rubbish in ("", "[]", "{", "\x00"):
        assert isinstance(server.ask("c1", "shares", rubbish), Failure)
    assert isinstance(server.ask("c0", "secrets"), Failure)
    assert isinstance(server.ask("c0", "keys", args={SESSION: torch.zeros(3), MESSAGE: packed("")}), Failure)


def test_what_a_site_keeps_of_a_sum_is_for_its_owner_alone(server: Server, sites: dict[str, SiteFolder]) -> None:
    server.said("c0", "keys")
    folder = sites["north"].runs / "r" / "secure"
    assert os.stat(folder).st_mode & 0o077 == 0
    (kept,) = folder.glob("*.json")
    kept.write_text("{")
    found = server.ask("c0", "keys")
    assert isinstance(found, Failure)
    assert "cannot be read" in found.detail
