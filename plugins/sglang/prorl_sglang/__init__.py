"""Plug-in of SGLang that fetches weights of the rollout service, over HTTP or from a shared file.

Installed next to stock SGLang, which loads it by itself, it adds routes to its HTTP server.
"""

from typing import Any

HOOKED = "sglang.srt.managers.tokenizer_manager.TokenizerManager.__init__"
"""Function that runs in the process of the HTTP server only, before it listens."""


def register() -> None:
    """Adds the routes once the server has its model. SGLang calls it in every process."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(HOOKED, _add_routes, HookType.AFTER)


def _add_routes(result: None, manager: Any, *args: Any, **kwargs: Any) -> None:
    from prorl_sglang.routes import add_routes

    add_routes(manager)
