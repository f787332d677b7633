"""Small programming problems written for this repository: a solution, mistakes in it, inputs.

A mistake is a replacement in the solution's text. Outputs come from running the solution.
"""

import string
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """`make` gives what a program reads or, where `fn_name` is set, the arguments."""

    name: str
    source: str
    mistakes: tuple[tuple[str, str], ...]
    make: Callable[[Random], Any]
    fn_name: str | None = None

    def wrong(self, number: int) -> str:
        old, new = self.mistakes[number]
        assert old in self.source, (self.name, old)
        return self.source.replace(old, new)


def numbers(rng: Random, count: int, low: int = -50, high: int = 100) -> list[int]:
    return [rng.randrange(low, high) for _ in range(count)]


def listed(values: list[int]) -> str:
    return f"{len(values)}\n{' '.join(map(str, values))}\n"


def some_numbers(rng: Random) -> str:
    return listed(numbers(rng, rng.randrange(3, 20)))


def some_list(rng: Random) -> list[list[int]]:
    return [numbers(rng, rng.randrange(3, 12))]


def word(rng: Random, letters: str = "abcde") -> str:
    return "".join(rng.choices(letters, k=rng.randrange(3, 12)))


def a_word(rng: Random) -> str:
    return word(rng) + "\n"


def brackets(rng: Random) -> str:
    text = "".join(rng.choices("()[]", k=rng.choice((2, 4, 6))))
    return rng.choice((text, "([])[]", "(()[[]])", "([)]", "((")) + "\n"


def grid(rng: Random) -> str:
    rows, columns = rng.randrange(2, 6), rng.randrange(2, 6)
    lines = [" ".join(map(str, numbers(rng, columns, 0, 10))) for _ in range(rows)]
    return f"{rows} {columns}\n" + "\n".join(lines) + "\n"


def spans(rng: Random) -> list[list[list[int]]]:
    starts = numbers(rng, rng.randrange(3, 8), 0, 40)
    return [[[start, start + rng.randrange(1, 12)] for start in starts]]


def edges(rng: Random) -> str:
    nodes = rng.randrange(4, 9)
    pairs = [rng.sample(range(1, nodes + 1), 2) for _ in range(nodes - 2)]
    lines = [f"{a} {b}" for a, b in pairs]
    return f"{nodes} {len(lines)}\n" + "\n".join(lines) + "\n"


def amounts(rng: Random) -> str:
    return f"{rng.randrange(10, 60)} {' '.join(map(str, rng.sample((1, 2, 3, 5, 7, 10), 3)))}\n"


def a_number(rng: Random) -> str:
    return f"{rng.randrange(2, 3000)}\n"


def shifted(rng: Random) -> str:
    return f"{rng.randrange(1, 60)}\n{word(rng, string.ascii_lowercase)} {word(rng, 'xyz')}\n"


def pairs(rng: Random) -> list[Any]:
    values = rng.sample(range(-40, 60), 8)
    return [values, values[rng.randrange(4)] + values[rng.randrange(4, 8)]]


def rotation(rng: Random) -> list[Any]:
    return [numbers(rng, rng.randrange(2, 9)), rng.randrange(0, 20)]


def letters(rng: Random) -> list[Any]:
    return [word(rng, "ab")]


def phrases(rng: Random) -> list[Any]:
    half = word(rng)
    return [rng.choice((half + half[::-1], half.title() + ", " + half[::-1], half))]


def two_words(rng: Random) -> list[Any]:
    return [word(rng), word(rng)]


def nested(rng: Random) -> list[Any]:
    return [[1, numbers(rng, 3), [numbers(rng, 2), [rng.randrange(9)]], rng.randrange(9)]]


