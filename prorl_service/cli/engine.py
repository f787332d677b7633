"""`prorl engine`: the reference inference engine, which needs the extra `prorl-service[engine]`."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass

from prorl_service.errors import ProRLError
from prorl_service.net.credentials import take_key
from prorl_service.utils import logs

KEY_VARIABLE = "PRORL_ENGINE_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    model: Path
    """Directory of a transformers causal LM."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """Port to listen on."""
    max_model_len: Annotated[int, Field(ge=2)] = 4096
    """Context length in tokens."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type to compute in."""
    threads: PositiveInt | None = None
    """CPU threads of torch (default: 1 for each 50 million parameters, at most one per core)."""
    api_key_file: Path | None = None
    """File with the key that clients must send (default: PRORL_ENGINE_KEY, if set)."""
    allow_host: tuple[str, ...] = ()
    """Additional host name by which browsers may call the engine without a key. Repeatable."""


def engine(*, settings: Annotated[EngineSettings, Parameter(name="*")]) -> None:
    """Run the reference inference engine: exact and small, for laptops, CI and demos."""
    logs.configure("text")
    key = take_key(KEY_VARIABLE, settings.api_key_file, "the engine's key")
    try:
        from prorl_service.inference.reference_engine import serve as serve_engine
    except ImportError as error:
        raise ProRLError(
            f"the engine's dependencies are not installed: {error}",
            hint="pip install 'prorl-service[engine]'",
        ) from error
    serve_engine(
        settings.model,
        host=settings.host,
        port=settings.port,
        max_model_len=settings.max_model_len,
        dtype=settings.dtype,
        threads=settings.threads,
        api_key=key,
        allowed_hosts=settings.allow_host,
    )
