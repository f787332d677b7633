"""The SWE grader against patches that know pytest and unittest but not this grader."""
