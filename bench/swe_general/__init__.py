"""The SWE grader against patches that know pytest and unittest, and not this grader."""
