"""The teacher's pages: one a lesson, one a plan, and a list of them all; site/layout.py makes them part of the site.

What a lesson says of itself (title, question, aims, prerequisites, minutes) is read from its notebook, so that it
stands once. The rest is lessons/lNN_name/teach.md, whose form `read` holds to.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from course.lesson import some
from teach import plans
from teach import questions as tests

README, PAGES = Path("teach/README.md"), "teach/lessons"  # of the site
SECTIONS = ("In the room", "Show of hands", "What students answer", "With 0, 1, 2, 8 GPUs")
GPUS = ["0", "1", "2", "8"]
QUESTIONS = 3
ITEM = r"(?P<text>.+(?:\n {2,}\S.*)*)"  # an item of a list, with the lines that go on with it

INDEX = """# For teachers

{tests}

## Plans

{plans}

A lesson's minutes are those that its notebook states, for a learner who reads, runs and answers alone. A section's
share of them is estimated: {read} words of text or {lines} lines of code count one minute, a prediction {predict}, an
exercise {exercise}, and the sum is scaled to the lesson's minutes. (Where a lesson states the share itself, that
counts.) A question by show of hands takes {hands} minutes. Of a lesson of which you take some sections, let everybody
first run the cells above: *Run → Run All Above Selected Cell*.

## A page a lesson

{lessons}

