"""Archives: good ones come out whole, nasty ones are refused and leave nothing behind."""

from __future__ import annotations

import gzip
import io
import random
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from fedreel.data.archive import extract
from fedreel.errors import DataError

FILES = {"a.txt": b"one", "deep/er/b.bin": bytes(range(256)) * 20, "deep/empty": b""}
NASTY = [
    "../evil", "/etc/evil", "a/../../evil", "..\\evil", "a\\..\\..\\evil", "C:\\evil", "c:evil",
    "\\\\host\\share", "...", "a/.. /evil", "a/... /b", "new\nline", "bell\x07",
]  # fmt: skip


def make_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return path


def make_tar(path: Path, files: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "tar.bz2", "tar.xz"])
def test_every_kind_comes_out_whole(tmp_path: Path, kind: str) -> None:
    if kind == "zip":
        archive = make_zip(tmp_path / "x.zip", FILES)
    else:
        archive = make_tar(tmp_path / f"x.{kind}", FILES, "w:" + kind[4:])
    assert extract(archive, tmp_path / "new" / "out") == tmp_path / "new" / "out"
    assert tree(tmp_path / "new" / "out") == FILES
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["out"]


@pytest.mark.parametrize("name", NASTY)
@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_names_that_point_outside_are_refused(tmp_path: Path, name: str, make) -> None:  # type: ignore[no-untyped-def]
    archive = make(tmp_path / "x", {"fine": b"1", name: b"2"})
    with pytest.raises(DataError, match="not safe"):
        extract(archive, tmp_path / "box" / "out")
    assert tree(tmp_path) == {"x": archive.read_bytes()}


def test_a_zip_name_with_a_nul_is_not_cut_at_it(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "x.zip", {"good_Xbad": b"1"})
    archive.write_bytes(archive.read_bytes().replace(b"good_X", b"good_\0"))
    with pytest.raises(DataError, match=r"good_\\\\x00bad|good_\\x00bad"):
        extract(archive, tmp_path / "out")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_tar_links_and_devices_are_refused_by_name(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        info = tarfile.TarInfo("innocent")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(DataError, match="innocent"):
        extract(tmp_path / "x.tar", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_zip_symlinks_are_refused_by_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        info = zipfile.ZipInfo("innocent")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc")
    with pytest.raises(DataError, match="innocent"):
        extract(tmp_path / "x.zip", tmp_path / "out")


@pytest.mark.parametrize("make", [make_zip, lambda path, files: make_tar(path, files, "w:gz")])
def test_the_limit_counts_bytes_over_all_members(tmp_path: Path, make) -> None:  # type: ignore[no-untyped-def]
    files = {f"zeros{i}": bytes(40_000) for i in range(5)}
    archive = make(tmp_path / "bomb", files)
    assert archive.stat().st_size < 5_000
    with pytest.raises(DataError, match="more than is allowed"):
        extract(archive, tmp_path / "out", max_bytes=199_999)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bomb"]
    assert tree(extract(archive, tmp_path / "out", max_bytes=200_000)) == files


def test_members_of_the_same_name_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a", "1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a", "2")
    with pytest.raises(DataError, match="already has this name"):
        extract(tmp_path / "x.zip", tmp_path / "out")
    with pytest.raises(DataError, match="already has this name"):
        extract(make_tar(tmp_path / "y.tar", {"a": b"1", "a/b": b"2"}), tmp_path / "out")


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "x.zip", FILES)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("keep")
    with pytest.raises(DataError, match="already exists"):
        extract(archive, tmp_path / "out")
    assert tree(tmp_path / "out") == {"mine": b"keep"}


def test_a_tar_whose_last_member_is_a_zip_is_a_tar(tmp_path: Path) -> None:
    inner = make_zip(tmp_path / "inner.zip", {"inside": b"1"}).read_bytes()
    assert tree(extract(make_tar(tmp_path / "x.tar", {"z.zip": inner}), tmp_path / "out")) == {"z.zip": inner}


def test_a_tar_cut_at_any_block_is_an_error(tmp_path: Path) -> None:
    """Python's tarfile takes a cut between members for the end: the rest would silently be missing."""
    data = make_tar(tmp_path / "x.tar", FILES).read_bytes()
    content = 512 * (3 + 1 + 10)  # three headers, one block for a.txt, ten for b.bin
    for end in range(0, content + 1, 512):
        (tmp_path / "cut.tar").write_bytes(data[:end])
        with pytest.raises(DataError):
            extract(tmp_path / "cut.tar", tmp_path / "out")
    (tmp_path / "cut.tar").write_bytes(data[: content + 512])
    assert tree(extract(tmp_path / "cut.tar", tmp_path / "out")) == FILES


def test_damaged_archives_give_the_whole_tree_or_an_error(tmp_path: Path) -> None:
    chance = random.Random(0)
    sources = [make_zip(tmp_path / "x.zip", FILES), make_tar(tmp_path / "x.tgz", FILES, "w:gz")]
    (tmp_path / "box").mkdir()
    for number in range(300):
        data = bytearray(sources[number % 2].read_bytes())
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        bad = tmp_path / "box" / "bad"
        bad.write_bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
        out = tmp_path / "box" / f"out{number}"
        try:
            extract(bad, out)
        except DataError:
            assert not out.exists()
        else:
            assert all(path.resolve().is_relative_to(out.resolve()) for path in out.rglob("*"))
            assert set(tree(out).values()) <= set(FILES.values())  # checksums: names may suffer, contents not
    assert not [p for p in tmp_path.iterdir() if p.name not in ("x.zip", "x.tgz", "box")]
    assert not [p for p in (tmp_path / "box").iterdir() if p.name.endswith(".tmp")]


def test_what_is_no_archive_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such archive"):
        extract(tmp_path / "none.zip", tmp_path / "out")
    (tmp_path / "x.zip").write_bytes(gzip.compress(b"hello"))
    with pytest.raises(DataError, match="cannot be unpacked"):
        extract(tmp_path / "x.zip", tmp_path / "out")
