"""`prorl status`: what a service reports about itself, for people."""

from collections.abc import Iterator, Mapping
from typing import Annotated

from cyclopts import Parameter

from prorl_service.client import RolloutClient
from prorl_service.schemas import ServiceStatus

RETRY_S = 2.0


def status(
    *,
    url: str = "http://localhost:8080",
    as_json: Annotated[bool, Parameter("--json")] = False,
) -> None:
    """Show what a service is doing: its run, rollouts, queues and engines.

    Parameters
    ----------
    url
        Address of the service or front.
    as_json
        Print JSON, for programs.
    """
    with RolloutClient(url, retry_s=RETRY_S) as client:
        now = client.status()
    print(now.model_dump_json(indent=2) if as_json else "\n".join(_lines(url, now)))


def _lines(url: str, now: ServiceStatus) -> Iterator[str]:
    state = now.failure or ("stopping" if now.is_stopping else "healthy")
    yield f"{url}: prorl {now.version}, {state}, run {now.run}"
    yield f"agents     {', '.join(now.agents)}; sandboxes: {now.sandbox}"
    yield f"rollouts   {_counts({state.value: count for state, count in now.rollouts.items()})}"
    yield f"waiting    {_counts(now.queues)}"
    yield f"weights    version {now.policy_version}"
    for one in now.backends:
        calls = f"{one.in_flight} calls, version {one.policy_version}"
        yield f"engine     {one.backend_id} {one.state.value}: {one.reason or calls}"
    if not now.backends:
        yield "engine     none; POST one to /v1/backends, or start the service with --backend"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "none"
