"""What the routes work on, and how they come by it."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from prorl_service.background import Background
from prorl_service.inference.pool import BackendPool
from prorl_service.pipeline.accepted import AcceptedRollouts
from prorl_service.pipeline.samplers import Samplers
from prorl_service.sandbox.warm import WarmSandboxes
from prorl_service.tools.mcp import McpServers


@dataclass(frozen=True, slots=True)
class Service:
    backends: BackendPool
    pipeline: AcceptedRollouts
    samplers: Samplers
    sandboxes: WarmSandboxes
    mcp: McpServers
    background: Background

    def failure(self) -> str | None:
        """Why it is not healthy."""
        parts = (self.pipeline, self.samplers, self.backends, self.mcp, self)
        owners = (part.background for part in parts)
        return next((owner.failure for owner in owners if owner.failure), None)


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceDep = Annotated[Service, Depends(_service)]
