"""A browser, driven over its DevTools protocol by one thread, for tests of the page.

A tab keeps what the browser says of its page: messages of the console, errors, requested hosts.
Reads what a person sees, by JavaScript; knows nothing of the page itself.
"""

import base64
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from websockets.sync.client import ClientConnection

SIZE = (1280, 800)
WAIT_S = 60.0
EVERY_S = 0.05
BAD_LEVELS = ("error", "warning", "assert")
Json = dict[str, Any]

MIDDLE = """
(async () => {
  const one = document.querySelector(SELECTOR);
  if (one === null) return null;
  const middle = () => {
    const { x, y, width, height } = one.getBoundingClientRect();
    return [x + width / 2, y + height / 2];
  };
  one.scrollIntoView({ block: "center" });
  const before = middle();
  await new Promise((done) => setTimeout(done, 50));
  const now = middle();
  const isThere = now.join() === before.join() && one.contains(document.elementFromPoint(...now));
  return isThere ? now : null;
})()
"""
"""JavaScript for the place of an element that stays there: scrolled past, it grows late."""


class BrowserError(Exception):
    """The browser or its page did not do what was asked."""


@dataclass
class Tab:
    """One page, with storage of its own, as a window that no other shares."""

    browser: "Browser"
    context: str
    session: str
    problems: list[str] = field(default_factory=list)
    """Errors and warnings of console and browser, exceptions, and dialogs."""
    _requests: dict[str, str] = field(default_factory=dict)

    @property
    def hosts(self) -> set[str]:
        """Hosts, with ports, that the page has asked for anything; not what its policy refused."""
        return set(self._requests.values())

    def call(self, method: str, **parameters: Any) -> Json:
        return self.browser.call(method, self.session, **parameters)

    def open(self, url: str) -> None:
        """Loads the page. Use a click for what changes after `#`."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def evaluate(self, code: str, *, may_eval: bool = True) -> Any:
        """Returns the value of the expression, a promise's once it is there; without `may_eval`
        as the page's own script, which its policy binds."""
        answer = self.call(
            "Runtime.evaluate",
            expression=code,
            returnByValue=True,
            awaitPromise=True,
            allowUnsafeEvalBlockedByCSP=may_eval,
        )
        if (thrown := answer.get("exceptionDetails")) is not None:
            raise BrowserError(f"{code}: {_exception(thrown)}")
        return answer["result"].get("value")

    def wait(self, condition: str, timeout_s: float = WAIT_S) -> Any:
        """Returns the value of the expression once it is true."""
        deadline = time.monotonic() + timeout_s
        while not (value := self._value(condition)):
            if time.monotonic() > deadline:
                shown = self.evaluate("document.body.innerText")[:2000]
                raise BrowserError(
                    f"not within {timeout_s} s: {condition}; the page shows:\n{shown}"
                )
            time.sleep(EVERY_S)
        return value

    def _value(self, code: str) -> Any:
        try:
            return self.evaluate(code)
        except BrowserError:  # while one page follows another
            return None

    def text(self, selector: str = "body") -> str:
        """Returns the text that a person reads there."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def wait_for(self, text: str, selector: str = "body") -> str:
        """Returns what is shown once `text` is a part of it."""
        shown = f"document.querySelector({json.dumps(selector)})?.innerText"
        # At once: a moment later the page may show something else.
        found = f"((shown) => shown?.includes({json.dumps(text)}) && shown)({shown})"
        return str(self.wait(found))

    def click(self, selector: str) -> None:
        """Presses the left button in the middle of the first such element."""
        place = json.dumps(selector)
        deadline = time.monotonic() + WAIT_S
        self.wait(f"document.querySelector({place}) !== null")
        while (box := self.evaluate(MIDDLE.replace("SELECTOR", place))) is None:
            if time.monotonic() > deadline:
                raise BrowserError(f"{selector} does not stay in one place, or is covered")
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=box[0],
                y=box[1],
                button="left",
                clickCount=1,
            )

    def press(self, key: str) -> None:
        """Presses a key: a letter, a digit, or `Enter`."""
        text = {"Enter": "\r"}.get(key, key)
        code = 13 if key == "Enter" else ord(key.upper())
        names = {"key": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **names)
        self.call("Input.dispatchKeyEvent", type="keyUp", **names)

    def type(self, text: str) -> None:
        """Enters text where the cursor is."""
        self.call("Input.insertText", text=text)

    def screenshot(self, file: Path) -> None:
        answer = self.call("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)

    def save_into(self, directory: Path) -> None:
        """Has files that the page offers be saved there, without a question."""
        self.browser.call(
            "Browser.setDownloadBehavior",
            behavior="allow",
            browserContextId=self.context,
            downloadPath=str(directory),
        )

    def note(self, method: str, event: Json) -> None:
        """Keeps what an event says of the page."""
        match method:
            case "Runtime.consoleAPICalled" if event["type"] in BAD_LEVELS:
                said = (str(one.get("value", one.get("description"))) for one in event["args"])
                self.problems.append(f"console.{event['type']}: {' '.join(said)}")
            case "Runtime.exceptionThrown":
                self.problems.append(f"exception: {_exception(event['exceptionDetails'])}")
            case "Log.entryAdded" if event["entry"]["level"] in BAD_LEVELS:
                entry = event["entry"]
                self.problems.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")
            case "Page.javascriptDialogOpening":
                self.problems.append(f"dialog: {event['message']}")
                self.browser.send("Page.handleJavaScriptDialog", self.session, accept=False)
            case "Network.requestWillBeSent":
                if (address := urlsplit(event["request"]["url"])).scheme not in ("data", "blob"):
                    self._requests[event["requestId"]] = address.netloc
            case "Network.loadingFailed" if event.get("blockedReason") == "csp":
                self._requests.pop(event["requestId"], None)
            case _:
                pass


def _exception(details: Json) -> str:
    return str(details.get("exception", {}).get("description") or details["text"])


class Browser:
    """One Chromium. Its events are read while it is waited for an answer."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._tabs: dict[str, Tab] = {}
        self._sent = 0

    def tab(self) -> Tab:
        """Opens an empty tab."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        width, height = SIZE
        target = self.call(
            "Target.createTarget",
            url="about:blank",
            browserContextId=context,
            width=width,
            height=height,
        )["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = self._tabs[session] = Tab(self, context, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        tab.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        return tab

    def send(self, method: str, session: str | None = None, **parameters: Any) -> int:
        """Sends a command whose answer nobody waits for. Returns its number."""
        self._sent += 1
        command: Json = {"id": self._sent, "method": method, "params": parameters}
        self._socket.send(json.dumps(command | ({"sessionId": session} if session else {})))
        return self._sent

    def call(self, method: str, session: str | None = None, **parameters: Any) -> Json:
        """Returns the answer, after the events before it."""
        number = self.send(method, session, **parameters)
        while True:
            message: Json = json.loads(self._socket.recv(WAIT_S))
            if message.get("id") == number:
                if "error" in message:
                    raise BrowserError(f"{method}: {message['error']['message']}")
                return dict(message["result"])
            if (tab := self._tabs.get(message.get("sessionId", ""))) is not None:
                tab.note(message.get("method", ""), message.get("params", {}))
