"""A site's place at the server. A SuperNode that was killed keeps its own until it has missed its heartbeats, a minute
later. The site has the key and knows that nobody else uses it: it gives the place back at once."""

from __future__ import annotations

from pathlib import Path

from fedreel.machine.files import write_atomic
from fedreel.sites.site import SiteFolder


def took(site: SiteFolder, node: str) -> None:
    """Note that the site's SuperNode is in, under this id."""
    write_atomic(_note(site), node)


def left(site: SiteFolder) -> None:
    """The SuperNode has ended in peace, and said so itself."""
    _note(site).unlink(missing_ok=True)


def give_back(site: SiteFolder) -> None:
    """Tell the server that the SuperNode which had the place is gone. If that fails, time will do it."""
    if not _note(site).exists():
        return
    import httpx
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    key = load_ssh_private_key((site.path / "site.key").read_bytes(), None)
    signs = NodeAuthHttpInterceptor(key, key.public_key())  # type: ignore[arg-type]
    version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
    try:
        with FleetHttpClient.from_server_address(site.config.server, False, site.config.ca, [version, signs]) as server:
            server.DeactivateNode(DeactivateNodeRequest(node_id=int(_note(site).read_text())))
    except (httpx.HTTPError, RuntimeError, ValueError):
        return
    left(site)


def _note(site: SiteFolder) -> Path:
    return site.path / ".place"
