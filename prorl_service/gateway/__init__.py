"""The gateway: what a harness believes to be OpenAI or Anthropic, and what is a rollout's policy.

A harness is an agent program that talks to a model over HTTP. The gateway reads its requests in the
dialect that they are written in, finds out which turn of the rollout they continue, and has the
policy sampled by the rollout's `Attempt`, whose ledger records the very ids that the engine saw.
"""
