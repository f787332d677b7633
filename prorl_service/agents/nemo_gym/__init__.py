"""The agent `nemo_gym`: tasks of NeMo Gym's resources servers."""
