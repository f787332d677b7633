"""What the service costs under load, beside a bare floor and beside others."""
