"""Reasons why our verdict and verl's differ, row by row."""

NO_PERCENT = (
    "the parser that math-verify brings for antlr 4.9.3 cannot read percentages; ours is mended"
)

SMALL = "math-verify rounds both sides to six places, or compares 15 digits of their difference"

MATH_REASONS = {
    "table-18": "ours compares an inequality with an interval; math-verify's default does not",
    "table-23": NO_PERCENT,
    "table-24": NO_PERCENT,
    "table-28": "ours takes the last box; math-verify makes a set of all",
    "table-33": "ours wants a box",
    "table-57": "ours wants a box: this restates the question, and scores with verl",
    "table-102": "math-verify takes one side of an equation; ours sees that it is false",
    "table-104": SMALL,
    "table-110": SMALL,
    "table-111": SMALL,
    "table-112": SMALL,
    "table-113": SMALL,
    "table-114": "ours compares a decimal with an integer by its value",
    "table-117": SMALL,
    "table-118": SMALL,
}

CODE_REASONS = {
    "a blank before the first word": "prime_code strips lines at both ends",
    "fewer digits": "prime_code always has a tolerance; ours where the task says so",
    "no import": "prime_code puts imports before a program; ours runs the file as it is",
    "right, then exit code 1": "prime_code ignores exit codes",
    "first item of the list": "prime_code takes the first item of a list for the list",
    "words of a line in another order": "prime_code compares words of a line as a set",
}
