"""Videos that are cut into windows in training and in tests, and highlights: examples worked by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedreel.config import DataConfig
from fedreel.errors import RecipeError
from fedreel.runs.run import load
from fedreel.tasks.moments.annotations import Query, read_annotations
from fedreel.tasks.moments.detection import Detected, detection_loss
from fedreel.tasks.moments.examples import ABSENT, Moments
from fedreel.tasks.moments.features import open_features, pool_part
from fedreel.tasks.moments.grounding import Grounder
from fedreel.tasks.moments.judging import Said, judged
from fedreel.tasks.moments.metrics import average_precision, highlights
from fedreel.tasks.moments.pairs import cut_queries
from fedreel.tasks.moments.population import MomentPopulation
from fedreel.tasks.moments.task import MomentRetrieval
from fedreel.tasks.moments.windows import answer, cut
from support.moment_files import jsonl, npz, table

# highlights


@pytest.mark.parametrize(
    ("scores", "right", "expected"),
    [
        ([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0], (1 + 2 / 3) / 2),  # found at ranks 1 and 3
        ([0.1, 0.2, 0.3, 0.4], [1, 0, 0, 0], 1 / 4),
        ([0.9, 0.8, 0.7, 0.6], [0, 1, 1, 0], 2 / 3),  # 1/2 at rank 2, but 2/3 at rank 3: the higher counts for both
        ([0.5, 0.5, 0.1], [1, 0, 1], 2 / 3),  # equal scores are taken together
        ([0.5, 0.5, 0.5], [1, 1, 0], 2 / 3),
        ([0.3, 0.2], [0, 0], 0.0),
        ([0.3, 0.2], [1, 1], 1.0),
    ],
)
def test_average_precision_by_hand(scores: list[float], right: list[int], expected: float) -> None:
    assert average_precision(np.array(scores), np.array(right)) == pytest.approx(expected)


def test_a_hit_is_one_for_anybody_and_precision_is_a_mean_over_people() -> None:
    told = np.array([[4, 3], [0, 4], [3, 3]])  # of three stretches, by two people: only 4 is a highlight
    found = highlights([np.array([0.2, 0.9, 0.4])], [told])
    assert found == {"highlight_hit": 1.0, "highlight_map": pytest.approx((1 / 3 + 1) / 2)}
    assert highlights([np.array([0.2, 0.3, 0.4])], [told])["highlight_hit"] == 0.0


def test_ratings_are_read_and_belong_to_the_first_moment_of_a_sentence(tmp_path: Path) -> None:
    row = {"vid": "v", "query": "a door opens", "duration": 9, "relevant_windows": [[2, 4], [6, 8]]}
    rated = {**row, "relevant_clip_ids": [1, 3], "saliency_scores": [[4, 2, 3], [0, 1, 4]]}
    odd = {**row, "relevant_clip_ids": [1], "saliency_scores": [[5, 2, 3]]}
    queries, repairs = read_annotations(jsonl(tmp_path / "train.jsonl", [rated, row, odd]))
    assert [q.ratings for q in queries] == [((0, 0, 0), (4, 2, 3), (0, 0, 0), (0, 1, 4)), (), (), ()]
    assert (len(queries), repairs.malformed) == (4, 1)


def test_saliency_of_positions_becomes_that_of_stretches() -> None:
    """Eight seconds in eight positions: the middles of four stretches lie in positions 1, 3, 5 and 7."""
    salient = np.array([[0.9, 0.1, 0.9, 0.2, 0.9, 0.8, 0.9, 0.3]])
    said = Said(np.array([[0.0, 4.0]]), np.zeros(1), salient, np.array([[0.0, 8.0]]), np.array([8.0]))
    told = torch.tensor([[[0], [0], [4], [0], [-1]]], dtype=torch.int8)  # the last is of no video that is so short
    examples = Moments(*(torch.zeros(1) for _ in range(6)), ratings=told)
    found = judged(said, examples)
    assert found == {"r30": 1.0, "r50": 0.0, "r70": 0.0, "miou": 0.5, "score": pytest.approx(0.3), "n": 1.0} | {
        "highlight_map": 1.0,
        "highlight_hit": 1.0,
    }
    assert "highlight_map" not in judged(said, Moments(*(torch.zeros(1) for _ in range(6))))


# windows


def test_questions_and_windows_by_hand() -> None:
    """40 s in windows of 20 s that begin at 0, 10 and 20; the moment lies whole in the second, a third of it in the
    first. A short video is its own window."""
    windows = {"long": cut(40.0, 20.0), "short": cut(25.0, 20.0)}
    assert windows == {"long": [(0.0, 20.0), (10.0, 30.0), (20.0, 40.0)], "short": [(0.0, 25.0)]}
    queries = [
        Query("long", 18.0, 24.0, "a", 40.0),
        Query("short", 0.0, 5.0, "b", 25.0),
        Query("long", 1.0, 3.0, "c", 40.0),
    ]
    pairs = cut_queries(queries, windows, 10, 0)
    assert pairs.query.tolist() == [0, 0, 0, 1, 2, 2, 2]
    assert pairs.window.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert pairs.times.tolist()[:4] == [[18.0, 20.0, 20.0], [8.0, 14.0, 20.0], [0.0, 4.0, 20.0], [0.0, 5.0, 25.0]]
    assert pairs.spans.tolist()[:4] == [[9, 9], [4, 6], [0, 1], [0, 1]]
    assert pairs.spans.tolist()[5:] == [[ABSENT, ABSENT]] * 2
    assert pairs.best.tolist() == [1, 3, 4]
    assert pairs.without.tolist()[:2] == [ABSENT, ABSENT]  # all windows of the first hold some of it
    assert pairs.without[2] in (5, 6)
    assert pairs.learned_from(np.array([2, 0])).tolist() == [4, pairs.without[2], 1]
    assert pairs.asked(np.array([2, 1])).tolist() == [4, 5, 6, 3]


def test_where_the_moment_is_not_nothing_is_located_and_no_answer_is_right() -> None:
    torch.manual_seed(0)
    spans, logits = torch.rand(2, 2, 3, 2), torch.randn(2, 2, 3)
    inside = torch.tensor([[0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    times = torch.tensor([[0.25, 0.75], [0.0, 0.0]])

    def found(there: torch.Tensor, elsewhere: torch.Tensor) -> torch.Tensor:
        both = torch.stack([there, elsewhere], dim=1)
        return detection_loss(Detected(both, logits), torch.zeros(2, 4), times, inside)

    first = found(spans[:, 0], spans[:, 1])
    assert torch.equal(found(spans[:, 0], torch.rand(2, 3, 2)), first)
    assert not torch.equal(found(torch.rand(2, 3, 2), spans[:, 1]), first)
    surer = logits.clone()
    surer[:, 1] += 1
    assert detection_loss(Detected(spans, surer), torch.zeros(2, 4), times, inside) > first


def long_videos(folder: Path) -> Path:
    """Of each of two owners three videos of 48 s, one feature a second, with two questions; and one of 12 s."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    seconds = {f"{owner}{i}": 48 if i < 3 else 12 for owner in "ab" for i in range(4)}
    rows = {video: rng.normal(size=(n, 3)).astype(np.float32) for video, n in seconds.items()}
    npz(folder / "own.npz", rows, duration=np.array([*map(float, seconds.values())]))
    lines = [
        f"{v} {a:.1f} {a + 3:.1f}##someone opens {w}.\n"
        for v, n in seconds.items()
        for a, w in ((2, "a"), (n - 7, "b"))
    ]
    (folder / "annotations.txt").write_text("".join(lines))
    marks = [{"id": v, "owner": v[0], "split": "test" if v[1] in "23" else "train"} for v in seconds]
    table(folder / "videos.csv", marks)
    return folder


