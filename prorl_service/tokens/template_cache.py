"""Text that a chat template puts around messages, learned once to spare Jinja at each turn.

A template is rendered with contents that it may output but not look at. If it does look (strips,
compares, measures them), or other contents do not come out unchanged, it is not learned and has to
be rendered each time. Knows nothing of tokens.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NoReturn, Self


class LookedAt(Exception):
    """The template does more with a content than output it."""


class _Opaque(str):
    """Text that can be joined to other text; any other operation raises `LookedAt`."""

    __slots__ = ()

    def __str__(self) -> Self:
        return self

    def __add__(self, other: str) -> "_Opaque":
        return _Opaque("".join((self, other)))

    def __radd__(self, other: str) -> "_Opaque":
        return _Opaque("".join((other, self)))


def _look(*_: Any, **__: Any) -> NoReturn:
    raise LookedAt


_COMPARISONS = {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__"}
for _name in {*dir(str), "__bool__"} - set(dir(object)) - {"__add__"} | _COMPARISONS:
    setattr(_Opaque, _name, _look)

_MARK = " \n<mark %d of content>&\"'\\{{}}\u200b\n "
"""Content that filters would change, also those that look unseen."""
_OTHERS = ("", "\n<tool_response>\n<think></think>[]</tool_response> ")
"""Contents that templates may treat specially."""


class Envelope:
    """Texts before, between and after the contents of some messages."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def around(self, contents: Sequence[str]) -> str:
        """Returns the text for `contents`, of which there are as many as were learned."""
        return "".join(chain(*zip(self._texts, contents, strict=False), self._texts[-1:]))


def learn(render: Callable[[Sequence[str]], str], count: int) -> Envelope | None:
    """Returns the envelope of `render`, which takes `count` contents; None if it looks at them."""
    marks = [_MARK % number for number in range(count)]
    try:
        rest = render([_Opaque(mark) for mark in marks])
    except LookedAt:
        return None
    texts = []
    for mark in marks:
        text, _, rest = rest.partition(mark)
        texts.append(text)
    envelope = Envelope([*texts, rest])
    checks = ([content] * count for content in (*_OTHERS, _MARK))
    return envelope if all(render(one) == envelope.around(one) for one in checks) else None
