"""Calls that break their format: which tool was meant, and what was written for it. Pure.

Repairs nothing: who executes tools may want to see a broken call as the model wrote it.
"""

import re

from prorl_service.tokens.formats.base import BrokenCall

_NAMES = (
    re.compile(r'"name"\s*+:\s*+"([^"\\\n]++)"'),
    re.compile(r"<function=([^>\n]++)>"),
    re.compile(r'<invoke name="([^"\n]++)">'),
)
_ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*+:\s*+')


def broken_call(body: str, tags: tuple[str, str]) -> BrokenCall | None:
    """Returns what can be told of the text of a call between its tags; None if no tool is named."""
    for pattern in _NAMES:
        if (name := pattern.search(body)) is not None:
            break
    else:
        return None
    arguments = body[name.end() :]
    if pattern is _NAMES[0]:
        arguments = _json_arguments(body)
    return BrokenCall(name[1].strip(), arguments.strip(), body.join(tags))


def _json_arguments(body: str) -> str:
    """Returns the text after the arguments' key, without the brace that closes the call."""
    key = _ARGUMENTS.search(body)
    if key is None:
        return ""
    return body[key.end() :].rstrip().removesuffix("}")
