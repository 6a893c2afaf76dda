"""Where a verb's results go: checked before anything begins, written whole or not at all."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from json import dumps
from pathlib import Path
from typing import TypeVar

from fedreel.errors import DataError
from fedreel.machine.files import write_atomic
from fedreel.tasks.use.options import Request
from fedreel.tasks.use.result import Result

R = TypeVar("R", bound=Result)
PRINTED = Path("-")  # as the place of the JSON: stdout


@dataclass(frozen=True)
class Places:
    """`out` gets the product, which is `product` to the user, a file or the files of a `folder`."""

    product: str
    out: Path | None
    page: Path | None
    json: Path | None
    folder: bool = False

    @classmethod
    def of(cls, request: Request, product: str, folder: bool = False) -> Places:
        return cls(product, request.out, request.page, request.json, folder)

    def check(self, source: Path, what: str, among: Sequence[Path] = (), each: str = "") -> None:
        """Raise if a result would be a folder, or would overwrite another one, the source, which is `what` to the user,
        or one of those `among` which the verb looks, `each` of them."""
        taken = {path.resolve(): each for path in among} | {source.resolve(): f"the {what} itself"}
        if self.out is not None and self.folder and self.out.exists() and not self.out.is_dir():
            raise DataError(f"{self.product} go into a folder", where=str(self.out), found="a file")
        for name, place in self._files().items():
            if place.is_dir():
                raise DataError(f"{name} would be a folder", where=str(place), expected="the name of a file")
            linked = source.is_file() and place.exists() and place.samefile(source)
            if linked or place.resolve() in taken:
                other = f"the {what} itself" if linked else taken[place.resolve()]
                raise DataError(f"{name} would overwrite {other}", where=str(place), hint="give it another name")
            taken[place.resolve()] = name

    def check_apart(self, folder: Path) -> None:
        """Raise if the product would lie in the folder that the verb looks at: it would be found there next time."""
        if self.out is None or not folder.is_dir():
            return
        if self.out.resolve() == folder.resolve() or folder.resolve() in self.out.resolve().parents:
            raise DataError(
                f"{self.product} would lie in the folder that is looked at",
                where=str(self.out),
                expected=f"a folder outside {folder}",
            )

    @contextmanager
    def staged(self) -> Iterator[Path]:
        """A folder inside `out` to write to; its files become those of `out` if all goes well, and are gone if not."""
        assert self.out is not None
        new = [folder for folder in (self.out, *self.out.parents) if not folder.exists()]
        with _told(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=".", suffix=".tmp", dir=self.out))
        try:
            with _told(self.out):
                yield temporary
                for file in sorted(path for path in temporary.rglob("*") if path.is_file()):
                    target = self.out / file.relative_to(temporary)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(file, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            for folder in new:
                with suppress(OSError):  # it holds what was wanted
                    folder.rmdir()

    def write(self, result: R, page: str = "", product: bytes | Sequence[Path] = ()) -> R:
        """Page and JSON, and the product where it comes as bytes; the result, with the names of all that is written."""
        contents: list[tuple[Path | None, str | bytes]] = []
        if isinstance(product, bytes):
            contents.append((self.out, product))
        contents.append((self.page, page))
        text = "" if self.json is None else dumps(result.as_json(), indent=1) + "\n"
        contents.append((None if self.json == PRINTED else self.json, text))
        wanted = [(place, content) for place, content in contents if place is not None]
        for place, content in wanted:
            with _told(place):
                place.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(place, content)
        if self.json == PRINTED:
            sys.stdout.write(text)
        before = [] if isinstance(product, bytes) else [*product]
        return replace(result, files=[*before, *(place for place, _ in wanted)])

    def _files(self) -> dict[str, Path]:
        named = {
            self.product: None if self.folder else self.out,
            "the page": self.page,
            "the JSON file": None if self.json == PRINTED else self.json,
        }
        return {name: place for name, place in named.items() if place is not None}


@contextmanager
def _told(place: Path) -> Iterator[None]:
    """What the system says of a place that cannot be written, in the user's words."""
    try:
        yield
    except BrokenPipeError:  # of stdout
        raise
    except OSError as error:
        found = error.strerror or str(error)
        raise DataError("this cannot be written", where=str(error.filename or place), found=found) from error
