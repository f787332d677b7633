"""A model behind an OpenAI-compatible API (Chat Completions), for evaluation and for data.

It takes messages and gives text. Prompts are read back from tokens of `message_tokens`, and replies
are written in them: such rollouts are no model's own tokens, have no logprobs, and say so. A reply
that gives nothing to go on with (a refusal, no text) is the backend's failure, never a score.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from prorl_service.errors import BackendError, BackendRejected
from prorl_service.inference.engines.base import (
    Engine,
    EngineCall,
    EngineInfo,
    Generation,
    Intake,
    PauseMode,
    Transfer,
    WeightSource,
    checked,
    require,
)
from prorl_service.schemas import API_KIND, Sampling
from prorl_service.tokens import message_tokens
from prorl_service.tokens.chat import ChatFormat

CALL_TIMEOUT_S = 600.0
CONTEXT_TOKENS = 1 << 20
"""Tokens of the service's own that a rollout may have. APIs do not say what they take, and refuse
longer prompts themselves."""
NO_WEIGHTS = "a model behind an API takes no weights"


class ApiModel(Engine):
    kind = API_KIND
    hints = {  # noqa: RUF012 - declared in the base
        404: "write it as openai:MODEL@URL, with the name that the API has for the model and the "
        "URL up to /v1"
    }

    _has_answered = False

    async def check_health(self) -> None:
        """APIs have no such route: `serves` finds out once, calls do after that."""

    async def serves(self) -> EngineInfo:
        """Asks for the list of models once, which needs the key. Raises `BackendError`."""
        if not self._has_answered:
            names = await self.http.ask("GET", "/models", _names)
            if self.model_name not in names:
                name = self.model_name.replace("%", "%%")
                self.http.warn(f"%s does not list {name}, which is asked for all the same")
            self._has_answered = True
        return EngineInfo(self.model_name, message_tokens.PREFIX, CONTEXT_TOKENS, self.kind)

    async def describe(self, info: EngineInfo) -> EngineInfo:
        return info

    async def generate(self, call: EngineCall) -> Generation:
        """Raises `BackendRejected` for a prompt that is no conversation up to a reply."""
        assert self.chat is not None, "the model is known before it is called"
        chat, ids = self.chat, call.prompt.ids
        try:
            messages, tools = await asyncio.to_thread(
                lambda: message_tokens.read(chat.decode([*ids, chat.end_of_turn_id]))
            )
        except ValueError as error:
            raise BackendRejected(f"a model behind an API takes messages alone: {error}") from error
        body = {"model": self.model_name, "messages": messages, **_options(call.sampling)}
        if tools:
            body["tools"] = tools
        if call.seed is not None:
            body["seed"] = call.seed
        async with self.http.budget(CALL_TIMEOUT_S):
            text, is_cut = await self.http.ask(
                "POST", "/chat/completions", lambda answer: self._reply(answer, chat), json=body
            )
        return checked(self._generation(chat, text, call.max_tokens, is_cut=is_cut))

    def _reply(self, answer: Any, chat: ChatFormat) -> tuple[str, bool]:
        """Returns the reply as it is written in tokens, and whether it was cut off. Raises
        `BackendError` for one that is no reply, and as `EngineHttp.ask` has it."""
        choice = answer["choices"][0]
        message, reason = choice["message"], choice.get("finish_reason")
        if reason == "content_filter" or message.get("refusal"):
            why = str(message.get("refusal") or "its content filter ended the reply")[:200]
            raise BackendRejected(f"{self.model_name} refuses to answer: {why}")
        content = chat.defuse(_text(message.get("content"))).strip()
        calls = [_call(one, chat) for one in message.get("tool_calls") or ()]
        if not content and not calls:
            raise BackendError(f"{self.model_name} gave no text and no call ({reason})")
        thought = _text(message.get("reasoning_content") or message.get("reasoning"))
        written = message_tokens.written(content, chat.defuse(thought).strip(), calls)
        return written, reason == "length"

    def _generation(
        self, chat: ChatFormat, text: str, max_tokens: int, *, is_cut: bool
    ) -> Generation:
        """Cuts a reply that is longer than was asked for: an API counts other tokens."""
        ids = chat.encode(text) + ([] if is_cut else [chat.end_of_turn_id])
        kept = ids[:max_tokens]
        return Generation(
            token_ids=kept,
            logprobs=[0.0] * len(kept),
            policy_versions=[0] * len(kept),
            finish_reason="length" if is_cut or kept != ids else "stop",
            cached_tokens=0,
            backend=self.http.backend_id,
            logprobs_mode="unknown",
            policy=self.model_name,
        )

    # --- what only an engine can do -------------------------------------------------------------

    async def pause(self, mode: PauseMode) -> None:
        raise BackendRejected(NO_WEIGHTS)

    async def resume(self) -> None:
        raise BackendRejected(NO_WEIGHTS)

    async def transfer(self, source: WeightSource, info: EngineInfo, intake: Intake) -> Transfer:
        raise BackendRejected(NO_WEIGHTS, hint="train with engines, such as vLLM")


def _names(answer: Any) -> list[str]:
    return [str(one["id"]) for one in answer["data"]]


def _options(sampling: Sampling) -> dict[str, Any]:
    """Returns what differs from the API's defaults: some models refuse to be told the others."""
    given = {
        "temperature": (sampling.temperature, 1.0),
        "top_p": (sampling.top_p, 1.0),
        "top_k": (sampling.top_k, 0),
        "max_completion_tokens": (sampling.max_tokens_per_turn, None),
    }
    return {name: value for name, (value, default) in given.items() if value != default}


def _text(content: Any) -> str:
    """Returns a content that is text or, as some APIs have it, a list of parts. Raises
    `ValueError` and `KeyError`."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part.get("type") == "text")
    require(content is None or isinstance(content, str), "a content that is no text")
    return content or ""


def _call(call: Mapping[str, Any], chat: ChatFormat) -> tuple[str, str, str]:
    function = call["function"]
    parts = (call.get("id") or "", function["name"], function.get("arguments") or "")
    require(all(isinstance(part, str) for part in parts), "a call that is not of texts")
    call_id, name, arguments = map(chat.defuse, parts)
    return call_id, name, arguments
