"""Duration of groups of rollouts, by the router that gives their calls to engines."""
