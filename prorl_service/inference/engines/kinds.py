"""The kinds of engines: a new one is one line here."""

from prorl_service.errors import InvalidRequest
from prorl_service.inference.engines.base import Engine, EngineInfo
from prorl_service.inference.engines.openai import ApiModel
from prorl_service.inference.engines.reference import ReferenceEngine
from prorl_service.inference.engines.sglang import SglangEngine
from prorl_service.inference.engines.vllm import VllmEngine

AUTO = "auto"
"""Kind of an engine that is asked which one it is."""

ENGINES: dict[str, type[Engine]] = {
    one.kind: one
    for one in (
        ReferenceEngine,
        SglangEngine,
        VllmEngine,
        ApiModel,
    )
}
"""Classes by kind."""
DEFAULT = VllmEngine
"""Class of engines that name an owner of their own, such as gateways: vLLM's routes are theirs."""


def engine_class(kind: str) -> type[Engine]:
    """Returns the class of a kind; for "auto", the one that holds until the engine was asked.
    Raises `InvalidRequest`."""
    if kind not in (AUTO, *ENGINES):
        known = ", ".join((AUTO, *ENGINES))
        raise InvalidRequest.of_field("kind", f"there is no engine {kind!r}, only {known}")
    return ENGINES.get(kind, DEFAULT)


def recognised(info: EngineInfo) -> type[Engine]:
    """Returns the class of the engine that has described itself so."""
    known = (one for one in ENGINES.values() if one.owned_by and one.owned_by == info.owned_by)
    return next(known, DEFAULT)
