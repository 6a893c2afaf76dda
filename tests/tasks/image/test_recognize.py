"""Recognised images: held-out ones by their colour, the model's own numbers by hand, pages, and what is refused."""

from __future__ import annotations

import base64
import json
import shutil
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from fedreel import api
from fedreel.config import make_recipe
from fedreel.errors import DataError, FedreelError, RunError
from fedreel.tasks.image.pictures import open_pictures
from fedreel.tasks.use.recognize import recognize
from fedreel.tasks.vision.export import export
from support.embedded import other_task
from support.moves import make_sets, motion, one
from support.moves import train as train_skeletons
from support.pages import Read
from support.refusals import assert_refused
from support.tiny import cli

COLOURS = {"grass": (40, 170, 60), "rust & <iron>": (190, 70, 30), "sea": (30, 60, 190)}
CLASSES = sorted(COLOURS)
BACKBONE = {"name": "resnet10", "width": 2, "small_stem": True}
TASK = {"name": "image", "classes": 3, "backbone": BACKBONE, "size": 16, "padding": 1}


def picture(path: Path, label: str, seed: int, size: tuple[int, int] = (20, 14)) -> Path:
    """An image of `size` (width, height): the colour of its class, with noise."""
    noise = np.random.default_rng(seed).normal(0, 25, (size[1], size[0], 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.clip(np.array(COLOURS[label]) + noise, 0, 255).astype(np.uint8)).save(path)
    return path


def train(out: Path, data: Path, method: dict[str, Any], rounds: int = 5, **task: Any) -> Path:
    table = {
        "task": TASK | task,
        "method": method,
        "data": {"source": str(data), "public": str(data)},
        "train": {"batch_size": 6, "lr": 0.1, "epochs": 2},
        "round": {"rounds": rounds},
        "device": "cpu",
    }
    return api.run(make_recipe(table), out).path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two owners' images, eight of each class."""
    folder = tmp_path_factory.mktemp("images")
    places = [(owner, label, n) for owner in ("ann", "bob") for label in CLASSES for n in range(8)]
    for seed, (owner, label, n) in enumerate(places):
        picture(folder / owner / label / f"{n}.png", label, seed)
    return folder


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose model all clients share. Tests that change it take a copy."""
    torch.set_num_threads(1)
    return train(tmp_path_factory.mktemp("trained") / "run", data, {"name": "fedavg"})


@pytest.fixture(scope="module")
def heads(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose classifiers stay with the clients."""
    torch.set_num_threads(1)
    method = {"name": "fedlid", "server": "none", "local_head": True}
    return train(tmp_path_factory.mktemp("heads") / "run", data, method, rounds=1)


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def change_card(folder: Path, **values: Any) -> None:
    path = folder / "model" / "card.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def by_hand(run: Path, pixels: np.ndarray, model: str = "global") -> dict[str, float]:
    """Probabilities of one image (16, 16, 3): ImageNet's mean and deviation, the network, its temperature,
    softmax."""
    x = (pixels / 255 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    loaded = api.load(run, model=model)
    with torch.no_grad():
        logits = loaded.model(torch.from_numpy(x).float().permute(2, 0, 1)[None])[0].double().numpy()
    logits /= loaded.card["trust"]["models"].get(model, {}).get("temperature", 1.0)
    powers = np.exp(logits - logits.max())
    return dict(zip(CLASSES, (powers / powers.sum()).tolist()))


def embedded_images(page: Path) -> list[Image.Image]:
    start = "data:image/jpeg;base64,"
    sources = [str(attributes["src"]) for attributes in Read(page.read_text()).all("img")]
    assert all(source.startswith(start) for source in sources)
    return [Image.open(BytesIO(base64.b64decode(source.removeprefix(start), validate=True))) for source in sources]


# the answer


@pytest.mark.parametrize("label", CLASSES)
def test_images_that_no_client_has_seen_are_recognised(label: str, trained: Path, tmp_path: Path) -> None:
    for seed, suffix in ((1000, "png"), (1001, "png"), (1002, "bmp"), (1003, "jpg")):
        made = recognize(picture(tmp_path / f"x.{suffix}", label, seed, (40, 30)), trained)
        assert (made.label, made.confidence) == made.ranking[0]
        assert made.label == label


def test_an_image_of_the_models_size_goes_to_the_network_as_it_is(trained: Path, tmp_path: Path) -> None:
    file = picture(tmp_path / "a.png", "sea", 7, (16, 16))
    made = recognize(file, trained)
    assert dict(made.ranking) == pytest.approx(by_hand(trained, np.asarray(Image.open(file))), abs=1e-5)
    assert sum(share for _, share in made.ranking) == pytest.approx(1)
    assert [share for _, share in made.ranking] == sorted((share for _, share in made.ranking), reverse=True)


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "I;16"])
def test_images_are_brought_to_the_models_size_as_in_training(mode: str, trained: Path, tmp_path: Path) -> None:
    """Whatever training reads from a folder with this one image is what is recognised."""
    pixels = np.random.default_rng(3).integers(0, 256, (50, 37, 3), np.uint8)
    if mode == "I;16":
        image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    else:
        image = Image.fromarray(pixels).convert(mode)
    (tmp_path / "in").mkdir()
    image.save(tmp_path / "in" / "a.png")
    seen = open_pictures(str(tmp_path / "in"), 16).images[0]
    made = recognize(tmp_path / "in" / "a.png", trained)
    assert dict(made.ranking) == pytest.approx(by_hand(trained, seen), abs=1e-5)


