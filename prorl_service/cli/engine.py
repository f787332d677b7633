"""`prorl engine`: the reference inference engine, which needs the extra `prorl-service[engine]`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from prorl_service.cli.errors import one_line_errors
from prorl_service.cli.options import AllowHost, Host
from prorl_service.errors import ProRLError
from prorl_service.net.credentials import take_key
from prorl_service.utils import logs

KEY_VARIABLE = "PRORL_ENGINE_KEY"


def engine(
    *,
    model: Annotated[Path, typer.Option(help="Directory of a transformers causal LM.")],
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    max_model_len: Annotated[int, typer.Option(min=2, help="Context length.")] = 4096,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option(help="Type to compute in.")
    ] = "float32",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of torch.")] = 1,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help=f"File with the key to ask for; default: {KEY_VARIABLE}, if set."),
    ] = None,
    allow_host: AllowHost = [],  # noqa: B006
) -> None:
    """Run the reference inference engine: exact and small, for laptops, CI and demos."""
    logs.configure("text")
    with one_line_errors():
        key = take_key(KEY_VARIABLE, api_key_file, "the engine's key")
        try:
            from prorl_service.inference.engine import serve as serve_engine
        except ImportError as error:
            raise ProRLError(
                f"the engine needs what is not installed: {error}",
                hint="pip install 'prorl-service[engine]'",
            ) from error
        serve_engine(
            model,
            host=host,
            port=port,
            max_model_len=max_model_len,
            dtype=dtype,
            threads=threads,
            api_key=key,
            allowed_hosts=allow_host,
        )
