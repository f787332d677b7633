"""Cost of an agent's action, side by side with other implementations: `scripts/bench tools`.

Each part answers one question in one run. Its contenders take turns in random order, so that other
load on the machine affects all alike.
"""