def test_the_suffix_of_a_file_does_not_matter(trained: Path, tmp_path: Path) -> None:
    file = picture(tmp_path / "a.png", "sea", 7)
    bare = Path(shutil.copy(file, tmp_path / "photo"))
    assert recognize(bare, trained).ranking == recognize(file, trained).ranking


def test_the_folder_of_the_model_is_as_good_as_the_run(trained: Path, tmp_path: Path) -> None:
    file = picture(tmp_path / "a.png", "sea", 7)
    assert recognize(file, trained / "model") == recognize(file, trained)


# folders


def test_a_folder_gives_an_answer_for_each_image_below_it(trained: Path, tmp_path: Path) -> None:
    wanted = {"a.png": "sea", "b/c.png": "grass", "b/d.PNG": "rust & <iron>"}
    for seed, (name, label) in enumerate(wanted.items(), 2000):
        picture(tmp_path / "in" / name, label, seed)
    (tmp_path / "in" / "notes.txt").write_text("no image")
    made = recognize(tmp_path / "in", trained)
    assert [(image.source, image.label) for image in made.entries] == [
        (tmp_path / "in" / name, label) for name, label in wanted.items()
    ]
    assert made.skipped == []


def test_many_images_are_answered_as_one_is(trained: Path, tmp_path: Path) -> None:
    """More than go through the network at once, and one of them broken."""
    files = [picture(tmp_path / "in" / f"{n:03d}.png", CLASSES[n % 3], n, (16, 16)) for n in range(131)]
    files[64].write_bytes(b"")
    heard: list[float] = []
    made = recognize(tmp_path / "in", trained, tell=lambda what, share: heard.append(share))
    assert [image.source for image in made.entries] == [file for n, file in enumerate(files) if n != 64]
    assert [(broken.path, broken.reason) for broken in made.skipped] == [(str(files[64]), "the file is empty")]
    for n, image in ((0, made.entries[0]), (63, made.entries[63]), (65, made.entries[64]), (130, made.entries[-1])):
        assert dict(image.ranking) == pytest.approx(dict(recognize(files[n], trained).ranking), abs=1e-5)
    assert heard == sorted(heard)
    assert heard[-1] == 1


