"""A site's place at the server. That it can be given back is shown where everything is killed (end to end)."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedreel.sites import place
from fedreel.sites.site import SiteFolder, init
from support.flower_site import free_port

pytest.importorskip("flwr", reason="needs the extra `flower`")


@pytest.fixture
def site(tmp_path: Path) -> SiteFolder:
    from fedreel.sites import keys

    keys.make_ca(tmp_path, "a CA")
    return init(tmp_path / "site", "north", {}, f"127.0.0.1:{free_port()}", str(tmp_path / "ca.crt"))


def test_a_site_that_never_had_a_place_asks_nobody(site: SiteFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("it asked"))
    place.give_back(site)
    place.took(site, "17")
    place.left(site)
    place.give_back(site)


def test_where_the_server_is_away_the_place_is_kept_in_mind(site: SiteFolder) -> None:
    place.took(site, "17")
    place.give_back(site)
    assert (site.path / ".place").read_text() == "17"
