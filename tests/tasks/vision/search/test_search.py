"""Search by example: the ranking by brute force, what is decoded again and what is not, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedreel.errors import DataError, RecipeError, RunError
from fedreel.media.excerpts import EXCERPTS
from fedreel.media.video import read, write
from fedreel.runs.run import load
from fedreel.tasks.vision.search import embed, index
from fedreel.tasks.vision.search.command import search
from fedreel.tasks.vision.search.embed import Embedder
from fedreel.tasks.vision.search.index import Index
from support.embedded import make_films, moving, other_task, shifted, train
from support.tiny import cli


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the task recognition. Tests that change it take a copy."""
    return train(tmp_path_factory.mktemp("trained") / "run", data)


@pytest.fixture
def films(tmp_path: Path) -> Path:
    return make_films(tmp_path / "films")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are decoded from now on."""
    names: list[str] = []
    real = embed.excerpts

    def counted(path: Path, frames: int, size: int) -> Any:
        names.append(path.name)
        return real(path, frames, size)

    monkeypatch.setattr(embed, "excerpts", counted)
    return names


def vector(path: Path, run: Path, pooling: str = "mean") -> np.ndarray:
    """By hand: all frames of 16 x 24 decoded, ten clips of the middle of four frames cut out, embedded one by one."""
    loaded = load(run)
    frames = np.ascontiguousarray(read(path)[0][:, :, 4:20])
    starts = np.linspace(2, len(frames) - 2, EXCERPTS) - 2
    rows = []
    for start in starts:
        clip = frames[np.arange(round(start), round(start) + 4)]
        with torch.no_grad():
            rows.append(loaded.task.embed(loaded.model, torch.from_numpy(clip)[None], pooling)[0].numpy())  # type: ignore[attr-defined]
    mean = np.mean(rows, axis=0)
    return mean / np.linalg.norm(mean)


# the ranking


@pytest.mark.parametrize("pooling", ["mean", "grid"])
def test_the_ranking_is_that_of_brute_force(pooling: str, trained: Path, films: Path, tmp_path: Path) -> None:
    write(tmp_path / "asked.mp4", moving(7, 20), 8)
    made = search(tmp_path / "asked.mp4", films, trained, pooling=pooling)
    asked = vector(tmp_path / "asked.mp4", trained, pooling)
    by_hand = {p.name: float(vector(p, trained, pooling) @ asked) for p in films.iterdir()}
    assert {hit.path: hit.similarity for hit in made.hits} == pytest.approx(by_hand, abs=1e-5)
    assert [hit.path for hit in made.hits] == sorted(by_hand, key=lambda name: -by_hand[name])
    assert [hit.rank for hit in made.hits] == [1, 2, 3, 4, 5]
    assert len({round(similarity, 4) for similarity in by_hand.values()}) == 5  # else the order would be no test


def test_copies_come_first_with_similarity_1(trained: Path, films: Path) -> None:
    for name in ("z copy.mp4", "a copy.mp4"):
        shutil.copy(films / "clip2.mp4", films / name)
    made = search(films / "clip2.mp4", films, trained, top=3)
    assert [(hit.path, hit.similarity) for hit in made.hits[:2]] == [("a copy.mp4", 1.0), ("z copy.mp4", 1.0)]
    assert made.hits[2].similarity < 1


def test_the_clip_itself_is_left_out_under_all_its_names(trained: Path, films: Path, tmp_path: Path) -> None:
    (films / "link.mp4").symlink_to(films / "clip1.mp4")
    (tmp_path / "outside.mp4").symlink_to(films / "clip1.mp4")
    for asked in ("films/clip1.mp4", "films/../films/clip1.mp4", "films/link.mp4", "outside.mp4"):
        made = search(tmp_path / asked, films, trained)
        assert sorted(hit.path for hit in made.hits) == ["clip0.mp4", "clip2.mp4", "clip3.mp4", "clip4.mp4"]
        assert made.videos == 4


def test_labels_and_owners_are_those_of_the_folders(trained: Path, data: Path) -> None:
    made = search(data / "owner0" / "class1" / "0.mp4", data, trained, top=20)
    assert len(made.hits) == 11
    for hit in made.hits:
        owner, label, _ = hit.path.split("/")
        assert (hit.owner, hit.label, hit.seconds) == (owner, label, 1.0)


def test_an_index_file_says_which_videos_there_are(trained: Path, films: Path) -> None:
    (films / "index.csv").write_text("path,label\nclip0.mp4,run\nclip3.mp4,jump\ngone.mp4,jump\n")
    made = search(films / "clip1.mp4", films, trained)
    assert {hit.path: hit.label for hit in made.hits} == {"clip0.mp4": "run", "clip3.mp4": "jump"}
    assert [broken.path for broken in made.skipped] == ["gone.mp4"]


def test_fewer_than_asked_for_are_noted(trained: Path, films: Path, tmp_path: Path) -> None:
    assert search(films / "clip0.mp4", films, trained, top=4).notes[1:] == []
    assert "only 4" in search(films / "clip0.mp4", films, trained, top=5).notes[1]
    alone = make_films(tmp_path / "alone", 1)
    made = search(alone / "clip0.mp4", alone, trained)
    assert (made.hits, made.videos) == ([], 0)
    assert "no other video" in made.notes[1]


def test_the_folder_of_the_model_is_as_good_as_the_run(trained: Path, films: Path) -> None:
    made = search(films / "clip0.mp4", films, trained)
    assert search(films / "clip0.mp4", films, trained / "model").hits == made.hits


def test_copies_of_the_hits_are_numbered_by_their_rank(trained: Path, films: Path, tmp_path: Path) -> None:
    (films / "b").mkdir()
    shutil.move(films / "clip3.mp4", films / "b" / "clip3.mp4")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "diary.txt").write_text("dear diary")
    made = search(films / "clip0.mp4", films, trained, out=tmp_path / "out", top=3)
    names = [f"{hit.rank:02d}_{Path(hit.path).name}" for hit in made.hits]
    assert made.files == [tmp_path / "out" / name for name in names]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [*names, "diary.txt"]
    for hit, name in zip(made.hits, names):
        assert (tmp_path / "out" / name).read_bytes() == (films / hit.path).read_bytes()


# what is kept


def test_a_second_search_decodes_only_its_clip(trained: Path, films: Path, tmp_path: Path, seen: list[str]) -> None:
    write(tmp_path / "asked.mp4", moving(7, 20), 8)
    first = search(tmp_path / "asked.mp4", films, trained)
    assert sorted(seen) == ["asked.mp4", *(f"clip{n}.mp4" for n in range(5))]
    seen.clear()
    second = search(tmp_path / "asked.mp4", films, trained)
    assert seen == ["asked.mp4"]
    assert second.hits == first.hits
    assert (first.looked_at, second.looked_at) == (5, 0)
    seen.clear()
    search(films / "clip0.mp4", films, trained)
    assert seen == []  # the clip is one of those that are known


def test_only_what_changed_is_looked_at_again(trained: Path, films: Path, seen: list[str]) -> None:
    search(films / "clip0.mp4", films, trained)
    seen.clear()
    write(films / "clip3.mp4", moving(30, 22), 8)
    write(films / "new" / "clip9.mp4", moving(9), 8)
    (films / "clip4.mp4").unlink()
    made = search(films / "clip0.mp4", films, trained)
    assert sorted(seen) == ["clip3.mp4", "clip9.mp4"]
    assert sorted(hit.path for hit in made.hits) == ["clip1.mp4", "clip2.mp4", "clip3.mp4", "new/clip9.mp4"]
    assert made.hits == search(films / "clip0.mp4", films, trained, rebuild=True).hits


def test_a_file_with_another_time_is_looked_at_again(trained: Path, films: Path, seen: list[str]) -> None:
    search(films / "clip0.mp4", films, trained)
    seen.clear()
    os.utime(films / "clip2.mp4", ns=(1, 1))
    search(films / "clip0.mp4", films, trained)
    assert seen == ["clip2.mp4"]


def test_a_changed_clip_is_not_asked_by_its_old_vector(trained: Path, films: Path) -> None:
    search(films / "clip0.mp4", films, trained)
    shutil.copy(films / "clip1.mp4", films / "clip0.mp4")
    best = search(films / "clip0.mp4", films, trained, top=1).hits[0]
    assert (best.path, best.similarity) == ("clip1.mp4", 1.0)


def test_broken_files_are_listed_and_not_tried_again(trained: Path, films: Path, seen: list[str]) -> None:
    (films / "text.mp4").write_text("dear diary")
    (films / "empty.webm").write_bytes(b"")
    made = search(films / "clip0.mp4", films, trained)
    assert [broken.path for broken in made.skipped] == ["empty.webm", "text.mp4"]
    assert all(broken.reason for broken in made.skipped)
    assert made.videos == 4
    seen.clear()
    assert search(films / "clip0.mp4", films, trained).skipped == made.skipped
    assert seen == []
    write(films / "text.mp4", moving(0), 8)  # mended, and another clip0
    mended = search(films / "clip0.mp4", films, trained)
    assert (mended.hits[0].path, mended.hits[0].similarity) == ("text.mp4", 1.0)
    assert [broken.path for broken in mended.skipped] == ["empty.webm"]


def test_a_video_that_breaks_off_is_used_and_noted(trained: Path, films: Path) -> None:
    write(films / "long.mp4", moving(5, 60), 8)
    whole = (films / "long.mp4").read_bytes()
    (films / "long.mp4").write_bytes(whole[: len(whole) * 3 // 4])
    made = search(films / "clip0.mp4", films, trained, top=5)
    assert "long.mp4" in {hit.path for hit in made.hits}
    assert [note.partition(":")[0] for note in made.notes[1:]] == ["long.mp4"]
    assert made.skipped == []


def test_an_interruption_keeps_what_is_done(
    trained: Path, films: Path, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, made = Embedder.vector, []

    def stopping(self: Embedder, what: Any) -> np.ndarray:
        made.append(real(self, what))
        if len(made) == 4:  # that of the clip, and of three files
            raise KeyboardInterrupt
        return made[-1]

    monkeypatch.setattr(Embedder, "vector", stopping)
    with pytest.raises(KeyboardInterrupt):
        search(films / "clip0.mp4", films, trained)
    monkeypatch.setattr(Embedder, "vector", real)
    seen.clear()
    found = search(films / "clip0.mp4", films, trained)
    assert sorted(seen) == ["clip2.mp4", "clip3.mp4", "clip4.mp4"]
    assert found.hits == search(films / "clip0.mp4", films, trained, rebuild=True).hits


def test_the_index_is_saved_on_the_way(trained: Path, films: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that little is lost even where a process has no time to end well."""
    monkeypatch.setattr(index, "OFTEN", 2)
    embedder, on_disk = Embedder(trained), []
    real = embedder.vector

    def watched(what: Any) -> np.ndarray:
        on_disk.append(len(Index(films, embedder.state).entries))
        return real(what)

    monkeypatch.setattr(embedder, "vector", watched)
    Index(films, embedder.state).refresh(sorted(p.name for p in films.iterdir()), embedder)
    assert on_disk == [0, 0, 2, 2, 4]
    assert len(Index(films, embedder.state).entries) == 5