def test_the_command_prints_a_line_for_each_image_of_a_folder(trained: Path, tmp_path: Path) -> None:
    picture(tmp_path / "in" / "a\nb.png", "sea", 1)
    picture(tmp_path / "in" / "c.png", "grass", 2)
    (tmp_path / "in" / "d.png").write_bytes(b"\x89PNG no")
    said = cli("recognize", tmp_path / "in", "--model", trained, "--json", tmp_path / "x.json")
    assert said.code == 0, said.err
    lines = [line.rsplit(maxsplit=3) for line in said.out.splitlines()]
    assert [line[1] for line in lines[:2]] == ["sea", "grass"]
    assert [line[0] for line in lines[:2]] == [
        str(tmp_path / "in" / "a\\nb.png"),
        f"{tmp_path}/in/c.png",
    ]
    assert lines[2:] == [[str(tmp_path / "x.json")]]
    assert said.err.startswith(f"skipped {tmp_path}/in/d.png: not an image")
    told = json.loads((tmp_path / "x.json").read_text())
    assert [(image["source"], image["label"]) for image in told["images"]] == [
        (f"{tmp_path}/in/a\nb.png", "sea"),
        (f"{tmp_path}/in/c.png", "grass"),
    ]
    assert told["images"][0]["ranking"][0]["label"] == "sea"
    assert [broken["path"] for broken in told["skipped"]] == [f"{tmp_path}/in/d.png"]


def test_copies_are_sorted_into_folders_named_after_labels(trained: Path, tmp_path: Path) -> None:
    """Names of labels that no folder can have are written another way; files keep their paths below the source."""
    for seed, (name, label) in enumerate({"a.png": "sea", "b/c.png": "rust & <iron>", "d.png": "sea"}.items(), 2000):
        picture(tmp_path / "in" / name, label, seed)
    (tmp_path / "in" / "e.png").write_bytes(b"no")
    made = recognize(tmp_path / "in", trained, out=tmp_path / "out")
    copies = {"rust %26 %3Ciron%3E/b/c.png": "b/c.png", "sea/a.png": "a.png", "sea/d.png": "d.png"}
    assert sorted(path for path in (tmp_path / "out").rglob("*") if path.is_file()) == sorted(made.files)
    assert sorted(made.files) == [tmp_path / "out" / name for name in copies]
    for copy, name in copies.items():
        assert (tmp_path / "out" / copy).read_bytes() == (tmp_path / "in" / name).read_bytes()
    one_file = recognize(tmp_path / "in" / "a.png", trained, out=tmp_path / "one")
    assert one_file.files == [tmp_path / "one" / "sea" / "a.png"]


# one image: JSON and command


def test_the_command_prints_the_label_the_ranking_and_the_files(trained: Path, tmp_path: Path) -> None:
    file = picture(tmp_path / "a.png", "sea", 5)
    page, numbers = tmp_path / "p.html", tmp_path / "p.json"
    said = cli("recognize", file, "--model", trained, "--top", 2, "--page", page, "--json", numbers)
    assert said.code == 0, said.err
    made = recognize(file, trained)
    first, *rest = said.out.splitlines()
    assert first == f"sea  {100 * made.confidence:.0f} %"
    assert [line.rsplit(maxsplit=2) for line in rest[:2]] == [
        [f"  {label}", f"{100 * share:.1f}", "%"] for label, share in made.ranking[:2]
    ]
    assert rest[2:] == [str(page), str(numbers)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "p.html", "p.json"]


def test_the_json_holds_all_classes(trained: Path, tmp_path: Path) -> None:
    file = picture(tmp_path / "a.png", "grass", 5)
    made = recognize(file, trained, json=tmp_path / "a.json", top=1)
    told = json.loads((tmp_path / "a.json").read_text())
    assert [(row["label"], row["probability"]) for row in told.pop("ranking")] == made.ranking
    assert sorted(label for label, _ in made.ranking) == CLASSES
    values = {"label": "grass", "confidence": made.confidence, "client": "", "side": 16}
    assert told.pop("trust")["near_chance"] == "no"
    assert told == {"source": str(file), "notes": [], "run": str(trained), **values}


