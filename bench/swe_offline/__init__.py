"""The SWE grader on the offline instances, beside SWE-bench's own method."""
