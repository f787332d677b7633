"""Which cheats each grader takes for a fix."""

from matplotlib.figure import Figure

from bench.plots import style

HONEST = ("reference", "nothing", "partial", "of the oracle, over HTTP")
SECOND = "by SWE-bench"
NAMES = {
    "conftest: xfail": "conftest.py: expect failures",
    "conftest: turn reports": "conftest.py: turn reports",
    "pyproject: a plugin": "pyproject.toml: a plugin of pytest",
    "egg-info: a plugin": ".egg-info: a plugin of pytest",
    "sitecustomize": "sitecustomize.py: patch reports",
    "source: patch reports, spare canaries": "source: patch reports,\nbut of tests called canary",
    "source: swallow": "source: swallow what tests raise",
    "source: replace tests": "source: replace the tests",
}
"""Names in docs/swe.md, where they are others."""


def draw(result: style.Result) -> Figure:
    cheats = [row for row in result["rows"] if row["patch"] not in HONEST]
    shown = [row for row in cheats if row["resolved"] or row[SECOND]]
    shown.sort(key=lambda row: -int(row[SECOND]))
    tried, ours, second = (
        sum(row[column] for row in cheats) for column in ("instances", "resolved", SECOND)
    )
    title = f"Of {tried} cheats our grader takes {ours} for a fix, SWE-bench's {second}"
    note = f"The other {len(cheats) - len(shown)} cheats: 0 by both. Lower is better."
    made = style.figure(0.36 * len(shown) + 1.3, title, note)
    axes = made.subplots()
    instances = shown[0]["instances"]
    axes.barh(range(len(shown)), [row[SECOND] for row in shown], 0.6, color=style.OTHERS)
    for place, row in enumerate(shown):
        style.label(axes, (row[SECOND], place), f"SWE-bench's {row[SECOND]}", style.OTHERS)
        style.label(axes, (instances * 1.45, place), f"ours {row['resolved']}", style.OURS)
    style.names(axes, [NAMES.get(row["patch"], row["patch"]) for row in shown])
    axes.set_xlim(0, instances * 1.62)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    style.clean(axes, f"Cheat, on each of {instances} instances: said to be resolved")
    return made
