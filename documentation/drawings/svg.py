"""A small language for drawings: boxes, text and arrows, in the colours of light and dark pages.

A drawing has a panel of its own behind it, so it can be read where a page's colours are not those
that the browser asks for. Knows nothing of what is drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]

SANS = "system-ui,-apple-system,'Segoe UI','Noto Sans',Helvetica,Arial,'DejaVu Sans',sans-serif"
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
WIDTH = 720
"""Pixels at which text has the size that it is said to have."""

LIGHT = {
    "panel": "#f6f8fa",
    "card": "#ffffff",
    "edge": "#b7c0ca",
    "text": "#1f2328",
    "muted": "#57606a",
    "blue": "#0860c4",
    "blue-fill": "#dceeff",
    "green": "#17733a",
    "green-fill": "#dcf5e3",
    "red": "#c01f2b",
    "red-fill": "#ffe9e8",
    "purple": "#7a3fd0",
    "purple-fill": "#f1e8fd",
    "grey-fill": "#e7ebef",
}
DARK = {
    "panel": "#161b22",
    "card": "#0d1117",
    "edge": "#4b5561",
    "text": "#e6edf3",
    "muted": "#a3adb8",
    "blue": "#6cb6ff",
    "blue-fill": "#12304f",
    "green": "#57d37f",
    "green-fill": "#12361f",
    "red": "#ff8f87",
    "red-fill": "#471a1d",
    "purple": "#c49bff",
    "purple-fill": "#332050",
    "grey-fill": "#2a313a",
}
COLOURS = ("muted", "blue", "green", "red", "purple")
"""Those that arrows may have."""


def style() -> str:
    """Returns the style sheet: sizes, then the colours of both schemes."""
    sizes = (
        f"text{{font-family:{SANS};font-size:13px}}"
        f".code{{font-family:{MONO};font-size:12px}}"
        ".small{font-size:12px}.strong{font-weight:600}.title{font-size:15px;font-weight:600}"
        ".line{fill:none;stroke-width:1.6}.dashed{stroke-dasharray:6 4}"
        ".box{stroke-width:1.2}"
    )
    dark = "".join(_colours(DARK))
    return f"{sizes}{''.join(_colours(LIGHT))}@media (prefers-color-scheme:dark){{{dark}}}"


def _colours(scheme: Mapping[str, str]) -> Sequence[str]:
    rules = [
        f".panel{{fill:{scheme['panel']};stroke:{scheme['edge']}}}",
        f".card{{fill:{scheme['card']};stroke:{scheme['edge']}}}",
        f".grey{{fill:{scheme['grey-fill']};stroke:{scheme['edge']}}}",
        f"text{{fill:{scheme['text']}}}",
    ]
    for name in COLOURS:
        colour = scheme[name]
        rules.append(f".line.{name}{{stroke:{colour}}}.head.{name},text.{name}{{fill:{colour}}}")
        if f"{name}-fill" in scheme:
            rules.append(f".box.{name}{{fill:{scheme[f'{name}-fill']};stroke:{colour}}}")
    return rules


@dataclass(slots=True)
class Drawing:
    """A drawing, `WIDTH` wide. `title`: what people hear who do not see it."""

    height: int
    title: str
    _parts: list[str] = field(default_factory=list)

    def box(self, at: Point, size: Point, kind: str = "card") -> None:
        (x, y), (width, height) = at, size
        shape = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"'
        self._parts.append(f'<rect class="box {kind}" {shape}/>')

    def text(self, at: Point, text: str, kind: str = "", anchor: Anchor = "middle") -> None:
        """Writes a line of text; `at` is on its base line."""
        place = f'x="{at[0]:g}" y="{at[1]:g}" text-anchor="{anchor}"'
        shown = f' class="{kind}"' if kind else ""
        self._parts.append(f"<text{shown} {place}>{escape(text, quote=False)}</text>")

    def lines(self, at: Point, lines: Sequence[str], kind: str = "", *, step: float = 17) -> None:
        for number, line in enumerate(lines):
            self.text((at[0], at[1] + number * step), line, kind)

    def card(self, at: Point, size: Point, heading: str, *more: str, kind: str = "card") -> None:
        """Draws a box with its heading and small lines of text in the middle."""
        self.box(at, size, kind)
        middle = at[0] + size[0] / 2
        top = at[1] + size[1] / 2 + 5 - 8 * len(more)
        self.text((middle, top), heading, "strong")
        self.lines((middle, top + 17), more, "small muted", step=16)

    def arrow(
        self, *points: Point, colour: str = "muted", dashed: bool = False, both: bool = False
    ) -> None:
        """Draws a line through the points, with a head at its end, or at both."""
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
        ends = f' marker-end="url(#{colour})"' + (f' marker-start="url(#{colour})"' * both)
        kind = f"line {colour}{' dashed' * dashed}"
        self._parts.append(f'<path class="{kind}" d="{path}"{ends}/>')

    def line(self, *points: Point, colour: str = "muted", dashed: bool = False) -> None:
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
        self._parts.append(f'<path class="line {colour}{" dashed" * dashed}" d="{path}"/>')

    def svg(self) -> str:
        size = f'width="{WIDTH}" height="{self.height}" viewBox="0 0 {WIDTH} {self.height}"'
        panel = f'width="{WIDTH - 1}" height="{self.height - 1}" rx="8"'
        body = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(self.title, quote=False)}</title>",
            f"<style>{style()}</style>",
            f"<defs>{''.join(map(_head, COLOURS))}</defs>",
            f'<rect class="panel" x=".5" y=".5" {panel}/>',
            *self._parts,
            "</svg>",
        ]
        return "\n".join(body) + "\n"


def _head(colour: str) -> str:
    box = 'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
    shape = f'<path class="head {colour}" d="M0 0 L8 4 L0 8 z"/>'
    units = 'markerUnits="userSpaceOnUse" orient="auto-start-reverse"'
    return f'<marker id="{colour}" {box} {units}>{shape}</marker>'
