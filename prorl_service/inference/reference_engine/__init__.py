"""The reference engine: small, exact, and behind the same routes as vLLM.

The default on laptops, in CI and in demos, on CPU. Needs the extra `prorl-service[engine]`; nothing
outside this package imports torch or transformers.

`model` runs sequences of any length in one forward pass over their own KV caches (`kv`), `sampling`
draws tokens, `batcher` plans each step, `checkpoints` checks and swaps checkpoints, `app` has the
routes, and `server` is the process.
"""

from prorl_service.inference.reference_engine.server import serve

__all__ = ["serve"]