def windowed(**settings: object) -> MomentRetrieval:
    sizes = {"features": "own", "width_in": 3, "fps": 1.0, "length": 6, "width": 8, "word_width": 4, "vocabulary": 9}
    return MomentRetrieval(**{**sizes, "form": "qd-detr", "encoder": "attention", "window": 12.0, **settings})  # type: ignore[arg-type]


def test_clients_learn_from_windows_and_are_asked_of_whole_videos(tmp_path: Path) -> None:
    population = windowed().population(DataConfig(source=str(long_videos(tmp_path / "data"))), 0)
    assert isinstance(population, MomentPopulation)
    data = population.data("a")
    train, test = data.train, data.test
    assert isinstance(train, Moments)
    assert isinstance(test, Moments)
    assert len(train) == 2 * 2 * 2  # of two videos, two questions each: a window with the moment and one without
    assert train.present.tolist() == [True, False] * 4
    assert len(test) == 2 * 7 + 2  # a long video has seven windows, the short one is its own
    assert test.asked is not None
    assert len(test.asked[:, 0].unique()) == 4
    assert population.describe()["seconds"] == 12.0  # the length of what the model learned from
    whole = windowed(window=0.0).population(DataConfig(source=str(tmp_path / "data")), 0).data("a")
    assert isinstance(whole.test, Moments)
    assert (len(whole.train), len(whole.test), whole.test.asked) == (4, 4, None)


