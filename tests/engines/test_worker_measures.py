"""What worker processes measure of their updates is what admission would, and it believes no other."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from fedreel.core.admission import Admission, Yardstick
from fedreel.core.declared import Declared
from fedreel.core.server import GLOBAL
from fedreel.core.update import Update
from fedreel.engines.processes.crew import ForkedCrew
from fedreel.engines.processes.engine import ProcessesEngine
from fedreel.methods.fedavg import FedAvg
from support.toy import make_worker, orders, results

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")


def test_workers_measure_what_admission_would_and_it_believes_no_other(tmp_path: Path) -> None:
    """Also where running statistics travel, which have a bound of their own. Weights that have been put in place of
    those that were measured are measured again."""
    worker = make_worker(tmp_path, FedAvg())
    with closing(ProcessesEngine(worker, ForkedCrew(worker, 1), 1)) as engine:
        (order,) = orders(engine.blueprint.start.clone(), ["c0"])
        (update,) = results(engine, [order])
    assert isinstance(update, Update)
    found, expected = update.moved, Yardstick().moved(order, update.weights)
    assert found is not None
    assert found.weights is update.weights
    assert (found.model, found.change, found.trained) == (GLOBAL, expected.change, expected.trained)
    assert 0 < found.trained < found.change
    may = Declared({"samples": "count", "frames": "count", "loss": "loss"})
    admission = Admission(engine.blueprint.travelling, 10.0, lambda order: may)
    for weights, reason in ((update.weights, None), (1e6 * update.weights, "norm")):
        admission.expect(order)
        failure = admission.judge(replace(update, weights=weights))
        assert (failure and failure.reason) == reason
