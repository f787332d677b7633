"""Cost of an agent's action: commands and cells, starts, many at once.

The whole takes ten minutes. In the headline, ratios are of medians, theirs over ours;
`bash_vs_pty_floor_ratio` and `cold_start_vs_exec_ratio` are the other way round. Plain `_at_64` is
the load back to back, `_thinking` the other one; `warm_start` is a fork of a running container.
"""

from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from bench import frame
from bench.tools import bash, ipython, many, starts


def _on_loop(measure: Callable[[bool], Coroutine[Any, Any, frame.Found]]) -> frame.Part:
    """Measures on the event loop of the service."""
    return lambda quick: uvloop.run(measure(quick))


PARTS = {
    "bash": _on_loop(bash.measure),
    "ipython": _on_loop(ipython.measure),
    "start": _on_loop(starts.measure),
    "many": _on_loop(many.measure),
}

if __name__ == "__main__":
    frame.run("tools", PARTS)
