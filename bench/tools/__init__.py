"""What an agent's action costs, side by side with what others do: `scripts/bench tools`.

Each part answers one question in one run. Its contenders take turns in random order, so that other
load on the machine affects all alike.
"""
