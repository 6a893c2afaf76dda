"""Images: found in every layout people have them in, the same pixels for every container, bad files listed."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedreel.errors import DataError
from fedreel.media import images
from fedreel.tasks.image.pictures import Pictures, open_pictures
from support.shared import SHARED

DATA = SHARED / "image"
CIFAR, TINY = DATA / "cifar100_100_train_40_test_per_class.zip", DATA / "tiny_imagenet_50_per_class.zip"


def pixels(name: str, side: int = 6) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(name.encode())).integers(0, 256, (side, side, 3), dtype=np.uint8)


def encoded(image: Image.Image | np.ndarray, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, kind, **options)
    return file.getvalue()


def write(folder: Path, *paths: str, **contents: bytes) -> Path:
    """Each path's own random image; or bytes, for `a__png` the file a.png."""
    files = {path: encoded(pixels(path)) for path in paths}
    for path, content in {**files, **{name.replace("__", "."): c for name, c in contents.items()}}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def rows(found: Pictures) -> list[tuple[str, str, str]]:
    """Split, owner and class of each image."""
    names = [*found.classes, ""]
    return [(str(s), str(o), names[k]) for s, o, k in zip(found.splits, found.owners, found.labels)]


# which images there are


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["cat/1.png", "dog/1.png"], [("", "", "cat"), ("", "", "dog")]),
        (["test/cat/1.png", "train/dog/1.png"], [("test", "", "cat"), ("train", "", "dog")]),
        (["Train/cat/1.png", "validation/dog/1.png"], [("train", "", "cat"), ("val", "", "dog")]),
        (["ann/test/cat/1.png", "bob/train/dog/1.png"], [("test", "ann", "cat"), ("train", "bob", "dog")]),
        (["train/ann/cat/1.png", "val/bob/dog/1.png"], [("train", "ann", "cat"), ("val", "bob", "dog")]),
        (["ann/cat/1.png", "bob/dog/1.png"], [("", "ann", "cat"), ("", "bob", "dog")]),
        (["1.png", "2.png"], [("", "", ""), ("", "", "")]),
        (["a/b/c/d/1.png"], [("", "", "")]),
        (["train/1.png"], [("train", "", "")]),
    ],
)
def test_folders_say_split_owner_and_class(tmp_path: Path, paths: list[str], expected: list[tuple[str, ...]]) -> None:
    found = open_pictures(str(write(tmp_path, *paths)), 6)
    assert rows(found) == expected
    for path, image in zip(paths, found.images):
        np.testing.assert_array_equal(image, pixels(path))


def test_order_is_by_path_and_classes_are_sorted(tmp_path: Path) -> None:
    paths = ["z/2.png", "a/10.png", "z/1.png", "m/0.png", "a/2.png"]
    found = open_pictures(str(write(tmp_path, *paths)), 6)
    assert found.classes == ("a", "m", "z")
    assert found.labels.tolist() == [0, 0, 1, 2, 2]
    np.testing.assert_array_equal(found.images, [pixels(path) for path in sorted(paths)])


def test_hidden_files_and_files_of_other_kinds_are_no_images(tmp_path: Path) -> None:
    write(tmp_path, "cat/1.png", ".old/cat/2.png", "cat/.3.png", "__MACOSX/cat/4.png")
    write(tmp_path, notes__txt=b"words", part__json=b"{}")
    found = open_pictures(str(tmp_path), 6)
    assert (rows(found), found.broken) == ([("", "", "cat")], ())


def tiny(folder: Path, annotations: str = "val_0.png\tn02\t0\t0\t5\t5\nval_1.png\tn01\t1\t1\t5\t5\n") -> Path:
    write(folder, "train/n02/images/n02_0.png", "train/n01/images/n01_0.png", "val/images/val_0.png")
    write(folder, "val/images/val_1.png", "test/images/test_0.png", "test/images/test_1.png")
    (folder / "val" / "val_annotations.txt").write_text(annotations)
    (folder / "train" / "n02" / "n02_boxes.txt").write_text("n02_0.png\t0\t0\t5\t5\n")
    (folder / "wnids.txt").write_text("n02\nn01\n")
    return folder


