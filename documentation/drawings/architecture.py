"""The architecture: trainer, service and engines, and the way of weights apart from it."""

from documentation.drawings.svg import Drawing

TITLE = (
    "A trainer, VeRL or TRL with a thin plug-in, sends groups of tasks to the rollout service and "
    "gets trajectories with rewards. In the service a rollout waits in a queue, then passes the "
    "stages INIT, RUN and EVAL, which use sandboxes; a journal keeps what was accepted. RUN sends "
    "prompt ids to inference engines and gets sampled ids with logprobs. Apart from that, the "
    "trainer gives new weights, which the service brings to all engines."
)
STAGES = (
    ("INIT", "opens a", "sandbox"),
    ("RUN", "model calls", "and tools"),
    ("EVAL", "scores: the", "reward"),
)
SERVICE, INSIDE = 216.0, 226.0
"""Left edges of the service, and of what is in it."""


def draw() -> Drawing:
    drawing = Drawing(376, TITLE)
    _trainer(drawing)
    _service(drawing)
    _engines(drawing)
    _weights(drawing)
    return drawing


def _trainer(drawing: Drawing) -> None:
    drawing.box((16, 52), (116, 214))
    drawing.text((74, 82), "Trainer", "title")
    drawing.lines((74, 106), ("VeRL, TRL,", "or your own"), "small muted", step=16)
    drawing.card((26, 142), (96, 110), "plug-in", "HTTP client;", "no sandbox,", "no tools")
    drawing.lines((174, 118), ("groups", "of tasks"), "small blue", step=16)
    drawing.arrow((133, 142), (215, 142), colour="blue")
    drawing.arrow((215, 184), (133, 184), colour="green")
    drawing.lines((174, 203), ("trajectories,", "rewards"), "small green", step=16)


def _service(drawing: Drawing) -> None:
    drawing.box((SERVICE, 16), (300, 250))
    drawing.text((366, 40), "Rollout service", "title")
    _bar(drawing, 52, "queue: admission, samplers")
    drawing.arrow((INSIDE + 42, 81), (INSIDE + 42, 98))
    for number, (name, *more) in enumerate(STAGES):
        left = INSIDE + 98 * number
        drawing.box((left, 99), (84, 64), "blue")
        drawing.text((left + 42, 119), name, "strong")
        drawing.lines((left + 42, 137), more, "small muted", step=16)
        drawing.line((left + 42, 164), (left + 42, 182), dashed=True)
    for number in (1, 2):
        drawing.arrow((INSIDE + 98 * number - 13, 131), (INSIDE + 98 * number - 1, 131))
    _bar(drawing, 182, "sandboxes: bubblewrap, Apptainer")
    _bar(drawing, 224, "journal: nothing accepted is lost")


def _bar(drawing: Drawing, top: float, text: str) -> None:
    drawing.box((INSIDE, top), (280, 29), "grey")
    drawing.text((366, top + 19), text, "small")


def _engines(drawing: Drawing) -> None:
    drawing.text((650, 36), "Engines", "title")
    for number in (2, 1, 0):
        drawing.box((596 + 5 * number, 64 - 5 * number), (98, 202), "card")
    drawing.text((645, 148), "vLLM", "strong")
    drawing.lines((645, 168), ("or reference;", "one or many"), "small muted", step=16)
    drawing.lines((556, 102), ("RUN sends", "prompt ids"), "small blue", step=16)
    drawing.arrow((517, 126), (595, 126), colour="blue")
    drawing.arrow((595, 168), (517, 168), colour="green")
    drawing.lines((556, 187), ("sampled", "ids and", "logprobs"), "small green", step=16)


def _weights(drawing: Drawing) -> None:
    drawing.box((SERVICE, 300), (300, 60), "purple")
    drawing.text((366, 323), "The service updates all engines", "strong")
    drawing.text((366, 344), "pause, load, new policy version, resume", "small")
    drawing.arrow((74, 267), (74, 330), (SERVICE - 1, 330), colour="purple", dashed=True)
    drawing.arrow((517, 330), (645, 330), (645, 267), colour="purple", dashed=True)
    drawing.text((146, 322), "new weights", "small purple")
    drawing.text((582, 322), "new weights", "small purple")
