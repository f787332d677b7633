"""Output of `prorl try`: rollouts turn by turn as they happen, verdicts, and a summary table.

Reads rollouts and changes none. `screen` makes text of models harmless.
"""

from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from prorl_service.attempt import Attempt
from prorl_service.cli.conversation import show_verdict
from prorl_service.cli.screen import Screen
from prorl_service.cli.wording import STYLES, call_text, number
from prorl_service.rollouts.observers import Observer
from prorl_service.schemas import Rollout, RolloutState, Stage, ToolCallRecord, Turn
from prorl_service.schemas.numbers import mean_of
from prorl_service.schemas.rollouts import Figures
from prorl_service.schemas.views import RolloutRow
from prorl_service.shelf.rows import row_of
from prorl_service.tokens.formats import ToolSchema
from prorl_service.utils.visible import visible_line


class Display(Observer):
    def __init__(
        self, screen: Screen, attempts: int, offered: Callable[[], Sequence[ToolSchema]]
    ) -> None:
        """`offered` returns the offered tools, once the task is accepted."""
        self._offered = offered
        self._screen = screen
        self._attempts = attempts
        self._tools: Sequence[ToolSchema] = ()
        self._views: dict[str, _View] = {}

    def changed(self, rollout: Attempt) -> None:
        if not self._views:  # all attempts have the same tools and prompt
            self._tools = self._offered()
            self._screen.block("prompt", rollout.chat.decode(rollout.prompt_ids), "dim", fold=True)
            self._screen.note(f"{len(rollout.prompt_ids)} tokens")
        self._view(rollout.rollout_id).update(rollout)

    def result(self, rollout: Rollout, unused_replies: int = 0) -> None:
        self._view(rollout.rollout_id).end(rollout)
        if unused_replies and rollout.state is RolloutState.DONE:
            self._view(rollout.rollout_id).screen.note(
                f"{unused_replies} scripted replies were not used"
            )

    def summary(self, rollouts: Sequence[Rollout]) -> None:
        """Shows a table of several attempts."""
        names = ("attempt", "state", "reward", "turns", "tokens", "seconds", "finish")
        table = Table(*names, box=None, pad_edge=False, header_style="bold")
        for row in map(_row, rollouts):
            finish = row.finish_reason.value if row.finish_reason is not None else ""
            if row.error is not None:
                finish = f"blame {row.error.blame.value}: {visible_line(row.error.kind)}"
            table.add_row(
                str(row.index),
                Text(row.state.value, style=STYLES.get(row.state, "")),
                number(row.reward),
                str(row.turns),
                str(row.sampled_tokens),
                f"{row.timings.init_s + row.timings.run_s + row.timings.eval_s:.1f}",
                finish,
            )
        self._screen.line("")
        self._screen.table(table)
        rewards = [one.reward for one in rollouts if one.reward is not None]
        if rewards:
            mean = mean_of(rewards)
            spread = f"{min(rewards):g} to {max(rewards):g}"
            self._screen.line(f"reward {spread}, mean {mean:g}, of {len(rewards)} rollouts")

    def _view(self, rollout_id: str) -> "_View":
        if rollout_id not in self._views:
            index = rollout_id.rpartition(".")[2]
            screen = self._screen.behind(f"[{index}] ") if self._attempts > 1 else self._screen
            self._views[rollout_id] = _View(screen, self._tools)
        return self._views[rollout_id]


