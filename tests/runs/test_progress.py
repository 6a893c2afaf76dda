"""What a person is told of a run."""

from __future__ import annotations

import io

from rich.console import Console

from fedreel.core.server import ServerState
from fedreel.runs.progress import ProgressLine


def test_a_round_s_line_has_the_loss_of_the_round_not_that_of_its_last_client() -> None:
    told = io.StringIO()
    with ProgressLine("job", 4, Console(file=told, width=200)) as line:
        for number, loss in enumerate((1.0, 2.0, 6.0), 1):
            line.client_done(1, number, 0, 3, loss, 10)
        line.record(1, "train", {"loss": 2.5})
        line.round_done(ServerState(round=1), lambda: None)
    assert "training loss 2.500" in told.getvalue()
    assert "3 answers" in told.getvalue()
