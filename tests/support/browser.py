"""Pages as a headless Chrome or Chromium shows them, by its DevTools protocol."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

#: What is read on a page, also what Bokeh keeps in shadow roots.
TEXT = """
(function text(node) {
  const below = [...(node.shadowRoot ? node.shadowRoot.childNodes : []), ...node.childNodes];
  const style = node.nodeName === "STYLE" || node.nodeName === "SCRIPT";
  return style ? "" : (node.nodeValue || "") + below.map(text).join(" ");
})(document.body)
"""


def find() -> str | None:
    """Return the path of a browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """A page that is open."""

    def __init__(self, connection: WebSocketClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count()
        self._session: dict[str, str] = {}
        #: What went wrong on the page: errors of scripts, and of what it loads.
        self.errors: list[str] = []

    async def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol; return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params, **self._session}
        await self._connection.write_message(json.dumps(message))
        while (told := await self._connection.read_message()) is not None:
            answer = json.loads(told)
            self._note(answer)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
        raise ConnectionError("the browser has gone")

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry'].get('url')}: {params['entry']['text']}")

    async def attach(self) -> None:
        """Open a page and take part in it."""
        target = await self.call("Target.createTarget", url="about:blank")
        found = await self.call("Target.attachToTarget", flatten=True, **target)
        self._session = found
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")

    async def resize(self, width: int, height: int) -> None:
        """Have a window of so many pixels."""
        options = {"deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, **options)

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    async def show(self, url: str, expression: str = "document.readyState == 'complete'") -> None:
        """Go to an address, and wait until an expression is true there."""
        await self.call("Page.navigate", url=url)
        for _ in range(1_500):
            if await self.evaluate("document.URL") == url and await self.evaluate(expression):
                return
            await asyncio.sleep(0.02)
        raise TimeoutError(f"on {url}, {expression} is not true: {await self.evaluate(TEXT)}")


@asynccontextmanager
async def tab() -> AsyncIterator[Tab]:
    """Start a browser and open a page."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        process = subprocess.Popen(
            [str(find()), *options, "--remote-debugging-port=0", f"--user-data-dir={folder}"],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        try:
            lines = iter(process.stderr.readline, "")
            address = next(line.split()[-1] for line in lines if "DevTools listening" in line)
            connection = await websocket_connect(address, max_message_size=1 << 26)
            try:
                page = Tab(connection)
                await page.attach()
                yield page
            finally:
                connection.close()
                while await connection.read_message() is not None:
                    pass
        finally:
            process.kill()
            process.wait()
            process.stderr.close()
