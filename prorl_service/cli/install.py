"""`prorl install`: what sandboxes and images need of this machine, by the project's own scripts.

A wheel brings the scripts; in a checkout they lie in `scripts/`.
"""

import subprocess
from typing import Literal

from prorl_service.cli.program import brought

SCRIPTS = {
    "sandboxes": "install-sandbox",
    "bubblewrap": "install-bubblewrap",
    "apptainer": "install-apptainer",
    "podman": "install-podman",
    "buildah": "install-buildah",
}


def install(what: Literal["sandboxes", "bubblewrap", "apptainer", "podman", "buildah"], /) -> int:
    """Install what sandboxes need: does nothing if it works, and says what is in the way.

    Needs root or sudo if something is missing. Asks no questions.

    Parameters
    ----------
    what
        `sandboxes` for bubblewrap and Apptainer; `podman` for the user who runs it; `buildah`
        builds images of Dockerfiles.
    """
    script = brought("installers", "scripts") / SCRIPTS[what]
    return subprocess.run([script], check=False).returncode
