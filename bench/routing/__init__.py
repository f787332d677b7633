"""How long groups of rollouts take, by how their calls are given to engines."""
