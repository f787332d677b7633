"""A lease goes off once, while nobody holds it, and never after its end."""

import asyncio

from prorl_service.utils.leases import Lease


async def test_it_goes_off_when_nobody_holds_or_renews_it() -> None:
    expired = asyncio.Event()
    lease = Lease(0.02, expired.set)
    with lease.held(), lease.held():
        await asyncio.sleep(0.1)
        lease.renew()
        assert not expired.is_set()
    async with asyncio.timeout(30):
        await expired.wait()


async def test_it_has_ended_for_holders_that_leave_later_and_for_late_callers() -> None:
    expirations: list[None] = []
    lease = Lease(0.01, lambda: expirations.append(None))
    with lease.held():
        lease.end()
    lease.renew()
    await asyncio.sleep(0.1)
    assert not expirations
