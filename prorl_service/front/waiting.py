"""Waits until enough services answer: in a cluster they begin when there is room for them."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from prorl_service.client import RolloutClient, ServiceCallError
from prorl_service.errors import ProRLError
from prorl_service.front.discovery import Announcements
from prorl_service.front.services import STATUS_TIMEOUT_S

ASK_S = 1.0
MAX_ASKED = 32
"""Services asked at a time."""
TELL_S = 30.0
"""Progress is told when it changes, and so often."""


def wait_for_services(
    directory: Path,
    token: str | None,
    *,
    count: int,
    timeout_s: float,
    tell: Callable[[str], None],
) -> None:
    """Until `count` of those announced in `directory` answer and let us in. `tell` gets progress.

    Raises `ProRLError`, with what is known of each, when `timeout_s` are over.
    """
    announcements = Announcements(directory)
    began_at = time.monotonic()
    told_at, told = -TELL_S, ""
    while True:
        problems = _problems(announcements.look(), token)
        ready = [name for name, problem in problems.items() if not problem]
        waited_s = time.monotonic() - began_at
        line = f"{len(ready)} of {count} services answer ({', '.join(ready) or 'none yet'})"
        if line != told or waited_s >= told_at + TELL_S:
            tell(f"{line}, after {waited_s:.0f} s of {timeout_s:g}")
            told_at, told = waited_s, line
        if len(ready) >= count:
            return
        if waited_s >= timeout_s:
            raise _too_few(directory, line, {k: one for k, one in problems.items() if one})
        time.sleep(ASK_S)


def _problems(urls: Mapping[str, str], token: str | None) -> dict[str, str]:
    """Problem of each service, empty where it answers. They are asked in parallel: some may
    hang."""
    with ThreadPoolExecutor(MAX_ASKED) as asking:
        return dict(zip(urls, asking.map(partial(_problem, token), urls.values()), strict=True))


def _problem(token: str | None, url: str) -> str:
    try:
        with RolloutClient(url, token=token, retry_s=0, idle_s=STATUS_TIMEOUT_S) as client:
            return "it is stopping" if client.status().is_stopping else ""
    except ServiceCallError as error:
        return str(error)
    except UnicodeError as error:  # a host name that no resolver takes
        return f"{url}: {error}"


def _too_few(directory: Path, line: str, problems: dict[str, str]) -> ProRLError:
    others = "".join(f"\n  {name}: {problem}" for name, problem in problems.items())
    return ProRLError(
        f"{line}{others}",
        hint=f"services announce themselves in {directory}: have their jobs begun, and what do "
        "their logs say? Wait longer by --wait-s, or for fewer by --wait-for",
    )
