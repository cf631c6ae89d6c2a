"""A headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import subprocess
import tempfile
import time
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

HANG_SECONDS = 240.0
"""Until an answer or event is given up."""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--remote-debugging-port=0",
)
ADDRESS = re.compile(r"DevTools listening on (ws://\S+)")


def find_chromium() -> str | None:
    """Its path, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._session = ""
        self.errors: list[str] = []
        """What went wrong in its scripts, and what its policy has refused."""

    def open(self, url: str, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Opens an address."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("Page.navigate", url=url)

    def ask(self, method: str, **parameters: Any) -> Any:
        """The result of a method of the protocol."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        self._socket.send(json.dumps(message | ({"sessionId": self._session} if self._session else {})))
        while True:
            found = json.loads(self._socket.recv(HANG_SECONDS))
            if found.get("id") == number:
                assert "error" not in found, found
                return found["result"]
            self._note(found)

    def _note(self, event: dict[str, Any]) -> None:
        match event.get("method"), event.get("params", {}):
            case "Runtime.exceptionThrown", {"exceptionDetails": details}:
                self.errors.append(details.get("exception", {}).get("description", str(details)))
            case "Log.entryAdded", {"entry": {"level": "error", "text": text, "url": url}}:
                self.errors.append(f"{text} ({url})")
            case "Log.entryAdded", {"entry": {"level": "error", "text": text}}:
                self.errors.append(text)

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        found = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        """Waits until an expression is true, and gives its value."""
        end = time.monotonic() + HANG_SECONDS
        while not (found := self.value(expression)):
            assert time.monotonic() < end, f"{expression} never came; errors: {self.errors}"
            time.sleep(0.02)
        return found

    def press(self, key: str) -> None:
        """Presses a key where the focus is."""
        text = {"text": key} if len(key) == 1 else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)

    def type(self, text: str) -> None:
        """Types a text where the focus is."""
        self.ask("Input.insertText", text=text)

    def picture(self, path: Path) -> None:
        """Saves what is to be seen as a PNG."""
        path.write_bytes(b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))


@contextlib.contextmanager
def chromium(path: str) -> Iterator[Page]:
    """A page in a Chromium of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [path, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        try:
            assert process.stderr is not None
            address = next(found[1] for line in process.stderr if (found := ADDRESS.search(line)))
            with connect(address, max_size=None, open_timeout=HANG_SECONDS, proxy=None) as socket:
                yield Page(socket)
        finally:
            process.kill()
            process.communicate()
