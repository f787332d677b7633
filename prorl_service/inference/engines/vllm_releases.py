"""Releases of vLLM that the service can use, and what the older ones lack.

Taken from their sources. Knows nothing of an engine's address or state; the range that was tested
is in the table of neighbours.
"""

from packaging.version import InvalidVersion, Version

from prorl_service.neighbours import neighbours

Release = tuple[int, ...]
"""Major and minor version."""

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
SEES: Release = (0, 32)
"""First release tested with pictures."""

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
    """Returns why vLLM of this release cannot be used; None if it can, tested or not."""
    is_old = release is not None and release < Version(neighbours()["vllm"].newest).release
    return _untested(release) if is_old else None


def warning(release: Release | None) -> str | None:
    """Returns a line on a release that is newer than those that were tested; None for another."""
    return _untested(release) if problem(release) is None else None


def _untested(release: Release | None) -> str | None:
    vllm = neighbours()["vllm"]
    if release is None or vllm.supports(shown(release)):
        return None
    return f"vLLM {shown(release)} is outside the tested range, {vllm.tested}"
