"""The SWE grader on the offline instances, next to SWE-bench's own method."""