def test_tiny_imagenet_has_labels_of_val_in_a_file_and_none_of_test(tmp_path: Path) -> None:
    found = open_pictures(str(tiny(tmp_path)), 6)
    assert found.classes == ("n01", "n02")
    assert rows(found) == [("train", "", "n01"), ("train", "", "n02"), ("val", "", "n02"), ("val", "", "n01")]


def test_a_bad_line_among_the_labels_of_val_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"val_annotations\.txt, line 2"):
        open_pictures(str(tiny(tmp_path, "val_0.png\tn02\nval_1.png n01\n")), 6)


# containers


def packed(folder: Path, out: Path, top: str = "") -> Path:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    if out.suffix == ".zip":
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in files:
                archive.write(path, f"{top}{path.relative_to(folder)}")
    else:
        with tarfile.open(out, "w:gz" if out.suffix == ".gz" else "w") as archive:
            for path in reversed(files):
                archive.add(path, f"{top}{path.relative_to(folder)}")
    return out


@pytest.mark.parametrize("top", ["", "tiny-imagenet-200/"])
@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tar.gz"])
def test_an_archive_holds_what_its_folder_holds(tmp_path: Path, name: str, top: str) -> None:
    folder = tiny(tmp_path / "folder")
    one, other = open_pictures(str(folder), 6), open_pictures(str(packed(folder, tmp_path / name, top)), 6)
    np.testing.assert_array_equal(one.images, other.images)
    assert (rows(one), one.classes) == (rows(other), other.classes)


def test_a_zip_of_one_flat_folder_is_unlabelled(tmp_path: Path) -> None:
    folder = write(tmp_path / "f", "1.png", "2.png")
    assert rows(open_pictures(str(packed(folder, tmp_path / "x.zip", "server/")), 6)) == [("", "", "")] * 2


def test_an_archive_that_reaches_outside_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path / "cache"))
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("cat/1.png", encoded(pixels("x")))
        archive.writestr("../cat/2.png", encoded(pixels("x")))
    with pytest.raises(DataError, match="not safe"):
        open_pictures(str(tmp_path / "x.zip"), 6)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [tmp_path / "x.zip"]
    assert not [*(tmp_path / "cache" / "pictures").iterdir()]


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    write(tmp_path, x__png=encoded(pixels("x")))
    with pytest.raises(DataError, match="cannot be unpacked"):
        open_pictures(str(tmp_path / "x.png"), 6)


# pixels


