"""A rollout as a sequence of blocks: its prompt, its turns, and the verdict. Pure.

`prorl show` prints the blocks, and `prorl view` lays them out. A block holds text of models and
tools as it is, so its reader makes it visible. Titles and notes are one visible line.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from prorl_service.cli.wording import (
    MEANINGS,
    call_text,
    json_text,
    listed,
    number,
    plural,
    stage_times,
)
from prorl_service.schemas import FinishReason, Message, RolloutState
from prorl_service.schemas.views import RolloutRow, RolloutText, Sibling, TextCall, TextTurn
from prorl_service.utils.visible import visible_line

STYLES = {
    RolloutState.DONE: "bold green",
    RolloutState.FAILED: "bold red",
    RolloutState.CANCELLED: "bold yellow",
}


TextOf = Callable[[RolloutRow], RolloutText]
"""Function that fetches what a row is of. Raises `ProRLError`."""


class Part(StrEnum):
    TITLE = "title"
    """A line of the program's own."""
    NOTE = "note"
    """A remark of the program's own on the block before."""
    PROMPT = "prompt"
    REASONING = "reasoning"
    TEXT = "text"
    TOOL = "tool"
    """A call, or what came of it."""
    VERDICT = "verdict"


@dataclass(frozen=True, slots=True)
class Block:
    part: Part
    section: int
    """0: the prompt; 1, 2, 3: the turns; then the verdict."""
    text: str
    label: str = ""
    style: str = ""
    folds: bool = False
    """True if the middle of long text may be left out at first."""


def blocks(text: RolloutText) -> Iterator[Block]:
    yield from _head(text)
    for number_, turn in enumerate(text.turns, 1):
        yield from _resumptions(text, number_ - 1)
        yield from _turn(turn, number_)
    yield from _resumptions(text, len(text.turns))
    yield from _verdict(text, len(text.turns) + 1)


# --- prompt ---------------------------------------------------------------------------------------


def _head(text: RolloutText) -> Iterator[Block]:
    row = text.rollout
    title = f"{visible_line(row.rollout_id)}  {outcome(row)}"
    yield Block(Part.TITLE, 0, title, style=STYLES.get(row.state, "bold"))
    yield _note(0, ", ".join(_facts(row, text.group_size)))
    if len(text.siblings) > 1:
        siblings = listed(_sibling(one) for one in text.siblings)
        yield _note(0, f"siblings: {siblings}")
    if text.notice:
        yield _note(0, visible_line(text.notice, limit=1000))
    for message in text.prompt:
        yield from _message(message)
    if text.tools:
        yield _note(0, f"tools: {listed(_tool_name(one) for one in text.tools)}")


def _facts(row: RolloutRow, group_size: int) -> Iterator[str]:
    yield f"task {visible_line(row.task_id)}"
    yield f"agent {visible_line(row.agent)}"
    yield f"{plural(group_size, 'rollout')} in group {visible_line(row.group_id)}"
    if row.run:
        yield f"run {visible_line(row.run)}"
    if row.policy_version is not None:
        yield f"policy version {row.policy_version}"
    if row.attempt > 1:
        yield f"attempt {row.attempt}"


def _sibling(one: Sibling) -> str:
    name = "." + visible_line(one.rollout_id).rpartition(".")[2]
    if one.reward is not None:
        return f"{name} {number(one.reward)}"
    blame = f" ({one.blame.value})" if one.blame is not None else ""
    return f"{name} {'lost' if one.state is None else one.state.value}{blame}"


def _message(message: Message) -> Iterator[Block]:
    if message.reasoning_content:
        yield Block(Part.PROMPT, 0, message.reasoning_content, "thought", "dim", folds=True)
    if message.content:
        yield Block(Part.PROMPT, 0, message.content, message.role, folds=True)
    for call in message.tool_calls:
        said = call_text(call.function.name, call.function.arguments)
        yield Block(Part.PROMPT, 0, said, "called", "cyan", folds=True)


def _tool_name(schema: dict[str, object]) -> str:
    function = schema.get("function")
    name = function.get("name") if isinstance(function, dict) else schema.get("name")
    return visible_line(str(name), limit=60)


# --- turns ----------------------------------------------------------------------------------------


def _resumptions(text: RolloutText, turns: int) -> Iterator[Block]:
    """Yields a note for each start of the service that found this many whole turns."""
    for one in text.resumed:
        if one.turn == turns:
            yield _note(turns, f"resumed at another start of the service, {one.away_s:.0f} s later")


