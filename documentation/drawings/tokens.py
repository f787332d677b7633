"""The arrays of a segment, token by token, for an example."""

from dataclasses import dataclass

from documentation.drawings.svg import Drawing

TITLE = (
    "An example of a segment as a table, one column for each token. Three prompt tokens are in "
    "prompt_ids. Ten tokens follow in response_ids: three sampled in turn 1, three of the tool's "
    "result, four sampled in turn 2. Sampled tokens have mask 1, a logprob and the policy version "
    "that sampled them; the tool's tokens have mask 0, logprob 0.0 and version -1. New weights "
    "arrive within turn 2: its first token has version 7, the others version 8."
)


@dataclass(frozen=True, slots=True)
class Token:
    """`version`: the policy's, -1 for what it did not sample, None in the prompt."""

    text: str
    id: int
    logprob: float = 0.0
    version: int | None = -1

    @property
    def kind(self) -> str:
        return "grey" if self.version is None or self.version < 0 else "blue"

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        if self.version is None:
            return self.text, str(self.id), "", "", ""
        mask = "1" if self.version >= 0 else "0"
        return self.text, str(self.id), mask, f"{self.logprob:.2f}", str(self.version)


TOKENS = (
    Token("What", 3838, version=None),
    Token("is", 374, version=None),
    Token("17*3?", 1722, version=None),
    Token("call", 6659, -0.05, 7),
    Token("17*3", 1114, -0.31, 7),
    Token("end", 151, -0.01, 7),
    Token("tool", 1459),
    Token("51", 3971),
    Token("end", 151),
    Token("It", 2132, -0.72, 7),
    Token("is", 374, -0.02, 8),
    Token("51", 3971, -0.11, 8),
    Token("end", 151, -0.01, 8),
)
ROWS = ("text", "ids", "loss_mask", "logprobs", "policy_versions")
PARTS = (
    ("prompt", 0, 3),
    ("turn 1: sampled", 3, 6),
    ("a tool's result", 6, 9),
    ("turn 2: sampled", 9, 13),
)
ARRAYS = (("prompt_ids", 0, 3), ("response_ids", 3, 13))
LEFT, CELL, TOP, ROW = 132.0, 44.5, 92.0, 31.0


def draw() -> Drawing:
    drawing = Drawing(314, TITLE)
    for name, start, stop in ARRAYS:
        _bracket(drawing, name, start, stop)
    for name, start, stop in PARTS:
        drawing.text(((_x(start) + _x(stop)) / 2, TOP - 10), name, "small muted")
    for number, name in enumerate(ROWS):
        drawing.text((LEFT - 10, TOP + number * ROW + 20), name, "code", "end")
    for column, token in enumerate(TOKENS):
        _column(drawing, column, token)
    _update(drawing)
    return drawing


def _x(column: int) -> float:
    return LEFT + column * CELL


def _bracket(drawing: Drawing, name: str, start: int, stop: int) -> None:
    left, right = _x(start) + 3, _x(stop) - 3
    drawing.line((left, 52), (left, 44), (right, 44), (right, 52))
    drawing.text(((left + right) / 2, 34), name, "code strong")


def _column(drawing: Drawing, column: int, token: Token) -> None:
    for row, cell in enumerate(token.cells):
        if cell:
            drawing.box((_x(column) + 1, TOP + row * ROW), (CELL - 2, ROW - 3), token.kind)
            drawing.text((_x(column) + CELL / 2, TOP + row * ROW + 19), cell, "code")


def _update(drawing: Drawing) -> None:
    x, bottom = _x(10), TOP + len(ROWS) * ROW
    drawing.line((x, TOP - 4), (x, bottom + 14), colour="purple", dashed=True)
    drawing.text((x, bottom + 30), "new weights arrive in mid-turn", "small purple")
    drawing.text((16, bottom + 30), "The loss takes the tokens with mask 1.", "small", "start")
    note = "The ids are those that the engine sampled; nothing is decoded and encoded again."
    drawing.text((16, bottom + 50), note, "small muted", "start")
