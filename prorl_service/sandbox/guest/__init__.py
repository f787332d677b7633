"""What runs inside a sandbox. Imports nothing of ours: it is copied there."""
