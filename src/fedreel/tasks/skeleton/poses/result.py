"""What was found of the people in a video."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedreel.tasks.use.result import FolderResult, Result


@dataclass(frozen=True, kw_only=True)
class PosesResult(Result):
    """Who was followed for how long. `run` is the place of the weights."""

    frames: int
    fps: float
    people: int
    seen: list[int]  # in how many frames each person is there
    scores: list[float]  # how sure the network is of each, on average where it is there
    joints: str  # of the file
    detail: str  # of the network
    weights: str  # their fingerprint
    fault: str = ""  # why the tail of the video is missing

    def lines(self) -> list[str]:
        """How many people, and in which part of the frames each is there."""
        head = f"{self.people} {'person' if self.people == 1 else 'people'} in {self.frames:,} frames"
        shares = zip(self.seen, self.scores)
        rows = [
            f"  {number}  in {100 * seen / self.frames:.0f} % of the frames, {100 * score:.0f} % sure"
            for number, (seen, score) in enumerate(shares, 1)
        ]
        return [head, *rows]


@dataclass(frozen=True)
class Followed:
    """A video of the folder: how many people were followed in how many frames, and in which share of these each."""

    path: str
    frames: int
    people: int
    seen: list[float]


@dataclass(frozen=True, kw_only=True)
class PosesAlbum(FolderResult):
    """Who was followed in the videos of a folder. `run` is the place of the weights."""

    videos: list[Followed]
    detail: str
    weights: str  # their fingerprint
    sets: list[str] = field(default_factory=list)  # files of skeletons: an owner each

    def lines(self) -> list[str]:
        from fedreel.report.markup import count  # brings numpy

        wide = max(len(video.path) for video in self.videos)
        return [
            f"{v.path:{wide}}  {count(v.people, 'person', 'people')} in {count(v.frames, 'frame')}" for v in self.videos
        ]
