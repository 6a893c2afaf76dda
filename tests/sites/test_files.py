"""A server names files in its recipes; a site opens those that it has named itself, and tells nothing of others."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fedreel.config import DataConfig, Recipe, RoundConfig, TrainConfig, TransferConfig, as_table
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.workplace import Workplace, for_others
from fedreel.errors import DataError, RecipeError
from fedreel.fields import texts_of
from fedreel.registry import BACKBONES, METHODS, TASKS
from support.toy import Toy

pytest.importorskip("cryptography", reason="the extra flower is not installed")

from fedreel.sites import site
from fedreel.sites.site import SiteConfig, SiteFolder

NAME = "owner/videomae"
SECTIONS = {"task", "method", "engine"}  # of a recipe: classes in registries, walked through of their own


def folder(path: Path, **config: Any) -> SiteFolder:
    (path / "data").mkdir(exist_ok=True)
    return SiteFolder(path, SiteConfig("north", data={"*": str(path / "data")}, **config))


def recipe(task: str, data: DataConfig | None = None, **settings: Any) -> Recipe:
    return Recipe(task={"name": task, **settings}, method={"name": "fedavg"}, data=data or DataConfig())


def local(here: SiteFolder, task: str, **settings: Any) -> dict[str, Any]:
    return here.local(recipe(task, **settings)).task


def sections() -> Iterator[tuple[str, type]]:
    """Every class that a recipe's settings go into."""
    for cls in (Recipe, DataConfig, TrainConfig, RoundConfig, TransferConfig):
        yield cls.__name__, cls
    for registry in (TASKS, METHODS, BACKBONES):
        for name in registry.names():
            yield f"{registry.section} {name}", registry.lookup(name)
            for field in dataclasses.fields(registry.lookup(name)):
                if callable(field.default_factory) and dataclasses.is_dataclass(made := field.default_factory()):
                    yield f"{registry.section} {name}.{field.name}", type(made)


@pytest.mark.parametrize(("name", "cls"), [*sections()])
def test_every_text_of_every_section_says_whether_it_is_a_file(name: str, cls: type) -> None:
    silent = {setting for setting, text in texts_of(cls).items() if text is None}
    assert silent == (SECTIONS if cls is Recipe else set())


def test_a_text_that_says_nothing_is_found() -> None:
    @dataclass
    class Section:
        path: str = ""
        paths: tuple[str, ...] = ()
        table: dict[str, Any] = dataclasses.field(default_factory=dict)
        maybe: Path | None = None
        number: int = 0
        flag: bool | None = None

    assert texts_of(Section) == dict.fromkeys(("path", "paths", "table", "maybe"))


@dataclass(frozen=True)
class Careless(Toy):
    """Of a package that knows nothing of sites."""

    notes: str = "usual"


def test_a_text_that_says_nothing_is_not_taken_from_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "careless", f"{__name__}:Careless")
    assert local(folder(tmp_path), "careless", notes="usual")["notes"] == "usual"
    with pytest.raises(RecipeError, match=r"task\.notes does not say whether it names a file"):
        local(folder(tmp_path), "careless", notes="/etc/passwd")


