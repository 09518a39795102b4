"""Plans of teach/plans.toml, as pages."""

import re
import tomllib
from pathlib import Path

from course.lesson import some

FILE = Path("teach/plans.toml")


def read() -> list[dict]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))["plan"]


def slack(plan: dict) -> list[int]:
    """Minutes left of each day; below 0 the plan does not fit."""
    return [plan["minutes"] - sum(map(minutes_of, day)) for day in plan["days"]]


def minutes_of(slot: dict) -> int:
    return slot.get("pause", slot.get("minutes"))


def stem(plan: dict) -> str:
    return re.sub(r"\W+", "_", plan["name"].lower())


def taken(plan: dict) -> list[str]:
    """The numbers of the lessons that a plan takes, whole or in part, in the room."""
    return sorted({slot["lesson"] for day in plan["days"] for slot in day if "lesson" in slot})


def page(plan: dict, lessons: list, asked: dict) -> str:
    """A plan as a page of teach/plans/. `lessons`: site.layout.Lesson of each notebook. `asked`: {number of a lesson:
    its Questions by show of hands}."""
    titles = {lesson.number: f"[{lesson.title}](../../notebooks/{lesson.name}.ipynb)" for lesson in lessons}
    opening = {lesson.number: lesson.question for lesson in lessons}  # asked where the plan first takes the lesson
    hands = {lesson.number: (f"../lessons/{lesson.name}.md#show-of-hands", asked[lesson.number])
             for lesson in lessons}
    text = [f"# {plan['name']}", plan["about"].strip(), "## Before", plan["before"].strip()]
    for number, day in enumerate(plan["days"], 1):
        text.append(f"## Day {number}" if len(plan["days"]) > 1 else "## In the room")
        rows, clock = ["| from | minutes | what |", "|---|---|---|"], 0
        for slot in day:
            rows.append(f"| {clock // 60}:{clock % 60:02} | {minutes_of(slot)} | "
                        f"{described(slot, titles, hands, opening)} |")
            clock += minutes_of(slot)
        text.append("\n".join([*rows, f"| {clock // 60}:{clock % 60:02} | {plan['minutes'] - clock} | *slack* |"]))
    return "\n\n".join([*text, "## Left out", plan["left_out"].strip()]) + "\n"


def described(slot, titles, hands, opening):
    """A slot, for a cell of the table. It takes its lesson out of `opening`."""
    if "lesson" not in slot:
        return slot.get("what", "*break*")
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
