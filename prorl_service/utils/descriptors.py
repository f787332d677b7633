"""The limit on files, sockets and pipes that this process may have open."""

import resource
import sys


def most() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def raise_limit() -> int:
    """Raise the limit to what the host allows, and return it: soft limits are often 1024.

    Each running rollout holds a few. Sandboxes get a lower limit than the service, so that the
    descriptors that they send each other cannot use up what the service, as the same user, needs to
    start the next sandbox.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return most()
