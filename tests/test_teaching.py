"""What teachers get: pages, and plans that fit their time."""

import re

import pytest

import layout
from course.lesson import notebooks
from teach import plans, teaching

PLANS = plans.read()


@pytest.fixture(scope="module")
def lessons():
    return {number: layout.Lesson(path, executed=False) for number, path in notebooks().items()}


@pytest.mark.parametrize("number", notebooks())
def test_a_page_shows_no_answer_before_it_is_unfolded(number, lessons):
    shown = re.sub("<details>.+?</details>", "", teaching.page(lessons[number], PLANS), flags=re.S)
    questions = teaching.questions_of(lessons[number].name)
    assert len(questions) >= 3 and all(question.text in shown and question.why not in shown for question in questions)


@pytest.mark.parametrize("plan", PLANS, ids=plans.stem)
def test_a_plan_fits_its_days_and_names_sections_that_are_there(plan, lessons):
    assert all(0 <= slack <= 0.15 * plan["minutes"] for slack in plans.slack(plan))
    for slot in (slot for day in plan["days"] for slot in day if "lesson" in slot):
        headings = "\n".join(cell.source for cell in lessons[slot["lesson"]].notebook.cells)
        for section in slot.get("sections", slot.get("without", [])):
            assert section == "(beginning)" or f"## {section}\n" in f"{headings}\n", (slot["lesson"], section)
    text = plans.page(plan, list(lessons.values()), {number: teaching.questions_of(lesson.name)
                                                     for number, lesson in lessons.items()})
    days = re.split(r"^\| from \|.*$", text, flags=re.M)[1:]
    assert [sum(map(int, re.findall(r"^\| \d+:\d\d \| (\d+) \|", day, re.M))) for day in days] == len(
        plan["days"]) * [plan["minutes"]]


def test_the_readme_for_teachers_has_a_row_for_each_plan():
    readme = teaching.README.read_text(encoding="utf-8")
    assert re.findall(r"\| ([\w ]+) \| `scripts/lab --path ([\w-]+)` \|", readme) == [
        (plan["name"], plans.stem(plan).replace("_", "-")) for plan in PLANS]
