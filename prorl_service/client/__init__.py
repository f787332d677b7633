"""Everything that a trainer imports: clients of the service, draws from samplers, tasks in rows.

`http` has the clients; `sampling` draws step by step; `datasets` stores tasks in rows; `trainable`,
`overlong` and `metrics` judge and count returned rollouts. Knows no trainer.
"""

from prorl_service.client.http import (
    AsyncRolloutClient,
    RolloutClient,
    ServiceCallError,
    WaitTimeout,
    Wire,
)

__all__ = ["AsyncRolloutClient", "RolloutClient", "ServiceCallError", "WaitTimeout", "Wire"]
