"""A recording as an animated SVG, of text: each line of the terminal is a strip of its contents.

Where nothing may move, or cannot, the last screen is shown.
"""

from collections.abc import Sequence
from html import escape
from itertools import zip_longest

from documentation.drawings.svg import MONO, WIDTH
from documentation.recording.record import Recording
from documentation.recording.screen import Screen, screens

FASTER = 8
LONGEST_S = 0.8
EVERY_S = 0.3
HELD_S = 6.0
"""Seconds for which the last screen stays before all begins again."""

FONT, ROW, TOP, LEFT = 12, 20, 38, 14
PANEL, EDGE, TEXT, MUTED, GREEN = "#0d1117", "#4b5561", "#e6edf3", "#a3adb8", "#57d37f"

Strip = list[tuple[float, str]]
"""Contents of a line, with the seconds at which each appears."""


def draw(recording: Recording, title: str) -> str:
    shown = list(
        screens(
            recording.columns, recording.events, faster=FASTER, longest_s=LONGEST_S, every_s=EVERY_S
        )
    )
    total_s = shown[-1][0] + HELD_S
    lines = strips(shown)
    height = TOP + (len(lines) + 1) * ROW + 10
    cell = (WIDTH - 2 * LEFT) / recording.columns
    body = [_strip(number, strip, total_s, cell) for number, strip in enumerate(lines)]
    return "\n".join(
        [*_head(title, height, _keyframes(lines, total_s)), *_top(recording), *body, "</svg>", ""]
    )


def strips(shown: Sequence[tuple[float, Screen]]) -> list[Strip]:
    """Returns the contents of each line over time; a line that does not change has one."""
    lines: list[Strip] = []
    for texts in zip_longest(*(screen for _, screen in shown), fillvalue=""):
        strip: Strip = []
        for (at, _), text in zip(shown, texts, strict=True):
            if not strip or strip[-1][1] != text:
                strip.append((at, text))
        lines.append(strip)
    while lines and not any(text for _, text in lines[-1]):
        lines.pop()
    return lines


def _keyframes(lines: Sequence[Strip], total_s: float) -> str:
    rules = []
    for number, strip in enumerate(lines):
        shares = [0.0, *(at / total_s for at, _ in strip[1:])]
        steps = "".join(
            f"{100 * share:.3g}%{{transform:translateY({-ROW * place}px)}}"
            for place, share in enumerate(shares)
        )
        rules.append(f"@keyframes l{number}{{{steps}}}")
    return "".join(rules)


def _head(title: str, height: int, keyframes: str) -> list[str]:
    style = (
        f"text{{font-family:{MONO};font-size:{FONT}px;fill:{TEXT};white-space:pre}}"
        f".muted{{fill:{MUTED};font-size:12px}}.prompt{{fill:{GREEN}}}"
        ".strip{animation-timing-function:step-end;animation-iteration-count:infinite}"
        "@media (prefers-reduced-motion:reduce){.strip{animation:none!important}}"
    )
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    shape = f'width="{WIDTH - 1}" height="{height - 1}" rx="8" fill="{PANEL}" stroke="{EDGE}"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(title, quote=False)}</title>",
        f"<style>{style}{keyframes}</style>",
        f'<rect x=".5" y=".5" {shape}/>',
    ]


def _top(recording: Recording) -> list[str]:
    note = f"played {FASTER} times as fast"
    return [
        f'<text class="muted" x="{WIDTH - LEFT}" y="24" text-anchor="end">{note}</text>',
        f'<text x="{LEFT}" y="{TOP + FONT}"><tspan class="prompt">$</tspan> '
        f"{escape(recording.command, quote=False)}</text>",
    ]


def _strip(number: int, strip: Strip, total_s: float, cell: float) -> str:
    """Draws the contents of a line below one another, in a window of one line."""
    last = -ROW * (len(strip) - 1)
    texts = "".join(_text(text, place, cell) for place, (_, text) in enumerate(strip))
    moves = (
        f"transform:translateY({last}px);animation-name:l{number};animation-duration:{total_s:.1f}s"
    )
    window = f'y="{TOP + (number + 1) * ROW}" width="{WIDTH}" height="{ROW}"'
    return f'<svg {window}><g class="strip" style="{moves}">{texts}</g></svg>'


def _text(text: str, place: int, cell: float) -> str:
    if not text:
        return ""
    length = f'textLength="{len(text) * cell:.1f}" lengthAdjust="spacingAndGlyphs"'
    return f'<text x="{LEFT}" y="{place * ROW + FONT}" {length}>{escape(text, quote=False)}</text>'