def _turn(turn: TextTurn, section: int) -> Iterator[Block]:
    yield Block(Part.TITLE, section, f"turn {section}", style="bold")
    if turn.given:
        yield Block(Part.PROMPT, section, turn.given, "given", "dim", folds=True)
    if turn.format_error is not None:
        yield Block(Part.TEXT, section, turn.raw, "says")
    else:
        if turn.reasoning.strip():
            yield Block(Part.REASONING, section, turn.reasoning, "thinks", "dim")
        if turn.text.strip():
            yield Block(Part.TEXT, section, turn.text, "says")
    yield _note(section, _cost(turn))
    for call in turn.tool_calls:
        yield from _call(call, section)
    if turn.format_error is not None:
        yield Block(Part.TOOL, section, turn.format_error, "format", "red", folds=True)


def _cost(turn: TextTurn) -> str:
    parts = [f"{plural(turn.sampled_tokens, 'token')} in {turn.model_s:.2f} s"]
    parts.append(f"prompt {turn.prompt_tokens}")
    if turn.cached_tokens:
        parts[-1] += f", {turn.cached_tokens} cached"
    if turn.newest_policy_version is not None:
        oldest, newest = turn.oldest_policy_version, turn.newest_policy_version
        parts.append(f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}")
    if turn.stop_reason != "stop":
        reasons = {"length": "stopped at the limit of tokens", "abort": "aborted"}
        parts.append(reasons[turn.stop_reason])
    return "; ".join(parts)


def _call(call: TextCall, section: int) -> Iterator[Block]:
    said = call_text(call.name, call.arguments)
    yield Block(Part.TOOL, section, said, "calls", "cyan", folds=True)
    if call.output is None:
        yield Block(Part.NOTE, section, "not made: the rollout had ended", style="dim")
        return
    style = "red" if call.is_error else ""
    yield Block(Part.TOOL, section, call.output, "output", style, folds=True)
    error = ", an error" if call.is_error else ""
    yield _note(section, f"{call.duration_s:.2f} s{error}")


# --- verdict --------------------------------------------------------------------------------------


def _verdict(text: RolloutText, section: int) -> Iterator[Block]:
    row = text.rollout
    yield Block(Part.TITLE, section, outcome(row), style=STYLES.get(row.state, "bold"))
    if row.reward is not None:
        yield Block(Part.VERDICT, section, number(row.reward), "reward", "bold")
    if row.reward_components:
        parts = "\n".join(f"{name}  {number(one)}" for name, one in row.reward_components.items())
        yield Block(Part.VERDICT, section, parts, "parts", folds=True)
    if (meaning := _meaning(row.finish_reason)) and row.error is None:
        yield Block(Part.VERDICT, section, meaning, "because")
    if text.report is not None:
        yield Block(Part.VERDICT, section, json_text(text.report), "report", folds=True)
    if row.error is not None:
        what = f"{row.error.kind}: {row.error.message}"
        yield Block(Part.VERDICT, section, what, "error", "red", folds=True)
        for problem in row.error.fields:
            yield Block(
                Part.VERDICT, section, f"{problem.field}: {problem.message}", "field", "red"
            )
        if row.error.hint:
            yield Block(Part.VERDICT, section, row.error.hint, "to do")
    sampled = plural(row.sampled_tokens or 0, "token")
    yield _note(section, f"{sampled} sampled; {', '.join(stage_times(row.timings))}")


def _meaning(reason: FinishReason | None) -> str:
    return "" if reason is None else MEANINGS.get(reason, "")


def outcome(row: RolloutRow) -> str:
    """Returns state and end of a rollout on one line."""
    parts = [row.state.value]
    if row.error is not None:
        stage = f" in {row.error.stage.value.upper()}" if row.error.stage is not None else ""
        parts[0] += stage
        if row.state is RolloutState.FAILED:
            parts.append(f"blame {row.error.blame.value}")
    elif row.finish_reason is not None and row.state is RolloutState.DONE:
        parts[0] += f": {row.finish_reason.value} after {plural(row.turns or 0, 'turn')}"
    if row.reward is not None:
        parts.append(f"reward {number(row.reward)}")
    return ", ".join(parts)


def _note(section: int, text: str) -> Block:
    return Block(Part.NOTE, section, text)
