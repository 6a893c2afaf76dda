"""BlazePose's two networks, run by LiteRT."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
from PIL import Image

from fedreel.errors import DataError, FedreelError
from fedreel.machine.processes import cores
from fedreel.tasks.skeleton.poses import detector, landmarks
from fedreel.tasks.skeleton.poses.detector import Detection, detections
from fedreel.tasks.skeleton.poses.landmarks import Pose, pose
from fedreel.tasks.skeleton.poses.regions import Region, crop, whole
from fedreel.tasks.skeleton.poses.weights import Weights

HELPERS = 39  # landmarks with the points behind them, some of no use here
CELLS = 64  # of a heatmap's side


class BlazePose:
    """A picture in, the people in it out; a square of the picture in, the landmarks of the body in it out."""

    def __init__(self, weights: Weights, threads: int | None = None) -> None:
        if find_spec("ai_edge_litert") is None:
            raise FedreelError(
                "poses need one more package", expected="ai-edge-litert", hint="pip install 'fedreel[pose]'"
            )
        count = threads or cores()
        grid = len(detector.anchors())
        self._detector = _Network(weights.detector, detector.SIDE, [(grid, 12), (grid, 1)], weights, count)
        shapes = [(5 * HELPERS,), (1,), (landmarks.SIDE, landmarks.SIDE, 1), (CELLS, CELLS, HELPERS), (3 * HELPERS,)]
        self._landmarks = _Network(weights.landmarks, landmarks.SIDE, shapes, weights, count)

    def detect(self, picture: Image.Image) -> list[Detection]:
        pixels = crop(picture, whole(picture), detector.SIDE)
        rows, logits = self._detector(pixels.astype(np.float32) / 127.5 - 1)
        return detections(rows, logits[:, 0])

    def place(self, picture: Image.Image, region: Region) -> Pose:
        pixels = crop(picture, region, landmarks.SIDE, stretched=True)
        return pose(self._landmarks(pixels.astype(np.float32) / 255), region)


class _Network:
    """A TensorFlow Lite model of one picture, whose outputs have these shapes, in this order."""

    def __init__(
        self, content: bytes, side: int, shapes: list[tuple[int, ...]], weights: Weights, threads: int
    ) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self._run: Any = Interpreter(model_content=content, num_threads=threads)
        self._run.allocate_tensors()
        (given,), made = self._run.get_input_details(), self._run.get_output_details()
        found = [tuple(int(n) for n in output["shape"][1:]) for output in made]
        if found != shapes or tuple(given["shape"]) != (1, side, side, 3):
            raise DataError(
                "these weights are not BlazePose's",
                where=str(weights.place),
                expected=f"a picture of {side} pixels in, {shapes} out",
                found=f"{tuple(int(n) for n in given['shape'])} in, {found} out",
            )
        self._given, self._made = given["index"], [output["index"] for output in made]

    def __call__(self, pixels: np.ndarray) -> list[np.ndarray]:
        self._run.set_tensor(self._given, pixels[None])
        self._run.invoke()
        return [self._run.get_tensor(index)[0] for index in self._made]
