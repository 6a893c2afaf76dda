"""The server's folder: certificates, enrolled sites, and the processes that `fedreel server start` keeps running."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedreel.config import build, check_ranges, read_toml
from fedreel.engines.flower.processes import Processes, free_port, is_open, last_lines, program, quiet_environment
from fedreel.engines.flower.server import Server
from fedreel.errors import FedreelError, RunError, nearest
from fedreel.machine.files import hold_lock, write_atomic
from fedreel.sites import keys

_START = 180.0  # seconds that the SuperLink may take to start, on a busy machine


@dataclass(frozen=True)
class ServerConfig:
    """server.toml."""

    hosts: tuple[str, ...]  # names and addresses by which sites reach the server
    port: int = 8000  # open to the sites
    listen: str = "0.0.0.0"  # the interface to listen on
    link_port: int = 0  # Flower's SuperLink, on loopback only
    connections: int = 500  # at once
    address_connections: int = 100  # of them from one address, which may be that of many sites
    site_gigabytes: float = 100.0  # that one site may send in an hour; 0: no limit

    def __post_init__(self) -> None:
        check_ranges(self, "server.toml", port=(1, 65535), link_port=(1, 65535))
        check_ranges(self, "server.toml", connections=(1, math.inf), address_connections=(1, math.inf))
        check_ranges(self, "server.toml", site_gigabytes=(0, math.inf))


class ServerFolder(Server):
    """What lies on the server's disk, for the server's owner."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.config = build(ServerConfig, read_toml(path / "server.toml"), str(path / "server.toml"))

    def sites(self) -> dict[str, dict[str, Any]]:
        """Enrolled sites with their public keys; see `enrolled`."""
        folder = self.path / "sites"
        return {
            name: {"key": keys.read_site_key(folder / f"{name}.pub")[0], **note}
            for name, note in self.enrolled().items()
        }

    @property
    def running(self) -> bool:
        """Whether `fedreel server start` holds this folder."""
        lock = hold_lock(self.path)
        if lock is not None:
            lock.close()
        return lock is None

    def nodes(self) -> dict[str, dict[str, str]]:
        """What the SuperLink knows of its nodes: node id -> status and times."""
        answer = self.flwr("supernode", "list", "fedreel")
        return {row["node-id"]: row for row in answer["nodes"]}

    def register(self, name: str) -> None:
        """Tell the running SuperLink of an enrolled key, and note the node's id or why it was refused."""
        path = self.path / "sites" / f"{name}.pub"
        try:
            note = {"node": str(self.flwr("supernode", "register", str(path), "fedreel", "--name", name)["node-id"])}
        except RunError as error:
            note = {"node": "", "problem": error.found}
        write_atomic(path.with_suffix(".json"), json.dumps(note))

    def flwr(self, *command: str) -> dict[str, Any]:
        """A command of Flower's own, against this server; its JSON answer."""
        done = subprocess.run(
            [program("flwr"), *command, "--format", "json"],
            env=quiet_environment(self.flower_home),
            capture_output=True,
            text=True,
            timeout=120,
        )
        try:
            answer = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            answer = {"error-message": (done.stdout + done.stderr).strip()[-500:]}
        if not answer.get("success"):
            raise RunError(
                "the server does not answer",
                where=str(self.path),
                found=str(answer.get("error-message", answer))[:500],
                hint="is it running? fedreel server start",
            )
        return answer


def init(
    path: Path, hosts: Sequence[str], port: int, listen: str, supplied: tuple[Path, Path, Path] | None = None
) -> ServerFolder:
    """Make a server's folder: a CA with a server certificate, or the supplied (certificate, key, CA)."""
    if (path / "server.toml").exists():
        raise FedreelError("there is already a server here", where=str(path), hint="--renew makes a new certificate")
    hosts = keys.check_server_certificate(*supplied) if supplied else keys.check_hosts(hosts)
    config = ServerConfig(tuple(hosts), port, listen, free_port())
    path.mkdir(parents=True, exist_ok=True)
    for folder in ("inner", "sites", "flower"):
        (path / folder).mkdir(exist_ok=True)
    os.chmod(path, 0o700)
    if supplied:
        for source, name in zip(supplied, ("server.crt", "server.key", "ca.crt")):
            shutil.copyfile(source, path / name)
        os.chmod(path / "server.key", 0o600)
    else:
        keys.make_ca(path, "fedreel server CA")
        keys.make_server_certificate(path, hosts)
    keys.make_ca(path / "inner", "fedreel loopback CA")
    keys.make_server_certificate(path / "inner", ["127.0.0.1", "localhost"])
    write_atomic(path / "server.toml", tomli_w.dumps({**asdict(config), "hosts": list(hosts)}))
    return ServerFolder(path)


def renew(path: Path) -> ServerFolder:
    """New server certificates under the CAs that are there: sites need nothing new."""
    folder = ServerFolder(path)
    if not (path / "ca.key").exists():
        raise FedreelError(
            "this server's certificate was supplied, not made here",
            where=str(path),
            hint="copy the new certificate and key over server.crt and server.key, then start the server again",
        )
    keys.make_server_certificate(path, folder.config.hosts)
    keys.make_server_certificate(path / "inner", ["127.0.0.1", "localhost"])
    return folder


