"""`fedreel ui`: start the server and say where it is."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Callable
from pathlib import Path

from fedreel.errors import FedreelError, RunError
from fedreel.machine.files import hold_lock
from fedreel.ui.places import Places

LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANY = ("0.0.0.0", "::")


def serve(
    places: Places,
    *,
    host: str,
    port: int,
    names: tuple[str, ...],
    tls: tuple[Path, Path] | None,
    unencrypted: bool,
    most_upload: int,
    say: Callable[[str], None],
) -> None:
    """Serve the pages until interrupted."""
    check_listening(host, names, tls is not None, unencrypted)
    try:
        import uvicorn

        from fedreel.ui.app import make_app
    except ImportError as error:
        raise FedreelError(
            "the pages need packages that are not installed", found=str(error), hint="pip install 'fedreel[ui]'"
        ) from error
    try:
        places.own.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        hint = "name a folder that can be written, or leave --runs out"
        raise RunError("no runs can be kept here", where=str(places.runs), found=str(error), hint=hint) from error
    lock = hold_lock(places.own)
    if lock is None:
        raise RunError("another `fedreel ui` is working in this folder", where=str(places.runs))
    with lock:
        port = _usable_port(host, port)
        known = (*LOOPBACK, *names, *(() if host in ANY else (host,)))
        token, csrf = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        app = make_app(
            places, names=known, port=port, token=token, csrf=csrf, tls=tls is not None, most_upload=most_upload
        )
        files = {"ssl_certfile": str(tls[0]), "ssl_keyfile": str(tls[1])} if tls else {}
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            log_level="warning",
            access_log=False,  # addresses hold the token
            server_header=False,
            timeout_graceful_shutdown=1,  # pages that are open wait for news for ever
            ws="none",
            **files,  # type: ignore[arg-type]
        )
        shown = names[0] if names else "127.0.0.1" if host in ANY else host
        address = f"[{shown}]" if ":" in shown else shown
        say(f"Open {'https' if tls else 'http'}://{address}:{port}/?token={token}")
        say("Whoever has this link can start and stop runs here. Ctrl-C ends the server; runs go on.")
        uvicorn.Server(config).run()


def check_listening(host: str, names: tuple[str, ...], tls: bool, unencrypted: bool) -> None:
    """Raise if others could listen in without the user's having said so."""
    if _is_loopback(host):
        return
    if not tls and not unencrypted:
        raise FedreelError(
            "other machines could reach this server, and read along on the way",
            where=f"--host {host}",
            expected="--tls-cert FILE --tls-key FILE, or --unencrypted if you mean it",
            hint="or leave --host out, and reach this machine by: ssh -L 8377:127.0.0.1:8377",
        )
    if host in ANY and not names:
        raise FedreelError(
            "by which name do browsers reach this server?", where=f"--host {host}", expected="--name HOST"
        )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _usable_port(host: str, port: int) -> int:
    """This one, or for 0 one that nobody uses now. Raises before anything is promised to the user."""
    import asyncio

    async def ask() -> int:
        server = await asyncio.start_server(lambda *_: None, host, port)
        async with server:
            return int(server.sockets[0].getsockname()[1])

    try:
        return asyncio.run(ask())
    except OSError as error:
        hint = "--port 0 takes any that is free"
        raise RunError("nobody can listen there", where=f"{host}:{port}", found=str(error), hint=hint) from error