class _View:
    """One rollout, and how much of it has been shown."""

    def __init__(self, screen: Screen, tools: Sequence[ToolSchema]) -> None:
        self.screen = screen
        self._tools = tools
        self._rollout: Attempt | None = None
        self._stage: Stage | None = None
        self._announced = 0
        """Number of turns whose heading was shown."""
        self._turns: list[Turn] = []
        """Turns whose reply was shown."""
        self._records = 0
        """Number of the last such turn's tool calls that were shown."""
        self._is_closed = True
        """True once the last such turn was shown completely."""

    def update(self, rollout: Attempt) -> None:
        self._rollout = rollout
        for turn in rollout.turns[len(self._turns) :]:
            self._show_records()
            self._close_turn()
            self._show_reply(rollout, turn)
        self._show_records()
        if rollout.stage is not self._stage:
            self._stage = rollout.stage
            self._close_turn()
            self.screen.line(rollout.stage.value.upper(), "bold")
        elif rollout.calls_model and self._announced == len(self._turns):
            self._close_turn()
            self._announce()

    def end(self, rollout: Rollout) -> None:
        if self._rollout is not None:
            self.update(self._rollout)
        self._close_turn()
        show_verdict(self.screen, _row(rollout), rollout.report)
        self._show_turn_rewards([] if rollout.trajectory is None else rollout.trajectory.turns)

    # --- parts of a rollout ---------------------------------------------------------------------

    def _show_turn_rewards(self, turns: Sequence[Turn]) -> None:
        parts = (
            f"{number(turn.reward)} in turn {place}"
            for place, turn in enumerate(turns, 1)
            if turn.reward is not None
        )
        if text := ", ".join(parts):
            self.screen.block("of it", text)

    def _announce(self) -> None:
        self._announced += 1
        self.screen.line(f"turn {self._announced}", "bold")

    def _show_reply(self, rollout: Attempt, turn: Turn) -> None:
        if self._announced == len(self._turns):
            self._announce()
        self._show_context(rollout, turn)
        reply = rollout.reply(turn, self._tools)
        if reply.problem is not None:
            self.screen.block("says", turn.text)
        if reply.reasoning and reply.problem is None:
            self.screen.block("thinks", reply.reasoning, "dim")
        if reply.content and reply.problem is None:
            self.screen.block("says", reply.content)
        for call in reply.calls:
            self.screen.block("calls", call_text(call.name, call.arguments), "cyan", fold=True)
        cached = f", {turn.cached_tokens} of the prompt cached" if turn.cached_tokens else ""
        cut = "; stopped at the limit of tokens" if turn.finish_reason == "length" else ""
        took = "replayed" if turn.is_replayed else f"{turn.model_s:.2f} s{cached}"
        self.screen.note(f"{turn.stop - turn.start} tokens, {took}{cut}")
        self._turns.append(turn)
        self._records, self._is_closed = 0, False

    def _show_context(self, rollout: Attempt, turn: Turn) -> None:
        """Shows what the model was told since its last turn, unless tool calls show it."""
        if not self._turns:
            return
        last, ids = self._turns[-1], rollout.ledger.before(turn.segment, turn.start)
        if turn.segment != last.segment:
            self.screen.block("prompt", rollout.chat.decode(ids), "dim", fold=True)
            self.screen.note(f"{len(ids)} tokens, which do not continue the chain: a new segment")
        elif not last.tool_calls and last.format_error is None:
            seen = len(rollout.ledger.before(last.segment, last.stop))
            self.screen.block("given", rollout.chat.decode(ids[seen:]), "dim", fold=True)

    def _show_records(self) -> None:
        if not self._turns:
            return
        records = self._turns[-1].tool_calls
        for record in records[self._records :]:
            self._show_record(record)
        self._records = len(records)

    def _show_record(self, record: ToolCallRecord) -> None:
        self.screen.block("output", record.output, "red" if record.is_error else "", fold=True)
        error = ", an error" if record.is_error else ""
        self.screen.note(f"{visible_line(record.name, limit=60)}, {record.duration_s:.2f} s{error}")

    def _close_turn(self) -> None:
        """Shows a turn's format error, which is known only when something else begins."""
        if not self._is_closed and (problem := self._turns[-1].format_error) is not None:
            self.screen.block("error", f"format error: {problem}", "red")
        self._is_closed = True


def _row(rollout: Rollout) -> RolloutRow:
    return row_of(rollout, Figures.of(rollout.trajectory), run="", has_content=True)
