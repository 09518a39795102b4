"""What teachers get: pages, plans that fit their time, slides that open without a network. None of it is for learners.
"""

import copy
import re
import subprocess
import sys
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

import layout
import slides
from teach import plans, teaching
from tests import runner

NOTEBOOKS = sorted((runner.ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]
PLANS = plans.read()["plan"]
LOOSE = 0.15  # of a day: a plan with more slack has room for more

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def lessons():
    return [layout.Lesson(path, executed=False) for path in NOTEBOOKS]


@pytest.fixture(scope="module")
def of_lessons(lessons):
    return plans.all_parts(lessons, plans.read()["stated"])


# ----------------------------------------------------------------------------------------------------- lessons' pages


@pytest.mark.parametrize("name", NAMES)
def test_each_lesson_has_a_page_in_its_form(name):
    text, questions = teaching.read(teaching.LESSONS / f"{name}.md")
    assert text and len(questions) == teaching.QUESTIONS


def test_no_page_is_of_no_lesson():
    assert {path.stem for path in teaching.LESSONS.glob("*.md")} <= set(NAMES)


QUESTION = """### {number}. Which one?

- A. this
  one
- B. that one

**B.** Because it is
so.

- **A** reveals: a
  guess.

"""
PAGE = ("## In the room\n\nDo it.\n\n## Show of hands\n\n" + "".join(QUESTION.format(number=n) for n in (1, 2, 3))
        + "## What students answer\n\n| what | answer |\n|---|---|\n| 1 | one |\n\n"
        + "## With 0, 1, 2, 8 GPUs\n\n| GPUs | changes | do |\n|---|---|---|\n"
        + "".join(f"| {gpus} | it | that |\n" for gpus in (0, 1, 2, 8)))


def test_a_page_in_its_form_is_read(tmp_path):
    path = tmp_path / "05_x.md"
    path.write_text(PAGE)
    _, questions = teaching.read(path)
    assert questions[1] == teaching.Question("Which one?", {"A": "this\n  one", "B": "that one"}, "B",
                                             "Because it is\nso.", {"A": "a\n  guess."})


@pytest.mark.parametrize(("old", "new", "said"), [
    ("## In the room\n\nDo it.\n\n", "", "needs In the room"),
    ("Do it.", "", "section In the room: is empty"),
    ("## In the room", "Hello\n\n## In the room", "text above them"),
    ("### 3. Which one?", "", "### 1. to ### 3."),
    ("- A. this\n  one", "", "question 1: needs options A, B, C, ..., has B"),
    ("**B.** Because", "Because", "question 1: needs exactly one right option, such as **B.** and why, has none"),
    ("**B.** Because", "**A.** So.\n\n**B.** Because", "has A, B"),
    ("- **A** reveals:", "- A reveals:", "a line “- **X** reveals: …” for each wrong option, has none"),
    ("- **A** reveals:", "- **B** reveals:", "has B"),
    ("| 1 | one |\n", "", "section What students answer: has no table"),
    ("| 8 | it | that |\n", "", "section With 0, 1, 2, 8 GPUs: has rows for 0, 1, 2"),
])
def test_a_page_that_breaks_its_form_is_named_with_the_section(old, new, said, tmp_path):
    path = tmp_path / "05_x.md"
    assert old in PAGE
    path.write_text(PAGE.replace(old, new, 1))
    with pytest.raises(RuntimeError, match=re.escape(said)) as error:
        teaching.read(path)
    assert str(path) in str(error.value)


def test_the_head_of_a_page_comes_from_the_notebook(lessons):
    lesson = copy.deepcopy(lessons[0])
    lesson.title, lesson.question = "00 · Another", "Another question?"
    lesson.text = ("**You will be able to**\n- do another thing\n  well;\n- and [this](03_x.ipynb#a);\n\n"
                   "**You need** [a](../README.md).\n\n")
    lesson.notebook.metadata["course"] = {"minutes": 70, "seconds": 300}
    text = teaching.page(lesson, PLANS, plans.parts(lesson, {}))
    for part in ("# 00 · Another: for teachers", "Another question?", "- do another thing\n  well;", "about 70 minutes",
                 "two cores 5 minutes", "[this](../../notebooks/03_x.ipynb#a)", "[a](../../README.md)",
                 "[90 minutes](../plans/90_minutes.md)", "Show of hands: 6"):
        assert part in text


# --------------------------------------------------------------------------------------------------------------- plans


def test_the_sections_of_a_lesson_add_up_to_its_minutes(lessons, of_lessons):
    for lesson in lessons:
        total = sum(map(sum, of_lessons[lesson.name[:2]].values()))
        assert total == pytest.approx(lesson.notebook.metadata["course"]["minutes"])


def test_a_share_is_stated_only_where_the_lesson_says_so(lessons):
    assert plans.read()["stated"] == {"06": {"Capstone: your own DDP program": 0.5}}
    assert "The capstone takes half of yours." in " ".join(lessons[6].text.split())


@pytest.mark.parametrize("plan", PLANS, ids=plans.stem)
def test_a_plan_fits_its_days(plan, of_lessons):
    for slack in plans.slack(plan, of_lessons):
        assert 0 <= slack <= LOOSE * plan["minutes"]


@pytest.mark.parametrize("plan", PLANS, ids=plans.stem)
def test_a_plan_takes_a_lesson_or_says_why_not(plan):
    left = [number for each in plan["left_out"] for number in each["lessons"]]
    assert sorted(plans.taken(plan) + plan.get("done_before", []) + left) == [name[:2] for name in NAMES]
    assert all(each["why"] for each in plan["left_out"]) and plan["shortened"]


@pytest.mark.parametrize("plan", PLANS, ids=plans.stem)
def test_no_plan_takes_a_section_or_a_question_twice(plan, of_lessons):
    for number in plans.taken(plan):
        slots = [slot for day in plan["days"] for slot in day if slot.get("lesson") == number]
        sections = [name for slot in slots for name in plans.chosen(slot, of_lessons[number])]
        assert len(sections) == len(set(sections)), number
        asked = [each for slot in slots for each in slot.get("questions", [])]
        assert len(asked) == len(set(asked)) and set(asked) <= set(range(1, teaching.QUESTIONS + 1)), number


def test_a_longer_lesson_makes_a_plan_longer(lessons):
    week = next(plan for plan in PLANS if plan["name"] == "A week")
    longer = copy.deepcopy(lessons)
    longer[4].notebook.metadata["course"]["minutes"] += 40
    before, after = (plans.slack(week, plans.all_parts(those, plans.read()["stated"])) for those in (lessons, longer))
    assert [one - other for one, other in zip(before, after, strict=True)] == [0, 40, 0, 0, 0]


def test_a_slot_takes_what_it_says():
    sections = {"04": {"a": (10.2, 7), "b": (4, 0), "c": (1, 1)}}
    minutes = {"whole": {}, "two": {"sections": ["a", "b"]}, "rest": {"without": ["a"]},
               "text": {"sections": ["a"], "exercises": False}}
    assert {name: plans.minutes_of({"lesson": "04", **slot}, sections, "here")[0] for name, slot in minutes.items()
            } == {"whole": 24, "two": 22, "rest": 6, "text": 11}
    assert plans.minutes_of({"lesson": "04", "questions": [1, 3]}, sections, "here") == (24, 2 * plans.HANDS, 0, 0)
    for slot, said in (({"lesson": "99"}, "here: no lesson 99"),
                       ({"lesson": "04", "sections": ["d"]}, "here: lesson 04 has no section d"),
                       ({"lesson": "04", "without": ["d"]}, "here: lesson 04 has no section d")):
        with pytest.raises(RuntimeError, match=said):
            plans.minutes_of(slot, sections, "here")


@pytest.mark.parametrize("plan", PLANS, ids=plans.stem)
def test_the_page_of_a_plan_tells_every_minute(plan, lessons, of_lessons):
    text = plans.page(plan, lessons, of_lessons, {name[:2]: teaching.questions_of(name) for name in NAMES})
    days = re.split(r"^\| from \|.*$", text, flags=re.M)[1:]
    assert len(days) == len(plan["days"])
    for day in days:
        rows = re.findall(r"^\| (\d+):(\d\d) \| (\d+) \|", day, re.M)
        clock = 0
        for hours, minutes, long in rows:
            assert 60 * int(hours) + int(minutes) == clock
            clock += int(long)
        assert clock == plan["minutes"]


@pytest.mark.parametrize("plan", PLANS, ids=plans.stem)
def test_a_plan_names_the_question_that_opens_a_lesson_and_those_that_it_asks(plan, lessons, of_lessons):
    questions = {name[:2]: teaching.questions_of(name) for name in NAMES}
    text = plans.page(plan, lessons, of_lessons, questions)
    for lesson in lessons:
        taken = lesson.name[:2] in plans.taken(plan)
        assert text.count(f"Open with: {lesson.question} ") == taken, lesson.name
    for slot in (slot for day in plan["days"] for slot in day if "lesson" in slot):
        asked = slot.get("questions", [])
        for number, question in enumerate(questions[slot["lesson"]], 1):
            named = number in asked and len(asked) < teaching.QUESTIONS
            assert not named or f"{number}. {question.text.splitlines()[0]}" in text, (slot["lesson"], number)


# --------------------------------------------------------------------------------------------------- part of the site


@pytest.fixture
def laid_out(tmp_path, monkeypatch):
    """{path: text} of what Sphinx reads, with teach/ or without."""
    def lay_out(teachers):
        folder = tmp_path / ("teachers" if teachers else "learners")
        folder.mkdir()
        for path in runner.ROOT.iterdir():
            if path.name not in ("build", ".git") and (teachers or path.name != "teach"):
                (folder / path.name).symlink_to(path)
        monkeypatch.chdir(folder)
        if not teachers:
            monkeypatch.setitem(sys.modules, "teach", None)  # to import it is an error
        layout.lay_out(executed=False)
        return {path.relative_to(layout.SOURCE).as_posix(): path.read_text(encoding="utf-8")
                for path in layout.SOURCE.rglob("*") if path.suffix in (".md", ".ipynb")}
    return lay_out


def dead(files):
    """Links of pages to pages that are not there."""
    links = {(name, target) for name, text in files.items() if not name.startswith("download/")
             for target in re.findall(r"\]\(((?!\w+:)[^)#:\s]+\.(?:md|ipynb))[)#]", text)}
    return {(name, target) for name, target in links
            if not (layout.SOURCE / name).parent.joinpath(target).resolve().is_file()}


def test_the_site_has_a_door_for_teachers(laid_out, lessons):
    files = laid_out(teachers=True)
    assert "teach/index" in files["index.md"]
    index = files["teach/index.md"]
    for path in ("README.md", "tests.md", *(f"plans/{plans.stem(plan)}.md" for plan in PLANS),
                 *(f"lessons/{name}.md" for name in NAMES)):
        assert f"]({path})" in index and f"teach/{path}" in files, path
    assert dead(files) == set()


def test_without_teach_the_site_has_no_such_door(laid_out):
    files = laid_out(teachers=False)
    assert [name for name in files if name.startswith("teach")] == [] and "each/" not in files["index.md"]
    assert dead(files) <= {("README.md", "teach/README.md")}


# -------------------------------------------------------------------------------------------------------------- slides


def test_no_answer_stands_on_the_slide_of_its_question(lessons):
    for lesson in lessons:
        predictions = sum(len(slides.ASKS.findall(cell.source)) for cell in lesson.notebook.cells)
        asked, last = 0, ""
        for cell in slides.cells_of(copy.deepcopy(lesson)):
            asked += len(slides.ASKS.findall(cell.source)) if cell.cell_type == "markdown" else 0
            starts = cell.metadata.slideshow.slide_type == "slide"
            assert starts or not slides.ASKS.search(last), (lesson.name, cell.source)
            last = cell.source
        assert asked == predictions >= 2, lesson.name


def test_a_question_by_show_of_hands_hides_its_answer_until_the_next_slide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "teach", None)  # to import it is an error
        assert slides.show_of_hands("05_x") == []
    Path("teach").mkdir()
    page = Path("lessons/l05_x/teach.md")
    page.parent.mkdir(parents=True)
    page.write_text(PAGE)
    cells = slides.show_of_hands("05_x")
    assert [cell.metadata.slideshow.slide_type for cell in cells] == ["slide", "slide", "notes"] * 3
    question, answer, notes = (cell.source for cell in cells[:3])
    assert "that one" in question and "✓" not in question and "Because" not in question and "guess" not in answer
    assert "**✓ B. that one**" in answer and "Because it is" in answer and "guess" in notes


