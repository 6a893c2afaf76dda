"""The test part of Charades-STA as it is published, with features of every video, where they are."""

from __future__ import annotations

import numpy as np
import pytest

from fedreel.config import DataConfig
from fedreel.core.task import EVERYONE
from fedreel.tasks.moments.annotations import Query, read_annotations
from fedreel.tasks.moments.examples import temporal_classes
from fedreel.tasks.moments.population import MomentPopulation
from fedreel.tasks.moments.sources import MomentSource, open_moments
from support.shared import SHARED

DATA = SHARED / "moments"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the moments are not here (set FEDREEL_DATA)")

# Share of the test queries by quarter of the start and of the end, by the lengths of Charades' own table. Printed
# digits look rounded to four places and then to three: .02446 is .025 there.
PRINTED = {
    (0, 0): 0.124,
    (0, 1): 0.312,
    (0, 2): 0.055,
    (0, 3): 0.0,
    (1, 1): 0.025,
    (1, 2): 0.123,
    (1, 3): 0.043,
    (2, 2): 0.019,
    (2, 3): 0.207,
    (3, 3): 0.093,
}


@pytest.fixture(scope="module")
def source() -> MomentSource:
    return open_moments(DataConfig(source=str(DATA)), "clip-vitb32")


def times(queries: list[Query]) -> np.ndarray:
    return np.array([(q.start, q.end, q.duration) for q in queries])


def test_queries_videos_and_scenes_are_all_there(source: MomentSource) -> None:
    assert len(source.queries) == 3720
    assert len({q.video for q in source.queries}) == 1334
    assert len({q.group for q in source.queries}) == 16
    assert {q.split for q in source.queries} == {"test"}
    assert source.features.card == {"name": "clip-vitb32", "width": 512}
    assert source.words is not None
    assert source.words.vectors is not None
    assert source.words.vectors.shape == (1147, 300)  # 1145 words without <PAD>


def test_moments_that_end_after_their_video_are_cut(source: MomentSource) -> None:
    """Lengths are those of the decoded videos. Charades' table has them .06 s shorter on average."""
    assert (source.repairs.far, source.repairs.dropped, source.repairs.malformed) == (476, 0, 0)
    assert (times(source.queries)[:, 1] <= times(source.queries)[:, 2]).all()
    _, by_table = read_annotations(DATA / "charades_sta_test.txt")
    assert (by_table.far, by_table.dropped, by_table.swapped) == (514, 0, 0)


def test_temporal_classes_have_their_printed_shares() -> None:
    queries, _ = read_annotations(DATA / "charades_sta_test.txt")
    shares = np.bincount(temporal_classes(times(queries), 4), minlength=16).reshape(4, 4) / len(queries)
    for (start, end), printed in PRINTED.items():
        assert np.floor(1000 * round(shares[start, end], 4) + 0.5) == round(1000 * printed), (start, end)
    assert np.tril(shares, -1).sum() == 0
    spans = times(queries)
    assert ((spans[:, 1] - spans[:, 0]) / spans[:, 2]).mean() == pytest.approx(0.271, abs=0.0005)


def test_every_scene_is_a_client_and_a_quarter_of_its_videos_is_for_testing(source: MomentSource) -> None:
    config = DataConfig(source=str(DATA))
    found, again = (
        MomentPopulation(source.queries, source.features, source.words, config, seed, repairs=source.repairs)
        for seed in (0, 1)
    )
    assert len(found.clients) == 16
    assert {"Basement", "Closet", "Kitchen", "Other", "Recreation room"} < {*found.clients}
    videos = [0, 0]
    for client in found.clients:
        train, test = ({found.queries[i].video for i in rows} for rows in found.rows(client))
        assert not train & test
        assert len(train) == int(0.75 * (len(train) + len(test)))
        assert {found.queries[i].group for rows in found.rows(client) for i in rows} == {client}
        for one, other in zip(found.rows(client), again.rows(client)):
            np.testing.assert_array_equal(one, other)  # the split is not a matter of the seed
        videos = [videos[0] + len(train), videos[1] + len(test)]
    everyone = found.data(EVERYONE)
    assert (videos, len(everyone.train), len(everyone.test)) == ([997, 337], 2781, 939)
    assert found.describe()["broken"] == 0
    (batch,) = everyone.test.batches(1000)
    assert [tuple(t.shape) for t in batch] == [(939, 64, 512), (939, 15), (939, 2), (939, 3)]
    unknown = (batch[1] == 1).sum() / (batch[1] > 0).sum()
    assert unknown < 0.01


def test_the_best_of_64_windows_is_close_to_the_moment(source: MomentSource) -> None:
    found = MomentPopulation(source.queries, source.features, source.words, DataConfig(source=str(DATA)), 0)
    for _, _, spans, seconds in found.data(EVERYONE).train.batches(500):
        start, end, duration = seconds.double().T
        low, high = spans[:, 0] * duration / 64, (spans[:, 1] + 1) * duration / 64
        assert ((low - start).abs() <= duration / 64 + 1e-4).all()
        assert ((high - end).abs() <= duration / 64 + 1e-4).all()
