"""Tricky pairs of gold and answer, and what the rule of docs/rewards.md makes of each.

`TABLE` was drawn up for this repository to compare rules. `ERRORS` are further ones where
math-verify errs. Tests and the benchmark share both.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MathRow:
    """`right`: whether the reply should count. `scored`: whether it does, where that differs."""

    number: int
    gold: str
    reply: str
    right: bool
    note: str
    scored: bool | None = None

    @property
    def score(self) -> float:
        return float(self.right if self.scored is None else self.scored)

    @property
    def name(self) -> str:
        return f"{self.number}: {self.note}"


TABLE = [
    MathRow(1, r"\frac{1}{2}", r"So the answer is \boxed{0.5}", True, "fraction vs decimal"),
    MathRow(2, r"\frac{1}{2}", r"\boxed{\frac12}", True, "shorthand frac"),
    MathRow(3, r"\frac{7}{3}", r"\boxed{7/3}", True, "slash fraction"),
    MathRow(4, r"\frac{7}{2}", r"\boxed{3\frac{1}{2}}", True, "mixed number 3 1/2"),
    MathRow(5, r"-\frac{2}{5}", r"\boxed{\frac{-2}{5}}", True, "sign placement"),
    MathRow(6, r"\frac{1}{3}", r"\boxed{0.333}", False, "rounded to 3 digits"),
    MathRow(7, r"\frac{1}{3}", r"\boxed{0.333333}", True, "6 digits = library's rounding"),
    MathRow(8, "1234567", r"\boxed{1,234,567}", True, "thousands separators"),
    MathRow(9, "10000", r"\boxed{10{,}000}", True, "{,} separator"),
    MathRow(10, r"\{1,2,3\}", r"\boxed{\{3,1,2\}}", True, "set order"),
    MathRow(11, "1,2,3", r"\boxed{3, 2, 1}", True, "bare list any order"),
    MathRow(12, r"\{1,2,3\}", r"\boxed{\{1,2\}}", False, "missing element"),
    MathRow(13, "(1,2)", r"\boxed{(2,1)}", False, "ordered pair order matters"),
    MathRow(14, r"(1,\frac{1}{2})", r"\boxed{(1,0.5)}", True, "tuple elementwise"),
    MathRow(15, "(0,1]", r"\boxed{(0,1]}", True, "interval"),
    MathRow(16, "(0,1]", r"\boxed{(0,1)}", False, "endpoint type differs"),
    MathRow(
        17,
        r"(-\infty,-1)\cup(1,\infty)",
        r"\boxed{(1,\infty)\cup(-\infty,-1)}",
        True,
        "union order",
    ),
    MathRow(18, "[0,5]", r"\boxed{0\le x\le 5}", True, "inequality vs interval gold"),
    MathRow(19, r"0\le x\le 5", r"\boxed{[0,5]}", True, "interval vs inequality gold"),
    MathRow(20, "12", r"\boxed{12\text{ cm}^2}", True, "squared unit"),
    MathRow(21, r"5\text{ km/h}", r"\boxed{5}", True, "unit in gold only"),
    MathRow(22, "45", r"\boxed{45^\circ}", True, "degree sign"),
    MathRow(23, r"50\%", r"\boxed{50}", True, "percent dropped"),
    MathRow(24, r"50\%", r"\boxed{0.5}", True, "percent as decimal"),
    MathRow(25, "0.5", r"\boxed{50}", False, "50 is not 0.5"),
    MathRow(26, "36", r"\boxed{\$36}", True, "currency"),
    MathRow(27, r"\sqrt{2}", r"\boxed{\boxed{\sqrt{2}}}", True, "nested boxed"),
    MathRow(
        28,
        "7",
        r"First \boxed{3}. Wait, redo. The final answer is \boxed{7}.",
        True,
        "last box right",
    ),
    MathRow(
        29,
        "3",
        r"First \boxed{3}. Wait, redo. The final answer is \boxed{7}.",
        False,
        "last box wrong, first right",
    ),
    MathRow(30, "7", r"\boxed{7} or \boxed{8} or \boxed{9}", False, "several candidate boxes"),
    MathRow(31, "7", r"\boxed{7 \text{ or } 8}", False, "two answers in one box"),
    MathRow(
        32, "42", r"\boxed{42} which took 17 steps and 3 checks.", True, "numbers after the box"
    ),
    MathRow(33, "42", "Therefore the value is 42.", True, "no box, plain", scored=False),
    MathRow(34, "42", "The answer is 41. I also tried 42", False, "last number luck"),
    MathRow(35, r"\text{B}", r"\boxed{B}", True, "letter answer"),
    MathRow(36, r"\text{even}", r"\boxed{\text{Even}}", True, "word, case"),
    MathRow(37, r"\text{Yes}", r"\boxed{\text{No}}", False, "word differs"),
    MathRow(38, "5", r"\boxed{x=5}", True, "assignment vs value"),
    MathRow(39, "x=5", r"\boxed{5}", True, "gold assignment"),
    MathRow(40, "x=5", r"\boxed{y=5}", False, "different variable"),
    MathRow(41, "y=2x+3", r"\boxed{2x-y+3=0}", True, "equivalent line"),
    MathRow(42, "x^2-1", r"\boxed{(x-1)(x+1)}", True, "factored"),
    MathRow(43, r"\frac{\sqrt{2}}{2}", r"\boxed{\frac{1}{\sqrt{2}}}", True, "rationalised"),
    MathRow(44, r"\sqrt{2}", r"\boxed{1.414}", False, "rounded root"),
    MathRow(45, r"1.5\times10^{-3}", r"\boxed{0.0015}", True, "scientific"),
    MathRow(46, "2^{100}", r"\boxed{1267650600228229401496703205376}", True, "exact big integer"),
    MathRow(47, "1", r"\boxed{(10^{9})!}", False, "huge factorial (DoS probe)"),
    MathRow(
        48,
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
        r"\boxed{\begin{bmatrix}1&2\\3&4\end{bmatrix}}",
        True,
        "matrix styles",
    ),
    MathRow(
        49,
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
        r"\boxed{\begin{pmatrix}1&3\\2&4\end{pmatrix}}",
        False,
        "transposed",
    ),
    MathRow(50, r"\pm 3", r"\boxed{3, -3}", True, "plus-minus vs list"),
    MathRow(51, r"\binom{5}{2}", r"\boxed{10}", True, "binomial"),
    MathRow(52, "0", r"\boxed{}", False, "empty box"),
    MathRow(53, "101_2", r"\boxed{101}", False, "base subscript dropped", scored=True),
    MathRow(54, "9", r"\boxed{9", True, "unclosed (truncated) box", scored=False),
    MathRow(55, "2:3", r"\boxed{4:6}", True, "ratio equal"),
    MathRow(
        56,
        r"\text{no solution}",
        r"\boxed{\emptyset}",
        True,
        "no solution vs empty set",
        scored=False,
    ),
    MathRow(57, "6", "The expression 2+4", False, "un-evaluated restatement of the question"),
    MathRow(58, "6", r"\boxed{2+4}", True, "unsimplified but equal"),
]

ERRORS = [
    MathRow(
        101, r"12\text{ m}", r"\boxed{12\text{ km}}", False, "units are not compared", scored=True
    ),
    MathRow(102, "8", r"\boxed{7=8}", False, "an equation that is false"),
    MathRow(103, r"\{1,2\}", r"\boxed{(1,2)}", False, "a pair is a set", scored=True),
    MathRow(104, r"1.2\times10^{-7}", r"\boxed{0.0}", False, "a small decimal"),
    MathRow(105, "x^2+1=0", r"\boxed{x^2+2=0}", False, "equations without real roots", scored=True),
    MathRow(106, "1000", r"\boxed{1e3}", True, "a programmer's notation", scored=False),
    MathRow(107, "1000", r"\boxed{1 000}", True, "a blank between thousands", scored=False),
    MathRow(108, "10110_2", r"\boxed{22}", True, "the value in base ten", scored=False),
    MathRow(109, "5", r"\boxed{\text{five}}", True, "a number in words", scored=False),
    MathRow(110, "0.00000123", r"\boxed{0.00000124}", False, "small decimals"),
    MathRow(111, r"\frac{1}{2^{99}}", r"\boxed{\frac{1}{2^{98}}}", False, "small fractions"),
    MathRow(112, r"\frac{1}{2004!}", r"\boxed{\frac{1}{2006!}}", False, "inverse factorials"),
    MathRow(
        113,
        r"\frac{1}{3\cdot 2^{2006}}",
        r"\boxed{\frac{2^{2005}+1}{3\cdot 2^{2006}}}",
        False,
        "equal denominators",
    ),
    MathRow(114, r"6.02\cdot10^{23}", r"\boxed{602" + 21 * "0" + "}", True, "a large decimal"),
    MathRow(115, "5", r"\boxed{=5}", True, "a sign of equality in front"),
    MathRow(116, "5", r"\boxed{2+3=5}", True, "an equation that is true"),
    MathRow(117, r"10^{-20}\pi", r"\boxed{10^{-21}\pi}", False, "small irrational numbers"),
    MathRow(118, r"\{10^{-20}\}", r"\boxed{\{10^{-21}\}}", False, "small numbers in a set"),
    MathRow(
        119, "x=10^{-20}", r"\boxed{x=10^{-21}}", False, "small numbers in equations", scored=True
    ),
]
