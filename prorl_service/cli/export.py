"""`prorl export`: rollouts in other tools' formats."""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from prorl_service.agents.base import Prompt
from prorl_service.errors import ProRLError
from prorl_service.exports import atif, sft, tokens
from prorl_service.exports.output import Row, write_document, write_lines, write_rows
from prorl_service.exports.sources import records
from prorl_service.exports.transcript import ExportRecord, PromptOf, Transcriber
from prorl_service.schemas import Task
from prorl_service.schemas.arrays import PACKED
from prorl_service.tokens.chat import ChatFormat

NO_TOKENIZER = (
    "name the rollouts' model: its directory, or its name on the hub; 'messages:' for a model "
    "behind an API"
)


def export(
    sources: list[str],
    /,
    *,
    format: Literal["jsonl", "sft", "tokens", "atif"],
    out: Path | None = None,
    tokenizer: str | None = None,
    reply_format: str | None = None,
    min_reward: float | None = None,
    agent: Annotated[list[str] | None, Parameter(consume_multiple=False)] = None,
    only: Literal["done", "failed", "cancelled"] | None = None,
    all_segments: bool = False,
) -> None:
    """Export rollouts in other tools' formats.

    Parameters
    ----------
    sources
        Services by address, JSONL files, directories of them (as trainers save them), journals;
        '-' is standard input.
    format
        jsonl: as the API gives them; sft: conversations; tokens: ids and logprobs; atif: ATIF 1.8.
    out
        File, JSONL or (by its ending) Parquet; for atif a directory (default: standard output).
    tokenizer
        Directory or hub name of the rollouts' model, to decode their tokens; 'messages:' for a
        model behind an API (before the tokenizer's name, if it was served with one).
    reply_format
        Format of tool calls (default: the one that the model's chat template writes).
    min_reward
        Least reward of exported rollouts.
    agent
        Name of the agent of exported rollouts.
    only
        Final state of exported rollouts.
    all_segments
        For sft and tokens: also what trainers do not learn from, such as titles, sub-agents, and
        rollouts that failed or were cut off.
    """
    wanted = WantedRollouts(min_reward, tuple(agent or ()), only)
    match format:
        case "jsonl":
            lines = (one.rollout.model_dump_json(context=PACKED) for one in wanted.of(sources))
            written = write_lines(lines, out)
        case "tokens":
            rows_of = partial(tokens.rows, all_segments=all_segments)
            rows = wanted.rows(sources, rows_of)
            written = write_rows(rows, out, tokens.COLUMNS)
        case "sft":
            transcriber = _transcriber(tokenizer, reply_format)
            if transcriber.chat is None:
                raise ProRLError(
                    "--format sft needs --tokenizer: prompts are saved only as tokens",
                    hint=NO_TOKENIZER,
                )
            rows_of = partial(sft.rows, transcriber=transcriber, all_segments=all_segments)
            rows = wanted.rows(sources, rows_of)
            written = write_rows(rows, out, sft.columns(transcriber))
        case "atif":
            transcriber = _transcriber(tokenizer, reply_format)
            written = _write_documents(wanted.of(sources), transcriber, out)
    _report(wanted, written, out)


@dataclass(slots=True)
class WantedRollouts:
    """Conditions for rollouts; counts what is left out and why."""

    min_reward: float | None
    agents: tuple[str, ...]
    state: str | None
    filtered: int = 0
    unreadable: int = 0
    """Number of segments for which the format has no row."""

    def of(self, sources: Iterable[str]) -> Iterator[ExportRecord]:
        for record in records(list(sources)):
            if self._is_wanted(record):
                yield record
            else:
                self.filtered += 1

    def _is_wanted(self, record: ExportRecord) -> bool:
        rollout = record.rollout
        if self.min_reward is not None and (
            rollout.reward is None or rollout.reward < self.min_reward
        ):
            return False
        is_of_agent = not self.agents or rollout.agent in self.agents
        return is_of_agent and self.state in (None, rollout.state.value)

    def rows(
        self, sources: Iterable[str], rows_of: Callable[[ExportRecord], Iterator[Row]]
    ) -> Iterator[Row]:
        for record in self.of(sources):
            trajectory = record.rollout.trajectory
            self.unreadable += len(trajectory.segments) if trajectory else 1
            for row in rows_of(record):
                self.unreadable -= 1
                yield row


def _transcriber(tokenizer: str | None, reply_format: str | None) -> Transcriber:
    """Raises `InvalidRequest`."""
    if tokenizer is None:
        return Transcriber()
    path = Path(tokenizer)
    return Transcriber(
        ChatFormat.load(path if path.is_dir() else tokenizer, reply_format), _prompt_of()
    )


def _prompt_of() -> PromptOf:
    """Returns a function for the prompts of agents that are installed here."""
    from prorl_service.agents.registry import AgentRegistry

    agents = AgentRegistry()

    def prompt_of(task: Task) -> Prompt | None:
        try:
            return agents.make(task).prompt()
        except Exception:  # an agent of another version, or somebody else's code
            return None

    return prompt_of


def _write_documents(
    found: Iterable[ExportRecord], transcriber: Transcriber, out: Path | None
) -> int:
    written = 0
    for record in found:
        for name, document in atif.documents(record, transcriber):
            write_document(document, name, out)
            written += 1
    return written


def _report(wanted: WantedRollouts, written: int, out: Path | None) -> None:
    """Prints to standard error: standard output is for rollouts."""
    parts = [f"{written} written" + (f" to {out}" if out else "")]
    if wanted.filtered:
        parts.append(f"{wanted.filtered} rollouts not wanted")
    if wanted.unreadable:
        why = "not trained on, prompt unreadable, or tokens of pictures"
        parts.append(f"{wanted.unreadable} left out: {why}")
    print(f"prorl: {', '.join(parts)}", file=sys.stderr)
