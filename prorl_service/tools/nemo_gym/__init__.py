"""Resources servers of NeMo Gym: what an operator configures, sessions, how they fail."""