def test_a_damaged_index_is_made_again(trained: Path, films: Path, seen: list[str]) -> None:
    before = search(films / "clip0.mp4", films, trained)
    place = Index(films, Embedder(trained).state).place
    content = place.read_bytes()
    for damaged in (content[:-5], content.replace(b'"names"', b'"nemas"'), b"", b"{}"):
        seen.clear()
        place.write_bytes(damaged)
        assert search(films / "clip0.mp4", films, trained).hits == before.hits
        assert sorted({*seen}) == [f"clip{n}.mp4" for n in range(5)]
    assert [p.name for p in place.parent.iterdir() if p.name.startswith(".")] == []


def test_another_model_or_pooling_has_an_index_of_its_own(
    trained: Path, films: Path, tmp_path: Path, seen: list[str]
) -> None:
    search(films / "clip0.mp4", films, trained)
    moved = Path(shutil.copytree(trained, tmp_path / "moved"))
    seen.clear()
    search(films / "clip0.mp4", films, moved)
    assert seen == []  # the same model in another place
    search(films / "clip0.mp4", films, moved, pooling="grid")
    assert len({*seen}) == 5
    shifted(moved)
    seen.clear()
    search(films / "clip0.mp4", films, moved)
    assert len({*seen}) == 5
    seen.clear()
    search(films / "clip0.mp4", films, trained)
    search(films / "clip0.mp4", films, trained, pooling="grid")
    assert seen == []  # those before are still there


