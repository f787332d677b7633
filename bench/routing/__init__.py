"""How long groups of rollouts take, by the router that gives their calls to engines."""
