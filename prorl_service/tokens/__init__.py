"""Token-exact bookkeeping: ids the engine sampled are canonical and are never re-encoded."""
