"""The program behind `prorl view`: a list of rollouts, and one of them as a conversation.

Text of models and tools is made visible and never read as markup.
"""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from prorl_service.cli.conversation import Block, Part, TextOf, blocks
from prorl_service.cli.rows import STYLES
from prorl_service.cli.screen import folded
from prorl_service.cli.wording import number
from prorl_service.errors import ProRLError
from prorl_service.schemas.views import RolloutRow, RolloutText
from prorl_service.utils.visible import visible, visible_line

FOLD_LINES = 40
WAY_OUT = "f shows them"


class Viewer(App[None]):
    TITLE = "prorl view"
    CSS = """
    #list { width: 36; height: 100%; }
    #search { display: none; }
    #search.open { display: block; }
    #conversation { padding: 0 1; }
    .text { border-left: thick $primary; padding-left: 1; margin-bottom: 1; }
    .tool { border-left: thick $warning; padding-left: 1; margin-bottom: 1; }
    .prompt { border-left: thick $panel; padding-left: 1; margin-bottom: 1; }
    .reasoning { border-left: thick $panel; padding-left: 1; margin-bottom: 1; }
    .verdict { border-left: thick $success; padding-left: 1; }
    .title { margin-top: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "turn(1)", "next turn"),
        Binding("k", "turn(-1)", "previous turn"),
        Binding("l", "rollout(1)", "next rollout"),
        Binding("h", "rollout(-1)", "previous rollout"),
        Binding("f", "fold", "whole text"),
        Binding("slash", "search", "search"),
        Binding("escape", "leave_search", "back", show=False),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, rows: Sequence[RolloutRow], text_of: TextOf) -> None:
        super().__init__()
        self._rows = list(rows)
        self._text_of = text_of
        self.shown: RolloutText | None = None
        self._is_full = False
        self.section = 0

    def compose(self) -> ComposeResult:
        yield Input(placeholder="part of an id, a task, a state or a problem", id="search")
        with Horizontal():
            yield OptionList(id="list")
            yield VerticalScroll(id="conversation")
        yield Footer()

    def on_mount(self) -> None:
        self._fill("")
        self.query_one(OptionList).focus()

    # --- the list -------------------------------------------------------------------------------

    def _fill(self, wanted: str) -> None:
        """Lists the rollouts in which `wanted` occurs."""
        options = self.query_one(OptionList)
        options.clear_options()
        found = [
            Option(_label(row), id=str(place))
            for place, row in enumerate(self._rows)
            if wanted.lower() in _described(row).lower()
        ]
        options.add_options(found)
        if found:
            options.highlighted = 0

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        assert event.option.id is not None
        self._load(self._rows[int(event.option.id)])

    @work(thread=True, exclusive=True)
    def _load(self, row: RolloutRow) -> None:
        try:
            text = self._text_of(row)
        except ProRLError as error:
            said = Block(Part.NOTE, 0, visible_line(error.message, limit=500), style="red")
            self.call_from_thread(self.run_worker, self._show_blocks([said]), exclusive=True)
        else:
            self.call_from_thread(self.run_worker, self._show(text), exclusive=True)

    def action_rollout(self, step: int) -> None:
        options = self.query_one(OptionList)
        if options.option_count:
            at = (options.highlighted or 0) + step
            options.highlighted = max(0, min(options.option_count - 1, at))

    # --- the conversation -----------------------------------------------------------------------

    async def _show(self, text: RolloutText) -> None:
        self.shown, self.section = text, 0
        await self._show_blocks(list(blocks(text)))

    async def _show_blocks(self, shown: Sequence[Block]) -> None:
        conversation = self.query_one("#conversation", VerticalScroll)
        await conversation.remove_children()
        await conversation.mount_all([self._static(block) for block in shown])
        conversation.scroll_home(animate=False)

    def _static(self, block: Block) -> Static:
        lines = visible(block.text).strip("\n").split("\n")
        if block.folds and not self._is_full:
            lines = folded(lines, FOLD_LINES, WAY_OUT)
        label = f"{block.label}\n" if block.label else ""
        is_note = block.part is Part.NOTE
        text = Text.assemble((label, "dim"), ("\n".join(lines), "dim" if is_note else block.style))
        return Static(text, classes=f"{block.part.value} section{block.section}")

    async def action_fold(self) -> None:
        self._is_full = not self._is_full
        if self.shown is not None:
            await self._show_blocks(list(blocks(self.shown)))
            self.action_turn(0)

    def action_turn(self, step: int) -> None:
        last = 0 if self.shown is None else len(self.shown.turns) + 1
        self.section = max(0, min(last, self.section + step))
        found = self.query(f".section{self.section}")
        if found:
            found.first().scroll_visible(top=True, animate=False)

    # --- search ---------------------------------------------------------------------------------

    def action_search(self) -> None:
        search = self.query_one(Input)
        search.add_class("open")
        search.focus()

    def action_leave_search(self) -> None:
        self.query_one(Input).remove_class("open")
        self.query_one(OptionList).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._fill(event.value)

    def on_input_submitted(self, _: Input.Submitted) -> None:
        self.action_leave_search()


def _label(row: RolloutRow) -> Text:
    state = row.state.value
    reward = f" {number(row.reward)}" if row.reward is not None else ""
    return Text.assemble(
        visible_line(row.rollout_id, limit=24), " ", (state, STYLES.get(state, "")), reward
    )


def _described(row: RolloutRow) -> str:
    problem = f"{row.error.blame.value} {row.error.message}" if row.error is not None else ""
    return f"{row.rollout_id} {row.task_id} {row.agent} {row.state.value} {problem}"
