"""The demo: every declared system is run, shown and told honestly; what is finished is not run again."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

import fedreel.demo
from fedreel import playground
from fedreel.config import load_recipe
from fedreel.errors import RecipeError
from fedreel.report.exhibits import RECORD, Card, Exhibit, Stand, write_exhibition
from fedreel.systems import resolve, systems
from support.pages import Read
from support.report_pages import make_run

SHOWN = [system for system in systems() if system.demo]
QUICK = {"data.size": "tiny", "round.rounds": 1, "train.epochs": 1, "device": "cpu"}


@pytest.fixture(scope="module")
def tiny() -> Any:
    """One core's work, in a world of a few small files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(playground, "cores", lambda: 1)
        patch.setattr(fedreel.demo, "cores", lambda: 1)
        yield


@pytest.fixture(scope="module")
def shown(tiny: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a demo of all systems."""
    return fedreel.demo.demo(tmp_path_factory.mktemp("demo"), settings=QUICK)


def exhibit_of(page: Path, name: str) -> Exhibit:
    return Exhibit.load(page.parent / "pictures" / name)


def test_every_demo_names_what_is_there() -> None:
    for system in SHOWN:
        assert system.demo
        recipe = load_recipe(system.recipe, dict(system.demo.settings))
        assert 0 < system.demo.rounds <= recipe.round.rounds
        assert callable(resolve(system.demo.show))


def test_the_page_is_whole_and_shows_every_system(shown: Path) -> None:
    page = Read(shown.read_text())
    assert page.texts["h2"] == [job.title for job in [system for system, _ in fedreel.demo._declared(())]]
    assert len(page.all("section", **{"class": "exhibit"})) == len(SHOWN)
    for system in SHOWN:
        assert system.demo
        assert f"{system.name}/report.html" in page.values("a", "href")
        assert system.demo.purpose in page.said
        exhibit = exhibit_of(shown, system.name)
        assert exhibit.command in page.said
        assert f"fedreel {exhibit.command.split()[1]}" in {f"fedreel {verb.name}" for verb in system.verbs}
        assert exhibit.cards
    assert page.all("meta", **{"http-equiv": "refresh"}) == []


def test_the_page_asks_no_network_and_all_its_files_are_there(shown: Path) -> None:
    page = Read(shown.read_text())
    for address in (*page.values("a", "href"), *page.values("video", "src")):
        assert "://" not in address
        assert (shown.parent / address).is_file(), address
    assert all(address.startswith("data:image/") for address in page.values("img", "src"))
    assert page.values("video", "src")
    (policy,) = (meta["content"] for meta in page.all("meta", **{"http-equiv": "Content-Security-Policy"}))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]


def test_answers_are_called_right_where_they_are_the_truth(shown: Path) -> None:
    """Of the three systems that name things: the card says what it is, and what the model says."""
    for name in ("recognition", "fedlid", "fsar"):
        for card in exhibit_of(shown, name).cards:
            truth = card.title.removeprefix("It is: ")
            said = card.text.removeprefix("the model says: ").rpartition(", ")[0]
            assert card.right is (said == truth)


def test_a_summary_is_called_better_where_people_like_it_more_than_chance(shown: Path) -> None:
    exhibit = exhibit_of(shown, "cfedvs")
    judged = [card for card in exhibit.cards if card.right is not None]
    assert len(judged) == sum(card.begins for card in exhibit.cards) == 3
    for card in judged:
        own, chance = (float(number) for number in re.findall(r"\d\.\d", card.text))
        assert own >= chance if card.right else own <= chance
    better, of = map(int, re.search(r"the better one in (\d) of (\d)\.", exhibit.asked).groups())  # type: ignore[union-attr]
    assert (better, of) == (sum(bool(card.right) for card in judged), 3)  # all three test videos are shown


def test_what_is_shown_was_not_trained_on(shown: Path) -> None:
    """Every clip of the recognition's exhibit is, byte by byte, one of the world's test clips."""
    world = playground.cached(0, "tiny", ("actions",)) / "actions"
    lines = [line.split(",") for line in (world / "index.csv").read_text().splitlines()[1:]]
    split = {(world / path).read_bytes(): (label, part) for path, label, _, part in lines}
    folder = shown.parent / "pictures" / "recognition"
    for card in exhibit_of(shown, "recognition").cards:
        assert split[(folder / card.file).read_bytes()] == (card.title.removeprefix("It is: "), "test")


def test_a_second_demo_runs_nothing_again(shown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {path: path.stat().st_mtime_ns for path in shown.parent.rglob("*.safetensors")}
    monkeypatch.setattr(fedreel.demo.Job, "run", lambda self: pytest.fail(f"{self.system.name} is run again"))
    before = shown.read_text()
    assert fedreel.demo.demo(shown.parent, settings=QUICK) == shown
    assert {path: path.stat().st_mtime_ns for path in shown.parent.rglob("*.safetensors")} == models
    assert shown.read_text() == before


def test_after_an_interruption_the_page_tells_what_is_left_and_the_demo_goes_on(
    tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, run = [], fedreel.demo.Job.run

    def interrupted(job: fedreel.demo.Job) -> float:
        whole.append(job.system.name)
        if len(whole) == 2:
            raise KeyboardInterrupt
        return run(job)

    monkeypatch.setattr(fedreel.demo.Job, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fedreel.demo.demo(tmp_path, ("recognition", "fedlid"), QUICK)
    page = Read((tmp_path / "index.html").read_text())
    titles = {system.name: system.title for system in SHOWN}
    assert page.texts["h2"] == [titles[whole[0]]]
    assert f"Not done yet; run the same command again to go on: {titles[whole[1]]}." in page.said
    assert page.all("meta", **{"http-equiv": "refresh"}) == []
    assert not [path for path in (tmp_path / "pictures").iterdir() if path.name.startswith(".")]
    fedreel.demo.demo(tmp_path, ("recognition", "fedlid"), QUICK)
    assert whole == [whole[0], whole[1], whole[1]]
    assert len(Read((tmp_path / "index.html").read_text()).texts["h2"]) == 2


def test_all_but_the_first_unfinished_system_give_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In processes of their own only; somebody's own Python is left as it is."""
    asked: list[tuple[str, bool]] = []

    def note(_: object, jobs: list[fedreel.demo.Job], *__: object) -> list[tuple[int, float]]:
        asked.extend((job.system.name, job.waits) for job in jobs)
        return []

    monkeypatch.setattr(fedreel.demo, "in_processes", note)
    names = [system.name for system, _ in fedreel.demo._declared(())]
    for cores in (2, 1):
        monkeypatch.setattr(fedreel.demo, "cores", lambda cores=cores: cores)
        asked.clear()
        fedreel.demo.demo(tmp_path)
        assert asked == [(name, cores > 1 and number > 0) for number, name in enumerate(names)]


def test_pictures_that_fail_leave_nothing_behind(tiny: None, tmp_path: Path) -> None:
    """A run without pictures is not done: the next demo makes them."""
    system = next(system for system in SHOWN if system.name == "recognition")
    assert system.demo
    broken = dataclasses.replace(system.demo, show="support.pages:Read")  # takes one argument, so this is a TypeError
    job = fedreel.demo.Job(system, broken, tmp_path, QUICK)
    with pytest.raises(TypeError):
        job.run()
    assert not job.done
    assert list((tmp_path / "pictures").iterdir()) == []


def test_an_unknown_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no system 'recogniton'"):
        fedreel.demo.demo(tmp_path, ["recogniton"])
    assert list(tmp_path.iterdir()) == []


# the page alone

NASTY = "<script>alert(1)</script>"


def stand_of(folder: Path, *cards: Card, **changes: Any) -> Stand:
    """A made-up run, and pictures of it."""
    run, pictures = make_run(folder / "run"), folder / "pictures"
    pictures.mkdir()
    for card in cards:
        (pictures / card.file).write_bytes(b"x")
    plain = {"asked": "?", "cards": cards, "command": "fedreel", "chance": 0.1, "chance_is": "luck", "noise": 0.01}
    Exhibit(**{**plain, **changes}).save(pictures)
    return Stand("System", "For tests.", "top1", "share of right answers", run, pictures)


def test_a_wrong_answer_is_shown_as_wrong_and_a_right_one_as_right(tmp_path: Path) -> None:
    wrong = Card("a.png", "It is: jump", "the model says: wave, 41 %", right=False)
    right = Card("b.png", "It is: wave", "the model says: wave, 93 %", right=True)
    neither = Card("c.png", "The whole video")
    stand = stand_of(tmp_path, wrong, right, neither)
    page = Read(write_exhibition(tmp_path / "index.html", [stand], [], running=False).read_text())
    assert [item.get("class") for item in page.all("li")] == ["wrong", "right", None]
    assert [text for text in page.texts["b"] if text[0] in "✓✗"] == ["✗ wrong", "✓ right"]
    assert "the model says: wave, 41 %" in page.said


def test_videos_lead_to_their_files(tmp_path: Path) -> None:
    stand = stand_of(tmp_path, Card("a.mp4", "A", begins=True), Card("b.mp4", "B"))
    page = Read(write_exhibition(tmp_path / "index.html", [stand], [], running=False).read_text())
    assert page.values("video", "src") == ["pictures/a.mp4", "pictures/b.mp4"]
    assert {"pictures/a.mp4", "pictures/b.mp4"} <= {*page.values("a", "href")}
    assert [item.get("class") for item in page.all("li")] == ["begins", None]


@pytest.mark.parametrize(("noise", "said"), [(0.0, False), (10.0, True)])
def test_a_metric_that_luck_explains_is_said_to_be_no_better(tmp_path: Path, noise: float, said: bool) -> None:
    stand = stand_of(tmp_path, chance=-1.0, noise=noise)
    text = write_exhibition(tmp_path / "index.html", [stand], [], running=False).read_text()
    assert ("no better than luck" in text) is said


def test_the_chance_level_is_drawn_over_all_rounds(tmp_path: Path) -> None:
    stand = stand_of(tmp_path, chance=0.125)
    page = Read(write_exhibition(tmp_path / "index.html", [stand], [], running=False).read_text())
    charts = [json.loads(text) for text in page.texts["script"] if text.startswith('{"kind":"line"')]
    (model, chance) = charts[0]["lines"]
    assert (chance["n"], chance["y"]) == ("luck", [0.125, 0.125])
    assert chance["x"] == [model["x"][0], model["x"][-1]]


def test_texts_are_escaped(tmp_path: Path) -> None:
    card = Card("a.mp4", NASTY, NASTY, right=False)
    stand = dataclasses.replace(stand_of(tmp_path, card, asked=NASTY, command=NASTY, chance_is=NASTY), title=NASTY)
    text = write_exhibition(tmp_path / "index.html", [stand], [NASTY], running=True).read_text()
    assert NASTY not in text
    page = Read(text)
    assert page.texts["h2"] == [NASTY]
    assert page.texts["code"] == [NASTY]


def test_an_exhibit_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    exhibit = Exhibit("?", [Card("a.gif", "A", "b", None)], "fedreel", 0.5, "luck", 0.1, page="p.html")
    exhibit.save(tmp_path)
    assert (tmp_path / RECORD).exists()
    assert Exhibit.load(tmp_path) == exhibit


def test_while_more_is_to_come_the_page_loads_itself_anew(tmp_path: Path) -> None:
    page = Read(write_exhibition(tmp_path / "index.html", [], ["FSAR"], running=True).read_text())
    assert page.all("meta", **{"http-equiv": "refresh"})
    assert "In training now or next: FSAR." in page.said
