"""Everything that a trainer imports: clients of the service, draws from samplers, tasks in rows.

`http` and `async_http` have the clients; `sampling` draws step by step; `datasets` stores tasks in
rows; `trainable`, `overlong` and `metrics` judge and count returned rollouts. Knows no trainer.
"""

from prorl_service.client.async_http import AsyncRolloutClient
from prorl_service.client.connections import Wire
from prorl_service.client.errors import ServiceCallError, WaitTimeout
from prorl_service.client.http import RolloutClient

__all__ = ["AsyncRolloutClient", "RolloutClient", "ServiceCallError", "WaitTimeout", "Wire"]
