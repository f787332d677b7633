"""The agent that writes programs: its data, its conversation, its evaluation."""
