"""Lists of videos in the layouts in which UCF-101, HMDB-51, Kinetics and FedVSSL's authors publish them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedreel.config import DataConfig
from fedreel.data.check import check
from fedreel.data.clip_index import Clip, Gaps, find, look_up
from fedreel.data.clip_lists import read_lists
from fedreel.data.shards import Shards
from fedreel.errors import DataError
from fedreel.media import video
from fedreel.tasks.vision.clips import ClipPopulation, open_clips
from support.tiny import cli

UCF_CLASSES = "1 ApplyLipstick\n2 Archery\n"
KINETICS = "label,youtube_id,time_start,time_end,split\n"


def touch(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return root


def write(root: Path, **files: Any) -> Path:
    """Files by name, '__' for a dot; what is no text as JSON."""
    root.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (root / name.replace("__", ".")).write_text(text)
    return root


def ucf(root: Path) -> Path:
    """UCF-101 with two classes and two folds of lists, as they are unpacked."""
    names = [f"{c}/v_{c}_g0{g}_c01.avi" for c in ("ApplyLipstick", "Archery") for g in (1, 2)]
    touch(root, *names)
    write(
        root / "ucfTrainTestlist",
        classInd__txt=UCF_CLASSES.replace("\n", " \r\n"),
        trainlist01__txt=f"{names[0]} 1\r\n{names[2]} 2\r\n",
        testlist01__txt=f"{names[1]}\r\n{names[3]}\r\n",
        trainlist02__txt=f"{names[1]} 1\n{names[3]} 2\n",
        testlist02__txt=f"{names[0]}\n",
    )
    return root


# what each kind of list says


def test_ucf_lists_beside_the_videos_say_what_is_trained_and_tested(tmp_path: Path) -> None:
    found = look_up(ucf(tmp_path))
    lipstick, archery = ("ApplyLipstick/v_ApplyLipstick_g0{}_c01.avi", "Archery/v_Archery_g0{}_c01.avi")
    assert found.clips == [
        Clip(lipstick.format(1), "ApplyLipstick", "", "train"),
        Clip(lipstick.format(2), "ApplyLipstick", "", "test"),
        Clip(archery.format(1), "Archery", "", "train"),
        Clip(archery.format(2), "Archery", "", "test"),
    ]
    assert found.gaps == Gaps()
    second = look_up(tmp_path, fold=2)
    assert [(c.path, c.split) for c in second.clips] == [
        (lipstick.format(1), "test"),
        (lipstick.format(2), "train"),
        (archery.format(2), "train"),
    ]
    assert second.gaps == Gaps(unnamed=1)
    with pytest.raises(DataError, match=r"no fold 3(.|\n)*1, 2(.|\n)*data\.fold=1"):
        find(tmp_path, fold=3)


def test_hmdb_lists_leave_out_what_is_not_used(tmp_path: Path) -> None:
    touch(tmp_path, "wave/a#1.avi", "wave/b.avi", "wave/c.avi", "run/b.avi", "run/new.avi")
    write(
        tmp_path / "testTrainMulti_7030_splits",
        wave_test_split1__txt="a#1.avi 1 \nb.avi 2 \nc.avi 0 \n",
        wave_test_split2__txt="a#1.avi 0 \nb.avi 1 \nc.avi 2 \n",
        run_test_split1__txt="b.avi 1 \ngone.avi 2 \nlost.avi 0 \n",
    )
    found = look_up(tmp_path)
    assert found.clips == [
        Clip("run/b.avi", "run", "", "train"),
        Clip("wave/a#1.avi", "wave", "", "train"),
        Clip("wave/b.avi", "wave", "", "test"),
    ]
    assert found.gaps == Gaps(missing=1, first=("run/gone.avi",), unnamed=2)
    assert [(c.path, c.split) for c in find(tmp_path, fold=2)] == [("wave/b.avi", "train"), ("wave/c.avi", "test")]


def test_kinetics_tables_and_objects_name_the_same_clips(tmp_path: Path) -> None:
    videos = touch(
        tmp_path / "videos", "riding a bike/-AbC_000007_000017.mp4", "flying_kite/x_y.webm", "val/q_000100_000110.mp4"
    )
    table = write(
        tmp_path / "table",
        train__csv=KINETICS
        + "riding a bike,-AbC,7,17,train\nflying kite,x_y,0,10,train\nflying kite,none,1,11,train\n",
        val__csv=KINETICS + "flying kite,q,100,110,validate\n",
    )
    told = {
        name: {"annotations": {"label": label, "segment": segment}, "duration": 10.0, "subset": subset, "url": "https"}
        for name, label, segment, subset in (
            ("-AbC", "riding a bike", [7.0, 17.0], "training"),
            ("x_y", "flying kite", [0.0, 10.0], "training"),
            ("none", "flying kite", [1.0, 11.0], "training"),
            ("q", "flying kite", [100.0, 110.0], "validation"),
        )
    }
    objects = write(tmp_path / "objects", kinetics__json=told)
    found = look_up(videos, lists=str(table))
    assert found == look_up(videos, lists=str(objects / "kinetics.json"))
    assert found.clips == [
        Clip("flying_kite/x_y.webm", "flying kite", "", "train"),
        Clip("riding a bike/-AbC_000007_000017.mp4", "riding a bike", "", "train"),
        Clip("val/q_000100_000110.mp4", "flying kite", "", "val"),
    ]
    assert found.gaps == Gaps(missing=1, first=("flying kite/none_000001_000011",))
    held_back = write(tmp_path / "test", test__csv="youtube_id,time_start,time_end,split\nx_y,0,10,test\n")
    assert find(videos, lists=str(held_back)) == [Clip("flying_kite/x_y.webm", "", "", "test")]


def overlapping(root: Path) -> Path:
    """Three clients' lists as FedVSSL's authors have them: one clip at all three, two at two each."""
    names = [f"{c}/{i}_000001_000011" for c in ("tying_tie", "yawning") for i in "abc"]
    touch(root, *(f"{name}.mp4" for name in names))
    shares = {1: (0, 1, 3), 2: (0, 1, 4), 3: (0, 4, 5)}
    lists = {
        f"client_dist{n}__json": [{"name": names[i], "label": 1 + (i > 2)} for i in share]
        for n, share in shares.items()
    }
    write(root / "annotations", classInd__txt="1 tying_tie\n2 yawning\n", **lists)
    return root


def test_a_clip_may_be_at_several_clients(tmp_path: Path) -> None:
    found = look_up(overlapping(tmp_path), lists="annotations")
    assert [(c.path[:-18], c.label, c.owners) for c in found.clips] == [
        ("tying_tie/a", "tying_tie", ("client_dist1", "client_dist2", "client_dist3")),
        ("tying_tie/b", "tying_tie", ("client_dist1", "client_dist2")),
        ("yawning/a", "yawning", ("client_dist1",)),
        ("yawning/b", "yawning", ("client_dist2", "client_dist3")),
        ("yawning/c", "yawning", ("client_dist3",)),
    ]
    assert found.gaps == Gaps(unnamed=1)
    whole = {"north": ["tying_tie/a_000001_000011"], "south": [{"name": "tying_tie/a_000001_000011"}]}
    write(tmp_path, all__json=whole)
    assert [c.owners for c in find(tmp_path, lists="all.json")] == [("north", "south")]


def test_lists_of_parts_and_of_clients_can_be_told_apart(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.mp4", "a/2.mp4")
    lists = {f"{part}_split_{fold}__json": [{"name": f"a/{n}", "label": 1}] for part, fold, n in PARTS}
    write(tmp_path / "annotations", **lists)
    assert [(c.split, c.owners) for c in find(tmp_path, lists="annotations")] == [("train", ("",)), ("test", ("",))]
    assert [c.split for c in find(tmp_path, lists="annotations", fold=2)] == ["test", "train"]


PARTS = (("train", 1, 1), ("test", 1, 2), ("train", 2, 2), ("test", 2, 1))


# which files are meant


def test_files_may_have_other_endings_and_lie_elsewhere(tmp_path: Path) -> None:
    touch(tmp_path, "v_1.mp4", "deep/er/Archery/v_2.mkv", "ApplyLipstick/v_3.avi", "Archery/v_4.avi", "Archery/v_4.mp4")
    names = "Archery/v_1.avi 2\nArchery/v_2.avi 2\nArchery/v_3.avi 2\nArchery/v_4.avi 2\nApplyLipstick/v_5.avi 1\n"
    write(tmp_path, classInd__txt=UCF_CLASSES, trainlist01__txt=names)
    found = look_up(tmp_path)
    assert [c.path for c in found.clips] == ["Archery/v_4.avi", "deep/er/Archery/v_2.mkv", "v_1.mp4"]
    # v_3 lies in the folder of another class, so it is another video
    assert found.gaps == Gaps(missing=2, first=("Archery/v_3.avi", "ApplyLipstick/v_5.avi"), unnamed=2)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"trainlist01__txt": "Archery/v_1.avi 1\n"}, r"class numbers(.|\n)*ApplyLipstick, which is number 1"),
        ({"trainlist01__txt": "Archery/v_1.avi 2\n", "testlist01__txt": "Archery/v_1.avi\n"}, "two splits"),
        ({"trainlist01__txt": "Archery/gone.avi 2\n"}, r"none of the videos(.|\n)*Archery/gone\.avi"),
        ({"Archery_test_split1__txt": "v_1.avi 3\n"}, r"split1\.txt:1(.|\n)*0 \(not used\)"),
        ({"Archery_test_split1__txt": "v_1.avi 1\n", "Bow_test_split1__txt": "v_1.avi 1\n"}, "two labels"),
        ({"k__csv": KINETICS + "Archery,v_1,soon,later,train\n"}, r"k\.csv:2(.|\n)*times in seconds"),
        ({"k__csv": KINETICS + "Archery,v_1,1,2,trian\n"}, "unknown split"),
        ({"client_dist1__json": [{"title": "v_1"}]}, r"client_dist1 1(.|\n)*CLASS/video"),
        ({"client_dist1__json": "[{"}, "cannot be read"),
        ({"client_dist1__json": 5}, "a list of videos"),
        ({"client_dist1__json": {"v_1": {"title": 1}}}, "annotations"),
    ],
)
def test_a_list_that_cannot_be_right_is_named(tmp_path: Path, files: dict[str, Any], said: str) -> None:
    touch(tmp_path, "v_1.avi")
    write(tmp_path, classInd__txt=UCF_CLASSES, **files)
    with pytest.raises(DataError, match=said):
        find(tmp_path)


def test_lists_that_are_not_there_or_not_lists_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.mp4", "b/a/1.mp4")
    write(tmp_path, names__csv="path,label\na/1.mp4,a\n", all__json={"me": ["a/1"]})
    (tmp_path / "none").mkdir()
    for lists, said in (("nowhere", "no such lists"), ("none", "no list of videos"), ("names.csv", "no list of Kin")):
        with pytest.raises(DataError, match=said):
            find(tmp_path, lists=lists)
    with pytest.raises(DataError, match=r"either of two videos(.|\n)*b/a/1\.mp4"):
        find(tmp_path, lists="all.json")
    with pytest.raises(DataError, match="layout class"):
        find(tmp_path, "class", lists="all.json")
    with pytest.raises(DataError, match=r"no lists to choose from(.|\n)*data\.fold = 2"):
        find(tmp_path, "flat", fold=2)
    with pytest.raises(DataError, match="lists are for folders of videos"):
        open_clips(DataConfig(lists="all.json"), 16)


def test_an_index_comes_before_lists_that_nobody_named(tmp_path: Path) -> None:
    ucf(tmp_path)
    row = "Archery/v_Archery_g01_c01.avi,bow"
    (tmp_path / "index.csv").write_text(f"path,label,owner\n{row},ann\n{row},ben\n")
    assert find(tmp_path) == [Clip("Archery/v_Archery_g01_c01.avi", "bow", "ann", "", ("ben",))]
    assert len(find(tmp_path, lists="ucfTrainTestlist")) == 4
    for rows in (f"{row},ann\n{row},ann\n", f"{row},ann\n{row},\n", f"{row},ann\n{row}s,ben\n", f"{row},\n{row},ann\n"):
        (tmp_path / "index.csv").write_text(f"path,label,owner\n{rows}")
        with pytest.raises(DataError, match="twice"):
            find(tmp_path)


# from lists to clients


def filmed(root: Path) -> Path:
    """The videos of `overlapping`, real ones, and one that is named and not there."""
    overlapping(root)
    for shade, path in enumerate(sorted(root.rglob("*.mp4"))):
        frames = np.full((6, 16, 24, 3), 40 * shade, np.uint8)
        video.write(path, frames, 6)
    first = root / "annotations" / "client_dist1.json"
    first.write_text(json.dumps([*json.loads(first.read_text()), {"name": "yawning/gone_000001_000011", "label": 2}]))
    return root


def test_clients_hold_what_their_lists_name_and_all_hold_a_clip_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path / "cache"))
    config = DataConfig(source=str(filmed(tmp_path / "videos")), lists="annotations", test_share=0.0)
    source = open_clips(config, 16)
    assert len(source) == 5  # a clip that several hold is stored once
    assert [c.owners for c in Shards.open(source.folder).clips] == [c.owners for c in source.clips]
    population = ClipPopulation(source, config, 4, 0)
    assert population.clients == ("client_dist1", "client_dist2", "client_dist3")
    told = population.describe()
    assert told["train"] == {"client_dist1": [2, 1], "client_dist2": [2, 1], "client_dist3": [1, 2]}
    assert (told["missing"], told["unnamed"]) == (1, 1)
    assert [len(population.data(c).train) for c in ("client_dist1", "client_dist3", "everyone")] == [3, 3, 5]
    assert f"named in lists and not there: 1 (yawning/gone_000001_000011) ({config.source})" in caplog.messages
    other = open_clips(DataConfig(source=config.source, lists="annotations/client_dist3.json"), 16)
    assert (len(other), other.owners) == (3, ["client_dist3"])  # other lists, other shards


def test_the_check_and_the_shards_of_the_command_line_go_by_lists(tmp_path: Path) -> None:
    folder = filmed(tmp_path / "videos")
    said = cli("data", "check", folder, "--lists", "annotations")
    assert "owners:    3: client_dist1 3, client_dist2 3, client_dist3 3" in said.out
    assert "lists: named in lists and not there: 1 (yawning/gone_000001_000011)\n" in said.out
    assert "lists: left out, as no list names them or only as not used: 1\n" in said.out
    assert said.code == 0
    made = cli("data", "shard", folder, "--lists", "annotations", "--size", 16, "--out", tmp_path / "shards")
    assert "yawning/gone" in made.err
    assert made.out.startswith("5 clips in")
    report = check(tmp_path / "shards")
    assert [str(finding) for finding in report.remarks if finding.where == "lists"][1].endswith("not used: 1")
    assert Shards.open(tmp_path / "shards").gaps == Gaps(1, ("yawning/gone_000001_000011",), 1)


def test_every_line_says_where_it_is(tmp_path: Path) -> None:
    ucf(tmp_path)
    where = [entry.where for entry in read_lists(tmp_path / "ucfTrainTestlist")]
    assert [Path(text).name for text in where] == [
        "testlist01.txt:1",
        "testlist01.txt:2",
        "trainlist01.txt:1",
        "trainlist01.txt:2",
    ]