Slides of a lesson, for a browser and without a network: `scripts/site --slides 05` (or several numbers) writes
`build/slides/`. They are the lesson without its code: each text with the results below it, no answer on the slide of
its question, and the three questions by show of hands before *What to remember*. Arrow keys or a presenter's buttons
turn the slides, `n` shows notes, and printing begins a page with each slide.
"""


@dataclass
class Question:
    """One for a show of hands."""

    text: str
    options: dict[str, str]
    right: str
    why: str
    reveals: dict[str, str]
    """Of each wrong option, what it says of whoever chose it."""


def read(path):
    """(text, questions) of a lesson's page. RuntimeError, naming the file and the section, where its form is not kept.
    """
    text = path.read_text(encoding="utf-8").strip()
    head, *found = re.split(r"^## +(.+)\n", text, flags=re.M)
    if head or tuple(found[::2]) != SECTIONS:
        raise RuntimeError(f"{path}: has the sections {', '.join(found[::2]) or 'none'}"
                           f"{' and text above them' if head else ''}, needs {', '.join(SECTIONS)}, in this order")
    sections = dict(zip(found[::2], found[1::2], strict=True))
    for name, body in sections.items():
        if not body.strip():
            raise RuntimeError(f"{path}: section {name}: is empty")
    table = re.findall(r"^\|\s*([^|]+?)\s*\|.*\|$", sections["What students answer"], re.M)
    if len(table) < 3:  # its heading, the line below it, a row
        raise RuntimeError(f"{path}: section What students answer: has no table with a row")
    rows = re.findall(r"^\|\s*(\d+)\s*\|.*\|.*\|$", sections["With 0, 1, 2, 8 GPUs"], re.M)
    if rows != GPUS:
        raise RuntimeError(f"{path}: section With 0, 1, 2, 8 GPUs: has rows for {', '.join(rows) or 'none'}")
    return text, questions(sections["Show of hands"], f"{path}: section Show of hands")


def questions(section, where):
    """The Questions of a section; `where` begins an error."""
    _, *found = re.split(r"^### +(.+)\n", section, flags=re.M)
    numbers = [re.match(r"(\d+)\. +(.+)", heading) for heading in found[::2]]
    if [match and int(match[1]) for match in numbers] != list(range(1, QUESTIONS + 1)):
        raise RuntimeError(f"{where}: needs the headings ### 1. to ### {QUESTIONS}., each with a question")
    made = []
    for heading, body in zip(numbers, found[1::2], strict=True):
        here = f"{where}: question {heading[1]}"
        options = re.findall(rf"^- (?P<letter>[A-Z])\. +{ITEM}", body, re.M)
        right = re.findall(r"^\*\*(?P<letter>[A-Z])\.\*\* +(?P<text>.+(?:\n\S.*)*)", body, re.M)
        reveals = re.findall(rf"^- \*\*(?P<letter>[A-Z])\*\* reveals: +{ITEM}", body, re.M)
        letters = "".join(letter for letter, _ in options)
        if len(options) < 2 or not "ABCDEF".startswith(letters):
            raise RuntimeError(f"{here}: needs options A, B, C, ..., has {', '.join(letters) or 'none'}")
        if len(right) != 1 or right[0][0] not in letters:
            raise RuntimeError(f"{here}: needs exactly one right option, such as **B.** and why, "
                               f"has {', '.join(letter for letter, _ in right) or 'none'}")
        if [letter for letter, _ in reveals] != [letter for letter in letters if letter != right[0][0]]:
            raise RuntimeError(f"{here}: needs a line “- **X** reveals: …” for each wrong option, "
                               f"has {', '.join(letter for letter, _ in reveals) or 'none'}")
        between = re.split(r"^- A\. ", body, maxsplit=1, flags=re.M)[0].strip()  # code that the question is about
        made.append(Question("\n\n".join(filter(None, (heading[2], between))), dict(options), *right[0], dict(reveals)))
    return made


def source(name):
    return Path(f"lessons/l{name}/teach.md")


def questions_of(name):
    """Those of the lesson `name`; none where its page does not stand."""
    path = source(name)
    return read(path)[1] if path.is_file() else []


def pages(lessons):
    """{path: text} of all that the site shows to teachers; `lessons`: site.layout.Lesson of each notebook."""
    lessons = [lesson for lesson in lessons if "minutes" in lesson.notebook.metadata.get("course", {})]  # no own ones
    planned = plans.read()
    of_lessons = plans.all_parts(lessons, planned["stated"])
    asked = {lesson.name[:2]: questions_of(lesson.name) for lesson in lessons}
    files = {README.as_posix(): README.read_text(encoding="utf-8"), "teach/tests.md": tests_page(lessons)}
    others = list(files)
    with_page = [lesson for lesson in lessons if (source(lesson.name)).is_file()]
    for lesson in with_page:
        files[f"{PAGES}/{lesson.name}.md"] = page(lesson, planned["plan"], of_lessons[lesson.name[:2]])
    for plan in planned["plan"]:
        files[f"teach/plans/{plans.stem(plan)}.md"] = plans.page(plan, lessons, of_lessons, asked)
    files["teach/index.md"] = INDEX.format(
        read=plans.READ, lines=plans.LINES, predict=plans.PREDICT, exercise=plans.EXERCISE, hands=plans.HANDS,
        tests="\n".join(f"- [{title(files[name])}]({name.removeprefix('teach/')})" for name in others),
        plans=table(("plan", "minutes", "lessons", "slack"), (
            (f"[{plan['name']}](plans/{plans.stem(plan)}.md)",
             f"{len(plan['days'])} × {plan['minutes']}" if len(plan["days"]) > 1 else plan["minutes"],
             ", ".join(plans.taken(plan)), " + ".join(map(str, plans.slack(plan, of_lessons))))
            for plan in planned["plan"])),
        lessons=table(("lesson", "minutes", "of them exercises"), (
            (f"[{lesson.title}](lessons/{lesson.name}.md)", *whole(of_lessons[lesson.name[:2]]))
            for lesson in with_page)))
    return files


def tests_page(lessons):
    """The pre-test and the post-test with their answers: each idea in its two clothes."""
    links = {lesson.name[:2]: f"[{lesson.title}](../notebooks/{lesson.name}.ipynb)" for lesson in lessons}
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


def whole(parts):
    """(minutes, of them exercises), rounded."""
    return round(sum(map(sum, parts.values()))), round(sum(exercises for _, exercises in parts.values()))


def page(lesson, all_plans, parts):
    """The page of a lesson: its head from the notebook, then its teach.md."""
    text, asked = read(source(lesson.name))
    course = lesson.notebook.metadata["course"]
    taken_by = [f"[{plan['name']}](../plans/{plans.stem(plan)}.md)" for plan in all_plans
                if lesson.name[:2] in plans.taken(plan)]
    minutes, exercises = whole(parts)
    machine = some(max(1, round(course["seconds"] / 60)), "minute")
    head = [f"# {lesson.title}: for teachers", f"**The question.** {lesson.question}",
            f"- The lesson: [{lesson.title}](../../notebooks/{lesson.name}.ipynb). Its slides: "
            f"`scripts/site --slides {lesson.name[:2]}`\n"
            f"- For a learner about {some(minutes, 'minute')}, of which exercises take {exercises}. For a machine with "
            f"two cores {machine}. Show of hands: {plans.HANDS * len(asked)}.\n"
            f"- In the plans: {', '.join(taken_by) or 'none'}",
            "## Aims", "Afterwards learners are able to",
            said(lesson, r"\*\*You will be able to\*\*\s+(- .+?)\n\n(?!- )"),
            "## Prerequisites", said(lesson, r"\*\*You need\*\*\s+(.+?)\n\n"),
            "## Minutes", table(("section", "minutes", "of them exercises"), (
                (section, round(text + exercises), round(exercises)) for section, (text, exercises) in parts.items()))]
    return "\n\n".join([*head, text]) + "\n"


def said(lesson, pattern):
    """What a lesson says of itself, its links led from notebooks/ to this page's folder."""
    found = re.search(pattern, lesson.text, re.S)
    if not found:
        raise RuntimeError(f"notebooks/{lesson.name}.ipynb: nothing fits {pattern}")
    return re.sub(r"\]\((?!\w+:|#)([^)]+)\)", lambda link:
                  f"]({os.path.relpath(os.path.join('notebooks', link[1]), PAGES)})", found[1])
