"""Visits to the page, as a person makes them: signs in, goes to a view. Judges nothing."""

import json
import time
from pathlib import Path
from typing import Any

import httpx

from tests.page.browser import WAIT_S, Tab

FORM = "form.token input"


def offer(tab: Tab, token: str) -> None:
    """Enters a token into the form that asks for it."""
    tab.click(FORM)
    tab.evaluate(f"document.querySelector('{FORM}').select()")
    tab.type(token)
    tab.press("Enter")


def sign_in(tab: Tab, url: str, token: str) -> None:
    """Opens the page, and enters the token that it asks for."""
    tab.open(url)
    offer(tab, token)
    tab.wait("document.querySelector('nav.top .life.up') !== null")


def show(tab: Tab, address: str, text: str) -> str:
    """Goes to the address behind `#/`; returns what is shown once `text` is a part of it."""
    tab.evaluate(f"location.hash = {json.dumps('#/' + address)}")
    return tab.wait_for(text, "main")


def see(tab: Tab, *texts: str) -> None:
    """Waits for each text: boxes of text are laid out once they come near the screen."""
    for text in texts:
        tab.wait_for(text, "main")


def stay(tab: Tab, seconds: float) -> None:
    """Leaves the page as it is, for a while."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        tab.evaluate("new Promise((done) => setTimeout(done, 200))")


def saved(tab: Tab, button: str, file: Path) -> Path:
    """Presses the button, and waits for the file that the page saves."""
    tab.save_into(file.parent)
    tab.click(button)
    deadline = time.monotonic() + WAIT_S
    while not file.exists() and time.monotonic() < deadline:
        stay(tab, 0.2)
    return file


def visible(tab: Tab, selector: str) -> int:
    """Returns the number of such elements."""
    return int(tab.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length"))


def answer(http: httpx.Client, path: str, **query: Any) -> Any:
    """Returns what the service answers to a program."""
    return http.get(path, params=query).raise_for_status().json()
