"""A model call as the gateway knows it, whatever the dialect: request, reply, refusal. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from prorl_service.schemas import Message
from prorl_service.tokens.formats import ToolSchema

Ending = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Said:
    """A message of a conversation, as a harness sent it."""

    message: Message
    raw_arguments: tuple[str, ...] = ()
    """Arguments of its calls as text, where they are no JSON object; "" for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequest:
    conversation: Sequence[Said]
    tools: Sequence[ToolSchema]
    """Tools offered, as OpenAI's clients and chat templates know them."""
    max_tokens: int | None = None
    is_streamed: bool = False
    stop: Sequence[str] = ()
    """Texts at which the harness wants the reply to end."""
    without_effect: Sequence[str] = ()
    """Names of fields that were accepted and change nothing."""
    left_out: Sequence[str] = ()
    """Kinds of tools and parts that no policy is offered, such as `web_search`."""
    takes_broken_calls: bool = True
    """Whether the reply may hold calls whose arguments are no JSON; else these are text of it."""
    call_prefix: str = "call_"
    """Beginning of the ids of calls, as the harness expects them."""
    is_subagent: bool = False
    """Whether the harness says that a sub-agent asks."""


@dataclass(frozen=True, slots=True)
class ReplyCall:
    """A tool call of a reply. `arguments` is JSON text; broken JSON stays as it was sampled."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Numbers of tokens. Harnesses compact their history by these."""

    prompt: int
    sampled: int
    cached: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReply:
    name: str
    """Name that all ids of the reply are made of, but those of its calls."""
    model: str
    created_at: int
    """Unix time in seconds."""
    text: str = ""
    reasoning: str = ""
    calls: Sequence[ReplyCall] = field(default_factory=tuple)
    ending: Ending = "stop"
    stop: str | None = None
    """Text of `CallRequest.stop` that ended it."""
    usage: Usage


class Refused(Exception):
    """A request that the gateway does not answer; the dialect says so in its own form."""

    def __init__(
        self, message: str, status: int = 400, kind: str = "invalid_request_error"
    ) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


class ContextTooLong(Refused):
    """Nothing can be sampled after so long a prompt. Harnesses compact their history at this."""

    def __init__(self, prompt_tokens: int, max_tokens: int) -> None:
        super().__init__(f"prompt is too long: {prompt_tokens} tokens > {max_tokens} maximum")
        self.prompt_tokens, self.max_tokens = prompt_tokens, max_tokens


class NoThreads(Refused):
    """Conversations are not held here. Anthropic's tool runners send them whole at this."""

    def __init__(self) -> None:
        super().__init__("thread: send the whole conversation")
