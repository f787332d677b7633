"""The page as one HTML file that holds a service's answers and opens anywhere, without network.

Text of models and tools is hostile. The file holds it as JSON without markup, and the page's policy
allows only the page's own scripts and styles. The answers' content is not known here.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from prorl_service.page.files import STATIC, check_complete

STYLES = ("vendor/uplot.css", "style.css")
CLASSIC = "vendor/uplot.js"
"""The only script that is not a module: it defines a global name."""
MAIN = "app.js"

IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w./-]+)";$', re.MULTILINE)
DECLARED = re.compile(r"^export (?=(?:async )?(?:function\*?|const|class) ([\w$]+))", re.MULTILINE)
LISTED = re.compile(r"\bexport\s*\{([^}]*)\};?\s*\Z")

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<div id="app"><noscript>This page needs JavaScript.</noscript></div>
<script type="application/json" id="saved">"""
END = "</script>\n<script>{script}</script>\n</body>\n</html>\n"


def saved_page(title: str, answers: Mapping[str, bytes]) -> Iterator[bytes]:
    """Yields the file in pieces. `answers` maps paths to JSON; for `/v1/rollouts/ID/tokens` that is
    a list of whole segments. Raises `PageIncomplete`."""
    check_complete()
    style, script = _style(), _script()
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    yield PAGE.format(policy=policy, title=html.escape(title), style=style).encode()
    yield b'{"title":' + _inert(json.dumps(title).encode()) + b',"answers":{'
    for number, (path, answer) in enumerate(answers.items()):
        yield b"," * bool(number) + _inert(json.dumps(path).encode()) + b":" + _inert(answer)
    yield b"}}"
    yield END.format(script=script).encode()


def _inert(text: bytes) -> bytes:
    """Returns equal JSON without the characters that could end a script element."""
    return text.replace(b"&", b"\\u0026").replace(b"<", b"\\u003c").replace(b">", b"\\u003e")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _source(name: str) -> str:
    return STATIC.joinpath(name).read_text("utf-8")


@cache
def _style() -> str:
    return "".join(map(_source, STYLES))


@cache
def _script() -> str:
    """Returns one classic script: each module is a function that returns what the module exports,
    and runs after those that it imports."""
    modules = "\n".join(one.as_function() for one in _in_order(MAIN, {}).values())
    return f'{_source(CLASSIC)}\n(() => {{\n"use strict";\n{modules}\n}})();\n'


@dataclass(frozen=True, slots=True)
class _Module:
    name: str
    source: str

    @property
    def imports(self) -> list[str]:
        return [match[2] for match in IMPORT.finditer(self.source)]

    def as_function(self) -> str:
        exports = {name: name for name in DECLARED.findall(self.source)}
        if (listed := LISTED.search(self.source)) is not None:
            exports |= {new: old for old, new in _renamed(listed[1])}
        body = IMPORT.sub(self._take, LISTED.sub("", DECLARED.sub("", self.source)))
        given = ", ".join(f"{new}: {old}" for new, old in exports.items())
        return f"const {_variable(self.name)} = (() => {{\n{body}\nreturn {{ {given} }};\n}})();"

    @staticmethod
    def _take(match: re.Match[str]) -> str:
        names = ", ".join(f"{old}: {new}" for old, new in _renamed(match[1]))
        return f"const {{ {names} }} = {_variable(match[2])};"


def _in_order(name: str, found: dict[str, _Module]) -> dict[str, _Module]:
    """Adds a module to `found` after all its imports. The page has no circular imports."""
    module = _Module(name, _source(name))
    for other in module.imports:
        if other not in found:
            _in_order(other, found)
    found[name] = module
    return found


def _renamed(names: str) -> Iterator[tuple[str, str]]:
    """Yields the names of `a, b as c` as pairs: (a, a), (b, c)."""
    for one in filter(None, (name.strip() for name in names.split(","))):
        old, _, new = one.partition(" as ")
        yield old, new or old


def _variable(name: str) -> str:
    return "$" + re.sub(r"\W", "_", name.removesuffix(".js"))
