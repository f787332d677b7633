"""Many machines: a front, services on nodes, and engines."""

from documentation.drawings.svg import Drawing

TITLE = (
    "A trainer sends groups to the front, which gives them to the services of several nodes, gets "
    "results back and keeps them for the trainer. Each node has one service with its sandboxes; "
    "all services call all engines. The trainer gives new weights to the front, and the front to "
    "the engines."
)
NODES = 3


def draw() -> Drawing:
    drawing = Drawing(290, TITLE)
    _trainer_and_front(drawing)
    _nodes_and_engines(drawing)
    _weights(drawing)
    return drawing


def _trainer_and_front(drawing: Drawing) -> None:
    drawing.card((16, 116), (88, 92), "trainer")
    drawing.box((190, 90), (130, 144), "blue")
    drawing.text((255, 118), "front", "title")
    drawing.lines((255, 142), ("groups, samplers,", "results"), "small muted", step=16)
    drawing.box((202, 184), (106, 34), "grey")
    drawing.text((255, 205), "journal", "small")
    drawing.text((147, 138), "groups", "small blue")
    drawing.arrow((105, 146), (189, 146), colour="blue")
    drawing.arrow((189, 178), (105, 178), colour="green")
    drawing.lines((147, 196), ("tokens,", "rewards"), "small green", step=15)


def _nodes_and_engines(drawing: Drawing) -> None:
    for number in range(NODES):
        top = 60 + 72 * number
        middle = top + 30
        drawing.box((402, top), (150, 60))
        drawing.text((477, top + 25), f"node {number + 1}: service", "strong")
        drawing.text((477, top + 44), "rollouts, sandboxes", "small muted")
        drawing.arrow((321, 162 + 24 * (number - 1)), (401, middle), colour="blue", both=True)
        drawing.arrow((553, middle), (619, middle), colour="blue", both=True)
    drawing.box((620, 60), (84, 204))
    drawing.text((662, 156), "engines", "strong")
    drawing.lines((662, 175), ("one or", "many"), "small muted", step=16)
    drawing.text((586, 82), "ids", "small blue")


def _weights(drawing: Drawing) -> None:
    drawing.arrow((60, 115), (60, 34), (240, 34), (240, 89), colour="purple", dashed=True)
    drawing.arrow((270, 89), (270, 34), (662, 34), (662, 59), colour="purple", dashed=True)
    drawing.text((150, 26), "new weights", "small purple")
    drawing.text((477, 26), "new weights", "small purple")
