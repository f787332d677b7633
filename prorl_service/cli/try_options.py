"""Options that only `prorl try` has: where replies come from, and where the results go."""

import dataclasses
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from pydantic.dataclasses import dataclass

from prorl_service.errors import ProRLError
from prorl_service.schemas import BackendSpec, Rollout
from prorl_service.server.settings import EngineOptions
from prorl_service.testing.replies import Reply, read
from prorl_service.testing.scripted_engine import ScriptedEngine, scripted_engine
from prorl_service.utils import files


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions(EngineOptions):
    backend: Annotated[tuple[str, ...], Parameter(name="--engine")] = ()
    """URL of an inference engine: vLLM or `prorl engine`."""
    replies: Path | None = None
    """File with replies, instead of an engine: texts separated by lines of '---', or, in a .jsonl
    file, messages or saved rollouts."""
    reply_format: str | None = None
    """Format of the model's reasoning and tool calls (default: as its chat template writes)."""

    def specs(self) -> tuple[BackendSpec, ...]:
        """Raises `ProRLError`, which names the option as this command does."""
        try:
            return EngineOptions.specs(self)
        except ProRLError as error:
            message = error.message.replace("--backend: url:", "--engine:")
            raise ProRLError(message, hint=error.hint) from None

    def source(self) -> "Source":
        """Removes the key from the environment in any case. Raises `ProRLError`."""
        specs = self.specs()
        if bool(specs) == (self.replies is not None):
            raise ProRLError(
                "give either --engine or --replies",
                hint="--engine http://localhost:8000, or --replies FILE with the model's replies",
            )
        return Source(self, specs, read(self.replies) if self.replies else ())


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """The user's engines, or scripts for an engine of ours."""

    options: ModelOptions
    specs: Sequence[BackendSpec]
    scripts: Sequence[Sequence[Reply]]

    @asynccontextmanager
    async def engines(self) -> AsyncIterator[tuple[Sequence[BackendSpec], ScriptedEngine | None]]:
        """Starts the scripted engine, if there are scripts. Raises `ProRLError`."""
        if not self.scripts:
            yield self.specs, None
            return
        options = self.options
        async with scripted_engine(
            self.scripts, tokenizer=options.tokenizer, reply_format=options.reply_format
        ) as engine:
            yield [engine.spec], engine

    def describe(self, model: str) -> str:
        """Describes where replies come from. `model` is the engine's."""
        if not self.scripts:
            return f"model {model}"
        return f"replies of {self.options.replies}, tokens: {self.options.tokenizer or 'bytes'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    full: bool = False
    """Show prompts and tool output in full."""
    json: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None
    """File for the rollouts, one JSON object per line; '-' is standard output."""
    verbose: bool = False
    """Show the service's log as well."""

    def check(self) -> None:
        """Raises `ProRLError`."""
        if self.json is not None and not os.access(self.json.parent, os.W_OK):
            raise ProRLError(f"--json {self.json}: cannot write to {self.json.parent}")

    def save(self, ended: Sequence[Rollout]) -> None:
        """Raises `ProRLError`."""
        if self.json is None or not ended:
            return
        text = "".join(f"{one.model_dump_json()}\n" for one in ended)
        if self.json == Path("-"):
            print(text, end="", flush=True)
            return
        try:
            files.write_whole(self.json, text)
        except OSError as error:
            raise ProRLError(f"--json {self.json}: {error.strerror}") from None