# whose model


def test_a_part_that_stayed_with_the_clients_must_be_somebodys(data: Path, films: Path, tmp_path: Path) -> None:
    """FedBN: batch norms never travel, so everybody's model has none that are trained."""
    private = train(tmp_path / "run", data, **{"method.name": "fedbn"})
    with pytest.raises(RunError, match="never left the clients") as error:
        search(films / "clip0.mp4", films, private)
    assert error.value.found == "clients owner0, owner1"
    found = {client: search(films / "clip0.mp4", films, private, client=client) for client in ("owner0", "owner1")}
    assert [hit.similarity for hit in found["owner0"].hits] != [hit.similarity for hit in found["owner1"].hits]
    with pytest.raises(RunError, match="owner7"):
        search(films / "clip0.mp4", films, private, client="owner7")


def test_a_client_of_a_shared_model_is_not_asked_for(trained: Path, films: Path) -> None:
    with pytest.raises(RunError, match="all clients share one model"):
        search(films / "clip0.mp4", films, trained, client="owner0")


# what is refused


def test_wishes_that_cannot_be_fulfilled_leave_nothing(trained: Path, films: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.mp4").write_text("dear diary")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.mp4").write_text("dear diary")
    clip = films / "clip0.mp4"
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (RecipeError, "nothing to show", {"top": 0}),
        (RecipeError, "did you mean 'grid'", {"pooling": "gird"}),
        (DataError, "no such video file", {"source": tmp_path / "none.mp4"}),
        (DataError, "no such video file", {"source": films}),
        (DataError, "cannot be read as video", {"source": tmp_path / "text.mp4"}),
        (DataError, "no such data folder", {"folder": tmp_path / "none"}),
        (DataError, "no videos here", {"folder": tmp_path / "empty"}),
        (DataError, "none of the videos can be read", {"folder": tmp_path / "broken"}),
        (RunError, "not a finished run", {"model": films}),
        (DataError, "overwrite the clip itself", {"page": clip}),
        (DataError, "overwrite a video of the folder", {"page": films / "clip1.mp4"}),
        (DataError, "would be a folder", {"json": films}),
        (DataError, "go into a folder", {"out": tmp_path / "text.mp4"}),
        (DataError, "would lie in the folder that is looked at", {"out": films}),
        (DataError, "would lie in the folder that is looked at", {"out": films / "new"}),
    ]
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for kind, problem, wish in cases:
        places = {"page": tmp_path / "p.html", "json": tmp_path / "p.json"}
        with pytest.raises(kind, match=problem):
            search(**{"source": clip, "folder": films, "model": trained, **places, **wish})
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("task", ["summary", "skeleton"])
def test_a_run_of_a_task_without_vectors_names_those_with(
    task: str, trained: Path, films: Path, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match="does not turn video clips into vectors") as error:
        search(films / "clip0.mp4", films, other_task(trained, tmp_path / "run", task))
    assert "recognition" in error.value.expected
    assert error.value.found == task


