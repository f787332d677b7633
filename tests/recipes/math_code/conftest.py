"""Training with VeRL is tested where VeRL is: `scripts/test-verl`."""

from importlib.metadata import PackageNotFoundError, version

try:
    version("verl")
except PackageNotFoundError:
    collect_ignore = ["test_train_problems_verl.py"]