# pages


def test_the_page_shows_the_image_and_a_bar_for_each_of_the_likeliest(trained: Path, tmp_path: Path) -> None:
    file = picture(tmp_path / "a.png", "rust & <iron>", 5, (1280, 320))
    made = recognize(file, trained, page=tmp_path / "p.html", top=2)
    page = Read((tmp_path / "p.html").read_text())
    assert page.texts["h1"] == ["rust & <iron>"]
    bars = [float(style.removeprefix("width:").removesuffix("%")) for style in page.values("i", "style")]
    assert bars == [pytest.approx(100 * share, abs=0.06) for _, share in made.ranking[:2]]
    (shown,) = embedded_images(tmp_path / "p.html")
    assert shown.size == (640, 160)
    assert np.asarray(shown).mean((0, 1)) == pytest.approx(COLOURS["rust & <iron>"], abs=6)
    assert page.values("script", "src") == page.all("link") == []


def test_grey_of_16_bits_is_shown_as_bright_as_it_is(trained: Path, tmp_path: Path) -> None:
    Image.fromarray(np.full((30, 20), 0x8000, np.uint16)).save(tmp_path / "a.png")
    recognize(tmp_path / "a.png", trained, page=tmp_path / "p.html")
    (shown,) = embedded_images(tmp_path / "p.html")
    assert shown.size == (20, 30)
    assert np.asarray(shown).mean() == pytest.approx(128, abs=2)


def test_the_page_of_a_folder_shows_each_image_with_its_label(trained: Path, tmp_path: Path) -> None:
    for seed, label in enumerate(CLASSES):
        picture(tmp_path / "in" / f"{seed}.png", label, 3000 + seed)
    (tmp_path / "in" / "<b>.png").write_bytes(b"no")
    made = recognize(tmp_path / "in", trained, page=tmp_path / "p.html")
    page = Read((tmp_path / "p.html").read_text())
    assert [attributes["alt"] for attributes in page.all("img")] == ["0.png", "1.png", "2.png"]
    for shown, label in zip(embedded_images(tmp_path / "p.html"), CLASSES):
        assert np.asarray(shown).mean((0, 1)) == pytest.approx(COLOURS[label], abs=6)
    assert len(page.values("i", "style")) == 9
    assert [image.label for image in made.entries] == CLASSES
    assert "<b>.png" in page.said


# whose model, and what its classes are called


def test_classifiers_that_stay_with_clients_need_a_name(heads: Path, tmp_path: Path) -> None:
    file = picture(tmp_path / "a.png", "sea", 5)
    with pytest.raises(RunError, match="whose model is meant") as error:
        recognize(file, heads)
    assert error.value.found == "clients ann, bob"
    assert recognize(file, heads, client="ann").ranking != recognize(file, heads, client="bob").ranking


def test_the_classifier_is_the_one_in_the_clients_own_state(heads: Path, tmp_path: Path) -> None:
    """A bias of 50 for the first class at one client makes this client sure, and leaves the other as it was."""
    run = Path(shutil.copytree(heads, tmp_path / "copy"))
    file = picture(tmp_path / "a.png", "sea", 5)
    before = recognize(file, run, client="bob")
    state = max((run / "clients" / "ann").iterdir())
    tensors = load_file(state)
    (bias,) = (name for name in tensors if name.startswith("model/head.") and name.endswith("bias"))
    tensors[bias] = torch.tensor([50.0, 0.0, 0.0])
    save_file(tensors, state, metadata={"numbers": "{}"})
    made = recognize(file, run, client="ann")
    assert (made.label, made.confidence, made.client) == ("grass", pytest.approx(1), "ann")
    assert recognize(file, run, client="bob").ranking == before.ranking


