"""The process at a site that does the work: it alone reads the data. `python -m fedreel.sites.worker ARGUMENTS`."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import sys
import traceback
from multiprocessing.connection import Listener
from pathlib import Path

from fedreel.engines.flower.pipe import receive, send
from fedreel.engines.flower.workplace import Workplace, for_others
from fedreel.sites.site import SiteFolder


def main() -> None:
    """Answer frames, one after another, until terminated. The arguments are JSON: folder, data, socket, user."""
    arguments = json.loads(sys.argv[1])
    os.environ["HF_HUB_OFFLINE"] = "1"  # a site never reaches out for a model by itself
    site = SiteFolder.open(Path(arguments["folder"]), arguments["data"])
    workplace = Workplace(site.worker, site.config.name, _tell, site.runs, site.approvals().permit)
    socket = Path(arguments["socket"])
    socket.unlink(missing_ok=True)
    with Listener(str(socket), "AF_UNIX") as listener:
        os.chmod(socket, 0o600)
        if arguments["user"] is not None:  # who alone may give us work
            shutil.chown(socket, arguments["user"])
        give_up_root(site.path)
        while True:
            with listener.accept() as pipe:
                try:
                    send(pipe, workplace.answer(receive(pipe)))
                except (EOFError, OSError):
                    continue  # whoever asked is gone; it will ask again


def give_up_root(folder: Path) -> None:
    """Become the user whom the site's folder belongs to, if we are root and it is another's: whatever decodes videos
    from now on can do no more than that user. Where the cache is, if nothing says so, is told by that user's home."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return
    found = folder.stat()
    if found.st_uid == 0:
        return
    try:
        user = pwd.getpwuid(found.st_uid)
    except KeyError:  # a number that nobody has
        os.setgroups([])
        os.setgid(found.st_gid)
    else:
        os.initgroups(user.pw_name, user.pw_gid)
        os.setgid(user.pw_gid)
        os.environ |= {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
    os.setuid(found.st_uid)


def _tell(error: Exception) -> str:
    """The whole story into the site's own log; in the answer only what may leave."""
    traceback.print_exception(error)
    sys.stderr.flush()
    return for_others(error)


if __name__ == "__main__":
    main()
