"""Plans of teach/plans.toml, with minutes computed from the lessons' own.

A lesson states its minutes as a whole. The share of a section is estimated from its text, code, predictions and
exercises: READ, LINES, PREDICT and EXERCISE are our guesses, the same for all lessons. The sum is scaled to the
lesson's minutes.
"""

import math
import re
import tomllib
from pathlib import Path

from course.lesson import some

FILE = Path("teach/plans.toml")
READ, LINES = 100, 10  # words of text, and lines of code, that are read in a minute
PREDICT, EXERCISE = 1, 7  # minutes of a prediction, and of an exercise
HANDS = 2  # minutes of a question: the vote, a sentence on each side, the answer
BEGINNING = "(beginning)"  # what stands above a lesson's first section: its question, its aims, the imports


def read() -> dict:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def parts(lesson, stated: dict[str, float]) -> dict[str, tuple[float, float]]:
    """{section of a lesson: (minutes without its exercises, minutes of its exercises)}. `stated`: {section: share of
    the lesson's minutes}, where the lesson itself says so."""
    weights = {BEGINNING: [0, 0]}
    for cell in lesson.notebook.cells:
        if cell.cell_type == "markdown":
            for text in re.split(r"^(?=## )", cell.source, flags=re.M):
                if heading := re.match(r"## +(.+)", text):
                    weights[heading[1].strip()] = [0, 0]
                weights[list(weights)[-1]][0] += len(text.split()) / READ
        elif cell.cell_type == "code":
            section = weights[list(weights)[-1]]
            section[0] += len(cell.source.splitlines()) / LINES
            section[0] += PREDICT * bool(re.search(r"^my_\w+ = None", cell.source, re.M))
            section[1] += EXERCISE * len(re.findall(r"^# \w+\.\w+\.solution\(\)", cell.source, re.M))
    if unknown := stated.keys() - weights:
        raise RuntimeError(f"{FILE}: stated: lesson {lesson.number} has no section {', '.join(sorted(unknown))}")
    minutes = lesson.notebook.metadata["course"]["minutes"]
    others = sum(sum(both) for section, both in weights.items() if section not in stated)
    scale = minutes * (1 - sum(stated.values())) / others
    return {section: (0, minutes * stated[section]) if section in stated else (scale * both[0], scale * both[1])
            for section, both in weights.items()}


def all_parts(lessons: list, stated: dict[str, dict[str, float]]) -> dict[str, dict[str, tuple[float, float]]]:
    """{number of a lesson: its parts}"""
    return {lesson.number: parts(lesson, stated.get(lesson.number, {})) for lesson in lessons}


def minutes_of(slot: dict, of_lessons: dict, where: str) -> tuple[float, float, float, float]:
    """(minutes of a slot's lesson, of its questions, of its break, of anything else); `where` names it in an error."""
    if "pause" in slot:
        return 0, 0, slot["pause"], 0
    if "lesson" not in slot:
        return 0, 0, 0, slot["minutes"]
    sections = of_lessons.get(slot["lesson"])
    if sections is None:
        raise RuntimeError(f"{where}: no lesson {slot['lesson']}")
    if missing := [name for name in slot.get("sections", slot.get("without", [])) if name not in sections]:
        raise RuntimeError(f"{where}: lesson {slot['lesson']} has no section {', '.join(missing)}")
    lesson = sum(sum(sections[name][:1 + slot.get("exercises", True)]) for name in chosen(slot, sections))
    return math.ceil(round(lesson, 6)), HANDS * len(slot.get("questions", [])), 0, 0


def chosen(slot: dict, sections: dict) -> list[str]:
    """The sections of a lesson that a slot takes."""
    return slot.get("sections") or [name for name in sections if name not in slot.get("without", [])]


def sums(plan: dict, of_lessons: dict) -> list[tuple]:
    """For each day (minutes of lessons, of questions, of breaks, of anything else)."""
    return [tuple(map(sum, zip(*(minutes_of(slot, of_lessons, f"{FILE}: {plan['name']}, day {number}, slot {place}")
                                 for place, slot in enumerate(day, 1)), strict=True)))
            for number, day in enumerate(plan["days"], 1)]


