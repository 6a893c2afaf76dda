"""Several hosts on one machine, each a network namespace of its own, and a Ray cluster of them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support.started import end, start

_PORT = 6379  # of Ray; the hub is a network of its own
_START = 120.0  # seconds that a host of a Ray cluster may take to start


class Hosts:
    """A hub and others, joined with it by cables that can be pulled. All of it is the caller's own. OSError where
    namespaces are not permitted."""

    def __init__(self, *others: str) -> None:
        self.tag = f"fr{os.getpid() % 10000}"
        self.others, self.made = others, list[str]()
        try:
            for name in ("hub", *others):
                _ip("netns", "add", self.space(name))
                self.made.append(name)
                _ip("-n", self.space(name), "link", "set", "lo", "up")
            for number, name in enumerate(others, 1):
                ends = f"{self.tag}h{number}", f"{self.tag}s{number}"
                _ip("link", "add", ends[0], "netns", self.space("hub"), "type", "veth", "peer", ends[1])
                _ip("link", "set", ends[1], "netns", self.space(name))
                for space, end, last in (("hub", ends[0], 1), (name, ends[1], 2)):
                    _ip("-n", self.space(space), "addr", "add", f"10.213.{number}.{last}/24", "dev", end)
                    _ip("-n", self.space(space), "link", "set", end, "up")
        except OSError:
            self.close()
            raise

    def space(self, name: str) -> str:
        return f"{self.tag}-{name}"

    def inside(self, name: str) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.space(name))

    def cable(self, name: str, state: str) -> None:
        _ip("-n", self.space("hub"), "link", "set", f"{self.tag}h{self.others.index(name) + 1}", state)

    def running(self, name: str) -> dict[int, str]:
        """The processes of a host: id -> how they are called."""
        found = {}
        for pid in map(int, _ip("netns", "pids", self.space(name)).split()):
            try:
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:  # it has just ended
                continue
        return found

    def close(self) -> None:
        for name in self.made:
            subprocess.run(["ip", "netns", "delete", self.space(name)], capture_output=True)


@contextmanager
def ray_on(hosts: Hosts, cores: int, environment: Mapping[str, str], store: int = 100_000_000) -> Iterator[str]:
    """A Ray cluster of the hub and one other host, each with so many cores and bytes of memory for what is under way;
    its address."""
    address = f"10.213.1.1:{_PORT}"
    head = ("--head", f"--port={_PORT}", "--node-ip-address=10.213.1.1", "--include-dashboard=false")
    other = (f"--address={address}", "--node-ip-address=10.213.1.2")
    sizes = (f"--num-cpus={cores}", f"--object-store-memory={store}", "--disable-usage-stats")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-")))  # short: it has sockets in it
        words = ((*head, f"--temp-dir={folder}", *sizes), (*other, *sizes))
        for name, own in zip(("hub", hosts.others[0]), words):
            stack.enter_context(_node((*hosts.inside(name), *_ray(own)), environment, folder / f"{name}.out"))
        yield address


def _ray(words: Sequence[str]) -> tuple[str, ...]:
    return (str(Path(sys.executable).with_name("ray")), "start", "--block", *words)


@contextmanager
def _node(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[None]:
    with open(log, "wb") as file:
        process = start(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + _START
        while "Ray runtime started" not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise OSError(f"a host of the cluster did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield
    finally:
        end(process)


def _ip(*words: str) -> str:
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise OSError("there is no command `ip`") from error
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
