"""The checks as test files for otter-grader: a thin one an exercise, which asks the check for its verdict."""

from teach import handed_in

# What `otter assign` writes, and `otter run` reads: https://otter-grader.readthedocs.io, "OK format".
TEST = '''OK_FORMAT = True

test = {{
    "name": {name!r},
    "points": 1,
    "suites": [{{"type": "doctest", "scored": True, "setup": "", "teardown": "", "cases": [{{
        "code": ">>> from {module} import {exercise}\\n"
                ">>> outcome, why = {exercise}.verdict({given})\\n"
                ">>> print(outcome if outcome == 'right' else why)\\nright\\n",
        "hidden": False, "locked": False}}]}}],
}}
'''


def write(folder):
    """Writes folder/NN/tests/EXERCISE.py for every exercise; their number."""
    number = 0
    for lesson in handed_in.lessons():
        tests = folder / lesson / "tests"
        tests.mkdir(parents=True, exist_ok=True)
        for question in handed_in.asked_in(lesson):
            given = repr(f"results/live/{question.given}") if question.is_file else question.given
            (tests / f"{question.name}.py").write_text(TEST.format(
                name=question.name, module=question.module, exercise=question.name, given=given), encoding="utf-8")
            number += 1
    return number