def slack(plan: dict, of_lessons: dict) -> list[float]:
    """Minutes left of each day; below 0 the plan does not fit."""
    return [plan["minutes"] - sum(day) for day in sums(plan, of_lessons)]


def stem(plan: dict) -> str:
    return re.sub(r"\W+", "_", plan["name"].lower())


def taken(plan: dict) -> list[str]:
    """The numbers of the lessons that a plan takes, whole or in part, in the room."""
    return sorted({slot["lesson"] for day in plan["days"] for slot in day if "lesson" in slot})


def page(plan: dict, lessons: list, of_lessons: dict, asked: dict) -> str:
    """A plan as a page of teach/plans/. `asked`: {number of a lesson: its Questions by show of hands}."""
    titles = {lesson.number: f"[{lesson.title}](../../notebooks/{lesson.name}.ipynb)" for lesson in lessons}
    opening = {lesson.number: lesson.question for lesson in lessons}  # asked where the plan first takes the lesson
    hands = {lesson.number: (f"../lessons/{lesson.name}.md#show-of-hands", asked[lesson.number])
             for lesson in lessons}
    text = [f"# {plan['name']}", plan["about"].strip(), "## Before", plan["before"].strip()]
    for number, (day, of_day) in enumerate(zip(plan["days"], sums(plan, of_lessons), strict=True), 1):
        text.append(f"## Day {number}" if len(plan["days"]) > 1 else "## In the room")
        rows, clock = ["| from | minutes | what |", "|---|---|---|"], 0
        for slot in day:
            long = sum(minutes_of(slot, of_lessons, FILE))
            rows.append(f"| {clock // 60}:{clock % 60:02} | {long} | {described(slot, titles, hands, opening)} |")
            clock += long
        lesson, questions, pause, other = of_day
        rows.append(f"| {clock // 60}:{clock % 60:02} | {plan['minutes'] - clock} | *slack* |")
        text += ["\n".join(rows), f"Lessons {lesson}, show of hands {questions}, breaks {pause}, all else {other}: "
                                  f"{clock} of {plan['minutes']} minutes. Slack: {plan['minutes'] - clock}."]
    text += ["## Left out", "\n".join(f"- {', '.join(titles[number] for number in left['lessons'])}: {left['why']}."
                                      for left in plan["left_out"]) or "No lesson.",
             f"Of lessons that are taken in part, these sections. {plan['shortened'].strip()}",
             "\n".join(f"- {titles[number]}: {'; '.join(missing)}"
                       for number, missing in not_taken(plan, of_lessons).items())]
    return "\n\n".join(text) + "\n"


def not_taken(plan, of_lessons):
    """{number of a lesson: the sections that no slot takes}, of the lessons that some slot takes."""
    slots = [slot for day in plan["days"] for slot in day if "lesson" in slot]
    missing = {}
    for number in taken(plan):
        inside = {name for slot in slots if slot["lesson"] == number for name in chosen(slot, of_lessons[number])}
        missing[number] = [name for name in of_lessons[number] if name not in inside and name != BEGINNING]
    return {number: names for number, names in missing.items() if names}


def described(slot, titles, hands, opening):
    """A slot, for a cell of the table. It takes its lesson out of `opening`."""
    if "pause" in slot:
        return "*break*"
    if "lesson" not in slot:
        return slot["what"]
    number = slot["lesson"]
    text = f"**{titles[number]}**"
    text += ": " + "; ".join(slot["sections"]) if "sections" in slot else ""
    text += f", all but {'; '.join(slot['without'])}" if "without" in slot else ""
    text += "; no exercises" if not slot.get("exercises", True) else ""
    opens = f"Open with: {opening.pop(number)}" if number in opening else ""
    asked = ""
    if numbers := slot.get("questions"):
        page, questions = hands[number]
        asked = f"[{some(len(numbers), 'question')} by show of hands]({page})"
        if len(numbers) < len(questions):
            asked += ": " + " ".join(f"{each}. {questions[each - 1].text.splitlines()[0]}" for each in numbers)
    sentences = (sentence if sentence.endswith((".", "?", "!", "…")) else f"{sentence}."
                 for sentence in (text, opens, asked, slot.get("how")) if sentence)
    return " ".join(sentences)
