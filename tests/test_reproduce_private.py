"""The tables of privacy: rows differ in privacy alone, and each tries as many settings as the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedreel.errors import DataError
from fedreel.reproduce import fedlid, for_data, recognition
from fedreel.reproduce.spec import Row, Table


def rows_of(system: str, root: Path) -> list[Row]:
    table: Table = {"fedlid": fedlid, "recognition": recognition}[system].TABLES["private"]
    for clients in (100, 1000):
        (root / f"clients-{clients}").mkdir()
    return [*table.rows_for(root)]


@pytest.mark.parametrize("system", ["fedlid", "recognition"])
def test_rows_differ_in_privacy_alone_and_try_as_many_settings(system: str, tmp_path: Path) -> None:
    rows = rows_of(system, tmp_path)
    told = [(row.setting["clients"], row.setting["epsilon"]) for row in rows]
    assert told == [(clients, epsilon) for clients in (100, 1000) for epsilon in ("inf", "8", "4", "2")]
    assert {len(row.tries) for row in rows} == {4}
    for clients in (100, 1000):
        own = [row for row in rows if row.setting["clients"] == clients]
        shared = [{k: v for k, v in row.settings.items() if not k.startswith("privacy.")} for row in own]
        assert all(settings == shared[0] for settings in shared)
        assert [row.settings.get("privacy.epsilon") for row in own] == [None, 8.0, 4.0, 2.0]
        assert len({str(row.grid) for row in own[1:]}) == 1


def test_a_folder_without_clients_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)no clips here.*folders clients-N"):
        recognition.TABLES["private"].rows_for(tmp_path)


def test_of_a_folder_for_the_other_tables_clients_have_the_clients_images(tmp_path: Path) -> None:
    table = fedlid.TABLES["private"]
    (tmp_path / "clients.zip").touch()
    assert for_data(table.scales["small"], table, tmp_path).given == {"data.source": str(tmp_path)}
    (tmp_path / "server").mkdir()
    asked = for_data(table.scales["small"], table, tmp_path).given
    assert asked == {"data.source": str(tmp_path / "clients.zip")}
    assert for_data(table.scales["small"], table, tmp_path / "clients.zip").given == asked
