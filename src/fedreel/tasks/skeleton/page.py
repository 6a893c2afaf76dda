"""The page of a recognised motion: the skeleton as it moved, the action it is taken for, and what else it could be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedreel.errors import DataError
from fedreel.report.markup import Html, count, duration, el, number, short, table
from fedreel.report.shell import document, section
from fedreel.tasks.skeleton.joints import Joints
from fedreel.tasks.skeleton.prepare import filled
from fedreel.tasks.skeleton.recordings import present

if TYPE_CHECKING:
    from fedreel.tasks.skeleton.recognize import Recognition

WIDE, HIGH, EDGE = 620.0, 440.0, 26.0  # the bodies fit into this, with room around them
KEYS, POINTS = 120, 12_000  # at most so many key frames, and places of joints in all of them
FPS = 30.0  # where the recording does not say
HOLD = 0.6  # seconds for which the last frame stands before the motion begins anew
STYLE = """
.moving { display: grid; grid-template-columns: minmax(0, 3fr) minmax(min(100%, 19rem), 2fr); gap: 1rem; align-items: start; }
@media (max-width: 760px) { .moving { grid-template-columns: minmax(0, 1fr); } }
.moving > section { margin: 0; }
.moving figure { margin: 0; padding: .9rem 1.1rem .8rem; background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
.bodies { display: block; width: 100%; max-height: 56vh; }
.bodies path { vector-effect: none; }
.bodies .bones { stroke-width: 5; stroke-opacity: .5; } .bodies .dots { stroke-width: 9; }
.bodies .b0 { stroke: var(--s0); } .bodies .b1 { stroke: var(--s1); }
.below { display: flex; justify-content: space-between; align-items: baseline; gap: 1rem; margin: .5rem 0 0; color: var(--soft); font-size: .82rem; }
.below button { font: inherit; color: var(--ink); background: var(--wash); border: 1px solid var(--line); border-radius: 99px; padding: .15em 1.1em; cursor: pointer; }
.ranking { list-style: none; margin: 0 0 1.6rem; padding: 0; }
.ranking li { display: grid; grid-template-columns: 1fr auto; gap: .15rem 1rem; margin-bottom: .7rem; overflow-wrap: anywhere; }
.ranking b { font-weight: 400; font-variant-numeric: tabular-nums; white-space: nowrap; }
.ranking li:first-child span, .ranking li:first-child b { font-weight: 600; }
.ranking div { grid-column: 1 / -1; height: 7px; border-radius: 4px; background: var(--wash); overflow: hidden; }
.ranking i { display: block; height: 100%; border-radius: 4px; background: rgb(var(--heat) / .5); }
.ranking li:first-child i { background: var(--s0); }
.moving td { text-align: right; } .moving tbody th { min-width: 5em; color: var(--soft); white-space: nowrap; } .moving thead { display: none; }
"""  # noqa: E501
SCRIPT = """
(() => {
  const svg = document.querySelector("svg.bodies"), button = document.getElementById("pause");
  const stop = still => {
    if (still) svg.pauseAnimations(); else svg.unpauseAnimations();
    button.textContent = still ? "Play" : "Pause";
  };
  button.hidden = false;
  button.addEventListener("click", () => stop(!svg.animationsPaused()));
  stop(matchMedia("(prefers-reduced-motion: reduce)").matches);
})();
"""


@dataclass(frozen=True)
class Figure:
    """Bodies seen from the front, as a drawing of `size`: x to the right, y down."""

    places: np.ndarray  # (frames, bodies, joints, 2)
    there: np.ndarray  # (frames, bodies), bool
    times: np.ndarray  # of the frames, in seconds from the first
    bones: tuple[tuple[int, int], ...]
    size: tuple[float, float]
    moved: int  # frames of the recording in which somebody is there

    @property
    def seconds(self) -> float:
        """Of one time through, with the pause at its end."""
        return float(self.times[-1]) + HOLD


def figure(frames: np.ndarray, joints: Joints, fps: float | None) -> Figure:
    """A recording (T, M, V, 3) as it was, at key frames: frames without the first body left out, gaps filled as for the
    network. A body that is away stands, to be hidden, where it was last or will be next."""
    data = np.asarray(frames, np.float64)
    seen = present(data)
    times = np.flatnonzero(seen[:, 0])
    whole, there = _bodies(data[times], seen[times], times, joints)
    most = max(2, min(KEYS, POINTS // whole[0, :, :, 0].size))
    keys = np.unique(np.linspace(0, len(times) - 1, most).round().astype(int))
    places, size = _fitted(whole[keys][..., :2])
    return Figure(places, there[keys], (times[keys] - times[0]) / (fps or FPS), joints.bones, size, len(times))


def _bodies(data: np.ndarray, seen: np.ndarray, times: np.ndarray, joints: Joints) -> tuple[np.ndarray, np.ndarray]:
    """All bodies that can be drawn, without gaps, and in which frames they are there."""
    whole, there = [], []
    for m in range(data.shape[1]):
        own = np.flatnonzero(seen[:, m])
        if not len(own):
            continue
        try:
            body = filled(data[:, m], seen[:, m], times, joints)
        except DataError:  # a body that is never there with all its coordinates
            continue
        nearest = np.interp(np.arange(len(times)), own, np.arange(len(own))).round().astype(int)
        whole.append(body[own[nearest]])
        there.append(seen[:, m])
    return np.stack(whole, axis=1), np.stack(there, axis=1)


def _fitted(flat: np.ndarray) -> tuple[np.ndarray, tuple[float, float]]:
    """Metres as units of the drawing, and how large it is."""
    low, high = flat.min(axis=(0, 1, 2)), flat.max(axis=(0, 1, 2))
    extent = np.maximum(high - low, 1e-9)
    scale = min(WIDE / extent[0], HIGH / extent[1])
    if not np.any(high > low):
        scale = 1.0
    wide, tall = np.maximum(extent * scale, HIGH / 2) + 2 * EDGE
    centred = (flat - (low + high) / 2) * scale * np.array([1.0, -1.0])
    return centred + np.array([wide, tall]) / 2, (float(wide), float(tall))


def draw_page(made: Recognition, drawn: Figure, top: int) -> str:
    """The whole page: one file that opens without a network."""
    body = el(
        "main",
        el(
            "div",
            section("motion", "The motion", _moving(made, drawn)),
            el("section", _ranking(made, top), _about(made, drawn), id="ranking"),
            class_="moving",
        ),
        el("script", Html(SCRIPT)) if len(drawn.times) > 1 else None,
    )
    title = f"{short(made.label)}: {short(Path(made.file).name)}"
    return document(title, el("style", Html(STYLE)), _header(made), body)


def percent(share: float, decimals: int = 0) -> str:
    """A probability as people say it."""
    return f"{100 * share:.{decimals}f} %"


def _header(made: Recognition) -> Html:
    title = el(
        "div",
        el("p", "fedreel recognize", class_="eyebrow"),
        el("h1", made.label),
        el("p", "recognised in ", el("b", Path(made.file).name), class_="lead"),
    )
    headline = el(
        "div",
        el("p", "confidence", class_="name"),
        el("p", percent(made.confidence), class_="value"),
        el("p", f"among the {count(len(made.ranking), 'class', 'classes')} of {made.client}", class_="hint"),
        class_="headline",
    )
    return el("header", title, headline)


def _moving(made: Recognition, drawn: Figure) -> Html:
    bodies = [_body(drawn, m) for m in range(drawn.there.shape[1])]
    wide, tall = drawn.size
    said = f"{count(len(bodies), 'body', 'bodies')} moving, seen from the front"
    svg = el("svg", bodies, class_="bodies", viewBox=f"0 0 {wide:.0f} {tall:.0f}", role="img", aria_label=said)
    speed = "at the speed of the recording" if made.fps else f"at {FPS:.0f} frames a second: the file does not say"
    moving = len(drawn.times) > 1
    below = [el("span", speed if moving else "one frame")]
    below += [el("button", "Pause", type="button", id="pause", hidden=True)] if moving else []
    return el("figure", svg, el("p", below, class_="below"))


def _body(drawn: Figure, m: int) -> Html:
    places = drawn.places[:, m]
    bones = ["".join(f"M{_at(at[a])}L{_at(at[b])}" for a, b in drawn.bones) for at in places]
    dots = ["".join(f"M{_at(point)}h0" for point in at) for at in places]
    shown = ["visible" if there else "hidden" for there in drawn.there[:, m]]
    group = [
        el("path", _animate(drawn, "d", bones), class_=f"bones b{m % 2}", d=bones[0]),
        el("path", _animate(drawn, "d", dots), class_=f"dots b{m % 2}", d=dots[0]),
    ]
    hiding = _animate(drawn, "visibility", shown, calcMode="discrete") if "hidden" in shown else None
    return el("g", hiding, group, visibility=shown[0] if hiding else None)


def _animate(drawn: Figure, attribute: str, values: list[str], **more: object) -> Html | None:
    """The values one after another, the last one held, over and over again."""
    if len(values) < 2:
        return None
    moments: Iterable[float] = (*(drawn.times / drawn.seconds), 1.0)
    return el(
        "animate",
        attributeName=attribute,
        dur=f"{drawn.seconds:.3f}s",
        repeatCount="indefinite",
        keyTimes=";".join(f"{t:.5f}" for t in moments),
        values=";".join([*values, values[-1]]),
        **more,
    )


def _at(point: np.ndarray) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}"


def _ranking(made: Recognition, top: int) -> list[Html | None]:
    rows = [
        el("li", el("span", label), el("b", percent(share, 1)), el("div", el("i", style=f"width:{share:.1%}")))
        for label, share in made.ranking[:top]
    ]
    rest = len(made.ranking) - len(rows)
    share = sum(share for _, share in made.ranking[top:])
    more = el("li", el("span", f"{rest} more", class_="hint"), el("b", percent(share, 1), class_="hint"))
    return [el("h2", "What it could be"), el("ol", rows, more if rest else None, class_="ranking")]


def _about(made: Recognition, drawn: Figure) -> Html:
    rate = f", {made.fps:.4g} a second" if made.fps else ""
    empty = made.frames - drawn.moved
    rows: list[list[object]] = [
        ["file", Path(made.file).name],
        ["model", made.run.resolve().name],
        ["client", made.client],
        ["frames", f"{number(made.frames)}{rate}" + (f"; {number(empty)} without a body" if empty else "")],
        ["length", duration(made.frames / made.fps) if made.fps else "not known"],
        ["joints", f"{drawn.places.shape[2]}, {made.joints}"],
    ]
    return table(["what", "value"], rows, caption="The recording")