def test_a_client_speaks_through_the_model_of_its_community(copied: Path, tmp_path: Path) -> None:
    """In the community's model every tensor is 0, so all classes are equally likely."""
    shared = load_file(copied / "model" / "global.safetensors")
    save_file({n: torch.zeros_like(t) for n, t in shared.items()}, copied / "model" / "community-0.safetensors")
    change_card(copied, models=["community-0", "global"], communities={"ann": "community-0"})
    file = picture(tmp_path / "a.png", "sea", 5)
    assert [share for _, share in recognize(file, copied, client="ann").ranking] == pytest.approx([1 / 3] * 3)
    assert recognize(file, copied, client="bob").ranking == recognize(file, copied).ranking


def test_an_unknown_client_is_told_with_the_nearest_one(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="did you mean 'ann'"):
        recognize(picture(tmp_path / "a.png", "sea", 5), trained, client="anm")


def test_classes_are_named_by_the_run_then_by_its_recipe_then_by_numbers(copied: Path, tmp_path: Path) -> None:
    file = picture(tmp_path / "a.png", "sea", 5)
    named = recognize(file, copied)
    (copied / "metrics.jsonl").unlink()
    numbers = {name: f"class {n}" for n, name in enumerate(CLASSES, 1)}
    assert recognize(file, copied).ranking == [(numbers[label], share) for label, share in named.ranking]
    recipe = json.loads((copied / "model" / "card.json").read_text())["recipe"]
    change_card(copied, recipe={**recipe, "data": {**recipe["data"], "labels": CLASSES}})
    assert recognize(file, copied).ranking == named.ranking