def test_a_model_that_diverged_is_told(trained: Path, films: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(trained, tmp_path / "copy"))
    file = broken / "model" / "global.safetensors"
    save_file({name: tensor * torch.nan for name, tensor in load_file(file).items()}, file)
    with pytest.raises(RunError, match="no finite numbers"):
        search(films / "clip0.mp4", films, broken)


# sentences


def test_a_classifier_reads_by_the_names_of_its_classes(trained: Path, films: Path) -> None:
    found = search("a circle rises", films, trained, top=100)
    assert (found.sentence, len(found.hits), found.looked_at) == ("a circle rises", 5, 5)
    assert [hit.similarity for hit in found.hits] == sorted((hit.similarity for hit in found.hits), reverse=True)
    assert "the model knows no sentences; of its " in found.notes[0]
    assert search("something else", films, trained).looked_at == 0, "the folder is looked at once"
    with pytest.raises(RecipeError, match="classes have no places"):
        search("a circle rises", films, trained, pooling="grid")
    with pytest.raises(DataError, match="none of these words can be read"):
        search("犬", films, trained)


# JSON and command


def test_the_command_prints_the_ranking_and_the_files(trained: Path, films: Path, tmp_path: Path) -> None:
    (films / "bad.mp4").write_text("dear diary")
    outputs = [tmp_path / "new" / "p.html", tmp_path / "new" / "p.json"]
    options = ["--in", films, "--model", trained, "--top", 3, "--page", outputs[0], "--json", outputs[1]]
    said = cli("search", films / "clip0.mp4", *options)
    assert said.code == 0, said.err
    made = search(films / "clip0.mp4", films, trained, top=3)
    lines = said.out.splitlines()
    assert lines[0].split() == ["rank", "similarity", "video"]
    assert [line.split() for line in lines[1:4]] == [
        [str(hit.rank), f"{hit.similarity:.4f}", str(films / hit.path)] for hit in made.hits
    ]
    assert lines[4:] == [str(path) for path in outputs]
    assert "skipped bad.mp4: " in said.err
    told = json.loads(outputs[1].read_text())
    assert [(row["path"], row["similarity"]) for row in told["hits"]] == [(h.path, h.similarity) for h in made.hits]
    assert (told["videos"], told["pooling"], told["skipped"][0]["path"]) == (4, "mean", "bad.mp4")


def test_names_that_are_no_text_are_printed_all_the_same(trained: Path, films: Path, tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(films) + b"/b\xe4r\n.mp4")
    os.rename(films / "clip1.mp4", odd)
    said = cli("search", films / "clip0.mp4", "--in", films, "--model", trained, "--page", tmp_path / "p.html")
    assert said.code == 0, said.err
    assert len(said.out.splitlines()) == 6
    assert "b%E4r%0A.mp4" in (tmp_path / "p.html").read_text()


def test_the_command_says_how_to_go_on_after_an_interruption(
    trained: Path, films: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Index, "refresh", stopped)
    said = cli("search", films / "clip0.mp4", "--in", films, "--model", trained)
    assert (said.code, said.out) == (130, "")
    assert "run the same command again" in said.err


def test_the_command_ends_with_status_2_when_something_is_wrong(trained: Path, films: Path) -> None:
    said = cli("search", films / "none.mp4", "--in", films, "--model", trained)
    assert (said.code, said.out) == (2, "")
    assert "no such video file" in said.err
