"""Refusals that belong to no call, in the form that clients of all dialects read."""

from collections.abc import Mapping

from starlette.responses import JSONResponse

from prorl_service.gateway.calls import Refused


def error_response(refusal: Refused, headers: Mapping[str, str] | None = None) -> JSONResponse:
    error = {"message": str(refusal), "type": refusal.kind}
    return JSONResponse({"type": "error", "error": error}, refusal.status, headers)
