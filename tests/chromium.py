"""A headless Chromium, driven over its DevTools socket: open a page, run JavaScript, record all that it asks for.

No driver program and no package that looks for updates: websocket-client is enough. CHROMIUM names the binary where
it is neither `chromium` nor Chrome under one of its usual names.
"""

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import websocket

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --disable-dev-shm-usage --remote-debugging-port=0"
).split()
HOW = "no Chromium: install it (apt-get install chromium) or name one in the variable CHROMIUM"


def find() -> str | None:
    return os.environ.get("CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """One browser with one page. `requests` and `errors` hold what happened since the last `open`."""

    def __init__(self, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        command = [find() or "chromium", *FLAGS, f"--user-data-dir={self.folder.name}", "about:blank"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.numbers = itertools.count(1)
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.loaded = False
        self.socket = websocket.create_connection(self._address(), suppress_origin=True, timeout=60)
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.look(width, height, dark)

    def _address(self) -> str:
        """The socket of the first page, once the browser has written down its port."""
        told = Path(self.folder.name, "DevToolsActivePort")
        deadline = time.monotonic() + 60
        while not (told.exists() and told.read_text().strip()):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError("Chromium did not start")
            time.sleep(0.05)
        port = told.read_text().split()[0]
        while True:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=20) as reply:
                pages = [page for page in json.load(reply) if page["type"] == "page"]
            if pages:
                return pages[0]["webSocketDebuggerUrl"]
            time.sleep(0.05)

    def look(self, width: int, height: int, dark: bool) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, data = message.get("method", ""), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(data["request"]["url"])
        elif method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Runtime.exceptionThrown":
            details = data["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and data["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(part.get("value", part.get("description"))) for part in data["args"]))
        elif method == "Log.entryAdded" and data["entry"]["level"] == "error":
            self.errors.append(f"{data['entry']['text']} {data['entry'].get('url', '')}")
        elif method == "Network.loadingFailed" and not data.get("canceled"):
            self.errors.append(f"loading failed: {data['errorText']}")

    def open(self, url: str) -> None:
        self.requests, self.errors, self.loaded = [], [], False
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + 60
        while not self.loaded:
            assert time.monotonic() < deadline, f"{url} did not load"
            self.run("0")
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, condition: str, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < deadline, f"never came true: {condition}"
            time.sleep(0.1)

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait(timeout=30)
        self.folder.cleanup()

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
