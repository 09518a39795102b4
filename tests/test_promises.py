"""What a rebuild of the course must not lose. Each promise is held by tests that are marked with its name, where they
stand: @pytest.mark.promise("one model")."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROMISES = {
    "one model": "Two ranks and three train the model that one process trains.",
    "each image once": "An evaluation counts each test image once, however many ranks share them.",
    "undisturbed": "A run that was killed and goes on ends with the weights of a run that nobody disturbed.",
    "bounded waits": "Every wait has a bound.",
    "loud commands": "A !command that fails, fails its notebook.",
    "whole logs": "A damaged or unfinished log is never read as a whole one.",
    "gallery": "The broken programs fail, and the repaired ones do not.",
    "one line": "Bad input is told in one line, with status 2.",
    "shield": "Handed-in code runs behind a shield.",
    "offline pages": "One command turns a clone into pages, even offline, and no page asks an outside host.",
}


def marked():
    """{promise: [tests that are marked with it]}, of every test file: nothing is imported for it."""
    found = defaultdict(list)
    for file in (path for room in ("tests", "lessons") for path in sorted(ROOT.glob(f"{room}/**/test_*.py"))):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            is_test = isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
            for mark in node.decorator_list if is_test else ():
                if ast.unparse(mark).startswith("pytest.mark.promise("):
                    found[mark.args[0].value].append(f"{file.relative_to(ROOT)}::{node.name}")
    return found


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_is_held_by_a_test(promise):
    assert marked()[promise], PROMISES[promise]


def test_no_test_holds_a_promise_that_nobody_made():
    assert set(marked()) <= set(PROMISES)
