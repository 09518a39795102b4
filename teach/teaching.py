"""The teacher's pages: one a lesson, one a plan, and a list of them all; site/layout.py makes them part of the site.

A lesson's title, question, results and minutes are read from its notebook, so that they stand once. The rest is
lessons/lNN_name/teach.md, whose form `read` checks.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from course.lesson import some
from teach import plans
from teach import questions as tests

README, PAGES = Path("teach/README.md"), "teach/lessons"  # of the site
SECTIONS = ("In the room", "Results to expect", "If an effect does not show", "Ten minutes late", "Show of hands",
            "What we expect students to answer", "With 0, 1, 2, 8 GPUs")
ROOM, EXPECTED, FAILED, _, HANDS, ANSWERS, _ = SECTIONS
ITEM = r"(?P<text>.+(?:\n {2,}\S.*)*)"  # an item of a list, with the lines that go on with it

INDEX = """# For teachers

{tests}

## Plans

{plans}

Minutes are for a learner who reads, runs and answers alone; a question by show of hands takes two. Of a lesson of which
you take some sections, let everybody first run the cells above: *Run → Run All Above Selected Cell*.

## A page a lesson

{lessons}
"""


@dataclass
class Question:
    """One for a show of hands."""

    text: str
    options: dict[str, str]
    right: str
    why: str
    reveals: dict[str, str]
    """For each wrong option, what choosing it shows"""


def read(path: Path) -> tuple[str, list[Question]]:
    """(text, questions) of a lesson's teach.md. RuntimeError names the file and what breaks the form."""
    text = path.read_text(encoding="utf-8").strip()
    head, *parts = re.split(r"^## +(.+)\n", text, flags=re.M)
    if head or tuple(parts[::2]) != SECTIONS:
        raise RuntimeError(f"{path}: needs the sections {', '.join(SECTIONS)}, in this order, and nothing above them")
    _, *parts = re.split(r"^### +\d+\. +(.+)\n", parts[2 * SECTIONS.index(HANDS) + 1], flags=re.M)
    return text, [question(asked, body, path) for asked, body in zip(parts[::2], parts[1::2], strict=True)]


def question(asked, body, path):
    options = dict(re.findall(rf"^- (?P<letter>[A-Z])\. +{ITEM}", body, re.M))
    right = re.findall(r"^\*\*(?P<letter>[A-Z])\.\*\* +(?P<text>.+(?:\n\S.*)*)", body, re.M)
    reveals = dict(re.findall(rf"^- \*\*(?P<letter>[A-Z])\*\* reveals: +{ITEM}", body, re.M))
    if len(right) != 1 or sorted([*reveals, right[0][0]]) != list(options):
        raise RuntimeError(f"{path}: {asked}: needs options - A., - B., ..., one right option such as **B.** with its "
                           "reason, and a line “- **X** reveals: …” for each wrong option")
    between = re.split(r"^- A\. ", body, maxsplit=1, flags=re.M)[0].strip()  # code that the question is about
    return Question("\n\n".join(filter(None, (asked, between))), options, *right[0], reveals)


def source(name: str) -> Path:
    """The teacher's page of a lesson, such as 05_distributed_sampler."""
    return Path(f"lessons/l{name}/teach.md")


def questions_of(name: str) -> list[Question]:
    """The questions of the lesson `name`; none if it has no page."""
    path = source(name)
    return read(path)[1] if path.is_file() else []


