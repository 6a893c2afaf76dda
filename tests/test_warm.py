"""Processes that tests fork are warm: what all of them need is imported once."""

from __future__ import annotations

from support.warm import run_python

COLD = "import sys; print(sorted({'torch', 'fedreel.runs.run', 'fedreel.tasks.summary.task'} - {*sys.modules}))"


def test_a_forked_process_has_imported_what_commands_need() -> None:
    assert run_python("-c", COLD).stdout.strip() == "[]"
