"""Reasons why our verdict and verl's differ, row by row."""

NO_PERCENT = (
    "the parser that math-verify brings for antlr 4.9.3 cannot read percentages; ours is mended"
)

MATH_REASONS = {
    "table-18": "ours compares an inequality with an interval; math-verify's default does not",
    "table-23": NO_PERCENT,
    "table-24": NO_PERCENT,
    "table-28": "ours takes the last box; math-verify makes a set of all",
    "table-33": "ours wants a box",
    "table-57": "ours wants a box: this restates the question, and scores with verl",
}

CODE_REASONS = {
    "a blank before the first word": "prime_code strips lines at both ends",
    "fewer digits": "prime_code always has a tolerance; ours where the task says so",
    "no import": "prime_code puts imports before a program; ours runs the file as it is",
    "right, then exit code 1": "prime_code ignores exit codes",
    "first item of the list": "prime_code takes the first item of a list for the list",
    "words of a line in another order": "prime_code compares words of a line as a set",
}
