"""The agent that repairs repositories: its data, its conversation, its evaluation."""
