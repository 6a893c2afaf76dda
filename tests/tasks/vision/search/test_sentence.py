"""Search by a sentence: the ranking is that of CLIP's own two towers, and who cannot read says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

tf = pytest.importorskip("transformers", reason="the extra hf is not installed")

from fedreel.errors import DataError, RecipeError  # noqa: E402
from fedreel.media.video import read  # noqa: E402
from fedreel.tasks.vision.search.command import search  # noqa: E402
from support.clip import clip_folder  # noqa: E402
from support.embedded import make_films  # noqa: E402


def test_videos_are_ranked_as_the_two_towers_of_transformers_say(tmp_path: Path) -> None:
    folder, model = clip_folder(tmp_path / "clip")
    films = make_films(tmp_path / "films")
    found = search("a dog runs", films, folder, top=100, page=tmp_path / "page.html")
    words = tf.CLIPTokenizer.from_pretrained(folder)(["a dog runs"], return_tensors="pt")
    with torch.no_grad():
        asked = model.text_projection(model.text_model(**words).pooler_output)[0].numpy()
    assert {hit.path for hit in found.hits} == {p.relative_to(films).as_posix() for p in films.rglob("*.mp4")}
    for hit in found.hits:
        frames = read(films / hit.path)[0][:, :, 4:20]  # the middle square of 16 x 24
        picked = frames[np.linspace(0, len(frames) - 1, 10).round().astype(int)]
        x = (torch.from_numpy(np.ascontiguousarray(picked)).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
        with torch.no_grad():
            rows = model.visual_projection(model.vision_model(x).pooler_output).numpy()
        mean = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).mean(0)
        cosine = mean @ asked / np.linalg.norm(mean) / np.linalg.norm(asked)
        assert abs(hit.similarity - cosine) < 1e-5
    assert (found.sentence, found.looked_at) == ("a dog runs", len(found.hits))
    assert "a dog runs" in (tmp_path / "page.html").read_text()
    assert search("the cat", films, folder).looked_at == 0, "the folder is looked at once"
    example = films / found.hits[0].path
    assert search(example, films, folder).sentence == "", "a clip works too"


def test_who_cannot_read_says_why(tmp_path: Path) -> None:
    films = make_films(tmp_path / "films")
    folder, _ = clip_folder(tmp_path / "clip")
    with pytest.raises(DataError, match="no such video file"):
        search(tmp_path / "none.mp4", films, folder)
    with pytest.raises(RecipeError, match="one vector"):
        search("a dog runs", films, folder, pooling="grid")
    for name in ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json"):
        (folder / name).unlink(missing_ok=True)
    with pytest.raises(DataError, match="cannot read sentences"):
        search("a dog runs", films, folder)
