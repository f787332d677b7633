"""An engine that knows the reference patches: it edits and submits, by the agent's tools.

For tests of the whole path, for measurements, and as what the tiny model begins by imitating. It
answers over real HTTP; the service behind it edits real files and runs real tests. By its script it
may also give up, which leaves no patch.
"""

import asyncio
import itertools
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prorl_service.agents.swe import SweAgent
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from recipes.common.imitation import tool_call
from recipes.swebench.rows import SweInstance

Step = tuple[str, dict[str, Any]]
SUBMIT: Step = ("submit", {})
MAX_MODEL_LEN = 400_000
"""Its tokenizer has small tokens."""
START_TIMEOUT_S = 60


def edits(row: SweInstance) -> list[Step]:
    """The hunks of the reference patch, as calls of the editor."""
    steps: list[Step] = []
    for file in re.split(r"^diff --git .*\n", row.patch, flags=re.MULTILINE)[1:]:
        found = re.search(r"^\+\+\+ b/(.*)$", file, re.MULTILINE)
        if found is None:
            raise ValueError(f"{row.instance_id}: the reference patch does more than edit files")
        path = f"{row.environment.repository}/{found[1]}"
        for hunk in re.split(r"^@@ .*\n", file, flags=re.MULTILINE)[1:]:
            lines = hunk.splitlines()
            old, new = ("\n".join(line[1:] for line in lines if line[:1] != sign) for sign in "+-")
            call = {"command": "str_replace", "path": path, "old_str": old, "new_str": new}
            steps.append(("str_replace_editor", call))
    return steps


def replies(row: SweInstance, *, fixes: bool) -> list[str]:
    """What it says, turn by turn."""
    steps = [*edits(row), SUBMIT] if fixes else [SUBMIT]
    return [tool_call(name, arguments) for name, arguments in steps]


class Script:
    """`fixes`: by instance, whether each rollout in turn fixes it, over and over."""

    def __init__(
        self, rows: Sequence[SweInstance], chat: ChatFormat, fixes: Mapping[str, Sequence[bool]]
    ) -> None:
        self._chat = chat
        self._first_prompts = {tuple(_prompt_ids(row, chat)): row for row in rows}
        self._fixes = {name: itertools.cycle(turns) for name, turns in fixes.items()}

    def answer(self, prompt: list[int]) -> list[int]:
        """Raises `ValueError` for a prompt of no instance that it knows."""
        row = self._first_prompts.get(tuple(prompt))
        if row is not None:
            said = replies(row, fixes=next(self._fixes[row.instance_id]))
            return self._ids(said[0])
        first, row = next(
            (first, row)
            for first, row in self._first_prompts.items()
            if tuple(prompt[: len(first)]) == first
        )
        # Only who fixes has a second turn.
        turn = prompt[len(first) :].count(self._chat.end_of_turn_id) // 2
        return self._ids(replies(row, fixes=True)[turn])

    def _ids(self, text: str) -> list[int]:
        return [*self._chat.encode(text), self._chat.end_of_turn_id]


def _prompt_ids(row: SweInstance, chat: ChatFormat) -> list[int]:
    prompt = SweAgent(row.task()).prompt()
    return chat.prompt_ids(prompt.messages, tools=prompt.tools)


@contextmanager
def serving(
    rows: Sequence[SweInstance], model: Path, fixes: Mapping[str, Sequence[bool]]
) -> Iterator[StubEngine]:
    """The engine, on an event loop in a thread of its own; `model` gives the tokenizer."""
    script = Script(rows, ChatFormat.load(model), fixes)
    engine = StubEngine(model, script.answer, max_model_len=MAX_MODEL_LEN)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(engine.__aenter__(), loop).result(START_TIMEOUT_S)
        yield engine
    finally:
        asyncio.run_coroutine_threadsafe(engine.__aexit__(), loop).result(START_TIMEOUT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
