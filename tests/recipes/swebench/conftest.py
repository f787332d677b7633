"""Tests of training with VeRL, collected only where VeRL is installed: `scripts/test-verl`."""

from importlib.metadata import PackageNotFoundError, version

try:
    version("verl")
except PackageNotFoundError:
    collect_ignore = ["test_train_verl.py"]
