"""The reference engine: small, exact, and behind the same routes as vLLM.

The default of laptops, CI and demos, on CPU. Needs the extra `prorl-service[engine]`; nothing
outside this package imports torch or transformers.

`model` runs sequences of any length in one forward pass over their own KV caches (`kv`), `sampling`
draws tokens, `batcher` decides who takes part in a step, `weights` checks and swaps checkpoints,
`app` are the routes and `server` the process.
"""

from prorl_service.inference.engine.server import serve

__all__ = ["serve"]
