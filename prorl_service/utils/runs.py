"""Names of training runs. A journal belongs to one run, and so does a sampler."""

import secrets
from datetime import UTC, datetime


def new_run() -> str:
    """Returns a name that no other run has and that sorts by start time."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
