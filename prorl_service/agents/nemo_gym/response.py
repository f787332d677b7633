"""A rollout as an object of OpenAI's Responses API, as NeMo Gym's verifiers read it. Pure.

Items are those that NeMo Gym's own model server and agent make of a conversation: reasoning,
message, function_call and function_call_output.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prorl_service.schemas import Turn
from prorl_service.tokens.formats import Reply

ECHOED = (
    "temperature",
    "top_p",
    "background",
    "max_output_tokens",
    "max_tool_calls",
    "reasoning",
    "service_tier",
    "text",
    "top_logprobs",
    "truncation",
    "metadata",
    "instructions",
    "user",
)
"""Parameters of a request that its response repeats."""


@dataclass(frozen=True, slots=True)
class Step:
    """One turn: what was sampled, and how many tokens the model saw before."""

    turn: Turn
    reply: Reply
    prompt_tokens: int

    @property
    def is_cut(self) -> bool:
        return self.turn.finish_reason == "length"


def response(
    steps: Sequence[Step], parameters: Mapping[str, Any], *, rollout_id: str, model: str
) -> dict[str, Any]:
    """Returns the response to `parameters`, a row's `responses_create_params`."""
    is_cut = bool(steps) and steps[-1].is_cut
    parallel = parameters.get("parallel_tool_calls")
    return {
        "id": f"resp_{rollout_id}",
        "object": "response",
        "created_at": int(steps[-1].turn.started_at or 0) if steps else 0,
        "model": parameters.get("model") or model,
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": [
            item for number, step in enumerate(steps) for item in _items(step, rollout_id, number)
        ],
        "tools": [_tool(tool) for tool in parameters.get("tools") or []],
        "tool_choice": parameters.get("tool_choice") or "auto",
        "parallel_tool_calls": True if parallel is None else parallel,
        "usage": _usage(steps),
        **{name: parameters[name] for name in ECHOED if parameters.get(name) is not None},
    }


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Adds what the type of a response requires of a tool, and that of a request does not."""
    return {"strict": None, "parameters": None, **tool}


def _items(step: Step, rollout_id: str, number: int) -> Iterator[dict[str, Any]]:
    """Yields the turn's items. A call that was not made, since the reply broke the format or
    the rollout ended, is none: the verifier sees what happened."""
    turn, reply, id_ = step.turn, step.reply, f"{rollout_id}.{number}"
    if reply.reasoning:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        yield {"type": "reasoning", "id": f"rs_{id_}", "summary": summary}
    if reply.content or not (reply.reasoning or turn.tool_calls):
        text = {"type": "output_text", "text": reply.content, "annotations": []}
        yield {
            "type": "message",
            "id": f"msg_{id_}",
            "role": "assistant",
            "status": "incomplete" if step.is_cut else "completed",
            "content": [text],
        }
    ids = [f"call_{id_}.{place}" for place in range(len(turn.tool_calls))]
    for call_id, record in zip(ids, turn.tool_calls, strict=True):
        yield {
            "type": "function_call",
            "id": f"fc_{call_id}",
            "call_id": call_id,
            "name": record.name,
            "arguments": json.dumps(record.arguments, ensure_ascii=False),
            "status": "completed",
        }
    for call_id, record in zip(ids, turn.tool_calls, strict=True):
        yield {"type": "function_call_output", "call_id": call_id, "output": record.output}


def _usage(steps: Sequence[Step]) -> dict[str, Any]:
    """Returns tokens, summed over all calls, as NeMo Gym's agent sums them."""
    prompt = sum(step.prompt_tokens for step in steps)
    sampled = sum(step.turn.stop - step.turn.start for step in steps)
    cached = sum(step.turn.cached_tokens for step in steps)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + sampled,
    }