def test_every_mode_becomes_three_colours(tmp_path: Path) -> None:
    rgb = Image.fromarray(pixels("x"))
    grey = rgb.convert("L")
    deep = np.arange(36, dtype=np.uint16).reshape(6, 6) * 1800
    images = {
        "a_rgba__png": (rgb.convert("RGBA"), rgb),
        "b_grey__png": (grey, grey),
        "c_greyalpha__png": (grey.convert("LA"), grey),
        "d_palette__png": (rgb.quantize(16), rgb.quantize(16).convert("RGB")),
        "e_bits__png": (grey.convert("1"), grey.convert("1")),
        "f_deep__png": (Image.fromarray(deep), Image.fromarray((deep // 256).astype(np.uint8))),
        "g_colours__bmp": (rgb, rgb),
    }
    for name, (image, _) in images.items():
        write(tmp_path, **{name: encoded(image, name[-3:].upper())})
    found = open_pictures(str(tmp_path), 6)
    for image, (_, expected) in zip(found.images, images.values()):
        np.testing.assert_array_equal(image, np.asarray(expected.convert("RGB")))
    np.testing.assert_array_equal(found.images[5][..., 0], deep >> 8)


def test_a_jpeg_is_nearly_its_picture_even_in_cmyk_and_grey(tmp_path: Path) -> None:
    smooth = np.full((16, 16, 3), (200, 90, 40), np.uint8)
    for kind in ("RGB", "L", "CMYK"):
        write(tmp_path, **{f"{kind}__jpg": encoded(Image.fromarray(smooth).convert(kind), "JPEG", quality=95)})
    cmyk, grey, rgb = open_pictures(str(tmp_path), 16).images.astype(int)
    assert abs(rgb - smooth).max() <= 4
    assert abs(cmyk - smooth).max() <= 8
    assert abs(grey - round(0.299 * 200 + 0.587 * 90 + 0.114 * 40)).max() <= 4


def test_images_of_the_right_side_keep_every_bit_and_others_are_averaged(tmp_path: Path) -> None:
    checkers = np.kron(np.indices((32, 32)).sum(0) % 2, np.ones((2, 2)))[..., None].repeat(3, 2)
    write(tmp_path, same__png=encoded(pixels("x", 8)), wide__png=encoded((checkers[:, :48] * 254).astype(np.uint8)))
    same, wide = open_pictures(str(tmp_path), 8).images
    np.testing.assert_array_equal(same, pixels("x", 8))
    assert abs(wide.astype(int) - 127).max() < 30  # a scaling without averaging would leave 0 and 254


def test_one_colour_stays_that_colour_at_any_side(tmp_path: Path) -> None:
    write(tmp_path, a__png=encoded(np.full((5, 9, 3), (10, 20, 30), np.uint8)))
    for side in (1, 4, 7, 32):
        found = open_pictures(str(tmp_path), side)
        assert found.images.shape == (1, side, side, 3)
        assert (found.images == (10, 20, 30)).all()


# bad files


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims to be huge."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")
    )


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_bad_files_are_left_out_and_listed_with_the_reason(tmp_path: Path) -> None:
    good = encoded(pixels("good", 40))
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 6\n%%EndComments\nshowpage\n"
    bad = {
        "b_empty__png": (b"", "empty"),
        "c_cut__png": (good[: len(good) // 2], "truncated"),
        "d_cut__jpg": (encoded(pixels("x", 40), "JPEG")[:700], "truncated"),
        "e_text__png": (b"not a picture", "not an image"),
        "f_bomb__png": (bomb(60_000, 60_000), "exceeds limit"),
        "g_large__png": (bomb(10_000, 10_000), "10000 x 10000 pixels"),
        "h_program__png": (postscript, "not an image"),
    }
    write(tmp_path, a__png=good, z__png=good, **{name: content for name, (content, _) in bad.items()})
    for _ in range(2):  # decoded, then from the cache
        found = open_pictures(str(tmp_path), 40)
        np.testing.assert_array_equal(found.images, [pixels("good", 40)] * 2)
        assert [entry.path for entry in found.broken] == [name.replace("__", ".") for name in bad]
        for entry, (_, reason) in zip(found.broken, bad.values()):
            assert reason in entry.reason
            assert str(tmp_path) not in entry.reason


def test_a_class_of_bad_files_only_is_no_class(tmp_path: Path) -> None:
    write(tmp_path, "dog/1.png")
    write(tmp_path, **{"cat/1__png": b"x", "cow/1__png": encoded(pixels("x"))})
    found = open_pictures(str(tmp_path), 6)
    assert (found.classes, found.labels.tolist()) == (("cow", "dog"), [0, 1])


def test_where_nothing_is_left_an_error_says_why(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such images"):
        open_pictures(str(tmp_path / "none"), 6)
    with pytest.raises(DataError, match="no images here"):
        open_pictures(str(write(tmp_path, notes__txt=b"words")), 6)
    write(tmp_path, a__png=b"", b__png=b"")
    with pytest.raises(DataError, match=r"none of the images can be read(.|\n)*a\.png(.|\n)*empty"):
        open_pictures(str(tmp_path), 6)
    with pytest.raises(DataError, match="at least one pixel"):
        open_pictures(str(tmp_path), 0)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of Pillow, about the damage
def test_flipped_bytes_never_stop_the_reading(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    write(tmp_path, "fine.png")
    for number, kind in enumerate(["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"] * 30):
        content = bytearray(encoded(pixels(kind, 20), kind))
        for place in rng.integers(0, len(content), 6):
            content[place] = rng.integers(256)
        (tmp_path / f"x{number:03d}.png").write_bytes(content)
    found = open_pictures(str(tmp_path), 6)
    assert len(found) + len(found.broken) == 181
    assert found.broken


# the cache


def test_images_are_decoded_once_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "cat/1.png", "dog/1.png")
    decoded: list[Path] = []
    real = images.decode
    monkeypatch.setattr(images, "decode", lambda path, side: decoded.append(path) or real(path, side))
    for _ in range(3):
        open_pictures(str(tmp_path), 6)
    assert len(decoded) == 2
    open_pictures(str(tmp_path), 5)
    assert len(decoded) == 4
    write(tmp_path, **{"cat/1__png": encoded(pixels("other", 7))})
    np.testing.assert_array_equal(open_pictures(str(tmp_path), 7).images[0], pixels("other", 7))
    write(tmp_path, "dog/2.png")
    assert len(open_pictures(str(tmp_path), 6)) == 3


def test_a_file_that_changes_without_changing_its_length_is_seen(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write(tmp_path, a__bmp=encoded(pixels(name), "BMP"))
        os.utime(tmp_path / "a.bmp", ns=(0, len(name)))
        np.testing.assert_array_equal(open_pictures(str(tmp_path), 6).images[0], pixels(name))


@pytest.mark.parametrize("name", ["images.npy", "index.json"])
@pytest.mark.parametrize("damage", ["cut", "empty", "gone"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, damage: str) -> None:
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path / "cache"))
    folder = write(tmp_path / "data", "cat/1.png", "dog/1.png")
    before = open_pictures(str(folder), 6).images.copy()
    (file,) = (tmp_path / "cache").rglob(name)
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(b"" if damage == "empty" else file.read_bytes()[:-10])
    np.testing.assert_array_equal(open_pictures(str(folder), 6).images, before)
    assert len([*(tmp_path / "cache" / "pictures").iterdir()]) == 1


def test_nobody_can_change_the_cache_through_the_images(tmp_path: Path) -> None:
    folder = write(tmp_path, "1.png")
    open_pictures(str(folder), 6).images[:] = 0
    np.testing.assert_array_equal(open_pictures(str(folder), 6).images[0], pixels("1.png"))


def test_images_of_many_chunks_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "CHUNK", 7)
    for number in range(100):
        (tmp_path / f"{number:03d}.png").write_bytes(encoded(np.full((2, 2, 3), number, np.uint8)) * (number != 50))
    found = open_pictures(str(tmp_path), 2)
    assert found.images[:, 0, 0, 0].tolist() == [n for n in range(100) if n != 50]


# real images


@pytest.mark.slow
@pytest.mark.skipif(not CIFAR.exists(), reason="the CIFAR-100 images are not here (set FEDREEL_DATA)")
def test_cifar_100_has_a_hundred_classes_and_its_known_mean_colour() -> None:
    found = open_pictures(str(CIFAR), 32)
    assert (found.images.shape, len(found.classes), found.broken) == ((14_000, 32, 32, 3), 100, ())
    for split, each in (("train", 100), ("test", 40)):
        assert np.bincount(found.labels[found.splits == split]).tolist() == [each] * 100
    colour = found.images[found.splits == "train"].mean((0, 1, 2)) / 255
    np.testing.assert_allclose(colour, (0.507, 0.487, 0.441), atol=0.01)  # of all 50,000, as is well known


@pytest.mark.slow
@pytest.mark.skipif(not TINY.exists(), reason="the Tiny-ImageNet images are not here (set FEDREEL_DATA)")
def test_tiny_imagenet_has_two_hundred_classes_and_some_grey_images() -> None:
    found = open_pictures(str(TINY), 64)
    assert (found.images.shape, len(found.classes), found.broken) == ((10_000, 64, 64, 3), 200, ())
    assert np.bincount(found.labels).tolist() == [50] * 200
    assert set(found.splits) == {"train"}
    assert all(name[0] == "n" and name[1:].isdigit() for name in found.classes)
    images = found.images.astype(np.int16)
    grey = (images == images[..., :1]).all((1, 2, 3)).mean()
    assert 0.01 < grey < 0.03


def test_the_first_of_every_class_in_each_split(tmp_path: Path) -> None:
    paths = [f"{split}/{name}/{i}.png" for split in ("test", "train") for name in ("ant", "bee") for i in range(3)]
    found = open_pictures(str(write(tmp_path, *paths)), 6)
    assert found.first(0) is found
    two = found.first(2)
    assert [(s, two.classes[c]) for s, c in zip(two.splits, two.labels)] == [
        (split, name) for split in ("test", "train") for name in ("ant", "bee") for _ in range(2)
    ]
    assert len(found.first(5)) == 12


def test_unlabelled_images_are_not_counted_by_class(tmp_path: Path) -> None:
    found = open_pictures(str(write(tmp_path, "a.png", "b.png", "c.png")), 6)
    assert len(found.first(1)) == 3
