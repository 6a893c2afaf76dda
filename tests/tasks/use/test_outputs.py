"""Where results go: folders that are filled whole or not at all, and what a terminal shows of a result."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from fedreel.cli.use import as_command
from fedreel.data.shards import Broken
from fedreel.errors import DataError, Interrupted
from fedreel.machine.progress import Tell
from fedreel.tasks.use.options import Client, Device, Json, Model, Page, Place, Request, out_is, source_is
from fedreel.tasks.use.outputs import Places
from fedreel.tasks.use.result import FolderResult


@dataclass(frozen=True, kw_only=True)
class Counted(FolderResult):
    count: int

    def lines(self) -> list[str]:
        return [f"{self.source.name}: {self.count}"]


def count(
    source: Annotated[Place, source_is("A text.")],
    model: Model,
    *,
    out: Annotated[Place | None, out_is("Copies.")] = None,
    page: Page = None,
    json: Json = None,
    client: Client = "",
    device: Device = "auto",
    times: Annotated[int, typer.Option(help="How many.")] = 1,
    tell: Tell | None = None,
) -> Counted:
    """Count."""
    if times < 0:
        raise Interrupted("Nothing is lost.")
    request = Request.of(source, model, out=out, page=page, json=json, client=client, device=device, tell=tell)
    places = Places.of(request, "the copies", folder=True)
    broken = [Broken(f"{n}.mp4", "no") for n in range(times)]
    counted = Counted(source=request.source, run=request.run, notes=["odd"] * times, skipped=broken, count=times)
    if places.out is None:
        return places.write(counted, "a page")
    with places.staged() as staging:
        for n in range(times):
            (staging / "below").mkdir(exist_ok=True)
            shutil.copy(request.source, staging / "below" / f"{n:02d}.txt")
        return places.write(counted, "a page", [places.out / "below" / f"{n:02d}.txt" for n in range(times)])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("dear diary")
    return path


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_a_folder_is_filled_when_all_went_well_and_keeps_what_it_had(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "below").mkdir(parents=True)
    (out / "below" / "00.txt").write_text("old")
    (out / "mine").write_text("mine")
    result = count(source, "runs/it", out=out, page=tmp_path / "p.html", times=2)
    assert files(out) == ["below", "below/00.txt", "below/01.txt", "mine"]
    assert (out / "below" / "00.txt").read_text() == "dear diary"
    assert result.files == [out / "below" / "00.txt", out / "below" / "01.txt", tmp_path / "p.html"]


def test_a_folder_that_cannot_be_filled_is_as_it_was(source: Path, tmp_path: Path) -> None:
    """The source is gone, and a place for the page is no folder: nothing is left of what was begun."""
    (tmp_path / "file").write_text("")
    before = files(tmp_path)
    for problem in ({"source": tmp_path / "gone.txt"}, {"page": tmp_path / "file" / "p.html"}):
        with pytest.raises(DataError, match="this cannot be written"):
            count(**{"source": source, "model": "runs/it", "out": tmp_path / "a" / "b", **problem})  # type: ignore[arg-type]
        assert files(tmp_path) == before


def test_a_printed_json_is_no_file(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = count(source, "runs/it", json="-", times=1)
    assert json.loads(capsys.readouterr().out) == result.as_json()
    assert result.files == []
    told = {"source": str(source), "run": "runs/it", "client": "", "notes": ["odd"], "count": 1}
    assert result.as_json() == {**told, "skipped": [{"path": "0.mp4", "reason": "no"}]}


def test_the_model_may_be_the_folder_model_of_a_run(tmp_path: Path) -> None:
    model = tmp_path / "run" / "model"
    model.mkdir(parents=True)
    assert count("a", model).run == model  # a folder of that name with no card is a run of that name
    (model / "card.json").write_text("{}")
    assert count("a", model).run == tmp_path / "run"


# on a terminal


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(as_command(count))
    return app


def test_a_terminal_sees_the_first_twenty_of_everything(app: typer.Typer, source: Path, tmp_path: Path) -> None:
    said = CliRunner().invoke(app, [str(source), "--model", "runs/it", "--times", "23", "-o", str(tmp_path / "out")])
    assert said.exit_code == 0, said.output
    assert said.stdout.splitlines() == [
        "text.txt: 23",
        *(str(tmp_path / "out" / "below" / f"{n:02d}.txt") for n in range(20)),
        "and 3 more files",
    ]
    told = said.stderr.splitlines()
    assert told == [
        *(f"skipped {n}.mp4: no" for n in range(20)),
        "3 more skipped files: --json lists them",
        *["note: odd"] * 20,
        "3 more notes: --json lists them",
    ]


def test_names_that_are_no_text_are_printed_on_one_line(app: typer.Typer, tmp_path: Path) -> None:
    said = CliRunner().invoke(app, [str(tmp_path / "a\nb\x1b[2J"), "--model", "runs/it"])
    assert said.stdout == "a\\nb\\x1b[2J: 1\n"


def test_an_interruption_says_what_is_kept(app: typer.Typer, source: Path) -> None:
    said = CliRunner().invoke(app, [str(source), "--model", "runs/it", "--times", "-1"])
    assert (said.exit_code, said.stdout) == (130, "")
    assert said.stderr == "\nInterrupted. Nothing is lost.\n"
    with pytest.raises(KeyboardInterrupt):  # to a program it is what it was
        count(source, "runs/it", times=-1)
