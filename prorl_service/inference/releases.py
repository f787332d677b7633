"""Releases of vLLM that the service can use, and what the older ones lack.

Taken from the sources of 0.22 to 0.32. Knows nothing of an engine's address or state.
"""

from packaging.version import InvalidVersion, Version

Release = tuple[int, ...]
"""Major and minor version."""

OLDEST: Release = (0, 22)
"""First release with all the routes that an update from a directory needs."""
LOADS_FILES: Release = (0, 25)
"""First release whose weight-transfer backends load the weights themselves, as our plug-in does."""
LABELS_WEIGHTS: Release = (0, 27)
"""First release with `/update_weight_version` and `/weight_info`."""
SHARES_NCCL_SETTINGS: Release = (0, 28)
"""First release whose backend `nccl` learns how weights are packed when its group is opened."""
NEEDS_SCALE_OUT: Release = (0, 30)
"""First release that has `/inference/v1/generate` only with `--enable-scale-out`."""
REPORTS_VERSIONS: Release = (0, 32)
"""First release whose answers have `weight_versions`."""
SWAPS_ADAPTERS: Release = (0, 32)
"""First release tested with LoRA adapters, and with whole models where it takes adapters."""

UNTAGGED: Release = (0, 1)
"""Release that a build from a checkout without tags claims to be."""


def release_of(version: str) -> Release | None:
    """Returns None for a build without a number, which counts as the newest."""
    try:
        release = Version(version).release[:2]
    except InvalidVersion:
        return None
    return None if release == UNTAGGED else release


def shown(release: Release) -> str:
    return ".".join(map(str, release))


def problem(release: Release | None) -> str | None:
    """Returns why vLLM of this release cannot be used; None if it can."""
    if release is None or release >= OLDEST:
        return None
    return f"vLLM {shown(release)} is too old: it must be {shown(OLDEST)} or newer"
