"""The caller's current span, as a header by which the service makes rollouts its children.

OpenTelemetry is never imported here: if no other code has imported it, nothing is traced.
"""

import sys

HEADER = "traceparent"


def parent_headers() -> dict[str, str]:
    """Returns the header if there is a current span."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return {}
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    flags = int(context.trace_flags) & 0xFF
    return {HEADER: f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"}
