"""Dockerfiles as data: instructions with their lines, variables, .dockerignore."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.errors import TaskError
from prorl_service.sandbox.images.dockerfiles.context import ignored_by
from prorl_service.sandbox.images.dockerfiles.syntax import INSTRUCTIONS, parse
from prorl_service.sandbox.images.dockerfiles.variables import evaluate, expand, walk

DOCKERFILE = """# syntax=docker/dockerfile:1
# escape=\\

FROM debian AS one
RUN a && \\
    # a comment

    b \\
    && c
run --mount=type=cache,target=/c  --network=none  x --flag
COPY <<EOF <<-"TABS" /there/
one $A
EOF
\ttwo $A
\tTABS
ENTRYPOINT ["sh", "-c"]
"""


def test_instructions_have_the_line_where_they_begin() -> None:
    found = parse(DOCKERFILE).instructions
    assert [(one.line, one.name) for one in found] == [
        (4, "FROM"),
        (5, "RUN"),
        (10, "RUN"),
        (11, "COPY"),
        (16, "ENTRYPOINT"),
    ]
    assert found[1].rest == "a &&     b     && c"
    assert found[2].flags == ("--mount=type=cache,target=/c", "--network=none")
    assert found[2].rest == "x --flag"
    assert found[2].flag("network") == "none"
    assert found[2].flag("absent") is None
    assert found[4].words() == ["sh", "-c"]


def test_here_documents_belong_to_their_instruction() -> None:
    one, tabs = parse(DOCKERFILE).instructions[3].heredocs
    assert (one.name, one.content, one.expands) == ("EOF", "one $A\n", True)
    assert (tabs.name, tabs.content, tabs.expands) == ("TABS", "two $A\n", False)
    shell = parse("FROM a\nRUN echo \"<<EOF\" '<<EOF' 1<<<EOF a<<EOF\n").instructions[1]
    assert shell.heredocs == ()
    with pytest.raises(TaskError, match="line 2: the here-document EOF has no end"):
        parse("FROM a\nRUN <<EOF\nx\n EOF\n")


def test_another_escape_character_continues_lines() -> None:
    found = parse("# escape=`\nFROM a\nRUN x \\\nRUN y `\n  z\n").instructions
    assert [one.rest for one in found] == ["a", "x \\", "y   z"]
    with pytest.raises(TaskError, match="line 1: escape must be"):
        parse("# escape=x\nFROM a\n")
    # After an ordinary comment it is a comment, too.
    assert parse("# first\n# escape=`\nFROM a\n").escape == "\\"


def test_unknown_instructions_are_refused_with_their_line() -> None:
    with pytest.raises(TaskError, match="line 1: unknown instruction RUM; did you mean RUN"):
        parse("RUM x")
    with pytest.raises(TaskError, match=r"line 4: unknown instruction xyzzy$"):
        parse("FROM a\n\n\nxyzzy")
    # Empty lines do not end a continued one.
    assert parse("FROM a\nRUN b \\\n\n\nFRON c").instructions[1].rest == "b FRON c"


@given(st.lists(st.sampled_from(sorted(INSTRUCTIONS)), min_size=1), st.data())
def test_lines_are_right_whatever_stands_between(names: list[str], data: st.DataObject) -> None:
    lines: list[str] = []
    expected = []
    for name in names:
        lines += data.draw(st.lists(st.sampled_from(["", "  ", "# comment", "\t# RUN x"])))
        expected.append((len(lines) + 1, name))
        lines += [f"  {name.lower()} a \\", *data.draw(st.lists(st.just("# c"))), "b"]
    found = parse("\n".join(lines)).instructions
    assert [(one.line, one.name) for one in found] == expected


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(TaskError):
        assert all(one.line > 0 for one, _ in walk(parse(text)))


def test_variables_are_replaced_as_docker_does() -> None:
    variables = {"A": "1", "EMPTY": ""}
    assert expand("$A ${A} ${B} ${B:-x$A} ${A:+y} ${B:+z}.", variables) == "1 1  x1 y ."
    assert expand("${EMPTY:-d} ${EMPTY-d}.", variables) == "d ."
    assert expand(r"\$A \\ \n", variables) == r"$A \ \n"
    assert evaluate("\"a $A\"'b $A'c$A", variables) == "a 1b $Ac1"


def test_arguments_hold_in_their_stage_and_env_in_what_follows() -> None:
    text = """ARG V=1
FROM image:$V AS one
ENV E=e$V
ARG V
ARG W=w$V
ENV F=$W
FROM one
ENV G=$F$W
WORKDIR /a
WORKDIR b
USER $G
RUN x
"""
    stages = [stage for _, stage in walk(parse(text), lambda _: {"P": "p"}) if stage]
    one, last = stages[0], stages[-1]
    assert (one.base, one.name) == ("image:1", "one")
    assert one.arguments == {"V": "1", "W": "w1"}
    assert last.environment == {"P": "p", "E": "e", "F": "w1", "G": "w1"}
    assert (last.base, last.workdir, last.user) == ("one", "/a/b", "w1")


@pytest.mark.parametrize(
    ("rules", "left_out", "kept"),
    [
        ("*.log", ["a.log"], ["a/b.log", "a.txt"]),
        ("**/*.log", ["a.log", "x/y/b.log"], ["b.txt"]),
        ("a", ["a", "a/b", "a/b/c"], ["ab", "b/a"]),
        ("/a/\n!a/keep", ["a", "a/x"], ["a/keep"]),
        ("*\n!src\n!src/**", ["x", "y/z"], ["src", "src/a/b"]),
        ("file?.[ab]", ["file1.a", "file2.b"], ["file12.a", "file1.c"]),
        ("# comment\n\n  x  ", ["x"], ["# comment"]),
        ("**", ["a", "a/b"], ["Dockerfile", ".dockerignore"]),
    ],
)
def test_the_last_pattern_decides_what_is_left_out(
    rules: str, left_out: list[str], kept: list[str]
) -> None:
    is_ignored = ignored_by(rules)
    assert [path for path in (*left_out, *kept) if is_ignored(path)] == left_out