def test_a_model_that_learned_from_views_has_no_classes(data: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", data, {"name": "fedsimclr"}, rounds=1, objective="views")
    file = picture(tmp_path / "a.png", "sea", 5)
    with pytest.raises(RunError, match="has no classes") as error:
        recognize(file, run, json=tmp_path / "a.json")
    assert (error.value.expected, error.value.found) == (
        "a run with task.objective = labels",
        "task.objective = views",
    )
    assert not (tmp_path / "a.json").exists()


# which model, and what it began with


def test_of_a_run_of_fedlid_the_mean_answers_not_what_the_server_made_of_it(data: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", data, {"name": "fedlid"}, rounds=1)
    file = picture(tmp_path / "a.png", "sea", 5, (16, 16))
    by_name = {name: by_hand(run, np.asarray(Image.open(file)), name) for name in ("averaged", "global")}
    assert by_name["averaged"] != pytest.approx(by_name["global"], abs=1e-4)
    for client in ("", "ann"):
        assert dict(recognize(file, run, client=client).ranking) == pytest.approx(by_name["averaged"], abs=1e-5)


def test_without_training_at_the_server_there_is_one_model_for_use(heads: Path) -> None:
    assert "recognize" not in api.load(heads).card


def test_a_finished_model_does_not_need_the_weights_it_began_with(data: Path, trained: Path, tmp_path: Path) -> None:
    export(trained, tmp_path / "first.safetensors")
    began = BACKBONE | {"init": str(tmp_path / "first.safetensors")}
    run = train(tmp_path / "run", data, {"name": "fedavg"}, rounds=1, backbone=began)
    file = picture(tmp_path / "a.png", "sea", 5)
    before = recognize(file, run)
    (tmp_path / "first.safetensors").unlink()
    assert recognize(file, run) == before
    assert api.load(run).card["recipe"]["task"]["backbone"].items() >= began.items()


# what is refused


def test_files_that_are_no_whole_images_leave_nothing(trained: Path, tmp_path: Path) -> None:
    whole = picture(tmp_path / "whole.png", "sea", 5).read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "text").write_text("dear diary\n")
    (tmp_path / "drawing.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    (tmp_path / "film.mp4").write_bytes(b"\0\0\0\x18ftypmp42")
    one(tmp_path / "moves.npz", motion(0))
    (tmp_path / "none").mkdir()
    (tmp_path / "broken").mkdir()
    for name in ("a.png", "b.png"):
        (tmp_path / "broken" / name).write_bytes(whole[:60])
    told = {
        "cut.png": ("cannot be read as an image", "truncated", "get the file anew"),
        "empty.jpg": ("cannot be read as an image", "the file is empty", "get the file anew"),
        "text": ("cannot be read as an image", "not an image", "save it as PNG"),
        "drawing.eps": ("cannot be read as an image", "not an image", "save it as PNG"),
        "film.mp4": (
            "this is a video, and this run's model recognises images",
            ".mp4",
            "a run of the task recognition",
        ),
        "moves.npz#m0": ("this is a recorded skeleton", ".npz", "a run of the task skeleton"),
        "nowhere.png": ("no such file or folder", "", ""),
        "none": ("no images in this folder", "", ""),
        "broken": ("none of the 2 images can be read", "", "get the file anew"),
    }
    assert_refused(told, tmp_path, trained)


def test_outputs_that_cannot_be_are_refused(trained: Path, tmp_path: Path) -> None:
    file = picture(tmp_path / "in" / "a.png", "sea", 5)
    before = file.read_bytes()
    with pytest.raises(DataError, match="would overwrite the image itself"):
        recognize(file, trained, page=file)
    with pytest.raises(DataError, match="would overwrite an image"):
        recognize(tmp_path / "in", trained, json=file)
    with pytest.raises(DataError, match="would be a folder"):
        recognize(tmp_path / "in", trained, page=tmp_path / "in")
    with pytest.raises(DataError, match="go into a folder"):
        recognize(tmp_path / "in", trained, out=file)
    for out in (tmp_path / "in", tmp_path / "in" / "sorted"):
        with pytest.raises(DataError, match="would lie in the folder that is looked at"):
            recognize(tmp_path / "in", trained, out=out)
    with pytest.raises(FedreelError, match="nothing to show"):
        recognize(file, trained, top=0)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]
    assert file.read_bytes() == before


def test_an_image_given_to_a_model_of_skeletons_is_told(tmp_path: Path) -> None:
    run = train_skeletons(tmp_path / "run", make_sets(tmp_path) / "right.npz", rounds={"rounds": 1})
    picture(tmp_path / "in" / "a.png", "sea", 5)
    with pytest.raises(DataError, match="this is an image, and this run's model recognises moving skeletons") as error:
        recognize(tmp_path / "in" / "a.png", run, page=tmp_path / "p.html")
    assert error.value.found == ".png"
    assert ".skeleton" in error.value.expected
    assert "task image" in error.value.hint
    with pytest.raises(DataError, match="this is a folder"):
        recognize(tmp_path / "in", run, page=tmp_path / "p.html")
    assert not (tmp_path / "p.html").exists()


def test_an_image_given_to_a_model_of_videos_is_told(trained: Path, tmp_path: Path) -> None:
    run = other_task(trained, tmp_path / "other", "recognition")
    file = picture(tmp_path / "a.png", "sea", 5)
    with pytest.raises(DataError, match="this is an image, and this run's model recognises videos") as error:
        recognize(file, run, page=tmp_path / "p.html")
    assert error.value.found == ".png"
    assert error.value.expected.startswith("a video")
    assert "task image" in error.value.hint
    with pytest.raises(DataError, match="cannot be read as a video") as error:
        recognize(file.rename(tmp_path / "photo"), run, page=tmp_path / "p.html")
    assert error.value.found == "it is an image"
    assert not (tmp_path / "p.html").exists()


def test_the_command_ends_with_status_2_on_a_video(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "film.mp4").write_bytes(b"")
    said = cli("recognize", tmp_path / "film.mp4", "--model", trained)
    assert (said.code, said.out) == (2, "")
    assert "a run of the task recognition" in said.err
