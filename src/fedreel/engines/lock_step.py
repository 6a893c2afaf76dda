"""Several runs in one process, in lock-step: they take turns, and where all want to train clients they do it as one."""

from __future__ import annotations

import ctypes
import logging
import random
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import torch

from fedreel.engines.own_random import OwnRandom
from fedreel.engines.stacked.alike import Ground, step_of
from fedreel.engines.stacked.ask import Ask
from fedreel.engines.stacked.training import StackedTraining, Trained
from fedreel.machine.device import give_back
from fedreel.machine.processes import PATIENCE

LOOK_UP = 0.5  # seconds after which whoever waits for a run sees that Ctrl-C was pressed, if that did not wake it
Clock = Callable[[], float]  # seconds that a run has taken so far
_log = logging.getLogger(__name__)
_own: ContextVar[Companion | None] = ContextVar("companion", default=None)


@dataclass(frozen=True)
class Outcome:
    """How a run ended: not at all if it was not begun, and else by an error or by itself."""

    begun: bool = False
    error: BaseException | None = None


def companion() -> Companion | None:
    """The run that this thread carries out, if it is one of several in lock-step."""
    return _own.get()


def in_lock_step(runs: Sequence[Callable[[Clock], None]], device: torch.device) -> list[Outcome]:
    """Carry runs out, in threads of which one at a time goes on: until it wants to train clients (engine `vector`) or
    ends. Then clients of those that are least far are trained, together where their steps are the same. A run that
    fails does so alone; Ctrl-C ends all. If the first wants no such training, the others are not begun: they would
    only wait for each other."""
    companions = [Companion(run, device) for run in runs]
    meeting = _Meeting()
    try:
        for one in companions:
            one.go_on()
            if one is companions[0] and one.wish is None:
                break
        while waiting := [one for one in companions if one.wish is not None]:
            least = min(one.wish.round for one in waiting if one.wish)
            behind = [one for one in waiting if one.wish and one.wish.round == least]
            meeting.train([one.wish for one in behind if one.wish])
            for one in behind:
                one.go_on()
    except BaseException:
        for one in companions:
            one.interrupt()
        raise
    return [one.outcome for one in companions]


@dataclass
class _Wish:
    """Clients that a run wants to be trained, and what came of it."""

    training: StackedTraining
    asks: Sequence[Ask]
    most: int  # clients that may be stacked
    trained: Trained | Exception | None = None
    seconds: float = 0.0  # its part of the time

    @property
    def round(self) -> int:
        return self.asks[0].client.round


class Companion:
    """A run in a thread of its own, which goes on only while `go_on` waits for it. Random numbers of the process are
    its own meanwhile: those that it would have alone, begun now."""

    def __init__(self, run: Callable[[Clock], None], device: torch.device) -> None:
        self._run, self._random, self._threads = run, _Random(device), torch.get_num_threads()
        self.wish: _Wish | None = None
        self.outcome = Outcome()
        self._spent, self._since = 0.0, 0.0
        self._ended = False
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._carry_out, daemon=True)

    def go_on(self) -> None:
        """Until it wants to train clients, or has ended."""
        if self.wish is not None:
            self._spent += self.wish.seconds
        self._since = time.monotonic()
        with self._random:
            if self._thread.ident is None:
                self._thread.start()
            else:
                self._turn.release()
            while not self._back.acquire(timeout=LOOK_UP):
                pass
        self._spent += time.monotonic() - self._since

    def interrupt(self) -> None:
        """Have it ended by Ctrl-C, which reaches only the main thread, and wait till it has put its files in order."""
        if not self._thread.is_alive():
            return
        self._ended = True
        if self.wish is None:
            number, error = ctypes.c_ulong(self._thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(number, error)
        self._turn.release()
        self._thread.join(PATIENCE)

    # in the thread

    def fit(self, training: StackedTraining, asks: Sequence[Ask], most: int) -> Trained:
        """`training.fit(asks)`, with clients of others if these ask for the same, up to so many."""
        wish = self.wish = _Wish(training, asks, most)
        self._back.release()
        self._turn.acquire()
        if self._ended:
            raise KeyboardInterrupt
        self.wish = None
        if isinstance(wish.trained, Exception):
            raise wish.trained
        assert wish.trained is not None
        return wish.trained

    def _carry_out(self) -> None:
        _own.set(self)
        torch.set_num_threads(self._threads)
        try:
            self._run(self._clock)
            self.outcome = Outcome(True)
        except BaseException as error:
            self.outcome = Outcome(True, error)
        finally:
            self.wish = None
            self._back.release()

    def _clock(self) -> float:
        return self._spent + time.monotonic() - self._since


class _Meeting:
    """Trains what several runs want."""

    def __init__(self) -> None:
        self._grounds: list[Ground] = []
        self._apart: set[Hashable] = set()  # kinds of steps that came to nothing when it was tried

    def train(self, wishes: Sequence[_Wish]) -> None:
        alike: dict[tuple[Hashable, int], list[_Wish]] = {}
        for wish in wishes:
            alike.setdefault((self._kind(wish), wish.asks[0].epochs), []).append(wish)
        for (kind, _), group in alike.items():
            for part in [[w] for w in group] if kind in self._apart else _parts(group):
                if not self._train_together(part):
                    self._apart.add(kind)
                    for wish in part:
                        _train_alone(wish)

    def _kind(self, wish: _Wish) -> Hashable:
        ground = wish.training.ground
        if ground not in self._grounds:
            self._grounds.append(ground)
        return self._grounds.index(ground), step_of(wish.asks[0])

    def _train_together(self, wishes: Sequence[_Wish]) -> bool:
        """False if that came to nothing: everything is then as it was before."""
        if len(wishes) == 1:
            _train_alone(*wishes)
            return True
        orders = [ask.order for wish in wishes for ask in wish.asks if ask.order is not None]
        states, begin = [order.get_state() for order in orders], time.monotonic()
        first = wishes[0].training
        try:
            trained = first.fit_runs([wish.asks for wish in wishes])
        except Exception as error:
            for order, state in zip(orders, states):
                order.set_state(state)
            _log.warning("clients of %d runs are trained apart, not stacked: %s", len(wishes), _in_a_line(error))
            first.forget()
            give_back()
            return False
        each = (time.monotonic() - begin) / sum(len(wish.asks) for wish in wishes)
        for wish, found in zip(wishes, trained):
            wish.trained, wish.seconds = found, each * len(wish.asks)
        return True


def _train_alone(wish: _Wish) -> None:
    begin = time.monotonic()
    try:
        wish.trained = wish.training.fit(wish.asks)
    except Exception as error:
        wish.trained = error
    wish.seconds = time.monotonic() - begin


def _parts(wishes: Sequence[_Wish]) -> Iterator[list[_Wish]]:
    """As many together as may be stacked."""
    part: list[_Wish] = []
    for wish in wishes:
        if part and sum(len(w.asks) for w in (*part, wish)) > wish.most:
            yield part
            part = []
        part.append(wish)
    yield part


def _in_a_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


class _Random(OwnRandom):
    """With numpy's and Python's own random numbers."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._others = np.random.get_state(), random.getstate()

    def _exchange(self) -> None:
        super()._exchange()
        numpy, python = self._others
        self._others = np.random.get_state(), random.getstate()
        np.random.set_state(numpy)
        random.setstate(python)
