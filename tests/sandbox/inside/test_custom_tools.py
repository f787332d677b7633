"""Tools whose inside half comes with a third party's package, such as the docs' example."""

import pytest
from pydantic import BaseModel, Field

from prorl_service.errors import SandboxError
from prorl_service.sandbox.base import Sandbox, ToolResult
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from prorl_service.tokens.formats import ToolCall
from prorl_service.tools.base import Toolset
from tests.sandbox.sandboxes import bash

pytestmark = [pytest.mark.processes, pytest.mark.unprivileged]

INSIDE = """
def tool(request):
    with open(request.arguments["path"], "rb") as file:
        words = len(file.read().split())
    request.reply_tool(f"{words} words", is_error=False, data={"words": words})
"""


class WordCountArguments(BaseModel):
    path: str = Field(description="The file.")


class WordCount:
    name = "word_count"
    description = "Count the words of a file."
    arguments = WordCountArguments

    async def call(
        self, sandbox: Sandbox, arguments: WordCountArguments, *, timeout_s: float
    ) -> ToolResult:
        await sandbox.add_tool(self.name, INSIDE)
        return await sandbox.call_tool(self.name, arguments.model_dump(), timeout_s=timeout_s)


async def test_the_example_of_the_docs_works(in_any_kind: RemoteSandbox) -> None:
    await in_any_kind.upload("text", b"one two\nthree\n")
    tools = Toolset([WordCount()], in_any_kind, timeout_s=20)
    for _ in range(2):
        record = await tools.call(ToolCall("word_count", {"path": "text"}))
        assert record.output == "3 words"
        assert not record.is_error


WAITS = """
import os, time

def tool(request):
    read, write = os.pipe()

    def ready():
        request.loop.unwatch(read)
        request.reply_tool(os.read(read, 100).decode(), is_error=False)

    request.loop.watch(read, ready)
    request.loop.set_timer(request, time.monotonic() + 0.01, lambda: os.write(write, b"later"))
    request.stream(b"soon")
"""


async def test_a_custom_tool_may_wait_and_stream(sandbox: RemoteSandbox) -> None:
    pieces: list[bytes] = []
    await sandbox.add_tool("waits", WAITS)
    result = await sandbox.call_tool("waits", {}, timeout_s=20, on_output=pieces.append)
    assert result.output == "later"
    assert pieces == [b"soon"]


async def test_faults_of_a_custom_tool_do_not_break_the_sandbox(sandbox: RemoteSandbox) -> None:
    for source in ("def tool(request:", "tool = 1 / 0", "x = 1"):
        with pytest.raises(SandboxError, match="could not be added"):
            await sandbox.add_tool("broken", source)
    with pytest.raises(SandboxError, match="tool of the server itself"):
        await sandbox.add_tool("bash", INSIDE)
    await sandbox.add_tool("raises", "def tool(request):\n    raise LookupError('inside')")
    with pytest.raises(SandboxError, match="LookupError: inside"):
        await sandbox.call_tool("raises", {}, timeout_s=20)
    assert (await bash(sandbox, "echo fine")).output == "fine\n"


async def test_a_tool_may_be_replaced_by_a_newer_one(sandbox: RemoteSandbox) -> None:
    for number in (1, 2):
        source = f"def tool(request): request.reply_tool('{number}', is_error=False)"
        await sandbox.add_tool("versioned", source)
        assert (await sandbox.call_tool("versioned", {}, timeout_s=20)).output == str(number)
