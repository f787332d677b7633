"""`prorl install`: what sandboxes and images need of this machine, by the project's own scripts.

A wheel brings the scripts; in a checkout they lie in `scripts/`.
"""

import subprocess
from pathlib import Path
from typing import Literal

import prorl_service

PACKAGE = Path(prorl_service.__file__).parent
SCRIPTS = {
    "sandboxes": "install-sandbox",
    "bubblewrap": "install-bubblewrap",
    "apptainer": "install-apptainer",
    "buildah": "install-buildah",
}


def install(what: Literal["sandboxes", "bubblewrap", "apptainer", "buildah"], /) -> int:
    """Install what sandboxes need: does nothing if it works, and says what is in the way.

    Needs root or sudo if something is missing. Asks no questions.

    Parameters
    ----------
    what
        `sandboxes` for bubblewrap and Apptainer; `buildah` builds images of Dockerfiles.
    """
    return subprocess.run([_directory() / SCRIPTS[what]], check=False).returncode


def _directory() -> Path:
    in_wheel = PACKAGE / "installers"
    return in_wheel if in_wheel.is_dir() else PACKAGE.parent / "scripts"
