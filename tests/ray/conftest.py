"""Tests of `prorl ray`. Those that need a cluster are collected only where Ray is installed
(`scripts/test-ray`)."""

from importlib.metadata import PackageNotFoundError, version

try:
    version("ray")  # an import would find this directory
except PackageNotFoundError:
    collect_ignore = [
        "test_autoscaling.py",
        "test_cluster.py",
        "test_slurm.py",
        "test_storm.py",
        "test_token.py",
        "test_two_trainings.py",
    ]
