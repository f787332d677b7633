"""Names of training runs. What a journal keeps belongs to one run, and so does a sampler."""

import secrets
from datetime import UTC, datetime


def new_run() -> str:
    """A name that no other run has, and that sorts by the time at which it began."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
