"""`fedreel site start`: keeps a site's worker and its SuperNode running until interrupted, and ends them."""

from __future__ import annotations

import json
import math
import os
import pwd
import re
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen, run
from typing import Any

from fedreel.engines.flower.processes import Processes, held_port, last_lines, program, quiet_environment
from fedreel.errors import FedreelError, RunError
from fedreel.machine.cache import cache_folder, readable_by_others
from fedreel.machine.files import hold_lock
from fedreel.sites import place
from fedreel.sites.call import call_server, check_welcome, version_note
from fedreel.sites.site import SiteFolder

_SECRET = "executor.secret"
_PAUSES = (2.0, 10.0)  # seconds between two tries to connect, at first and at most
_READABLE = "import os, sys, fedreel\nfor p in sys.argv[1:]: os.access(p, os.R_OK | os.X_OK) or print(p)"
_CONNECT = 120.0  # seconds that a SuperNode may take until the SuperLink has let it in


def start(site: SiteFolder, say: Callable[[str], None], user: str | None = None) -> None:
    """Run the site. With `user`, the processes that speak with the network run as that user, who needs no access to
    the data: whoever takes one of them over sees only the worker's socket. No program of the server's runs in any."""
    greet(site, say)
    lock = hold_lock(site.path)
    if lock is None:
        raise RunError("this site is already running", where=str(site.path))
    with lock:
        check_owner(site, say)
        _run(site, say, user)


def _run(site: SiteFolder, say: Callable[[str], None], user: str | None) -> None:
    signal.signal(signal.SIGTERM, _interrupt)
    sockets = Path(tempfile.mkdtemp(prefix="fedreel-"))
    processes = Processes()
    try:
        home = _home(site, sockets, user)
        worker = _start_worker(site, sockets, processes, user)
        node, address = _connect(site, sockets, home, processes, user, say, _CONNECT)
        executor = _start_executor(site, address, home, processes, user)
        say(f"Site '{site.config.name}' is connected to {site.config.server} and is waiting for work. Ctrl-C stops it.")
        say(f"Whatever leaves is recorded: fedreel ledger {site.path}")
        told = set[str]()
        while True:
            time.sleep(0.3)
            _tell_of_jobs(site, told, say)
            if worker.poll() is not None:
                say(f"the worker ended ({worker.returncode}) and has been restarted; see {site.path / 'worker.log'}")
                worker = _start_worker(site, sockets, processes, user)
            if node.poll() is not None:
                say(f"the connection ended ({node.returncode}) and is being restored; see {site.path / 'node.log'}")
                executor.terminate()
                executor.wait()
                node, address = _connect(site, sockets, home, processes, user, say, math.inf)
                executor = _start_executor(site, address, home, processes, user)
                say("connected again")
            if executor.poll() is not None:
                say(f"the executor ended ({executor.returncode}) and has been restarted; see {site.path / 'node.log'}")
                executor = _start_executor(site, address, home, processes, user)
    finally:
        processes.end()
        place.left(site)
        shutil.rmtree(sockets, ignore_errors=True)


def _tell_of_jobs(site: SiteFolder, told: set[str], say: Callable[[str], None]) -> None:
    """Which jobs wait for approval, each once."""
    new = {path.stem for path in (site.path / "jobs").glob("*.json")} - told
    for job in site.approvals().all() if new else ():
        if job.digest in new and job.state == "waiting":
            say(
                f"A job waits for approval: {job.title}, {job.rounds} rounds. See: fedreel site jobs --site {site.path}"
            )
    told |= new


def greet(site: SiteFolder, say: Callable[[str], None]) -> None:
    """Check what can be checked before anything is started."""
    config = site.config
    if not config.server or not config.ca:
        raise FedreelError(
            "the site does not know its server",
            where=str(site.path / "site.toml"),
            hint="fedreel site start --server HOST:PORT --ca ca.crt, or write both there",
        )
    for role in config.data:
        site.folder_of(role)
    if readable_by_others(cache := cache_folder()):
        say(f"Other users of this machine can read the cache, which holds pictures of the data: chmod 700 {cache}")
    key = site.path / "site.pub"
    reply = call_server(config.server, Path(config.ca), " ".join(key.read_text().split()[:2]))
    check_welcome(reply, config.server, key)
    if note := version_note(reply):
        say(note)


