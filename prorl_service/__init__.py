"""ProRL rollout service: multi-turn agent rollouts over HTTP for RL of LLM agents."""

__version__ = "0.3.0"
