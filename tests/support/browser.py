"""A real browser for tests: Chromium without a window, driven by its DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.started import start

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--mute-audio", "--no-first-run"),
    *("--disable-extensions", "--disable-background-networking", "--disable-dev-shm-usage"),
    *("--autoplay-policy=no-user-gesture-required", "--remote-debugging-port=0"),
)


def find_browser() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One tab. Everything that the console would show in red is kept in `errors`."""

    def __init__(self, line: Any, session: str) -> None:
        self._line, self._session, self._numbers = line, session, itertools.count(1)
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        told = {"id": number, "sessionId": self._session, "method": method, "params": params}
        self._line.send(json.dumps(told))
        while True:
            answer = json.loads(self._line.recv(timeout=60))
            self._note(answer)
            if answer.get("id") == number and answer.get("sessionId") == self._session:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def go(self, address: str) -> None:
        """Open an address and wait until it is there."""
        self.js("window.left = true")
        self.call("Page.navigate", url=address)
        self.wait("!window.left && document.readyState === 'complete'")

    def js(self, expression: str) -> Any:
        """The value of an expression in the page."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, (expression, told["exceptionDetails"])
        return told["result"].get("value")

    def wait(self, expression: str, seconds: float = 60) -> None:
        """Until an expression is true; a page that is just being left is asked again."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if self.js(f"!!({expression})"):
                    return
            except AssertionError:
                pass
            time.sleep(0.1)
        text = self.js("document.body ? document.body.innerText.slice(0, 3000) : ''")
        raise AssertionError(f"never true: {expression}\n{self.js('location.href')}\n{text}")

    def click(self, selector: str, text: str = "") -> None:
        """What is found by a selector and, if wanted, by its text; when it has come to rest and nothing covers it."""
        find = (
            f"(() => {{ const e = [...document.querySelectorAll({json.dumps(selector)})]"
            f".find(e => e.textContent.trim().startsWith({json.dumps(text)}));"
            " if (!e) return null; e.scrollIntoView({block: 'center'});"
            " const b = e.getBoundingClientRect(), x = b.x + b.width / 2, y = b.y + b.height / 2;"
            " return e.contains(document.elementFromPoint(x, y)) ? [x, y] : null; })()"
        )
        before, deadline = None, time.monotonic() + 60
        while time.monotonic() < deadline:
            at = self.js(find) if self.js("document.readyState") == "complete" else None
            if at is not None and at == before:
                for kind in ("mousePressed", "mouseReleased"):
                    self.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)
                return
            before = at
            time.sleep(0.15)
        raise AssertionError(f"cannot be clicked: {selector} {text}")

    def press(self, key: str, times: int = 1) -> None:
        codes = {"Tab": 9, "Enter": 13, "Space": 32}
        text = {"Enter": "\r", "Space": " "}.get(key)
        name = " " if key == "Space" else key
        for _ in range(times):
            told: dict[str, Any] = {"key": name, "code": key, "windowsVirtualKeyCode": codes[key]}
            self.call("Input.dispatchKeyEvent", type="keyDown", **told, **({"text": text} if text else {}))
            self.call("Input.dispatchKeyEvent", type="keyUp", **told)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def choose_file(self, selector: str, path: Path) -> None:
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def size(self, width: int, height: int = 900) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def scheme(self, name: str) -> None:
        """Light or dark."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def picture(self, path: Path, whole: bool = True) -> None:
        told = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(told["data"]))

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(str(details.get("exception", {}).get("description") or details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(one.get("value", one)) for one in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")


@contextmanager
def browser() -> Iterator[Page]:
    """A browser with one empty tab, and nothing remembered from before."""
    from websockets.sync.client import connect

    program = find_browser()
    assert program is not None
    folder = tempfile.mkdtemp(prefix="browser")
    options = [*OPTIONS, f"--user-data-dir={folder}", "about:blank"]
    process = start([program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port, path = _place(Path(folder) / "DevToolsActivePort", process)
        with connect(f"ws://127.0.0.1:{port}{path}", max_size=None, proxy=None) as line:
            line.send(json.dumps({"id": 0, "method": "Target.createTarget", "params": {"url": "about:blank"}}))
            target = _answer(line)["targetId"]
            attach = {"targetId": target, "flatten": True}
            line.send(json.dumps({"id": 0, "method": "Target.attachToTarget", "params": attach}))
            yield Page(line, _answer(line)["sessionId"])
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _place(file: Path, process: subprocess.Popen[bytes]) -> tuple[str, str]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if file.exists() and len(lines := file.read_text().split()) == 2:
            return lines[0], lines[1]
        time.sleep(0.05)
    raise AssertionError("the browser did not start")


def _answer(line: Any) -> dict[str, Any]:
    while True:
        told = json.loads(line.recv(timeout=60))
        if told.get("id") == 0:
            return told["result"]
