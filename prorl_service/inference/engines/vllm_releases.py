"""Releases of vLLM that the service can use, by the table of neighbours."""

from packaging.version import InvalidVersion, Version

from prorl_service.neighbours import neighbours

Release = tuple[int, ...]
"""Major and minor version."""

UNTAGGED: Release = (0, 1)
"""Release that a build from a checkout without tags claims to be."""


def release_of(version: str) -> Release | None:
    """Returns None for a build without a number, which counts as the newest."""
    try:
        release = Version(version).release[:2]
    except InvalidVersion:
        return None
    return None if release == UNTAGGED else release


def problem(release: Release | None) -> str | None:
    """Returns why vLLM of this release cannot be used; None if it can, tested or not."""
    is_old = release is not None and release < Version(neighbours()["vllm"].newest).release
    return _untested(release) if is_old else None


def warning(release: Release | None) -> str | None:
    """Returns a line on a release that is newer than those that were tested; None for another."""
    return _untested(release) if problem(release) is None else None


def _untested(release: Release | None) -> str | None:
    vllm, shown = neighbours()["vllm"], ".".join(map(str, release or ()))
    if release is None or vllm.supports(shown):
        return None
    return f"vLLM {shown} is outside the tested range, {vllm.tested}"
