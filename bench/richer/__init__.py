"""What a rollout can be: branches, turn rewards, judges, a simulated user, a policy by API."""
