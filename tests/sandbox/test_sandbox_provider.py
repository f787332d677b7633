import os
from pathlib import Path

import pytest

from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox import provider
from prorl_service.sandbox.base import SandboxLimits
from tests.sandbox.helpers import Kind


def test_auto_is_the_strongest_that_works() -> None:
    assert provider("auto").kind == "bubblewrap"


def test_auto_never_falls_back_to_no_isolation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SandboxError, match="not installed") as caught:
        provider("auto")
    assert not caught.value.retryable
    assert "scripts/install-sandbox" in caught.value.hint
    assert provider("process").kind == "process"


def test_a_bubblewrap_that_does_not_work_is_found_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(SandboxError, match="No permissions to create new namespace"):
        provider("bubblewrap")


def test_images_are_refused(kind: Kind) -> None:
    with pytest.raises(TaskError, match="ubuntu"):
        provider(kind).create(image="ubuntu:24.04", limits=SandboxLimits())
