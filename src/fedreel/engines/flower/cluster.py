"""The engine `flower-sim`: Flower's simulation with Ray actors, on this machine or on a cluster. Each actor gets many
clients' orders in one message, and works for them by an engine of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from fedreel.core.blueprint import Blueprint
from fedreel.core.job import Job
from fedreel.core.task import Population
from fedreel.core.update import Order, Result
from fedreel.engines.flower.dispatch import Dispatch
from fedreel.engines.flower.link import Link, Lost
from fedreel.engines.flower.placement import Shape, shape_of
from fedreel.engines.flower.processes import Processes, held_port, last_lines, program, quiet_environment
from fedreel.errors import RecipeError, RunError

_START = 120.0  # seconds that Ray's actors may take to be there, or a cluster to answer

_HOSTS = """
import json, socket, sys
host, _, port = sys.argv[1].removeprefix("ray://").rpartition(":")
if port.isdigit():
    socket.create_connection((host, int(port)), 10).close()  # Ray itself would try for minutes
import ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
print(json.dumps([int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]))
"""


class FlowerSimEngine:
    """Flower's simulation: Ray actors on this machine or on a running Ray cluster whose hosts see the same folders."""

    def __init__(self, job: Job, population: Population, simulation: Simulation) -> None:
        self.blueprint = Blueprint(job.task, job.method, job.recipe.seed, job.device)
        self._population, self.clients, self._simulation = population, population.clients, simulation
        self.slots = max(1, len(self.clients))
        transfer = job.recipe.transfer  # what rounding leaves out of a change is its client's: these leave one by one
        self.gathers = transfer is not None and transfer.up == "full"
        self._dispatch = Dispatch(job, simulation, self.blueprint.travelling.nbytes, population.describe())

    @classmethod
    def begin(cls, job: Job, actors: int = 0, address: str = "", threads: int = 1) -> FlowerSimEngine:
        """At most so many `actors` (0: as many as there are cores and Flower can keep at work), which share the cores.
        Each client is worked for with `threads` of torch: 1 makes results bit-identical to those of `processes`, 0 is
        as many as this process has, as `local` does. `address` is that of a running Ray cluster."""
        for name, value in (("actors", actors), ("threads", threads)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise RecipeError("this is a number", where=f"[engine] {name}", expected="0 or more", found=repr(value))
        return cls(job, job.population(), Simulation(actors=actors, address=address, threads=threads))

    def describe(self) -> dict[str, Any]:
        return self._population.describe()

    def submit(self, order: Order) -> None:
        self._dispatch.submit("", order)

    def next(self) -> Result | None:
        return self._dispatch.next()

    def traffic(self) -> dict[str, int]:
        """Bytes of tensors that went to actors and came from them since this was last asked."""
        return self._dispatch.traffic()

    def sync(self) -> None:
        """Actors force to disk what they keep before they answer."""

    def close(self) -> None:
        self._simulation.close()


class Simulation:
    """A running simulation: SuperLink and Ray actors. Several jobs may use it, one after another."""

    shape: Shape
    link: Link
    _link: Link | None
    nodes: list[str]  # Flower's, one for each actor; whichever is idle takes what any of them is sent

    def __init__(self, *, actors: int = 0, address: str = "", threads: int = 1) -> None:
        self.threads = threads or torch.get_num_threads()
        self._actors, self._address = actors, address or os.environ.get("RAY_ADDRESS", "")
        self._start()

    def restart(self) -> None:
        """End all of it and start it anew: Flower keeps sending messages to an actor that has died or hangs."""
        self.close()
        self._start()

    def close(self) -> None:
        self._processes.remember()
        if self._link is not None:
            self._link.close()
        self._processes.end()
        self._home.cleanup()

    def said(self) -> str:
        """The end of Flower's log."""
        return last_lines(self._log)

    def _start(self) -> None:
        self.shape = self._divided()
        self._processes, self._link = Processes(), None
        self._home = tempfile.TemporaryDirectory(prefix="fedreel-")
        self._log = Path(self._home.name) / "superlink.log"
        try:
            with held_port() as port:
                self._start_superlink(port)
                self._start_actors()
        except BaseException:
            self.close()
            raise

    def _start_superlink(self, port: int) -> None:
        home = Path(self._home.name)
        env = quiet_environment(home)
        if self._address:
            env["RAY_ADDRESS"] = self._address
        command = ["--simulation", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--disable-runtime-dependency-installation"]
        self._processes.start([program("flower-superlink"), *command], self._log, env)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "fedreel"\n\n[superlink.fedreel]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )

    def _start_actors(self) -> None:
        settings = f"num-supernodes={self.shape.actors} client-resources-num-cpus={self.shape.cpus}"
        try:
            home, options = Path(self._home.name), ("--federation-config", settings)
            self.link = self._link = Link(home, options=options, wait=60, log=self._log)
            self.nodes = sorted(self.link.nodes(_START))
        except (RunError, Lost) as error:
            found = error.found if isinstance(error, RunError) else "it ended"
            raise RunError("the simulation did not start", found=f"{found}\n{self.said()}") from error

    def _divided(self) -> Shape:
        most = min(32, (os.cpu_count() or 1) + 4)  # actors that Flower gives work to: it has so many threads here
        if self._address:
            return shape_of(hosts_of(self._address), self.threads, self._actors or most)
        cores = os.cpu_count() or 1
        return shape_of([cores], min(cores, self.threads), self._actors or most)


def hosts_of(address: str) -> list[int]:
    """The cores of each host of a Ray cluster. A process of its own asks: this one is not to become a part of it."""
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _HOSTS, address],
            env=quiet_environment(),
            capture_output=True,
            text=True,
            timeout=_START,
            start_new_session=True,
        )
        if asked.returncode == 0:
            return [int(cores) for cores in json.loads(asked.stdout.splitlines()[-1])]
        problem = (asked.stderr.strip().splitlines() or [""])[-1][:500]
    except subprocess.TimeoutExpired:
        problem = f"no answer within {_START:g} s"
    raise RunError(
        f"no Ray cluster answers at {address}",
        where="[engine] address",
        found=problem,
        hint="start it with `ray start --head`, and on this machine too: `ray start --address=HOST:PORT`",
    )
