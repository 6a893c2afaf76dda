"""A recipe's form: every typed setting has a field, what is left alone changes nothing, errors stand at their field."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra ui is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from starlette.testclient import TestClient

from fedreel.config import PrivacyConfig, as_table, load_recipe, parse_value, recipe_names
from fedreel.errors import RecipeError
from fedreel.ui.app import make_app
from fedreel.ui.form import Form, as_arguments, blamed, check
from fedreel.ui.jobs import read_jobs
from fedreel.ui.places import Places
from fedreel.ui.values import toml
from support.recipes import WITHOUT_WEIGHTS

BASE = "http://127.0.0.1:8377"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    for name in ("runs", "films", "private"):
        (tmp_path / name).mkdir()
    return Places(tmp_path / "runs", (tmp_path / "films",))


@pytest.fixture
def owner(places: Places) -> TestClient:
    app = make_app(places, names=("127.0.0.1",), port=8377, token="t", csrf="c")
    client = TestClient(
        app, base_url=BASE, headers={"origin": BASE}, follow_redirects=False
    )  # its queue is not started
    client.get("/?token=t")
    return client


@pytest.mark.parametrize("name", sorted({*recipe_names()} - {*WITHOUT_WEIGHTS}))
def test_a_form_that_is_sent_as_it_is_changes_nothing(name: str) -> None:
    form = Form(name, {})
    assert form.changed({key: field.shown() for key, field in form.fields().items()}) == {}


@pytest.mark.parametrize("name", ["recognition", "fedlid", "fsar"])
def test_every_setting_of_the_recipe_has_a_field(name: str) -> None:
    form = Form(name, {})

    def keys(table: dict[str, object], prefix: str = "") -> set[str]:
        found: set[str] = set()
        for key, value in table.items():
            inner = isinstance(value, dict) and key != "partition"
            found |= keys(value, f"{prefix}{key}.") if inner else {prefix + key}  # type: ignore[arg-type]
        return found

    assert keys(as_table(form.recipe)) - {"system", "description", "task.name"} <= {*form.fields()}
    assert form.fields()["train.optimizer"].choices == ("sgd", "adam", "adamw")
    assert form.fields()["round.fraction"].hint == "share of the clients sampled each round"


def test_what_a_form_sends_is_what_set_takes() -> None:
    """The words of the command lead to the same recipe as the fields."""
    form = Form("recognition", {"method.name": "fedprox"})
    given = {
        "method.name": "fedprox",
        "method.mu": "0.25",
        "train.milestones": "[2, 3]",
        "data.owner": "12",
        "seed": "7",
    }
    settings = form.changed(given)
    assert settings == {
        "method.name": "fedprox",
        "method.mu": 0.25,
        "train.milestones": [2, 3],
        "data.owner": "12",
        "seed": 7,
    }
    by_words = load_recipe("recognition", list(as_arguments(settings)))
    assert by_words == load_recipe("recognition", settings)
    assert by_words.data.owner == "12"
    assert by_words.method == {"name": "fedprox", "mu": 0.25}


def test_privacy_is_filled_in_from_nothing() -> None:
    """No recipe has the section; one number makes it."""
    form = Form("recognition", {})
    shown = {field.key: field.shown() for field in form.sections["Differential privacy"]}
    assert shown["privacy.delta"] == "1e-05"
    settings = form.changed({**shown, "privacy.epsilon": "4.0"})
    assert settings == {"privacy.epsilon": 4.0}
    made = load_recipe("recognition", list(as_arguments(settings))).privacy
    assert made == PrivacyConfig(epsilon=4.0)


@pytest.mark.parametrize(
    "value",
    [True, 3, -0.5, 1e-05, float("inf"), "a = \"b\" 'c' \\ ü", [1, [2.5]], {"name": "x y", "k": [True]}, "", "12"],
)
def test_values_are_written_as_toml_reads_them(value: object) -> None:
    assert parse_value(toml(value)) == value


def test_an_error_is_blamed_on_the_settings_that_cause_it(places: Places) -> None:
    settings = {"train.lr": -1.0, "seed": 3, "round.rounds": 4}
    with pytest.raises(RecipeError) as caught:
        check("recognition", settings, places)
    assert blamed("recognition", settings, places, caught.value) == ["train.lr"]


def test_the_nearest_name_stands_at_the_field(owner: TestClient, places: Places) -> None:
    sent = {"recipe": "recognition", "name": "a", "data.partition": '{name = "dirichlt"}', "seed": "4"}
    answer = owner.post("/new?csrf=c", data=sent)
    assert answer.status_code == 422
    at = answer.text.index('id="f-data-partition-why"')
    assert "did you mean &#x27;dirichlet&#x27;?" in answer.text[at : at + 300]
    assert answer.text.count('class="why"') == 1
    assert 'value="4"' in answer.text  # what else was filled in is still there
    assert read_jobs(places.own / "jobs") == []


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("data.public", "/etc"),
        ("data.lists", "../private"),
        ("policy", "~/policy.toml"),
        ("task.backbone.init", "run:/etc/passwd"),
        ("data.labels", '["/etc"]'),
    ],
)
def test_no_setting_names_a_place_outside_the_given_folders(owner: TestClient, key: str, text: str) -> None:
    answer = owner.post("/new?csrf=c", data={"recipe": "recognition", "name": "a", key: text})
    assert answer.status_code == 422
    assert f'id="f-{key.replace(".", "-")}-why"' in answer.text
    assert "outside the folders" in answer.text


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a/b", "-x", "x\ny", "a" * 101])
def test_a_run_gets_a_plain_name(owner: TestClient, places: Places, name: str) -> None:
    answer = owner.post("/new?csrf=c", data={"recipe": "recognition", "name": name})
    assert answer.status_code == 422
    assert 'id="f-name-why"' in answer.text
    assert read_jobs(places.own / "jobs") == []


def test_a_good_form_goes_to_the_queue(owner: TestClient, places: Places) -> None:
    films = str(places.data[0])
    sent = {
        "recipe": "recognition",
        "name": "mine",
        "round.rounds": "3",
        "data.source": films,
        "method.name": "fedprox",
    }
    assert owner.post("/new?csrf=c", data=sent).status_code == 303
    (job,) = read_jobs(places.own / "jobs")
    assert job.out == str(places.runs / "mine")
    words = job.command()
    assert words[2:6] == ["fedreel", "run", "recognition", "--out"]
    assert {*words[7:]} == {"--set", "round.rounds=3", f'data.source="{films}"', 'method.name="fedprox"'}
    again = owner.post("/new?csrf=c", data=sent)
    assert again.status_code == 422
    assert "in the queue already" in again.text


def test_another_method_has_other_fields(owner: TestClient) -> None:
    plain = owner.get("/new?recipe=recognition").text
    other = owner.get("/new?recipe=recognition&method.name=fedprox&was:method.name=fedavg&method.weight_by=loss").text
    assert 'name="method.mu"' not in plain
    assert 'name="method.mu"' in other
    assert 'value="loss" selected' not in other  # that was fedavg's


def test_a_recipe_that_is_not_there_is_answered_by_the_nearest(owner: TestClient) -> None:
    answer = owner.get("/new?recipe=recogniton")
    assert answer.status_code == 400
    assert "recognition" in answer.text
    assert owner.get("/new", params={"recipe": "/etc/x.toml"}).status_code == 400
