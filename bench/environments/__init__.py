"""Environments of others' frameworks on our sandboxes, beside their own."""
