"""What we start ends when we do: children, grandchildren, those that hide, those that will not listen."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedreel.engines.flower.processes import (
    Processes,
    free_port,
    held_port,
    last_lines,
    only_needed,
    program,
    quiet_environment,
)
from fedreel.errors import RunError
from support.started import started

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

WRITE = "import os, pathlib, signal, subprocess, sys, time; me = pathlib.Path(sys.argv[1]) / '{name}';"
SAY = "me.with_suffix('.tmp').write_text(str(os.getpid())); me.with_suffix('.tmp').rename(me);"
STAY = "time.sleep(600)"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN);"


def script(name: str, *before: str, child: str = "", how: str = "") -> str:
    """A program that writes its process id to a file of this name, starts a child, and stays."""
    start = f"subprocess.Popen([sys.executable, '-c', {child!r}, sys.argv[1]]{how});" if child else ""
    return "".join([WRITE.format(name=name), *before, SAY, start, STAY])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: object, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)


def pid_of(folder: Path, name: str) -> int:
    wait_for((folder / name).exists)
    return int((folder / name).read_text())


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    made.end(patience=0.2)


def start(processes: Processes, folder: Path, text: str) -> subprocess.Popen[bytes]:
    return processes.start([sys.executable, "-c", text, str(folder)], folder / "logs" / "log")


@linux
@pytest.mark.slow
def test_end_ends_children_and_their_children(tmp_path: Path, processes: Processes) -> None:
    start(processes, tmp_path, script("child", child=script("grandchild", child=script("last"))))
    start(processes, tmp_path, script("other"))
    pids = [pid_of(tmp_path, name) for name in ("child", "grandchild", "last", "other")]
    assert all(alive(pid) for pid in pids)
    processes.end()
    wait_for(lambda: not any(alive(pid) for pid in pids))


@linux
@pytest.mark.slow
def test_end_ends_one_that_ignores_the_request(tmp_path: Path, processes: Processes) -> None:
    start(processes, tmp_path, script("child", DEAF, child=script("grandchild", DEAF)))
    pids = [pid_of(tmp_path, name) for name in ("child", "grandchild")]
    os.kill(pids[0], signal.SIGTERM)
    os.kill(pids[1], signal.SIGTERM)
    processes.end(patience=0.5)
    wait_for(lambda: not any(alive(pid) for pid in pids))


@linux
@pytest.mark.slow
@pytest.mark.parametrize("how", [", start_new_session=True", ", start_new_session=True, env={}"], ids=["", "no mark"])
def test_end_ends_one_that_moved_to_a_session_of_its_own(tmp_path: Path, processes: Processes, how: str) -> None:
    start(processes, tmp_path, script("child", child=script("hidden"), how=how))
    pids = [pid_of(tmp_path, name) for name in ("child", "hidden")]
    processes.end()
    wait_for(lambda: not any(alive(pid) for pid in pids))


@linux
@pytest.mark.slow
@pytest.mark.parametrize("remembered", [True, False], ids=["remembered before", "found by its mark"])
def test_end_ends_one_whose_parent_has_ended_before(tmp_path: Path, processes: Processes, remembered: bool) -> None:
    how = ", start_new_session=True" + (", env={}" if remembered else "")
    child = start(processes, tmp_path, script("child", child=script("orphan"), how=how))
    orphan = pid_of(tmp_path, "orphan")
    if remembered:
        processes.remember()
    child.kill()
    child.wait()
    assert alive(orphan)
    processes.end()
    wait_for(lambda: not alive(orphan))


@linux
@pytest.mark.slow
def test_end_leaves_what_others_have_started(tmp_path: Path, processes: Processes) -> None:
    others = Processes()
    try:
        theirs = start(others, tmp_path, script("theirs"))
        start(processes, tmp_path, script("ours"))
        ours = pid_of(tmp_path, "ours")
        pid_of(tmp_path, "theirs")
        processes.end()
        wait_for(lambda: not alive(ours))
        assert theirs.poll() is None
    finally:
        others.end()


@linux
@pytest.mark.slow
def test_a_child_dies_when_its_parent_is_killed(tmp_path: Path) -> None:
    text = (
        "import sys, time; from pathlib import Path; from fedreel.engines.flower.processes import Processes;"
        f"Processes().start([sys.executable, '-c', {script('child')!r}, sys.argv[1]], Path(sys.argv[1]) / 'log');"
        "time.sleep(600)"
    )
    with started([sys.executable, "-c", text, tmp_path]) as parent:
        child = pid_of(tmp_path, "child")
        assert alive(child)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        wait_for(lambda: not alive(child))


@pytest.mark.slow
def test_a_programs_output_is_appended_to_its_log_and_it_reads_nothing(tmp_path: Path, processes: Processes) -> None:
    log = tmp_path / "new" / "log"
    for word in ("first", "second"):
        text = f"import sys; sys.stderr.write('{word} ' + repr(sys.stdin.read())); print()"
        assert processes.start([sys.executable, "-c", text], log).wait(60) == 0
    assert [line.strip() for line in log.read_text().split()] == ["first", "''", "second", "''"]
    assert last_lines(log, 1).split() == ["second", "''"]


def test_a_log_that_is_not_there_has_no_last_lines(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "nothing") == ""
    (tmp_path / "log").write_bytes(b"a\n\xff\nb\nc\n")
    assert last_lines(tmp_path / "log", 2) == "b\nc"


def test_flower_is_kept_from_calling_home_and_installing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.setenv("SOME_SETTING", "kept")
    env = quiet_environment(tmp_path)
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert env["RAY_USAGE_STATS_ENABLED"] == "0"
    assert env["FLWR_HOME"] == str(tmp_path)
    assert env["SOME_SETTING"] == "kept"
    assert env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_a_program_that_is_missing_is_an_error_that_says_what_to_install() -> None:
    with pytest.raises(RunError, match="Flower is not installed") as caught:
        program("flower-superfluous")
    assert "pip install" in caught.value.hint


def test_a_port_that_is_held_is_only_the_servers_that_was_told_of_it() -> None:
    with held_port() as port, socket.socket() as stranger:
        with pytest.raises(OSError, match="Address already in use"):
            stranger.bind(("127.0.0.1", port))  # as the kernel would for a connection
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        with socket.create_server(("127.0.0.1", port)) as server:
            socket.create_connection(("127.0.0.1", port)).close()
            server.accept()[0].close()


def test_a_free_port_is_nobodys() -> None:
    with held_port() as port, socket.create_server(("127.0.0.1", free := free_port())):
        assert free != port


def test_another_user_gets_no_passwords_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    given = only_needed(quiet_environment(tmp_path))
    assert "secret" not in given.values()
    assert (given["FLWR_HOME"], given["FLWR_TELEMETRY_ENABLED"]) == (str(tmp_path), "0")
    assert "PATH" in given