def test_a_test_of_windows_gives_what_find_gives(tmp_path: Path) -> None:
    data = long_videos(tmp_path / "data")
    task = windowed()
    population = task.population(DataConfig(source=str(data)), 0)
    assert isinstance(population, MomentPopulation)
    torch.manual_seed(1)
    model = task.model().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    examples = population.data("a").test
    with torch.no_grad():
        measured = task.evaluate(model, examples, 5)
    features = open_features(data / "own.npz")
    _, rows = population.rows("a")
    overlaps = []
    for number in rows:
        query = population.queries[number]
        tokens = population._read([query.sentence], task.most_words)[0]
        found = answer(model, features.get(query.video), tokens, cut(query.duration, 12.0), task.length, 1)
        start, end = found.spans[0]
        common = max(min(end, query.end) - max(start, query.start), 0.0)
        overlaps.append(common / (max(end, query.end) - min(start, query.start)))
    assert isinstance(model, Grounder)
    assert measured["n"] == 4
    assert measured["miou"] == pytest.approx(np.mean(overlaps), abs=1e-6)


def test_a_run_with_windows_is_used_with_them(tmp_path: Path) -> None:
    import fedreel

    settings = {"task.features": "own", "task.width_in": 3, "task.length": 6, "task.width": 8, "task.word_width": 4}
    settings |= {"task.form": "qd-detr", "task.encoder": "attention", "task.window": 12.0, "task.vocabulary": 9}
    settings |= {"method": "fedavg", "round.rounds": 1, "device": "cpu"}
    result = fedreel.run("fedvmr", tmp_path / "run", data=long_videos(tmp_path / "data"), set=settings)
    assert {"r50", "miou", "loss"} <= {*result.metrics}
    assert load(tmp_path / "run").task.window == 12.0  # type: ignore[attr-defined]
    told = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert next(row["seconds"] for row in told if row["phase"] == "partition") == 12.0


def test_other_forms_are_refused() -> None:
    with pytest.raises(RecipeError, match="only the form qd-detr"):
        MomentRetrieval(window=30.0)


def test_a_part_of_a_video_is_its_own_rows() -> None:
    rows = np.arange(40.0)[:, None]
    assert pool_part(rows, (10.0, 30.0), 40.0, 20)[:, 0].tolist() == list(range(10, 30))
    assert pool_part(rows, (10.0, 30.0), 40.0, 5)[:, 0].tolist() == [11.5, 15.5, 19.5, 23.5, 27.5]