SUM = "n = int(input())\nprint(sum(map(int, input().split())))\n"
SORTED = "n = int(input())\nprint(*sorted(map(int, input().split())))\n"
LONGEST_RUN = """\
text = input()
best = run = 1
for one, other in zip(text, text[1:]):
    run = run + 1 if one == other else 1
    best = max(best, run)
print(best)
"""
BRACKETS = """\
pairs = {")": "(", "]": "["}
stack = []
fine = True
for letter in input().strip():
    if letter in "([":
        stack.append(letter)
    elif not stack or stack.pop() != pairs[letter]:
        fine = False
        break
print("YES" if fine and not stack else "NO")
"""
TRANSPOSED = """\
rows, columns = map(int, input().split())
grid = [input().split() for _ in range(rows)]
for column in zip(*grid):
    print(*column)
"""
INCREASING = """\
from bisect import bisect_left
input()
tails = []
for value in map(int, input().split()):
    place = bisect_left(tails, value)
    tails[place:place + 1] = [value]
print(len(tails))
"""
COMPONENTS = """\
import sys
data = list(map(int, sys.stdin.read().split()))
nodes, count = data[:2]
parent = list(range(nodes + 1))
def root(a):
    while parent[a] != a:
        a = parent[a]
    return a
for a, b in zip(data[2::2], data[3::2]):
    parent[root(a)] = root(b)
print(len({root(a) for a in range(1, nodes + 1)}))
"""
SUBARRAY = """\
input()
best = here = None
for value in map(int, input().split()):
    here = value if here is None or here < 0 else here + value
    best = here if best is None else max(best, here)
print(best)
"""
CHANGE = """\
target, *coins = map(int, input().split())
ways = [1] + [0] * target
for coin in coins:
    for value in range(coin, target + 1):
        ways[value] += ways[value - coin]
print(ways[target])
"""
CAESAR = """\
shift = int(input())
text = input()
out = ""
for letter in text:
    if letter.isalpha():
        out += chr((ord(letter) - 97 + shift) % 26 + 97)
    else:
        out += letter
print(out)
"""
FACTORS = """\
n = int(input())
found = []
divisor = 2
while n > 1:
    while n % divisor == 0:
        found.append(divisor)
        n //= divisor
    divisor += 1
print(" ".join(map(str, found)))
"""
COUNTED = """\
counts = {}
for letter in input().strip():
    counts[letter] = counts.get(letter, 0) + 1
for letter in sorted(counts):
    print(letter, counts[letter])
"""
TWO_SUM = """\
def two_sum(values, target):
    seen = {}
    for index, value in enumerate(values):
        if target - value in seen:
            return [seen[target - value], index]
        seen[value] = index
    return []
"""
MERGED = """\
def merge(spans):
    merged = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged
"""
ROTATED = """\
class Solution:
    def rotate(self, values, steps):
        steps %= len(values)
        return values[-steps:] + values[:-steps] if steps else values
"""
RUNS = """\
def encode(text):
    out = []
    for letter in text:
        if out and out[-1][0] == letter:
            out[-1] = (letter, out[-1][1] + 1)
        else:
            out.append((letter, 1))
    return "".join(f"{letter}{count}" for letter, count in out)
"""
MEDIAN = """\
def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
"""
PALINDROME = """\
class Solution:
    def is_palindrome(self, text):
        letters = [letter.lower() for letter in text if letter.isalnum()]
        return letters == letters[::-1]
"""
DISTANCE = """\
def distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]
"""
FLATTENED = """\
def flatten(nested):
    out = []
    for item in nested:
        if isinstance(item, list):
            out.extend(flatten(item))
        else:
            out.append(item)
    return out
"""


PROBLEMS = [
    Problem("sum", SUM, (("sum(", "max("), ("print(", "print(1 + ")), some_numbers),
    Problem("sorted", SORTED, (("sorted(", "set("), ("*sorted", "*reversed")), some_numbers),
    Problem("longest run", LONGEST_RUN, (("else 1", "else 0"), ("max(", "min(")), a_word),
    Problem("brackets", BRACKETS, (("and not stack", ""), (" != pairs[letter]", "")), brackets),
    Problem("transposed", TRANSPOSED, (("zip(*grid)", "grid"), ("*column", "column")), grid),
    Problem(
        "increasing", INCREASING, (("tails))", "tails) + 1)"), ("_left", "_right")), some_numbers
    ),
    Problem(
        "components", COMPONENTS, (("data[3::2]", "data[2::2]"), ("nodes + 1)}", "nodes)}")), edges
    ),
    Problem(
        "subarray", SUBARRAY, (("here < 0", "here > 0"), ("max(best", "min(best")), some_numbers
    ),
    Problem("change", CHANGE, (("target + 1", "target"), ("[1] +", "[0] +")), amounts),
    Problem("caesar", CAESAR, (("% 26", "% 25"), ("+ shift", "- shift")), shifted),
    Problem(
        "factors", FACTORS, (("append(divisor)", "append(n)"), ('" ".join', '"*".join')), a_number
    ),
    Problem("counted", COUNTED, (("sorted(counts)", "counts"), ("0) + 1", "1) + 1")), a_word),
    Problem(
        "two_sum",
        TWO_SUM,
        (("index]", "index + 1]"), ("[seen[", "[index, seen[")),
        pairs,
        "two_sum",
    ),
    Problem("merge", MERGED, (("<=", "<"), ("sorted(spans)", "spans")), spans, "merge"),
    Problem(
        "rotate", ROTATED, (("-steps", "steps"), ("if steps", "if not steps")), rotation, "rotate"
    ),
    Problem("encode", RUNS, (("{count}", ""), ("+ 1)", "+ 2)")), letters, "encode"),
    Problem("median", MEDIAN, (("sorted(values)", "values"), ("/ 2", "// 2")), some_list, "median"),
    Problem("palindrome", PALINDROME, ((".lower()", ""), ("[::-1]", "")), phrases, "is_palindrome"),
    Problem(
        "distance", DISTANCE, (("(x != y)", "1"), ("row[-1]", "row[0]")), two_words, "distance"
    ),
    Problem(
        "flatten", FLATTENED, (("extend(", "append("), ("flatten(item)", "item")), nested, "flatten"
    ),
]
