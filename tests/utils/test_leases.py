"""Leases, which expire once, only while they are not held, and never after their end."""

import asyncio

from prorl_service.utils.leases import Lease


async def test_a_lease_expires_unless_it_is_held_or_renewed() -> None:
    expired = asyncio.Event()
    lease = Lease(0.02, expired.set)
    with lease.held(), lease.held():
        await asyncio.sleep(0.1)
        lease.renew()
        assert not expired.is_set()
    async with asyncio.timeout(30):
        await expired.wait()


async def test_an_ended_lease_ignores_holders_that_leave_and_late_callers() -> None:
    expirations: list[None] = []
    lease = Lease(0.01, lambda: expirations.append(None))
    with lease.held():
        lease.end()
    lease.renew()
    await asyncio.sleep(0.1)
    assert not expirations
