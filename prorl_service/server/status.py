"""`GET /v1/status`: what a service does now, out of its parts.

Reads counters and no more, for it is asked for every second.
"""

from prorl_service import __version__
from prorl_service.schemas import SandboxCounts, ServiceStatus
from prorl_service.server import watchdog
from prorl_service.server.service import Service


def status_of(service: Service) -> ServiceStatus:
    executor, model = service.executor, service.backends.model.current
    ends, failures = executor.ends()
    shelf, sandboxes = service.views.shelf, service.sandboxes
    return ServiceStatus(
        version=__version__,
        run=service.run,
        started_at=service.started_at,
        is_stopping=executor.is_stopping,
        failure=service.failure() or service.journal.failure,
        policy_version=service.backends.policy_version,
        training=service.backends.owner.lease(),
        refused_weights=service.backends.refused_weights,
        model=model.name if model else None,
        tokenizer_digest=model.tokenizer_digest if model else None,
        end_ids=sorted(model.chat.end_ids) if model else [],
        chat_template_digest=model.chat.template_digest if model else None,
        sandbox=sandboxes.kind if sandboxes else "elsewhere",
        sandboxes=SandboxCounts(**sandboxes.counts()) if sandboxes else None,
        agents=executor.agents.names,
        rollouts=executor.count_by_state(),
        ended=dict(ends),
        failures=dict(failures),
        queues=executor.queues(),
        workers=executor.workers(),
        running=executor.running(),
        backends=service.backends.statuses(),
        services=executor.services(),
        shelf=shelf.status() if shelf is not None else None,
        loop_lag_s=watchdog.recent_lag_s(),
    )
