"""A server's folder as a job sees it: where Flower is reached, which sites are enrolled, where jobs are listed."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedreel.errors import RunError, nearest
from fedreel.machine.files import write_atomic

_log = logging.getLogger(__name__)


class Server:
    """What `fedreel.sites.server` makes and keeps running; a job only needs to find its sites there."""

    def __init__(self, path: Path) -> None:
        if not (path / "server.toml").exists():
            raise RunError(
                "there is no server here",
                where=str(path),
                expected="a folder that `fedreel server init` made",
                hint="name it with --server, or make one: fedreel server init",
            )
        self.path = path.resolve()
        self.flower_home, self.log = self.path / "flower", self.path / "superlink.log"

    def enrolled(self) -> dict[str, dict[str, Any]]:
        """Enrolled sites: name -> node id (None: the SuperLink has not been told; "": it refused, see `problem`)."""
        notes = {key.stem: key.with_suffix(".json") for key in sorted((self.path / "sites").glob("*.pub"))}
        return {
            name: {"node": None, **(json.loads(note.read_text()) if note.exists() else {})}
            for name, note in notes.items()
        }

    def nodes_of(self, names: Sequence[str]) -> dict[str, str]:
        """Node ids of the named sites, or of all enrolled ones."""
        sites = self.enrolled()
        for name in names:
            if name not in sites:
                raise RunError(f"no site '{name}' is enrolled", where=str(self.path), hint=nearest(name, sites))
        if not sites:
            raise RunError(
                "no site is enrolled",
                where=str(self.path),
                hint="at the site: fedreel site init; here: fedreel server enroll site.pub",
            )
        nodes = {name: site["node"] for name, site in sites.items() if not names or name in names}
        unknown = [name for name, node in nodes.items() if not node]
        if unknown:
            raise RunError(
                f"the site '{unknown[0]}' is not known to the running server",
                found=sites[unknown[0]].get("problem", "the server has not been started since it was enrolled"),
                hint="fedreel server start",
            )
        return nodes

    @contextmanager
    def waiting(self, run: str, out: Path) -> Iterator[Callable[[Sequence[str]], None]]:
        """While a job waits for the owners of sites: tell which, on the console and for `fedreel status`."""

        def tell(sites: Sequence[str]) -> None:
            self.note_job(run, out, sites)
            if sites:
                _log.warning("waiting for approval at %s; its owner runs there: fedreel site jobs", ", ".join(sites))

        try:
            yield tell
        except BaseException:
            (self.path / "jobs" / f"{run}.json").unlink(missing_ok=True)
            raise

    def note_job(self, run: str, out: Path, waiting: Sequence[str] = ()) -> None:
        """For `fedreel status`: a job, and the sites whose owners it waits for."""
        (self.path / "jobs").mkdir(exist_ok=True)
        write_atomic(self.path / "jobs" / f"{run}.json", json.dumps({"out": str(out.resolve()), "waiting": [*waiting]}))
