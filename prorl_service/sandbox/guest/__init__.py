"""Programs that run inside a sandbox. They are copied there, and import nothing else of ours."""