PATHS = ("{0}/private.safetensors", "{0}/nothing.safetensors", "{0}", "private.safetensors", "~/x.pth", "a/b", "../x")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("recognition", {"backbone": {"name": "r3d", "init": "PATH"}}),
        ("recognition", {"backbone": {"init": "PATH"}}),
        ("recognition", {"backbone": {"name": "frames", "image": {"name": "resnet18", "init": "PATH"}}}),
        ("recognition", {"backbone": {"name": "videomae", "init": "PATH"}}),
        ("skeleton", {"joints": "PATH"}),
        ("skeleton", {"backbone": {"name": "stgcn", "init": "PATH"}}),
        ("moments", {"words": "PATH"}),
        ("moments", {"features": "run:PATH"}),
        ("moments", {"features": "clip:PATH"}),
        ("moments", {"sentences": "bert:PATH"}),
        ("summary", {"features": "run:PATH"}),
    ],
    ids=str,
)
def test_what_is_not_mapped_is_not_opened_and_all_answers_are_the_same(
    task: str, settings: dict[str, Any], path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file({"t": torch.zeros(1)}, tmp_path / "private.safetensors")
    named = path.format(tmp_path)
    monkeypatch.setattr("builtins.open", lambda *a, **k: pytest.fail(f"opened {a}"))
    with pytest.raises(DataError, match="this site has nothing by the name that the recipe has in task") as caught:
        folder(tmp_path).local(recipe(task, **json.loads(json.dumps(settings).replace("PATH", named))))
    assert for_others(caught.value).replace(named, "NAME").endswith('"NAME" = "PATH" in its site.toml')


def test_what_is_mapped_is_taken_from_where_the_site_says(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    here = folder(tmp_path, models={NAME: str(mine)}, files={"glove": str(mine), "my.toml": str(mine)})
    assert local(here, "recognition", backbone={"name": "videomae", "init": NAME})["backbone"]["init"] == str(mine)
    within = {"name": "frames", "image": {"name": "resnet18", "init": NAME}}
    assert local(here, "recognition", backbone=within)["backbone"]["image"]["init"] == str(mine)
    both = local(here, "moments", features=f"clip:{NAME}", sentences=f"bert:{NAME}")
    assert both == {"name": "moments", "features": f"clip:{mine}", "sentences": f"bert:{mine}"}
    assert local(here, "moments", words="glove")["words"] == str(mine)
    assert local(here, "skeleton", joints="my.toml")["joints"] == str(mine)
    for table in ({"words": NAME}, {"features": "run:glove"}):  # each name in its own table
        with pytest.raises(DataError, match="has nothing by the name"):
            local(here, "moments", **table)


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("recognition", {"backbone": "r3d"}),
        ("recognition", {"backbone": {"name": "frames", "image": {"name": "efficientnet-lite0", "init": "imagenet"}}}),
        ("moments", {"features": "plain", "sentences": "minilm"}),
        ("skeleton", {"joints": "kinect-v1", "sets": ["a", "b"], "leave_out": "c"}),
        ("summary", {"splits": "splits/five.json", "features": "googlenet"}),
    ],
    ids=str,
)
def test_what_comes_with_fedreel_or_lies_among_the_data_stays(
    tmp_path: Path, task: str, settings: dict[str, Any]
) -> None:
    assert local(folder(tmp_path), task, **settings) == {"name": task, **settings}


@pytest.mark.parametrize("path", ["/etc/passwd", "../secrets.json", "~/list.json", "a/../../b", "..\\x", "a\0b"])
def test_a_file_among_the_data_lies_among_the_data(tmp_path: Path, path: str) -> None:
    here = folder(tmp_path)
    lists = recipe("summary", DataConfig(lists=path))
    for given in (recipe("summary", splits=path), recipe("summary", annotations=path), lists):
        with pytest.raises(RecipeError, match="lie among the data"):
            here.local(given)


def test_the_server_s_own_places_are_none_here(tmp_path: Path) -> None:
    data = DataConfig(source="/etc", public="/etc", owner="someone")
    there = dataclasses.replace(recipe("summary", data), policy="/etc/policy.toml", track=("wandb",), device="cuda:7")
    here = folder(tmp_path).local(there)
    assert (here.data.source, here.data.public, here.data.owner) == (str(tmp_path / "data"), "", "north")
    assert (here.policy, here.track, here.device) == ("", (), "auto")


def test_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="the extra hf is not installed")
    asked: list[bool] = []

    def download(name: str, *, local_files_only: bool, **_: Any) -> str:
        asked.append(local_files_only)
        raise FileNotFoundError("not in the cache")

    monkeypatch.setattr(hub, "snapshot_download", download)
    of_the_hub = {"name": "videomae", "init": NAME}
    with pytest.raises(DataError, match="does not fetch it"):
        local(folder(tmp_path, models={NAME: NAME}), "recognition", backbone=of_the_hub)
    assert asked == [True]
    with pytest.raises(DataError, match="is not there"):
        local(folder(tmp_path, models={NAME: str(tmp_path / "gone")}), "recognition", backbone=of_the_hub)


def test_whether_a_clip_of_some_name_exists_is_not_told(tmp_path: Path, data: Path) -> None:
    """Lists lie among the videos, and so do the videos: their names may be people's."""
    made = site.init(tmp_path / "s", "s", {"*": str(data)}, "", "")
    there = next(data.rglob("*.mp4")).relative_to(data)
    told = set()
    for lists in (str(there), str(there.parent), "nobody/falls/01.mp4", "index.csv"):
        asked = as_table(recipe("recognition", DataConfig(lists=lists), classes=2))
        frame = Frame({"type": "roster", "run": "r", "start": 1, "recipe": asked, "layout": "", "frozen": ""})
        told.add(Workplace(made.worker, "s", for_others, None).answer(frame).head["problem"])
    assert told == {"what the recipe names in data.lists cannot be used with this site's data"}
