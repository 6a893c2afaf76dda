"""Files of the given folders, in pieces where a player asks for them; and uploads, limited, in their own folder."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from fedreel.machine.words import size
from fedreel.media.video import SUFFIXES
from fedreel.ui.places import Places, inside

TYPES = {  # what a browser may show itself; everything else it can only keep
    ".mp4": "video/mp4",
    ".m4v": "video/mp4",
    ".mov": "video/mp4",
    ".webm": "video/webm",
    ".jpg": "image/jpeg",
    ".gif": "image/gif",
}
PLAYED = frozenset(suffix for suffix, kind in TYPES.items() if kind.startswith("video/"))
POLICY = {"Content-Security-Policy": "default-src 'none'; sandbox"}
ODD = re.compile(r"[^\w.()+ -]+")
MOST = 500  # videos of a folder that are listed


def routes() -> list[Route]:
    return [
        Route("/files/{root}/{name:path}", file),
        Route("/uploads", upload, methods=["POST"]),
        Route("/uploads/forget", forget, methods=["POST"]),
    ]


async def file(request: Request) -> Response:
    places: Places = request.app.state.places
    found = places.file(request.path_params["root"], request.path_params["name"])
    kind = TYPES.get(found.suffix.lower())
    kept = "download" in request.query_params or kind is None
    return FileResponse(
        found,
        media_type=kind or "application/octet-stream",
        filename=found.name if kept else None,
        content_disposition_type="attachment",
        headers=POLICY,
    )


async def upload(request: Request) -> Response:
    """A file as the body of a request, written as it comes; what is too large is gone again."""
    places, most = request.app.state.places, request.app.state.most_upload
    name = safe_name(request.query_params.get("name", ""))
    if Path(name).suffix.lower() not in SUFFIXES:
        return PlainTextResponse(f"This is not a video: {', '.join(sorted(SUFFIXES))} are.", 415)
    if int(request.headers.get("content-length") or 0) > most:
        return PlainTextResponse(f"The file is too large: at most {size(most)} are taken.", 413)
    places.uploads.mkdir(parents=True, exist_ok=True)
    draft, taken = places.uploads / f".{secrets.token_hex(8)}.part", 0
    try:
        with open(draft, "xb") as out:
            async for piece in request.stream():
                taken += len(piece)
                if taken > most:
                    return PlainTextResponse(f"The file is too large: at most {size(most)} are taken.", 413)
                out.write(piece)
        kept = _kept(draft, places.uploads, name)
    except ClientDisconnect:
        return PlainTextResponse("The file did not come whole.", 400)
    except OSError as error:
        return PlainTextResponse(f"The file cannot be kept here: {error.strerror}", 507)
    finally:
        draft.unlink(missing_ok=True)
    return JSONResponse({"source": f"uploads/{kept.name}"})


async def forget(request: Request) -> Response:
    places: Places = request.app.state.places
    places.file("uploads", request.query_params.get("name", "")).unlink(missing_ok=True)
    return RedirectResponse("/try", 303)


def address_of(root: str, name: str, download: bool = False) -> str:
    return f"/files/{quote(root)}/{quote(name, errors='replace')}" + ("?download=1" if download else "")


def safe_name(name: str) -> str:
    """A file's name without what means something elsewhere; its end, which says what it is, stays."""
    plain = ODD.sub("_", name.replace("\\", "/").rpartition("/")[2]).strip(" ._") or "video"
    stem, dot, suffix = plain.rpartition(".")
    return f"{stem[:80]}{dot}{suffix[:10]}" if dot else plain[:80]


def videos_of(places: Places, root: str, most: int = MOST) -> list[str]:
    """Names of the videos of a root, as far as it holds no more than `most`."""
    folder = places.roots()[root]
    return sorted(_take(_walk(folder), folder, most))


def _take(found: Iterator[Path], folder: Path, most: int) -> Iterator[str]:
    for number, path in enumerate(found):
        if number >= most:
            return
        name = path.relative_to(folder).as_posix()
        if inside(folder, name) is not None:
            yield name


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES:
                yield Path(place) / name


def _kept(draft: Path, folder: Path, name: str) -> Path:
    """Under its name, or the first of name-2, name-3, ... that is free. Nothing is overwritten."""
    stem, suffix = Path(name).stem, Path(name).suffix
    for number in range(1, 10_000):
        target = folder / (name if number == 1 else f"{stem}-{number}{suffix}")
        try:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            continue
        os.replace(draft, target)
        return target
    raise OSError("there are too many files of this name")
