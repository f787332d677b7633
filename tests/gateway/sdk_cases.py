"""What the SDKs of OpenAI and Anthropic offer to call a model: a table, each case run as it is.

A case is one method of one SDK. It does all of a small task by that method, and tells what it got.
"""

import asyncio
import json
import shutil
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prorl_service.gateway.harnesses import store
from tests.gateway import sdk_python
from tests.gateway.rollouts import thinking, tool_call
from tests.gateway.sdk_python import ASKED, PARAMETERS, RESULTS, Outcome

NODE_SDKS = Path(__file__).with_name("node_sdks.toml")
NODE = Path(__file__).with_name("sdk_node.mjs")

WORK = (
    thinking("I had better look. é", f"Let me look.\n{tool_call(command='ls -a')}"),
    tool_call(command="pwd") + "\n" + tool_call(command="date"),
    "Two files: a and b.",
)
WORKED = Outcome(WORK[-1], commands=tuple(RESULTS))
PARSE = ('{"answer": 42}',)
PARSED = Outcome(PARSE[0], parsed=42)

Sdk = Literal["openai-python", "openai-node", "anthropic-python", "anthropic-node"]


@dataclass(frozen=True, slots=True)
class Case:
    sdk: Sdk
    method: str
    replies: Sequence[str] = WORK
    """What the policy samples."""
    outcome: Outcome = WORKED
    """What the program should get."""

    @property
    def name(self) -> str:
        return f"{self.sdk}: {self.method}"


_OF_OPENAI = (
    *("chat.create", "chat.create streamed", "chat.stream"),
    *("responses.create", "responses.create streamed", "responses.stream"),
)
_OF_ANTHROPIC = (
    *("messages.create", "messages.create streamed", "messages.stream"),
    *("tool_runner", "tool_runner streamed"),
)
_PARSED_BY_OPENAI = (
    *("chat.parse", "chat.stream parsed"),
    *("responses.parse", "responses.stream parsed"),
)
_PARSED_BY_ANTHROPIC = ("messages.parse", "messages.stream parsed")
_WORK: dict[Sdk, Sequence[str]] = {
    "openai-python": _OF_OPENAI,
    "openai-node": (*_OF_OPENAI, "chat.runTools", "chat.runTools streamed"),
    "anthropic-python": _OF_ANTHROPIC,
    "anthropic-node": _OF_ANTHROPIC,
}
_PARSE: dict[Sdk, Sequence[str]] = {
    "openai-python": _PARSED_BY_OPENAI,
    "openai-node": _PARSED_BY_OPENAI,
    "anthropic-python": _PARSED_BY_ANTHROPIC,
    "anthropic-node": _PARSED_BY_ANTHROPIC,
}
CASES = [
    *(Case(sdk, method) for sdk, methods in _WORK.items() for method in methods),
    *(Case(sdk, method, PARSE, PARSED) for sdk, methods in _PARSE.items() for method in methods),
]


async def run(case: Case, base_url: str) -> Outcome:
    """Runs a case against a gateway whose policy samples `case.replies`. Raises what the SDK
    raises, and `RuntimeError` for a program that fails."""
    if case.sdk.endswith("-python"):
        return await sdk_python.run(case.method, base_url)
    given = {"asked": ASKED, "parameters": PARAMETERS, "results": RESULTS}
    command = [_node(), NODE, node_modules(), case.method, base_url, json.dumps(given)]
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    told, failed = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{case.name} ended with {process.returncode}: {failed.decode()}")
    found = json.loads(told)
    return Outcome(found["text"], tuple(found["commands"]), found["parsed"])


def _node() -> str:
    """Returns the machine's Node, or that of the environment."""
    return shutil.which("node") or str(Path(sys.executable).with_name("node"))


def node_modules() -> Path:
    """Returns where the SDKs for Node are. Raises `TaskError` if they are not installed."""
    version = tomllib.loads(NODE_SDKS.read_text())["install"]["version"]
    return store.find_tree(NODE_SDKS.stem, version).path / "node_modules"
