"""What a trainer imports: clients of the service, drawing from samplers, tasks in data sets.

`http` has the clients; `sampling` draws step by step; `datasets` carries tasks in rows;
`trainable`, `overlong` and `metrics` judge and count the rollouts that came back. Knows no trainer.
"""

from prorl_service.client.http import (
    AsyncRolloutClient,
    RolloutClient,
    ServiceCallError,
    WaitTimeout,
    Wire,
)

__all__ = ["AsyncRolloutClient", "RolloutClient", "ServiceCallError", "WaitTimeout", "Wire"]