def check_owner(site: SiteFolder, say: Callable[[str], None]) -> None:
    """Where root starts a site, its worker becomes the user whom the folder belongs to: raise if that user cannot read
    Python, fedreel or the data."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return
    owner = site.path.stat()
    if owner.st_uid == 0:
        say(f"Videos are read as root. Give the site to a user who may read them: chown -R USER {site.path}")
        return
    folders = [str(site.folder_of(role)) for role in site.config.data]
    try:
        command = [sys.executable, "-c", _READABLE, *folders]
        who: dict[str, Any] = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": _groups(owner.st_uid)}
        done = run(command, capture_output=True, text=True, **who)
        unread = done.stdout.splitlines() if done.returncode == 0 else [sys.prefix]
    except PermissionError:
        unread = [sys.executable]
    if unread:
        raise FedreelError(
            "the user whom the site's folder belongs to cannot read what the worker needs",
            where=str(site.path),
            found=", ".join(unread),
            hint="let that user read it: Python and fedreel do not belong in a home folder",
        )


def _groups(user: int) -> list[int]:
    try:
        found = pwd.getpwuid(user)
    except KeyError:
        return []
    return os.getgrouplist(found.pw_name, found.pw_gid)


def _connect(
    site: SiteFolder,
    sockets: Path,
    home: Path,
    processes: Processes,
    user: str | None,
    say: Callable[[str], None],
    wait: float,
) -> tuple[Popen[bytes], str]:
    """Start the SuperNode until it is in; and where it listens on this machine. The one before it may have been killed,
    and a server may be away."""
    deadline, told, pause = time.monotonic() + wait, False, _PAUSES[0]
    while True:
        while not _is_there(site) and time.monotonic() < deadline:  # to ask is cheap, to start a SuperNode is not
            time.sleep(_PAUSES[0])
        place.give_back(site)
        before = _size(site.path / "node.log")
        with held_port() as port:
            node = _start_node(site, port, sockets, home, processes, user)
            name = _is_in(site.path / "node.log", before, node)
        if name:
            place.took(site, name)
            return node, f"127.0.0.1:{port}"
        if time.monotonic() > deadline:
            log = site.path / "node.log"
            raise RunError("the site could not connect to the server", where=str(log), found=last_lines(log))
        if not told:
            say("the server does not accept the connection yet; trying again")
            told = True
        time.sleep(pause)
        pause = min(2 * pause, _PAUSES[1])


def _is_there(site: SiteFolder) -> bool:
    """Whether the server can be reached. Raises if it does not want us any more."""
    try:
        greet(site, lambda _: None)
    except FedreelError as error:
        if error.problem != "the server cannot be reached":
            raise
        return False
    return True


def _home(site: SiteFolder, sockets: Path, user: str | None) -> Path:
    """Flower's folder, with the site's key, and the secret by which SuperNode and executor know each other. For another
    user it is a folder of that user's own, made and given away before anything of theirs runs; that of the sockets
    stays ours."""
    if user is None:
        home = site.path / "flower"
        home.mkdir(exist_ok=True)
        _write_secret(home)
        return home
    if os.geteuid() != 0:
        raise FedreelError("only root can run Flower's processes as another user", found="--node-user")
    try:
        group = pwd.getpwnam(user).pw_gid
    except KeyError as error:
        raise FedreelError(f"there is no user '{user}' here", hint="adduser --system NAME makes one") from error
    home = sockets / "flower"
    home.mkdir(mode=0o700)
    shutil.copyfile(site.path / "site.key", home / "site.key")
    shutil.copyfile(site.config.ca, home / "ca.crt")
    os.chmod(home / "site.key", 0o400)
    os.chmod(sockets, 0o711)
    _write_secret(home)
    for path in (home / "site.key", home / "ca.crt", home / _SECRET, home):
        shutil.chown(path, user, group)
    return home


def _write_secret(home: Path) -> None:
    (home / _SECRET).unlink(missing_ok=True)
    (home / _SECRET).touch(mode=0o600)
    (home / _SECRET).write_bytes(secrets.token_bytes(32))


def _start_worker(site: SiteFolder, sockets: Path, processes: Processes, user: str | None) -> Popen[bytes]:
    arguments = {"folder": str(site.path), "data": site.config.data, "socket": str(sockets / "s"), "user": user}
    command = [sys.executable, "-m", "fedreel.sites.worker", json.dumps(arguments)]
    return processes.start(command, site.path / "worker.log")


def _start_executor(site: SiteFolder, address: str, home: Path, processes: Processes, user: str | None) -> Popen[bytes]:
    arguments = {"address": address, "secret": str(home / _SECRET)}
    command = [sys.executable, "-m", "fedreel.sites.executor", json.dumps(arguments)]
    return processes.start(command, site.path / "node.log", quiet_environment(home), user)


def _start_node(
    site: SiteFolder, port: int, sockets: Path, home: Path, processes: Processes, user: str | None
) -> Popen[bytes]:
    key, ca = (site.path / "site.key", site.config.ca) if user is None else (home / "site.key", home / "ca.crt")
    program("flower-supernode")  # raises if Flower is not installed
    command = [sys.executable, "-m", "fedreel.sites.supernode", "--root-certificates", str(ca)]
    command += ["--superlink", site.config.server]
    command += ["--host", "127.0.0.1", "--port", str(port), "--auth-supernode-private-key", str(key)]
    command += ["--node-config", f'socket="{sockets / "s"}"']
    command += ["--isolation", "process"]  # no SuperExec: see executor
    command += ["--superexec-auth-secret-file", str(home / _SECRET)]
    try:
        return processes.start(command, site.path / "node.log", quiet_environment(home), user)
    except PermissionError as error:
        raise FedreelError(
            f"the user '{user}' cannot run Flower",
            where=command[0],
            found=str(error),
            hint="install Python and fedreel where that user may read them, not in a home folder",
        ) from error


def _is_in(log: Path, before: int, node: Popen[bytes]) -> str:
    """Wait until the SuperNode has its id, which is returned, or has ended without."""
    while node.poll() is None:
        said = log.read_bytes()[before:] if _size(log) > before else b""
        if found := re.search(rb"SuperNode ID: (\d+)\D", said):
            return found[1].decode()
        time.sleep(0.2)
    return ""


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