def pages(lessons: list) -> dict[str, str]:
    """{path: text} of the site's pages for teachers; `lessons`: site.layout.Lesson of each notebook."""
    lessons = [lesson for lesson in lessons if "minutes" in lesson.notebook.metadata.get("course", {})]  # no own ones
    all_plans, asked = plans.read(), {lesson.number: questions_of(lesson.name) for lesson in lessons}
    files = {README.as_posix(): README.read_text(encoding="utf-8"), "teach/tests.md": tests_page(lessons)}
    first = "\n".join(f"- [{title(text)}]({name.removeprefix('teach/')})" for name, text in files.items())
    with_page = [lesson for lesson in lessons if source(lesson.name).is_file()]
    files |= {f"{PAGES}/{lesson.name}.md": page(lesson, all_plans) for lesson in with_page}
    files |= {f"teach/plans/{plans.stem(plan)}.md": plans.page(plan, lessons, asked) for plan in all_plans}
    files["teach/index.md"] = INDEX.format(
        tests=first,
        plans=table(("plan", "minutes", "lessons", "minutes to spare, by day"), (
            (f"[{plan['name']}](plans/{plans.stem(plan)}.md)",
             f"{len(plan['days'])} × {plan['minutes']}" if len(plan["days"]) > 1 else plan["minutes"],
             ", ".join(plans.taken(plan)), " + ".join(map(str, plans.slack(plan)))) for plan in all_plans)),
        lessons=table(("lesson", "minutes"), (
            (f"[{lesson.title}](lessons/{lesson.name}.md)", lesson.notebook.metadata["course"]["minutes"])
            for lesson in with_page)))
    return files


def tests_page(lessons):
    """The pre-test and the post-test with their answers: each idea in its two clothes."""
    links = {lesson.number: f"[{lesson.title}](../notebooks/{lesson.name}.ipynb)" for lesson in lessons}
    text = ["# The tests before and after the course", f"{len(tests.ideas())} ideas, each asked twice in other words. "
            "`scripts/learner` makes notebooks of them, `scripts/grade` judges them. The right option is bold."]
    for number, idea in enumerate(tests.ideas(), 1):
        text += [f"## {number}. {idea['name']}", f"Lesson {links[idea['lesson']]}."]
        for when, heading in tests.TITLES.items():
            asked = idea[when]
            text += [f"### {number}. {heading}", asked["question"].strip(), "\n".join(
                f"- **{letter}: {option}**" if letter == asked["right"] else
                f"- {letter}: {option}. *Reveals:* {asked['reveals'][letter]}"
                for letter, option in sorted(asked["options"].items()))]
    return "\n\n".join(text) + "\n"


def title(text):
    return re.match(r"# +(.+)", text)[1]


def table(head, rows):
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows))


def page(lesson, all_plans: list[dict]) -> str:
    """The page of a lesson: a head from its notebook, then its teach.md, in which all but the questions is folded."""
    text, _ = read(source(lesson.name))
    taken_by = [f"[{plan['name']}](../plans/{plans.stem(plan)}.md)" for plan in all_plans
                if lesson.number in plans.taken(plan)]
    course = lesson.notebook.metadata["course"]
    machine = some(max(1, round(course["seconds"] / 60)), "minute")
    text = re.sub(r"^\*\*[A-Z]\.\*\* .+?(?=^#)", folded, text, flags=re.M | re.S)
    text = text.replace(f"## {EXPECTED}\n", f"## {EXPECTED}\n\nThe committed run ({lesson.verified}):\n\n"
                        f"{table(('section', 'what a prediction is compared with'), results(lesson))}\n\n"
                        "Other runs:\n", 1)
    for heading in (ROOM, EXPECTED, FAILED, ANSWERS):
        text = re.sub(rf"(?<=^## {heading}\n).+?(?=^## )", folded, text, flags=re.M | re.S)
    head = [f"# {lesson.title}: for teachers", f"**The question.** {lesson.question}",
            f"- The lesson: [{lesson.title}](../../notebooks/{lesson.name}.ipynb). Solutions are folded below each "
            "exercise on its page.\n"
            f"- For a learner about {course['minutes']} minutes; a machine with two cores runs it in {machine}.\n"
            f"- In the plans: {', '.join(taken_by) or 'none'}"]
    return "\n\n".join([*head, text]) + "\n"


def folded(match):
    summary = "The answer" if match[0].startswith("**") else "For the teacher"
    return f"\n<details><summary>{summary}</summary>\n\n{match[0].strip()}\n\n</details>\n\n"


def results(lesson):
    """[(section, result)] of the notebook's predictions."""
    section, rows = "", []
    for cell in lesson.notebook.cells:
        if cell.cell_type == "markdown":
            section = (re.findall(r"^## +(.+)", cell.source, re.M) or [section])[-1]
        for output in cell.get("outputs", []):
            shown = output.get("data", {}).get("text/markdown", "")
            rows += [(section, result) for result in re.findall(r"Here it is \*\*(.+?)\*\*", shown)]
    return rows
