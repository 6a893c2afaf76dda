"""The backbone of a run as features of other systems: the model's own vectors, and no other backbone in its place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedreel.data.features import Annotated, features_at, make_features, same_features, video_features
from fedreel.data.shards import spaced
from fedreel.data.steps import look
from fedreel.errors import RunError
from fedreel.media.video import read, write
from fedreel.runs.run import load
from fedreel.tasks.summary.command import summarize
from fedreel.tasks.summary.task import Summary
from support.embedded import moving, other_task, shifted, train


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("trained") / "run", data)


@pytest.fixture
def film(tmp_path: Path) -> Path:
    """Three steps of eight frames at two steps a second."""
    frames = moving(3, 24)[:, :, 4:20]
    write(tmp_path / "film.mp4", np.ascontiguousarray(frames), 16)
    return tmp_path / "film.mp4"


def by_hand(film: Path, run: Path) -> np.ndarray:
    loaded = load(run)
    frames = read(film)[0].reshape(3, 8, 16, 16, 3)[:, spaced(8, 4)]
    with torch.no_grad():
        return loaded.task.embed(loaded.model, torch.from_numpy(frames)).numpy()  # type: ignore[attr-defined]


def test_features_are_the_model_s_vectors_of_the_steps_clips(trained: Path, film: Path) -> None:
    """However they are made: of any video, of an annotated one, and by the commands."""
    made = make_features(f"run:{trained}")
    assert (made.frames, made.size, made.width) == (4, (16, 16), 16)
    expected = by_hand(film, trained)
    assert np.abs(expected[0] - expected[1]).max() > 1e-3  # else the order would be no test
    np.testing.assert_allclose(video_features(film, made, 2.0).features, expected, atol=1e-6)
    (annotated,) = features_at([Annotated(film, np.array([0, 8, 16]), 24, centred=False)], made)
    np.testing.assert_allclose(annotated, expected, atol=1e-6)
    np.testing.assert_allclose(look(film, made, 2.0, None).rows, expected, atol=1e-6)


def test_of_a_wide_video_they_see_the_middle_as_in_training(trained: Path, film: Path, tmp_path: Path) -> None:
    frames = read(film)[0]
    sides = np.random.default_rng(0).integers(0, 256, (24, 16, 8, 3), np.uint8)
    wide = tmp_path / "wide.mp4"
    write(wide, np.concatenate([sides, frames, sides], axis=2), 16)
    made = make_features(f"run:{trained}")
    clips = torch.from_numpy(read(wide)[0][:, :, 8:24].reshape(3, 8, 16, 16, 3)[:, spaced(8, 4)])
    loaded = load(trained)
    with torch.no_grad():
        expected = loaded.task.embed(loaded.model, clips).numpy()  # type: ignore[attr-defined]
    for found in (video_features(wide, made, 2.0).features, look(wide, made, 2.0, None).rows):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_projection_for_training_is_no_part_of_them(data: Path, film: Path, tmp_path: Path) -> None:
    projected = train(tmp_path / "run", data, **{"task.projection": 5})
    made = make_features(f"run:{projected}")
    assert made.width == 16
    np.testing.assert_allclose(video_features(film, made, 2.0).features, by_hand(film, projected), atol=1e-6)


def test_the_card_knows_the_backbone_wherever_it_lies(trained: Path, tmp_path: Path) -> None:
    card = make_features(f"run:{trained}").card()
    moved = Path(shutil.copytree(trained, tmp_path / "moved"))
    assert same_features(make_features(f"run:{moved}").card(), card)
    assert same_features(make_features(f"run:{moved / 'model'}").card(), card)
    shifted(moved)
    assert not same_features(make_features(f"run:{moved}").card(), card)


def test_a_summary_model_is_not_used_with_another_backbone(trained: Path, film: Path, tmp_path: Path) -> None:
    backbone = Path(shutil.copytree(trained, tmp_path / "backbone"))
    summariser = other_task(trained, tmp_path / "run", "summary")
    settings = {"features": f"run:{backbone}", "width_in": 16, "width": 8, "hidden": 8, "blocks": 1, "fps": 2.0}
    task = Summary(**settings)  # type: ignore[arg-type]
    state = task.model().state_dict()
    save_file(dict(state), summariser / "model" / "global.safetensors")
    place = summariser / "model" / "card.json"
    recipe = {"task": {"name": "summary", **settings}, "method": {"name": "fedavg"}}
    place.write_text(
        json.dumps({**json.loads(place.read_text()), **task.card(), "recipe": recipe, "travelling": [*state]})
    )
    made = summarize(film, summariser)
    assert len(made.scores) == 3
    shifted(backbone)
    with pytest.raises(RunError, match="not those that the model was trained on") as error:
        summarize(film, summariser)
    assert "weights " in error.value.expected
    assert error.value.expected != error.value.found


def test_a_run_of_a_task_without_vectors_is_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not turn video clips into vectors") as error:
        make_features(f"run:{other_task(trained, tmp_path / 'run', 'skeleton')}")
    assert "recognition" in error.value.expected


def test_a_backbone_with_parts_that_stayed_with_the_clients_is_refused(data: Path, tmp_path: Path) -> None:
    private = train(tmp_path / "run", data, **{"method.name": "fedbn"})
    with pytest.raises(RunError, match="never left the clients"):
        make_features(f"run:{private}")
