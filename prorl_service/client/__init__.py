"""Everything that a trainer imports: clients of the service, draws from samplers, tasks in rows.

`async_http` has the client and `http` its blocking face; `sampling` draws step by step; `datasets`
stores tasks in rows; `trainable` and `metrics` judge and count returned rollouts. Knows no trainer.
"""

from prorl_service.client.async_http import AsyncRolloutClient
from prorl_service.client.calls import Wire
from prorl_service.client.errors import ServiceCallError, WaitTimeout
from prorl_service.client.http import RolloutClient

__all__ = ["AsyncRolloutClient", "RolloutClient", "ServiceCallError", "WaitTimeout", "Wire"]
