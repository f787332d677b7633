"""Pure scoring: what an answer is worth. No sandboxes, no I/O."""
