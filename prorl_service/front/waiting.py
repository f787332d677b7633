"""Waiting until enough services answer: a cluster starts them when it has room."""

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.errors import ProRLError
from prorl_service.front.discovery import Announcements
from prorl_service.front.service import STATUS_TIMEOUT_S

ASK_S = 1.0
"""Seconds between looks at a directory: a shared file system reports no events."""
MAX_ASKED = 32
"""Most services asked in parallel."""
REPORT_S = 30.0
"""Seconds between reports without progress; progress is reported immediately."""


async def wait_for_services(
    directory: Path,
    token: str | None,
    *,
    count: int,
    timeout_s: float,
    report: Callable[[str], None],
) -> None:
    """Returns when `count` services announced in `directory` accept `token`.

    `report` gets progress. Raises `ProRLError` after `timeout_s`, with what is known of each.
    """
    announcements = Announcements(directory)
    began_at = time.monotonic()
    reported_at, reported = -REPORT_S, ""
    while True:
        problems = await _problems(announcements.look(), token)
        ready = [name for name, problem in problems.items() if not problem]
        waited_s = time.monotonic() - began_at
        line = f"{len(ready)} of {count} services answer ({', '.join(ready) or 'none yet'})"
        if line != reported or waited_s >= reported_at + REPORT_S:
            report(f"{line}, after {waited_s:.0f} s of {timeout_s:g}")
            reported_at, reported = waited_s, line
        if len(ready) >= count:
            return
        if waited_s >= timeout_s:
            raise _too_few(directory, line, {k: one for k, one in problems.items() if one})
        await asyncio.sleep(ASK_S)


async def _problems(urls: Mapping[str, str], token: str | None) -> dict[str, str]:
    """Returns the problem of each service by name, "" if it answers. Asks in parallel, since some
    may hang."""
    room = asyncio.Semaphore(MAX_ASKED)

    async def ask(url: str) -> str:
        options: dict[str, Any] = {"token": token, "retry_s": 0, "idle_s": STATUS_TIMEOUT_S}
        try:
            async with room, AsyncRolloutClient(url, **options) as client:
                return "it is stopping" if (await client.status()).is_stopping else ""
        except ServiceCallError as error:
            return str(error)
        except UnicodeError as error:  # a host name that no resolver takes
            return f"{url}: {error}"

    return dict(zip(urls, await asyncio.gather(*map(ask, urls.values())), strict=True))


def _too_few(directory: Path, line: str, problems: dict[str, str]) -> ProRLError:
    others = "".join(f"\n  {name}: {problem}" for name, problem in problems.items())
    return ProRLError(
        f"{line}{others}",
        hint=f"services announce themselves in {directory}: check that their jobs run, and read "
        "their logs. Wait longer with --wait-s, or for fewer with --wait-for",
    )
