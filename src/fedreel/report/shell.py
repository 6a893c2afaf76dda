"""The frame of every page: one file that holds its own style and script, written whole or not at all."""

from __future__ import annotations

import os
from importlib import metadata
from importlib.resources import files
from pathlib import Path

from fedreel.report.markup import Html, el

# The policy makes the browser itself refuse any request the page might make.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def document(
    title: str, *body: object, version: str = "", images: bool = False, videos: bool = False, refresh: int = 0
) -> str:
    """A complete HTML document; with `images` it may show pictures that it holds itself, with `videos` play files. With
    `refresh` it loads itself anew after so many seconds."""
    allowed = {"img-src data:": images, "media-src 'self' file:": videos}
    policy = "; ".join([POLICY, *(what for what, wanted in allowed.items() if wanted)])
    package = files("fedreel.report")
    style = Html(package.joinpath("page.css").read_text("utf-8"))
    script = Html(package.joinpath("page.js").read_text("utf-8"))
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", http_equiv="refresh", content=refresh) if refresh else None,
        el("title", title),
        el("style", style),
    )
    files_used = "plays files that lie beside it" if videos else "is a single file"
    footer = el(
        "footer",
        f"Made by fedreel {version or _installed()}. This page {files_used} and loads nothing from any network.",
    )
    page = el("body", *body, footer, el("script", script))
    return f"<!doctype html>\n{el('html', head, page, lang='en')}\n"


def _installed() -> str:
    try:
        return metadata.version("fedreel")
    except metadata.PackageNotFoundError:
        return "from source"


def save(path: Path, text: str) -> Path:
    """Write beside the target, then rename: a reader sees the old page or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text, "utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def section(anchor: str, title: str, *content: object, lead: object = None) -> Html:
    """A titled part of a page."""
    return el("section", el("h2", title), el("p", lead, class_="lead") if lead else None, *content, id=anchor)
