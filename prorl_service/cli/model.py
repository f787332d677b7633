"""`prorl check-model`: what a model's chat template does with the conversations of agents."""

import sys
from pathlib import Path

from rich.table import Table

from prorl_service.cli.screen import Screen
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.probe import Findings

RULES = {
    "late_system": "added to the user's turn as a <system-reminder>",
    "leading_systems": "joined by a blank line",
}
"""Treatments of messages that the template does not render."""


def check_model(model: str, /, *, reply_format: str | None = None) -> int:
    """Show how a model's chats are rendered and its replies read.

    Exits with code 1 if agents with tools cannot use the model.

    Parameters
    ----------
    model
        Directory of a model, or its name on the hub.
    reply_format
        Format to read calls in (default: the format that the model's template writes).
    """
    chat = ChatFormat.load(Path(model) if Path(model).is_dir() else model, reply_format)
    _show(model, chat)
    return 1 if chat.problem else 0


def _show(model: str, chat: ChatFormat) -> None:
    findings = chat.findings
    table = Table(title=model, show_header=False, title_justify="left")
    read = f"refused: {chat.problem}" if chat.problem else f"read as {chat.replies.name}"
    table.add_row("tool calls", read)
    table.add_row("end of a turn", ", ".join(map(chat.token, sorted(chat.end_ids))))
    for name, label in LABELS.items():
        treatment: str = getattr(findings, name)
        rule = RULES.get(name) if treatment != "rendered" else None
        table.add_row(label, f"{treatment}; {rule}" if rule else treatment)
    Screen(sys.stdout).table(table)


LABELS = {
    "tools": "tools in the prompt",
    "parallel_calls": "several calls in one reply",
    "tool_results": "results of tools",
    "reasoning": "reasoning of the last turn",
    "late_system": "system message after the first",
    "leading_systems": "two system messages at the start",
}
"""Labels of the fields of `Findings`."""
assert LABELS.keys() <= set(Findings.__slots__)
