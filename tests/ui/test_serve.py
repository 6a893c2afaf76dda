"""The command itself: the link that it prints opens the pages, with TLS too, and without it nothing is answered."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="the extra ui is not installed")
pytest.importorskip("cryptography", reason="the extra flower is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

import httpx

from fedreel.sites import keys
from support.started import started
from support.tiny import cli


def test_a_port_that_is_taken_is_told_before_any_link(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = cli("ui", "--runs", tmp_path / "runs", "--port", port)
    assert said.code == 2
    assert said.out == ""
    assert f"127.0.0.1:{port}" in said.err
    assert "--port 0" in said.err


def test_runs_cannot_be_kept_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "film.mp4").touch()
    said = cli("ui", "--runs", tmp_path / "film.mp4", "--port", 0)
    assert said.code == 2
    assert "no runs can be kept here" in said.err
    assert "film.mp4" in said.err


def test_the_printed_link_opens_the_pages_over_tls(tmp_path: Path) -> None:
    keys.make_ca(tmp_path, "CA of a test")
    keys.make_server_certificate(tmp_path, ["127.0.0.1"])
    command = [sys.executable, "-m", "fedreel", "ui", "--runs", str(tmp_path / "runs"), "--port", "0"]
    command += ["--tls-cert", str(tmp_path / "server.crt"), "--tls-key", str(tmp_path / "server.key")]
    with started(command, stdout=subprocess.PIPE, text=True) as process:
        link = re.search(r"https://127\.0\.0\.1:\d+/\?token=\S+", process.stdout.readline())
        assert link is not None
        context = ssl.create_default_context(cafile=tmp_path / "ca.crt")
        with httpx.Client(verify=context, trust_env=False, follow_redirects=True, timeout=30) as client:
            plain = link[0].partition("?")[0]
            deadline = time.monotonic() + 120
            while True:
                try:
                    assert client.get(plain).status_code == 401
                    break
                except httpx.ConnectError:
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            answer = client.get(link[0])
            assert answer.status_code == 200
            assert '<p class="empty" data-none>There is no run yet.</p>' in answer.text
            assert str(answer.url) == plain
            with pytest.raises(httpx.HTTPError):
                client.get(plain.replace("https", "http"))
    assert (tmp_path / "runs" / ".ui").stat().st_mode & 0o077 == 0  # uploads and answers are the owner's alone
