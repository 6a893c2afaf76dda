"""What becomes of messages at a node that takes them one after another and now and then forgets one."""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from fedreel.engines.flower import post as post_module
from fedreel.engines.flower.post import Post


class FakeGrid:
    """Nodes with queues, of which a test has them answer or forget the oldest message."""

    def __init__(self) -> None:
        self.now, self.ids = 1000.0, 0
        self.queues: dict[int, deque[str]] = {}
        self.replies: dict[str, Any] = {}
        self.refuses = False

    def push_messages(self, messages: list[Any]) -> list[str]:
        if self.refuses:
            return [""]
        self.ids += 1
        self.queues.setdefault(messages[0].metadata.dst_node_id, deque()).append(str(self.ids))
        return [str(self.ids)]

    def pull_messages(self, message_ids: list[str]) -> list[Any]:
        return [self.replies.pop(m) for m in message_ids if m in self.replies]

    def answer(self, node: int, error: bool = False) -> None:
        """The node answers what it has had longest."""
        message_id = self.queues[node].popleft()
        metadata = SimpleNamespace(reply_to_message_id=message_id)
        self.replies[message_id] = SimpleNamespace(metadata=metadata, has_error=lambda: error)

    def forget(self, node: int) -> None:
        self.queues[node].popleft()


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> FakeGrid:
    made = FakeGrid()
    monkeypatch.setattr(post_module, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def made_post(grid: FakeGrid) -> Post:
    return Post(cast(Any, grid), silence=30)


def to(node: int) -> Any:
    return SimpleNamespace(metadata=SimpleNamespace(dst_node_id=node))


def later(grid: FakeGrid, post: Post, seconds: float) -> dict[int, bool]:
    """What has come after that time: number -> whether there is a reply."""
    grid.now += seconds
    came = {number: reply is not None for number, reply in post.pull()}
    post.ask_the_silent(to)
    return came


def test_a_reply_comes_under_the_number_of_its_message(grid: FakeGrid) -> None:
    post = made_post(grid)
    assert post.push(7, to(1))
    assert post.push(8, to(2))
    grid.answer(2)
    assert later(grid, post, 1) == {8: True}
    grid.answer(1)
    assert later(grid, post, 1) == {7: True}
    assert not post


def test_what_the_superlink_does_not_take_is_not_under_way(grid: FakeGrid) -> None:
    post = made_post(grid)
    grid.refuses = True
    assert not post.push(7, to(1))
    assert not post


def test_nobody_waits_for_what_was_dropped(grid: FakeGrid) -> None:
    post = made_post(grid)
    post.push(7, to(1))
    post.drop(7)
    grid.answer(1)
    assert later(grid, post, 1) == {}


def test_a_forgotten_message_is_lost_as_soon_as_its_node_answers_a_later_question(grid: FakeGrid) -> None:
    post = made_post(grid)
    post.push(7, to(1))
    grid.forget(1)
    assert later(grid, post, 29) == {}
    assert not grid.queues[1]  # it is not asked yet
    assert later(grid, post, 2) == {}
    assert len(grid.queues[1]) == 1
    grid.answer(1)
    assert later(grid, post, 1) == {}  # its reply may be a moment behind
    assert later(grid, post, 1) == {7: False}
    assert not post


def test_a_node_at_work_is_asked_ever_less_often_and_its_message_is_not_lost(grid: FakeGrid) -> None:
    post = made_post(grid)
    post.push(7, to(1))
    for _ in range(30 * (1 + 2 + 4 + 8) + 4):
        assert later(grid, post, 1) == {}
    assert len(grid.queues[1]) == 1 + 4  # the message, and questions after 30, 60, 120 and 240 seconds
    grid.answer(1)
    assert later(grid, post, 1) == {7: True}
    post.push(8, to(1))
    for _ in range(4):
        grid.answer(1)  # the questions, which are older than this message
        assert later(grid, post, 1) == {}
    grid.answer(1)
    assert later(grid, post, 1) == {8: True}


def test_a_reply_that_is_a_moment_behind_the_question_is_taken(grid: FakeGrid) -> None:
    post = made_post(grid)
    post.push(7, to(1))
    later(grid, post, 31)
    grid.answer(1)
    behind = grid.replies.pop("1")
    grid.answer(1)
    assert later(grid, post, 1) == {}
    grid.replies["1"] = behind
    assert later(grid, post, 1) == {7: True}


def test_a_node_that_is_away_is_asked_now_and_then_and_nothing_is_lost(grid: FakeGrid) -> None:
    post = made_post(grid)
    post.push(7, to(1))
    taken = grid.queues[1].popleft()
    for asked in range(1, 5):
        later(grid, post, 31)
        assert len(grid.queues[1]) == 1, asked
        grid.answer(1, error=True)  # the SuperLink says that the node is not there
        later(grid, post, 10)
        assert not grid.queues[1]
    grid.queues[1].append(taken)
    grid.answer(1)
    assert later(grid, post, 1) == {7: True}


@pytest.mark.parametrize("seed", range(20))
def test_every_message_is_answered_or_lost_and_none_is_lost_that_was_answered(grid: FakeGrid, seed: int) -> None:
    chance, post = random.Random(seed), made_post(grid)
    answered: set[int] = set()
    came: dict[int, bool] = {}
    numbers = iter(range(40))
    number_of: dict[str, int] = {}
    for _ in range(400):
        if chance.random() < 0.3 and (number := next(numbers, None)) is not None:
            post.push(number, to(chance.choice((1, 2))))
            number_of[str(grid.ids)] = number
        for node in [n for n, queue in grid.queues.items() if queue and chance.random() < 0.5]:
            if chance.random() < 0.3:
                grid.forget(node)
            else:
                if (number := number_of.get(grid.queues[node][0])) is not None:
                    answered.add(number)
                grid.answer(node)
        came |= later(grid, post, chance.choice((1, 5, 20)))
    assert not post
    assert came == {number: number in answered for number in range(40)}
