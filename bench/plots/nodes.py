"""How busy slots are by the number of services behind a front, as run and as simulated."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.plots import style

Row = Mapping[str, object]
LABELS_AT = ((6, 5), (6, -5), (6, 0))
"""Places of labels beside the ends of lines, in points, one for each design."""
LARGER = "SWE"
"""What the names of the simulated rollouts begin with that are drawn."""


def draw(result: style.Result) -> Figure:
    """Draws fleets that were only simulated if there are any."""
    run = _waiting(_part(result, "services"))
    simulated = _part(result, "simulation")
    larger = [row for row in simulated if str(row.get("rollouts", "")).startswith(LARGER)]
    last = run[-1]
    title = (
        f"One front keeps {_number(last, 'busy'):.0%} of the slots of "
        f"{last['services']} services at work"
    )
    note = "Share of slots that have a rollout at work. Higher is better."
    made = style.figure(5.8 if larger else 3.1, title, note)
    panels = made.subplots(2 if larger else 1, 1, squeeze=False)[:, 0]
    _run(panels[0], run, _waiting([row for row in simulated if "error" in row]))
    if larger:
        _larger(panels[1], larger)
    return made


def _part(result: style.Result, name: str) -> list[Row]:
    return [row for row in result["rows"] if row["part"] == name]


def _waiting(rows: Sequence[Row]) -> list[Row]:
    """Returns those in which services wait for calls, and processors do not limit them."""
    return [row for row in rows if _number(row, "call_s") > 1]


def _run(axes: Axes, run: Sequence[Row], compared: Sequence[Row]) -> None:
    if compared:
        points = [(_number(row, "services"), _number(row, "busy_simulated")) for row in compared]
        axes.plot(*zip(*points, strict=True), "--", color=style.OTHERS)
    points = _points(run)
    axes.plot(*zip(*points, strict=True), "o-", color=style.OURS, linewidth=2.2)
    for point in points:
        style.label(axes, point, f"{point[1]:.1%}", style.OURS, (0, -13))
    _finish(axes, [services for services, _ in points])
    dashed = "; dashed: as simulated" if compared else ""
    style.clean(axes, f"Run, as processes of one machine{dashed}")


def _larger(axes: Axes, rows: Sequence[Row]) -> None:
    ticks = sorted({_number(row, "services") for row in rows})
    for number, design in enumerate(dict.fromkeys(str(row["design"]) for row in rows)):
        points = _points([row for row in rows if row["design"] == design])
        color = (style.OTHERS, style.ACCENT, style.OURS)[number % 3]
        axes.plot(*zip(*points, strict=True), "o-", color=color, linewidth=2.2)
        style.label(axes, points[-1], design, color, LABELS_AT[number % 3])
    _finish(axes, ticks)
    axes.set_xlim(ticks[0] / 1.25, ticks[-1] * 12)
    style.clean(axes, f"Simulated, 64 slots each: {rows[0]['rollouts']}")


def _points(rows: Sequence[Row]) -> list[tuple[float, float]]:
    return [(_number(row, "services"), _number(row, "busy")) for row in rows]


def _finish(axes: Axes, ticks: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlim(ticks[0] / 1.25, ticks[-1] * 1.25)
    axes.minorticks_off()
    axes.set_xlabel("services", loc="left")
    style.percent(axes)


def _number(row: Row, column: str) -> float:
    return float(str(row[column]))