@pytest.mark.parametrize(("arguments", "message"), [
    (["--slides", "99"], "scripts/site: error: --slides: no lesson 99; there are 00, 01"),
    (["--slides"], "scripts/site: error: argument --slides: expected at least one argument"),
    (["--zip", "--slides", "05"], "not allowed with argument --zip"),
])
def test_a_wrong_number_is_one_line(arguments, message):
    done = subprocess.run([sys.executable, "site/build_site.py", *arguments], cwd=runner.ROOT, capture_output=True,
                          text=True, timeout=60, env=runner.environment(PYTHONPATH=str(runner.ROOT)))
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_a_damaged_notebook_is_named(tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks/05_x.ipynb").write_text("no notebook")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match="notebooks/05_x.ipynb makes no slides"):
        slides.write("05_x")


@pytest.fixture
def opened(chromium):
    """Makes the slides of a lesson and opens them; errors, and requests to the network, stand in `page.complaints`."""
    contexts = []

    def open_slides(name):
        path, _ = slides.write(name)
        contexts.append(chromium.new_context(viewport={"width": 1280, "height": 720}))
        page = contexts[-1].new_page()
        page.complaints = []
        page.on("console", lambda message: page.complaints.append(message.text)
                if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda request: page.complaints.append(request.url)
                if not request.url.startswith((path.resolve().as_uri(), "data:", "about:")) else None)
        page.goto(path.resolve().as_uri())
        return page

    yield open_slides
    for context in contexts:
        context.close()


@pytest.mark.promise("offline pages")
@pytest.mark.browser
@pytest.mark.parametrize("name", NAMES)
def test_slides_ask_nobody_and_show_pictures_with_words(name, opened):
    page = opened(name)
    pictures = page.evaluate("[...document.images].map(image => [image.naturalWidth * image.clientHeight, image.alt])")
    assert pictures and all(size and len(words) > 10 for size, words in pictures)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    page.wait_for_function("!document.body.innerText.includes('$$')")  # formulas are drawn
    assert page.complaints == []


@pytest.mark.browser
def test_keys_turn_slides_and_show_notes(opened):
    page = opened("05_distributed_sampler")
    at = "slides.findIndex(slide => slide.getBoundingClientRect().bottom > 10)"
    for key, place in (("ArrowRight", 1), ("PageDown", 2), ("PageUp", 1), ("ArrowLeft", 0), ("ArrowLeft", 0)):
        page.keyboard.press(key)
        assert page.evaluate(at) == place, key
    note = page.locator("aside").first
    assert not note.is_visible()
    page.keyboard.press("n")
    assert note.is_visible()
    for _ in range(2 * page.evaluate("slides.length")):
        page.keyboard.press("PageDown")
    assert page.evaluate("scrollY + innerHeight >= document.documentElement.scrollHeight - 1")


@pytest.mark.browser
def test_nothing_serious_hinders_anybody(opened):
    violations = Axe().run(opened("06_ddp")).response["violations"]
    assert [(violation["id"], violation["nodes"][0]["html"][:200]) for violation in violations
            if violation["impact"] in ("serious", "critical")] == []
