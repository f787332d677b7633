"""What looking at rollouts costs: the shelf, its lists and the page over it."""
