"""A rollout as a conversation on a screen: its prompt, its turns, and the verdict.

`prorl try` shows the verdict too.
"""

from collections.abc import Iterator

from prorl_service.cli.screen import Screen
from prorl_service.cli.wording import (
    MEANINGS,
    STYLES,
    call_text,
    doing,
    json_text,
    listed,
    number,
    plural,
    stage_times,
)
from prorl_service.schemas import TERMINAL_STATES, Message, RolloutState
from prorl_service.schemas.views import RolloutRow, RolloutText, Sibling, TextCall, TextTurn
from prorl_service.utils.visible import visible_line


def show_rollout(screen: Screen, text: RolloutText) -> None:
    _show_head(screen, text)
    for number_, turn in enumerate(text.turns):
        _show_resumptions(screen, text, number_)
        screen.line(f"turn {number_ + 1}", "bold")
        _show_turn(screen, turn, text.rollout)
    _show_resumptions(screen, text, len(text.turns))
    show_verdict(screen, text.rollout, text.report)


# --- prompt ---------------------------------------------------------------------------------------


def _show_head(screen: Screen, text: RolloutText) -> None:
    row = text.rollout
    reward = "" if row.reward is None else f", reward {number(row.reward)}"
    title = f"{visible_line(row.rollout_id)}  {_outcome(row)}{reward}"
    screen.line(title, STYLES.get(row.state, "bold"))
    screen.note(", ".join(_facts(row, text.group_size)))
    if len(text.siblings) > 1:
        screen.note(f"siblings: {listed(_sibling(one) for one in text.siblings)}")
    if text.replay is not None:
        named = visible_line(text.replay.rollout_id or "a given trajectory")
        screen.note(f"began with {plural(text.replay.turns, 'turn')} of {named}")
    if row.activity is not None:
        screen.note(doing(row.activity))
    if text.notice:
        screen.note(visible_line(text.notice, limit=1000))
    for message in text.prompt:
        _show_message(screen, message)
    if text.tools:
        screen.note(f"tools: {listed(_tool_name(one) for one in text.tools)}")


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


def _show_message(screen: Screen, message: Message) -> None:
    if message.reasoning_content:
        screen.block("thought", message.reasoning_content, "dim", fold=True)
    if message.content:
        screen.block(message.role, message.content, fold=True)
    _note_pictures(screen, len(message.pictures))
    for call in message.tool_calls:
        said = call_text(call.function.name, call.function.arguments)
        screen.block("called", said, "cyan", fold=True)


def _note_pictures(screen: Screen, count: int) -> None:
    if count:
        screen.note(f"shows {plural(count, 'picture')}: see the page, or --html FILE")


def _tool_name(schema: dict[str, object]) -> str:
    function = schema.get("function")
    name = function.get("name") if isinstance(function, dict) else schema.get("name")
    return visible_line(str(name), limit=60)


# --- turns ----------------------------------------------------------------------------------------


def _show_resumptions(screen: Screen, text: RolloutText, turns: int) -> None:
    """Notes each start of the service that found this many whole turns."""
    for one in text.resumed:
        if one.turn == turns:
            screen.note(f"resumed at another start of the service, {one.away_s:.0f} s later")


def _show_turn(screen: Screen, turn: TextTurn, row: RolloutRow) -> None:
    if turn.given:
        screen.block("given", turn.given, "dim", fold=True)
    if turn.format_error is not None:
        screen.block("says", turn.raw)
    else:
        if turn.reasoning.strip():
            screen.block("thinks", turn.reasoning, "dim")
        if turn.text.strip():
            screen.block("says", turn.text)
    screen.note("replayed" if turn.is_replayed else _cost(turn))
    if turn.results_differ:
        screen.note("its calls had other results when they were made again")
    for call in turn.tool_calls:
        _show_call(screen, call, has_ended=row.state in TERMINAL_STATES)
    if turn.format_error is not None:
        screen.block("format", turn.format_error, "red", fold=True)


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
    if turn.reward is not None:
        parts.append(f"reward {number(turn.reward)}")
    return "; ".join(parts)


def _show_call(screen: Screen, call: TextCall, *, has_ended: bool) -> None:
    screen.block("calls", call_text(call.name, call.arguments), "cyan", fold=True)
    if call.output is None:
        screen.note("not made: the rollout had ended" if has_ended else "not finished yet")
        return
    screen.block("output", call.output, "red" if call.is_error else "", fold=True)
    _note_pictures(screen, len(call.pictures))
    screen.note(f"{call.duration_s:.2f} s{', an error' * call.is_error}")


# --- verdict --------------------------------------------------------------------------------------


def show_verdict(screen: Screen, row: RolloutRow, report: object) -> None:
    screen.line(_outcome(row), STYLES.get(row.state, "bold"))
    if row.reward is not None:
        screen.block("reward", number(row.reward), "bold")
    if row.reward_components:
        parts = (f"{name}  {number(one)}" for name, one in row.reward_components.items())
        screen.block("parts", "\n".join(parts), fold=True)
    if row.state is RolloutState.CANCELLED and row.error is None:
        screen.block("because", "it was not needed any more, or somebody cancelled it")
    elif row.error is None and (reason := row.finish_reason) and reason in MEANINGS:
        screen.block("because", MEANINGS[reason])
    if report is not None:
        screen.block("report", json_text(report), fold=True)
    if row.error is not None:
        kind, message = row.error.kind, row.error.message
        said = message if message.startswith(f"{kind}:") else f"{kind}: {message}"
        screen.block("error", said, "red", fold=True)
        for problem in row.error.fields:
            screen.block("field", f"{problem.field}: {problem.message}", "red")
        if row.error.hint:
            screen.block("to do", row.error.hint)
    sampled = plural(row.sampled_tokens or 0, "token")
    screen.note(f"{sampled} sampled; {', '.join(stage_times(row.timings))}")


def _outcome(row: RolloutRow) -> str:
    """Returns state and end of a rollout on one line."""
    if (error := row.error) is not None:
        stage = f" in {error.stage.value.upper()}" if error.stage is not None else ""
        blame = f", blame {error.blame.value}" if row.state is RolloutState.FAILED else ""
        return f"{row.state.value}{stage}{blame}"
    if row.state is RolloutState.DONE and row.finish_reason is not None:
        return f"done: {row.finish_reason.value} after {plural(row.turns or 0, 'turn')}"
    return row.state.value