def enroll(folder: ServerFolder, public_key: Path, name: str | None = None) -> str:
    """Let a site in: keep its key, and wait until a running server has seen it. Returns the site's name."""
    key, own_name = keys.read_site_key(public_key)
    name = keys.check_name(name or own_name, str(public_key))
    for known, site in folder.sites().items():
        if site["key"] == key and known == name:
            break
        if site["key"] == key or known == name:
            raise FedreelError(
                f"the site '{known}' is enrolled with {'this' if site['key'] == key else 'another'} key",
                where=str(folder.path / "sites"),
                hint=f"fedreel server expel {known}, or enroll under another name: --name",
            )
    write_atomic(folder.path / "sites" / f"{name}.pub", f"{key} {name}\n")
    deadline = time.monotonic() + _START
    while folder.running and time.monotonic() < deadline and folder.sites()[name]["node"] is None:
        time.sleep(0.2)  # the running server sees the new key
    problem = folder.sites()[name].get("problem")
    if problem:
        for suffix in (".pub", ".json"):
            (folder.path / "sites" / f"{name}{suffix}").unlink(missing_ok=True)
        raise RunError(
            "the server rejects this key",
            where=str(public_key),
            found=problem,
            hint="an expelled key cannot come back: make a new one at the site, in a new folder: fedreel site init",
        )
    return name


def expel(folder: ServerFolder, name: str) -> None:
    """Close the door to a site."""
    sites = folder.sites()
    if name not in sites:
        raise FedreelError(f"no site '{name}' is enrolled", where=str(folder.path), hint=nearest(name, sites))
    if folder.running and sites[name]["node"]:
        folder.flwr("supernode", "unregister", sites[name]["node"], "fedreel")
    for suffix in (".pub", ".json"):
        (folder.path / "sites" / f"{name}{suffix}").unlink(missing_ok=True)


def start(folder: ServerFolder, say: Callable[[str], None]) -> None:
    """Run SuperLink and gate until interrupted; a part that dies is started again. All of it ends with us."""
    hosts = keys.check_server_certificate(*(folder.path / n for n in ("server.crt", "server.key", "ca.crt")))
    keys.check_server_certificate(*(folder.path / "inner" / n for n in ("server.crt", "server.key", "ca.crt")))
    lock = hold_lock(folder.path)
    if lock is None:
        raise RunError("this server is already running", where=str(folder.path))
    with lock:
        signal.signal(signal.SIGTERM, _interrupt)
        processes = Processes()
        try:
            parts = _start_parts(folder, processes)
            _register_missing(folder)
            say(f"Listening for sites on port {folder.config.port} ({len(folder.sites())} enrolled).")
            say(f"Sites reach it as {' or '.join(f'{h}:{folder.config.port}' for h in hosts[:3])}")
            say(f"Give them {folder.path / 'ca.crt'}. Then: fedreel submit RECIPE --out DIR --server {folder.path}")
            while True:
                time.sleep(0.5)
                if any(site["node"] is None for site in folder.sites().values()):
                    _register_missing(folder)
                for name, process in parts.items():
                    if process.poll() is not None:
                        say(f"{name} ended ({process.returncode}) and has been restarted; see {folder.path / name}.log")
                        parts[name] = _start_part(folder, processes, name)
        finally:
            processes.end()


def _start_parts(folder: ServerFolder, processes: Processes) -> dict[str, subprocess.Popen[bytes]]:
    link = f'address = "127.0.0.1:{folder.config.link_port}"\nroot-certificates = "{folder.path}/inner/ca.crt"\n'
    text = f'[superlink]\ndefault = "fedreel"\n\n[superlink.fedreel]\n{link}'
    write_atomic(folder.flower_home / "config.toml", text)
    parts = {name: _start_part(folder, processes, name) for name in ("superlink", "gate")}
    deadline = time.monotonic() + _START
    while True:
        for name, process in parts.items():
            if process.poll() is not None:
                log = folder.path / f"{name}.log"
                raise RunError(
                    f"the {name} did not start",
                    where=str(log),
                    found=last_lines(log),
                    hint="is the port in use? see server.toml",
                )
        late = time.monotonic() > deadline
        if not late and not is_open(folder.config.link_port):  # to ask Flower before is slow, and slows its start down
            time.sleep(0.2)
            continue
        try:
            folder.nodes()
            return parts
        except RunError:
            if late:
                raise


def _start_part(folder: ServerFolder, processes: Processes, name: str) -> subprocess.Popen[bytes]:
    inner, config = folder.path / "inner", folder.config
    if name == "gate":
        command = [sys.executable, "-m", "fedreel.sites.gate", str(folder.path)]
    else:
        command = [program("flower-superlink"), "--ssl-ca-certfile", f"{inner}/ca.crt"]
        command += ["--ssl-certfile", f"{inner}/server.crt", "--ssl-keyfile", f"{inner}/server.key"]
        command += ["--enable-supernode-auth", "--database", str(folder.path / "superlink.db")]
        command += ["--host", "127.0.0.1", "--port", str(config.link_port), "--disable-runtime-dependency-installation"]
    return processes.start(command, folder.path / f"{name}.log", quiet_environment(folder.flower_home))


def _register_missing(folder: ServerFolder) -> None:
    known: Mapping[str, Mapping[str, str]] = folder.nodes()
    sites = folder.sites()
    for node in {n for n, row in known.items() if row.get("status") != "unregistered"} - {
        site["node"] for site in sites.values()
    }:
        folder.flwr("supernode", "unregister", node, "fedreel")  # expelled while the server was down
    for name, site in sites.items():
        if site["node"] != "" and site["node"] not in known:
            folder.register(name)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
