"""A person who plays the policy at a terminal: messages are printed, replies are typed.

Behind the API of a model, so that all agents work with it as they do with a real one.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from stat import S_ISREG
from typing import Any

from prorl_service.schemas import BackendSpec
from prorl_service.testing.stubs import Messages, StubApi
from prorl_service.utils.visible import visible

NAME = "person"
STANDARD_INPUT = 0
HOW = "reply in one line, or call a tool: NAME {JSON}; end with Ctrl-D"


class Person(StubApi):
    """Enter it on the event loop that standard input is read on."""

    def __init__(self) -> None:
        super().__init__(lambda _: "", model=NAME)
        self._turn = asyncio.Lock()
        """Held while one of several rollouts is asked for its reply."""
        self._typed = b""

    @property
    def spec(self) -> BackendSpec:
        return BackendSpec(kind="openai", model=NAME, url=self.url)

    async def reply(self, body: Mapping[str, Any]) -> str | Mapping[str, Any]:
        async with self._turn:
            tools = [tool["function"]["name"] for tool in body.get("tools", ())]
            _show(body["messages"], tools)
            while True:
                print("reply> ", end="", file=sys.stderr, flush=True)
                if line := (await self._line()).strip():
                    return _message(line, tools)

    async def _line(self) -> str:
        """Returns the next line, without blocking the loop. Raises `ValueError` at the end."""
        while b"\n" not in self._typed:
            await _readable(STANDARD_INPUT)
            piece = os.read(STANDARD_INPUT, 65536)
            if not piece:
                raise ValueError("no more replies were typed")
            self._typed += piece
        line, _, self._typed = self._typed.partition(b"\n")
        return line.decode(errors="replace")


def _show(messages: Messages, tools: list[str]) -> None:
    """Prints what came after the last reply."""
    said = [place for place, one in enumerate(messages) if one["role"] == "assistant"]
    new = messages[said[-1] + 1 :] if said else messages
    if not said:
        print(f"\n{HOW}\ntools: {visible(', '.join(tools)) or 'none'}", file=sys.stderr)
    for one in new:
        print(f"\n{one['role']}: {visible(str(one['content']))}", file=sys.stderr)


def _message(line: str, tools: list[str]) -> str | dict[str, Any]:
    name, _, arguments = line.partition(" ")
    if name not in tools or not _is_object(arguments):
        return line
    function = {"name": name, "arguments": arguments}
    return {"content": None, "tool_calls": [{"id": "typed", "function": function}]}


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


async def _readable(file: int) -> None:
    if S_ISREG(os.fstat(file).st_mode):  # always readable, and no loop takes it
        return
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(file, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(file)
