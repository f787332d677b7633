"""The states of a rollout, and the moves between them."""

from itertools import pairwise

from documentation.drawings.svg import Drawing
from prorl_service.schemas import RolloutState

TITLE = (
    "The states of a rollout, from left to right: queued, init, ready, running, evaluating, done. "
    "An attempt that fails in init, running or evaluating goes back to queued if a retry may mend "
    "it. From each of the first five states a rollout may end as failed or as cancelled."
)
PATH = (
    (RolloutState.QUEUED, "waits for INIT"),
    (RolloutState.INIT, "sandbox opens"),
    (RolloutState.READY, "waits for RUN"),
    (RolloutState.RUNNING, "turns"),
    (RolloutState.EVALUATING, "scoring"),
    (RolloutState.DONE, "has a reward"),
)
STAGES = {RolloutState.INIT: "INIT", RolloutState.RUNNING: "RUN", RolloutState.EVALUATING: "EVAL"}
ENDS = (
    (RolloutState.FAILED, "has an error that says whose fault", "it was, and no reward", "red"),
    (RolloutState.CANCELLED, "a caller gave it up,", "or its group was not needed", "grey"),
)
WIDTH, GAP, TOP, HEIGHT = 98.0, 20.0, 92.0, 56.0


def draw() -> Drawing:
    drawing = Drawing(330, TITLE)
    _path(drawing)
    _retries(drawing)
    _ends(drawing)
    return drawing


def moves() -> set[tuple[RolloutState, RolloutState]]:
    """Returns the moves that are drawn."""
    states = [state for state, _ in PATH]
    along = set(pairwise(states))
    again = {(state, RolloutState.QUEUED) for state in STAGES}
    return along | again | {(one, end) for one in states[:-1] for end, *_ in ENDS}


def _left(number: int) -> float:
    return 16 + number * (WIDTH + GAP)


def _path(drawing: Drawing) -> None:
    for number, (state, note) in enumerate(PATH):
        kind = "blue" if state in STAGES else "green" if state is RolloutState.DONE else "card"
        middle = _left(number) + WIDTH / 2
        drawing.box((_left(number), TOP), (WIDTH, HEIGHT), kind)
        drawing.text((middle, TOP + 24), state.value, "strong")
        drawing.text((middle, TOP + 43), note, "small muted")
        if state in STAGES:
            drawing.text((_left(number) + WIDTH, TOP - 8), STAGES[state], "small blue", "end")
        if number:
            drawing.arrow((_left(number) - GAP + 1, TOP + 28), (_left(number) - 1, TOP + 28))


def _retries(drawing: Drawing) -> None:
    drawing.text(
        (_left(0) + WIDTH / 2 + 8, 32), "retry: another attempt, from scratch", "", "start"
    )
    for number, (state, _) in enumerate(PATH):
        if state in STAGES:
            middle = _left(number) + WIDTH / 2
            drawing.line((middle, TOP - 1), (middle, 46), dashed=True)
    last = _left(4) + WIDTH / 2
    queued = _left(0) + WIDTH / 2
    drawing.arrow((last, 46), (queued, 46), (queued, TOP - 1), dashed=True)


def _ends(drawing: Drawing) -> None:
    bottom, bar = TOP + HEIGHT, 184.0
    for number in range(len(PATH) - 1):
        middle = _left(number) + WIDTH / 2
        drawing.line((middle, bottom + 1), (middle, bar))
    drawing.line((_left(0) + WIDTH / 2, bar), (_left(4) + WIDTH / 2, bar))
    drawing.text((_left(4) + WIDTH / 2 + 12, bar + 5), "from each of these five", "small", "start")
    for number, (state, *notes, kind) in enumerate(ENDS):
        left = 60 + number * 270
        drawing.arrow((left + 125, bar), (left + 125, 217))
        drawing.box((left, 218), (250, 72), kind)
        drawing.text((left + 125, 241), state.value, "strong")
        drawing.lines((left + 125, 260), notes, "small muted", step=16)
    drawing.text((320, 314), "Both keep the turns that were sampled.", "small muted")
