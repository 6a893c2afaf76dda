"""The page of a recognised motion: the skeleton as it moved, the action it is taken for, and what else it could be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fedreel.report.markup import Html, count, duration, el, number, short, table
from fedreel.report.pictures import RANKING, header, jpeg_link, percent, problems, ranking_bars
from fedreel.report.shell import document, section
from fedreel.tasks.skeleton.figure import FPS, Figure
from fedreel.tasks.skeleton.result import MotionRecognition

STYLE = """
.bodies { display: block; width: 100%; max-height: 56vh; }
.bodies path { vector-effect: none; }
.bodies .bones { stroke-width: 5; stroke-opacity: .5; } .bodies .dots { stroke-width: 9; }
.bodies .b0 { stroke: var(--s0); } .bodies .b1 { stroke: var(--s1); }
.below button { font: inherit; color: var(--ink); background: var(--wash); border: 1px solid var(--line); border-radius: 99px; padding: .15em 1.1em; cursor: pointer; }
"""  # noqa: E501
SCRIPT = """
(() => {
  for (const figure of document.querySelectorAll("figure:has(svg.bodies)")) {
    const svg = figure.querySelector("svg.bodies"), button = figure.querySelector("button");
    const stop = still => {
      if (still) svg.pauseAnimations(); else svg.unpauseAnimations();
      button.textContent = still ? "Play" : "Pause";
    };
    button.hidden = false;
    button.addEventListener("click", () => stop(!svg.animationsPaused()));
    stop(matchMedia("(prefers-reduced-motion: reduce)").matches);
  }
})();
"""


def draw_page(recognition: MotionRecognition, drawn: Figure, over: Html | None = None) -> str:
    """The whole page: one file that opens without a network. `over` is shown in place of the drawing, if given: the
    bodies over the video that they were found in."""
    bars = ranking_bars(recognition.ranking, recognition.top)
    body = el(
        "main",
        problems(recognition.notes),
        el(
            "div",
            section("motion", "The motion", over or _moving(recognition, drawn)),
            el("section", el("h2", "What it could be"), bars, _about(recognition, drawn), id="ranking"),
            class_="moving",
        ),
        script(len(drawn.times)),
    )
    name = recognition.source.name
    classes = count(len(recognition.ranking), "class", "classes")
    head = header(
        "recognize",
        recognition.label,
        lead=["recognised in ", el("b", name)],
        headline=("confidence", percent(recognition.confidence), f"among the {classes} of {recognition.client}"),
    )
    return document(
        f"{short(recognition.label)}: {short(name)}",
        el("style", Html(RANKING + STYLE)),
        head,
        body,
        images=over is not None,
    )


def script(frames: int) -> Html | None:
    """What the buttons of moving figures do; nothing where nothing moves."""
    return el("script", Html(SCRIPT)) if frames > 1 else None


def moving_figure(drawn: Figure, said: str, speed: str, pictures: Sequence[bytes | None] = ()) -> Html:
    """Bodies that move, in front of pictures of the frames, if there are any."""
    wide, tall = drawn.size
    behind = [_picture(drawn, frame, content) for frame, content in enumerate(pictures) if content]
    bodies = [_body(drawn, m) for m in range(drawn.there.shape[1])]
    box = f"0 0 {wide:.0f} {tall:.0f}"
    svg = el("svg", behind, bodies, class_="bodies", viewBox=box, role="img", aria_label=said)
    moving = len(drawn.times) > 1
    below = [el("span", speed if moving else "one frame")]
    below += [el("button", "Pause", type="button", hidden=True)] if moving else []
    return el("figure", svg, el("p", below, class_="below"))


def _moving(recognition: MotionRecognition, drawn: Figure) -> Html:
    said = f"{count(drawn.there.shape[1], 'body', 'bodies')} moving, seen from the front"
    assumed = f"at {FPS:.0f} frames a second: the file does not say"
    return moving_figure(drawn, said, "at the speed of the recording" if recognition.fps else assumed)


def _picture(drawn: Figure, frame: int, content: bytes) -> Html:
    """A frame of the video, to be seen while it lasts."""
    shown = ["visible" if other == frame else "hidden" for other in range(len(drawn.times))]
    wide, tall = drawn.size
    moving = _animate(drawn, "visibility", shown, calcMode="discrete")
    return el("image", moving, href=jpeg_link(content), width=f"{wide:.0f}", height=f"{tall:.0f}", visibility=shown[0])


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


def _about(recognition: MotionRecognition, drawn: Figure) -> Html:
    rate = f", {recognition.fps:.4g} a second" if recognition.fps else ""
    empty = recognition.frames - drawn.moved
    rows: list[list[object]] = [
        ["file", recognition.source.name],
        ["model", recognition.run.resolve().name],
        ["client", recognition.client],
        ["frames", f"{number(recognition.frames)}{rate}" + (f"; {number(empty)} without a body" if empty else "")],
        ["length", duration(recognition.frames / recognition.fps) if recognition.fps else "not known"],
        ["joints", f"{drawn.places.shape[2]}, {recognition.joints}"],
    ]
    return table(["what", "value"], rows, caption="The recording")
