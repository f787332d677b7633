"""Simulated user: a language model of the operator that plays the person whom the agent serves.

The user reads text of the policy, which gains if it talks the user into ending the conversation. So
the prompt says that this text is no instruction, and the user's own text reaches the policy as
text alone, never as calls or turns. A user that fails ends the rollout as failed, without a score.
"""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from prorl_service.net.chat_model import ChatModel, NoReply

KEY_VARIABLE = "PRORL_USER_KEY"
STOP = "###STOP###"
"""Mark with which a user ends the conversation."""
BUDGET_S = 240.0
"""Budget of one message in seconds, waiting included."""
MAX_TOKENS = 1024
MAX_CHARS = 4000
"""Longest message of a user. A longer one is asked for again: it would use up the policy's room."""

PROMPTS: dict[str, str] = tomllib.loads(Path(__file__).with_name("prompts.toml").read_text())

_TAG = re.compile(r"<(?=[/|]?\w[^<>]{0,60}>)")

Said = Sequence[tuple[str, str]]
"""The conversation: the user's messages, each with the agent's reply to it."""


async def next_message(model: ChatModel, persona: str, goal: str, said: Said) -> str | None:
    """Returns the user's next message; None if the user ends the conversation. Raises
    `EvaluatorError`."""
    played = PROMPTS["user"].strip().format(persona=persona, goal=goal, stop=STOP)
    messages = [
        {"role": "system", "content": played},
        {"role": "user", "content": "Hello, how can I help you?"},
    ]
    for own, reply in said:
        messages.append({"role": "assistant", "content": own})
        messages.append({"role": "user", "content": reply})
    return await model.ask(lambda: messages, _read, max_tokens=MAX_TOKENS, budget_s=BUDGET_S)


def _read(reply: str) -> str | None:
    if STOP in reply:
        return None
    text = reply.strip()
    if not text:
        raise NoReply("its message is empty")
    if len(text) > MAX_CHARS:
        raise NoReply(f"its message has {len(text)} characters, more than {MAX_CHARS}")
    return as_text(text)


def as_text(text: str) -> str:
    """Returns a text whose tags are broken by a zero-width space, so that it looks like no call or
    result of a tool in any template."""
    return _TAG.sub("<\u200b", text)
