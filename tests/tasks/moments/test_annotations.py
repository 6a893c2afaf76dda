"""Every public form of annotations comes back as written; what is wrong in it is put right or listed, never fatal."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from fedreel.errors import DataError
from fedreel.tasks.moments.annotations import LISTED, Query, Repairs, corpus, read_annotations
from fedreel.tasks.moments.formats import ACTIVITYNET, CHARADES
from support import moment_files as make

WHOLE = Repairs()
CAPTIONS = {
    "v_a": {"duration": 82.73, "timestamps": [[0.83, 19.86], [17.37, 60.81]], "sentences": ["A woman sits.", " She "]},
    "v_b": {"duration": 10, "timestamps": [[0, 10]], "sentences": ["All of it."]},
}
TACOS = {
    "s13-d21.avi": {
        "timestamps": [[252, 452], [300, 900]],
        "sentences": ["He took a cutting board.", "He cut."],
        "fps": 25.0,
        "num_frames": 1000,
    }
}
WINDOWS = [
    {"qid": 1, "query": "A chef cooks", "vid": "x_60.0_210.0", "duration": 150, "relevant_windows": [[82, 150]]},
    {"qid": 2, "query": "Rain", "vid": "y", "duration": 150, "relevant_windows": [[0, 2], [10, 14]], "saliency": [[1]]},
]


def lines(folder: Path, *rows: str, name: str = "moments.txt", **seconds: float) -> Path:
    make.lengths(folder, **(seconds or {"A": 30.0, "B": 20.0}))
    (folder / name).write_text("\n".join(rows))
    return folder / name


def as_json(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


# forms


def test_charades_lines_come_back_with_scene_and_length(tmp_path: Path) -> None:
    make.table(
        tmp_path / "Charades_v1_train.csv",
        [
            {"id": "AO8RW", "subject": "X", "scene": "Kitchen", "script": 'says "a, b"', "length": "33.67"},
            {"id": "Y6R7T", "subject": "X", "scene": "Basement (A room below)", "script": "two\nlines", "length": "20"},
            {"id": "ZZZZZ", "subject": "X", "scene": "Closet / Walk-in closet", "script": "", "length": "9.5"},
        ],
    )
    path = tmp_path / "charades_sta_train.txt"
    text = "AO8RW 0.0 6.9##a person is putting a book on a shelf.\r\nY6R7T 20.0 3.1##x##y\n\nZZZZZ 1 2##z"
    path.write_bytes(text.encode())
    found, repairs = read_annotations(path)
    assert found == [
        Query("AO8RW", 0.0, 6.9, "a person is putting a book on a shelf.", 33.67, "Kitchen", "train"),
        Query("Y6R7T", 3.1, 20.0, "x##y", 20.0, "Basement", "train"),
        Query("ZZZZZ", 1.0, 2.0, "z", 9.5, "Closet", "train"),
    ]
    assert repairs == Repairs(swapped=1)


def test_a_table_of_videos_gives_owners_and_splits(tmp_path: Path) -> None:
    rows = [
        {"id": "A", "owner": "owner-01", "scene": "hills", "length": 12.5, "split": "train"},
        {"id": "B", "owner": "", "scene": "hills", "length": 12.5, "split": "Testing"},
        {"id": "C", "owner": "", "scene": "", "length": 12.5, "split": ""},
    ]
    make.table(tmp_path / "videos.csv", rows)
    (tmp_path / "annotations.txt").write_text("A 1 2##x.\nB 1 2##x.\nC 1 2##x.\n")
    found, repairs = read_annotations(tmp_path)
    assert [(q.group, q.split) for q in found] == [("owner-01", "train"), ("hills", "test"), ("", "")]
    assert repairs == WHOLE


def test_activitynet_captions_come_back_with_activities(tmp_path: Path) -> None:
    labels = {"version": "1.3", "database": {"a": {"annotations": [{"label": "Polishing shoes"}]}, "b": {}, "c": 3}}
    path = as_json(tmp_path / "train.json", CAPTIONS)
    expected = [
        Query("v_a", 0.83, 19.86, "A woman sits.", 82.73, "Polishing shoes", "train"),
        Query("v_a", 17.37, 60.81, "She", 82.73, "Polishing shoes", "train"),
        Query("v_b", 0.0, 10.0, "All of it.", 10.0, "", "train"),
    ]
    (tmp_path / "elsewhere").mkdir()
    file = as_json(tmp_path / "elsewhere" / "activity_net.json", labels)
    assert read_annotations(path, labels=file) == (expected, WHOLE)
    assert {q.group for q in read_annotations(path)[0]} == {""}
    as_json(tmp_path / "activity_net.v1-3.json", labels)  # beside the captions it is found
    assert read_annotations(path) == read_annotations(tmp_path) == (expected, WHOLE)


def test_public_sets_are_known_by_their_files(tmp_path: Path) -> None:
    for name, write, known in (
        ("charades", lambda folder: (folder / "charades_sta_test.txt").write_text("A 1 2##x.\n"), CHARADES),
        ("own", lambda folder: (folder / "annotations.txt").write_text("A 1 2##x.\n"), ""),
        ("activitynet", lambda folder: as_json(folder / "train.json", CAPTIONS), ACTIVITYNET),
        ("tacos", lambda folder: as_json(folder / "test.json", TACOS), ""),
    ):
        folder = tmp_path / name
        folder.mkdir()
        write(folder)
        assert corpus(folder) == known
    (tmp_path / "activitynet" / "charades_sta_test.txt").write_text("A 1 2##x.\n")
    assert corpus(tmp_path / "activitynet") == ""  # of both


def test_a_file_of_activities_without_a_database_is_refused(tmp_path: Path) -> None:
    labels = as_json(tmp_path / "labels.json", {"taxonomy": []})
    with pytest.raises(DataError, match="'database'"):
        read_annotations(as_json(tmp_path / "train.json", CAPTIONS), labels=labels)


def test_tacos_counts_in_frames(tmp_path: Path) -> None:
    found, repairs = read_annotations(as_json(tmp_path / "test.json", TACOS))
    assert found == [
        Query("s13-d21.avi", 10.08, 18.08, "He took a cutting board.", 40.0, "", "test"),
        Query("s13-d21.avi", 12.0, 36.0, "He cut.", 40.0, "", "test"),
    ]
    assert repairs == WHOLE


def test_a_query_of_several_windows_is_one_query_for_each(tmp_path: Path) -> None:
    found, repairs = read_annotations(make.jsonl(tmp_path / "highlight_val_release.jsonl", WINDOWS))
    assert found == [
        Query("x_60.0_210.0", 82.0, 150.0, "A chef cooks", 150.0, "", "val"),
        Query("y", 0.0, 2.0, "Rain", 150.0, "", "val"),
        Query("y", 10.0, 14.0, "Rain", 150.0, "", "val"),
    ]
    assert repairs == WHOLE


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("charades_sta_train.txt", "train"),
        ("charades_sta_test.txt", "test"),
        ("Validation.txt", "val"),
        ("val_1.txt", "val"),
        ("val_2.txt", "test"),
        ("val_20.txt", "val"),
        ("latest.txt", ""),
        ("train_and_test.txt", ""),
    ],
)
def test_the_name_of_a_file_gives_the_split(tmp_path: Path, name: str, split: str) -> None:
    found, _ = read_annotations(lines(tmp_path, "A 1 2##x.", name=name))
    assert found[0].split == split


def test_all_files_of_a_folder_are_read_and_others_are_not(tmp_path: Path) -> None:
    lines(tmp_path, "A 1 2##one.", name="sta_train.txt")
    lines(tmp_path, "B 1 2##two.", name="sta_test.txt")
    make.jsonl(tmp_path / "highlight_val.jsonl", WINDOWS[:1])
    make.jsonl(tmp_path / "highlight_hidden.jsonl", [{"qid": 3, "query": "x", "vid": "z", "duration": 150}])
    (tmp_path / "README.txt").write_text("hello")
    (tmp_path / ".hidden.txt").write_text("rubbish##")
    as_json(tmp_path / "part.json", {"seed": 0})
    found, repairs = read_annotations(tmp_path)
    assert [(q.sentence, q.split) for q in found] == [("A chef cooks", "val"), ("two.", "test"), ("one.", "train")]
    assert repairs == WHOLE


# times


def test_times_are_put_right_and_counted(tmp_path: Path) -> None:
    path = lines(
        tmp_path,
        "A 5 9##as it is.",
        "A 9 5##reversed.",
        "A 25 30.4##a little late.",
        "A 25 31##much too late.",
        "A 40 25##reversed and too late.",
        "A -2 4##too early.",
        "A 30 40##after the end.",
        "A 7 7##empty.",
        "A -5 -1##before the start.",
    )
    found, repairs = read_annotations(path)
    assert [(q.start, q.end) for q in found] == [(5, 9), (5, 9), (25, 30), (25, 30), (25, 30), (0, 4)]
    assert (repairs.clipped, repairs.far, repairs.swapped, repairs.dropped, repairs.malformed) == (4, 2, 2, 3, 0)
    assert [f.where for f in repairs.faults] == [f"moments.txt, line {n}" for n in (7, 8, 9)]


def test_a_length_that_is_known_better_wins(tmp_path: Path) -> None:
    path = lines(tmp_path, "A 5 29##x.", "B 5 29##x.", "C 1 9##x.")
    found, repairs = read_annotations(path, length_of={"A": 10.0, "C": 4.0}.get)
    assert [(q.video, q.end, q.duration) for q in found] == [("A", 10, 10), ("B", 20, 20), ("C", 4, 4)]
    assert repairs.clipped == 3


def test_moments_of_a_video_of_unknown_length_are_dropped(tmp_path: Path) -> None:
    found, repairs = read_annotations(lines(tmp_path, "A 5 9##x.", "C 5 9##x."))
    assert len(found) == 1
    assert repairs.dropped == 1
    assert "how long the video C is" in repairs.faults[0].reason
    (tmp_path / "videos.csv").unlink()
    with pytest.raises(DataError, match=r"(?s)no moment of this file.*videos\.csv"):
        read_annotations(tmp_path / "moments.txt")


# what is malformed

BAD_LINES = {
    "no mark": "A 1 2 sentence.",
    "no end": "A 1##sentence.",
    "too much": "A 1 2 3##sentence.",
    "a word": "A one 2##sentence.",
    "nan": "A nan 2##sentence.",
    "inf": "A 1 inf##sentence.",
    "no sentence": "A 1 2##  ",
    "only a mark": "##",
    "rubbish": "\x00\x01ÿ",
}


@pytest.mark.parametrize("bad", BAD_LINES.values(), ids=[*BAD_LINES])
def test_a_malformed_line_is_listed_and_the_others_are_read(tmp_path: Path, bad: str) -> None:
    found, repairs = read_annotations(lines(tmp_path, "A 1 2##x.", bad, "B 1 2##x."))
    assert [q.video for q in found] == ["A", "B"]
    assert repairs.malformed == 1
    assert [f.where for f in repairs.faults] == ["moments.txt, line 2"]


BAD_QUERIES = {
    "no JSON": "{",
    "no object": "[1]",
    "no video": {"query": "x", "duration": 150, "relevant_windows": [[1, 2]]},
    "no windows": {"query": "x", "vid": "v", "duration": 150, "relevant_windows": []},
    "a number": {"query": "x", "vid": "v", "duration": 150, "relevant_windows": [3]},
    "three numbers": {"query": "x", "vid": "v", "duration": 150, "relevant_windows": [[1, 2, 3]]},
    "true": {"query": "x", "vid": "v", "duration": 150, "relevant_windows": [[True, 2]]},
    "a huge number": {"query": "x", "vid": "v", "duration": 150, "relevant_windows": [[1, 10**400]]},
    "no sentence": {"query": None, "vid": "v", "duration": 150, "relevant_windows": [[1, 2]]},
}


@pytest.mark.parametrize("bad", BAD_QUERIES.values(), ids=[*BAD_QUERIES])
def test_a_malformed_query_of_highlights_is_listed(tmp_path: Path, bad: Any) -> None:
    path = make.jsonl(tmp_path / "h.jsonl", WINDOWS[:1])
    path.write_text(path.read_text() + (bad if isinstance(bad, str) else json.dumps(bad)) + "\n")
    found, repairs = read_annotations(path)
    assert len(found) == 1
    assert (repairs.malformed, repairs.faults[0].where) == (1, "h.jsonl, line 2")


BAD_VIDEOS = {
    "no object": 3,
    "no sentences": {"duration": 5, "timestamps": [[1, 2]]},
    "no list": {"duration": 5, "timestamps": 3, "sentences": ["x"]},
    "one number": {"duration": 5, "timestamps": [[1]], "sentences": ["x"]},
    "a text": {"duration": 5, "timestamps": [["a", 2]], "sentences": ["x"]},
    "no sentence": {"duration": 5, "timestamps": [[1, 2]], "sentences": [7]},
    "too few sentences": {"duration": 5, "timestamps": [[1, 2]], "sentences": []},
    "no frame rate": {"num_frames": 100, "timestamps": [[1, 2]], "sentences": ["x"]},
    "a frame rate of 0": {"num_frames": 100, "fps": 0, "timestamps": [[1, 2]], "sentences": ["x"]},
}


@pytest.mark.parametrize("bad", BAD_VIDEOS.values(), ids=[*BAD_VIDEOS])
def test_a_malformed_video_of_captions_is_listed(tmp_path: Path, bad: Any) -> None:
    found, repairs = read_annotations(as_json(tmp_path / "c.json", {**CAPTIONS, "v_bad": bad}))
    assert len(found) == 3
    assert repairs.malformed == 1
    assert repairs.faults[0].where.startswith("c.json, video v_bad")


def test_sentences_without_a_time_are_listed_and_the_others_are_kept(tmp_path: Path) -> None:
    entry = {"duration": 5, "timestamps": [[1, 2], [2, 3]], "sentences": ["x", "y", "z"]}
    found, repairs = read_annotations(as_json(tmp_path / "c.json", {"v": entry}))
    assert [q.sentence for q in found] == ["x", "y"]
    assert repairs.faults[0].reason == "2 timestamps but 3 sentences"


def test_only_the_first_faults_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    _, repairs = read_annotations(lines(tmp_path, "A 1 2##x.", *["rubbish"] * 100))
    assert repairs.malformed == 100
    assert [f.where for f in repairs.faults] == [f"moments.txt, line {n}" for n in range(2, 2 + LISTED)]


def test_a_file_without_a_usable_line_is_refused(tmp_path: Path) -> None:
    for path in (lines(tmp_path, "A one two##x.", "B##x."), as_json(tmp_path / "c.json", {"v": {"timestamps": 1}})):
        with pytest.raises(DataError, match="no moment of this file can be used"):
            read_annotations(path)


def test_places_without_annotations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no annotated moments here"):
        read_annotations(tmp_path)
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(DataError, match="no annotated moments here"):
        read_annotations(tmp_path / "a.txt")
    with pytest.raises(DataError, match="cannot be read"):
        read_annotations(tmp_path / "absent.txt")
    (tmp_path / "b.json").write_text('{"v": {"timestamps": [[1, 2]], "sentences": ["x"]')
    with pytest.raises(DataError, match="not valid JSON"):
        read_annotations(tmp_path / "b.json")
    as_json(tmp_path / "b.json", [{"timestamps": [[1, 2]], "sentences": ["x"]}])
    with pytest.raises(DataError, match="no captions"):
        read_annotations(tmp_path / "b.json")


def test_a_broken_row_of_a_table_is_survived(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A 1 2##x.\nB 1 2##x.\nC 1 2##x.\n")
    big = "z" * 200_000  # more than a field may have
    (tmp_path / "videos.csv").write_text(f"id,length,split\nA,30,train\nB,soon,\n{big},1,\n\nC,40,perhaps,x,y\n")
    found, repairs = read_annotations(tmp_path)
    assert [(q.video, q.duration, q.split) for q in found] == [("A", 30, "train"), ("C", 40, "")]
    assert (repairs.dropped, repairs.malformed) == (1, 1)
    assert repairs.faults[0].where == "videos.csv, line 4"


# fuzz


def mutated(text: str, rng: random.Random) -> str:
    letters = list(text)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(letters) + 1)
        match rng.randrange(3):
            case 0:
                letters[at : at + rng.randint(1, 6)] = []
            case 1:
                letters.insert(at, rng.choice("#\x00\r\"'{}[],:-+.eE019 \t\u2028ü\ufeff"))
            case _:
                letters[at : at + 1] = rng.choice(["nan", "1e999", "-1", "null", "true", "##", '"', "[[", "1_0"])
    return "".join(letters)


def check(found: list[Query], repairs: Repairs) -> None:
    for q in found:
        assert 0 <= q.start < q.end <= q.duration < float("inf")
        assert q.sentence.strip()
        assert q.video
    assert min(repairs.clipped, repairs.far, repairs.swapped, repairs.dropped, repairs.malformed) >= 0


def test_mutated_lines_never_raise(tmp_path: Path) -> None:
    rng = random.Random(0)
    good = "A 3.5 12.25##a person opens the door."
    bad = [mutated(good, rng) for _ in range(3000)]
    found, repairs = read_annotations(lines(tmp_path, good, *bad, good))
    check(found, repairs)
    assert found[0] == found[-1]
    assert len(found) > 300
    assert repairs.malformed > 300
    assert repairs.dropped > 30


def test_mutated_queries_never_raise(tmp_path: Path) -> None:
    rng = random.Random(1)
    good = [json.dumps(row) for row in WINDOWS]
    path = tmp_path / "h.jsonl"
    path.write_text("\n".join([good[0], *(mutated(good[n % 2], rng) for n in range(3000))]), encoding="utf-8")
    check(*read_annotations(path))


def test_mutated_captions_give_queries_or_an_error_for_people(tmp_path: Path) -> None:
    rng = random.Random(2)
    path = tmp_path / "c.json"
    outcomes = set()
    for _ in range(600):
        path.write_text(mutated(json.dumps({**CAPTIONS, **TACOS}), rng), encoding="utf-8")
        try:
            check(*read_annotations(path))
            outcomes.add("read")
        except DataError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}
