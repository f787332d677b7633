"""Harnesses of others behind the gateway: exactness, tokens, the service's cost for each call."""
