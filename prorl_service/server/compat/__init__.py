"""The routes of the original ProRL Agent server, for its clients. Not part of our interface."""
