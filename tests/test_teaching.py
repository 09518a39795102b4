"""What teachers get: pages, plans that fit their time, slides that open without a network. None of it is for learners.
"""

import copy
import re
import sys
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

import layout
import slides
from course.lesson import notebooks
from teach import plans, teaching
from tests import runner

NOTEBOOKS = list(notebooks().values())
NAMES = [path.stem for path in NOTEBOOKS]
PLANS = plans.read()["plan"]
PAGE = (runner.ROOT / "lessons/_template/teach.md").read_text(encoding="utf-8")
LOOSE = 0.15  # of a day: a plan with more slack has room for more

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def lessons():
    return [layout.Lesson(path, executed=False) for path in NOTEBOOKS]


@pytest.fixture(scope="module")
def of_lessons(lessons):
    return plans.all_parts(lessons, plans.read()["stated"])


@pytest.mark.parametrize("number", notebooks())
def test_each_page_has_its_form_and_shows_no_answer_before_it_is_unfolded(number, lessons, of_lessons):
    [lesson] = [lesson for lesson in lessons if lesson.number == number]
    text, questions = teaching.read(teaching.source(lesson.name))
    shown = re.sub("<details>.+?</details>", "", teaching.page(lesson, PLANS, of_lessons[number]), flags=re.S)
    assert "(right:" not in shown and len(questions) == 3
    for question in questions:
        assert question.text in shown and question.why not in shown
        assert [reveals for reveals in question.reveals.values() if f"reveals: {reveals}" in shown] == []
    _, _, results, _, late, *_ = re.split(r"^## .+\n", text, flags=re.M)
    assert [row for row in results.strip().splitlines()[2:]
            if not re.match(r"\| any \||.*(20\d\d-\d\d-\d\d|never run by the authors|published)", row)] == []
    named = re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", " ".join(late.split()))
    assert named and set(named) <= of_lessons[number].keys()


@pytest.mark.parametrize(("old", "new", "message"), [
    ("## Ten minutes late", "", "needs the sections In the room, Results to expect"),
    ("## In the room", "Hello\n\n## In the room", "nothing above them"),
    ("### 3. ", "", "section Show of hands: needs the headings"),
    ("**B.** Six", "**A.** So.\n\n**B.** Six", "section Show of hands: question 1"),
    ("- **A** reveals:", "- **B** reveals:", "section Show of hands: question 1"),
    ("| 8 | ", "| 7 | ", "section With 0, 1, 2, 8 GPUs")])
def test_a_page_that_breaks_its_form_is_named_with_the_section(old, new, message, tmp_path):
    path = tmp_path / "teach.md"
    assert old in PAGE
    path.write_text(PAGE.replace(old, new, 1))
    with pytest.raises(RuntimeError, match=re.escape(str(path))) as error:
        teaching.read(path)
    assert message in str(error.value)


def test_the_sections_of_a_lesson_add_up_to_its_minutes(lessons, of_lessons):
    for lesson in lessons:
        total = sum(map(sum, of_lessons[lesson.number].values()))
        assert total == pytest.approx(lesson.notebook.metadata["course"]["minutes"])


def test_a_slot_takes_the_minutes_of_its_sections_and_questions():
    sections = {"04": {"a": (10.2, 7), "b": (4, 0), "c": (1, 1)}}
    minutes = {"whole": {}, "two": {"sections": ["a", "b"]}, "rest": {"without": ["a"]},
               "text": {"sections": ["a"], "exercises": False}}
    assert {name: plans.minutes_of({"lesson": "04", **slot}, sections, "here")[0] for name, slot in minutes.items()
            } == {"whole": 24, "two": 22, "rest": 6, "text": 11}
    assert plans.minutes_of({"lesson": "04", "questions": [1, 3]}, sections, "here") == (24, 2 * plans.HANDS, 0, 0)
    with pytest.raises(RuntimeError, match="here: lesson 04 has no section d"):
        plans.minutes_of({"lesson": "04", "sections": ["d"]}, sections, "here")


@pytest.mark.parametrize("plan", PLANS, ids=plans.stem)
def test_a_plan_fits_its_days_and_takes_each_section_and_question_once(plan, of_lessons):
    for slack in plans.slack(plan, of_lessons):
        assert 0 <= slack <= LOOSE * plan["minutes"]
    left = [number for each in plan["left_out"] for number in each["lessons"]]
    assert sorted(plans.taken(plan) + plan.get("done_before", []) + left) == list(notebooks())
    for number in plans.taken(plan):
        slots = [slot for day in plan["days"] for slot in day if slot.get("lesson") == number]
        sections = [name for slot in slots for name in plans.chosen(slot, of_lessons[number])]
        questions = [question for slot in slots for question in slot.get("questions", [])]
        assert len(sections) == len(set(sections)), number
        assert len(questions) == len(set(questions)) and set(questions) <= {1, 2, 3}, number


@pytest.mark.parametrize("plan", PLANS, ids=plans.stem)
def test_the_page_of_a_plan_has_every_minute_and_each_question(plan, lessons, of_lessons):
    questions = {number: teaching.questions_of(path.stem) for number, path in notebooks().items()}
    text = plans.page(plan, lessons, of_lessons, questions)
    days = re.split(r"^\| from \|.*$", text, flags=re.M)[1:]
    assert len(days) == len(plan["days"])
    for day in days:
        clock = 0
        for hours, minutes, length in re.findall(r"^\| (\d+):(\d\d) \| (\d+) \|", day, re.M):
            assert 60 * int(hours) + int(minutes) == clock
            clock += int(length)
        assert clock == plan["minutes"]
    for lesson in lessons:
        assert text.count(f"Open with: {lesson.question} ") == (lesson.number in plans.taken(plan)), lesson.name
    for slot in (slot for day in plan["days"] for slot in day if 0 < len(slot.get("questions", [])) < 3):
        for number in slot["questions"]:
            assert f"{number}. {questions[slot['lesson']][number - 1].text.splitlines()[0]}" in text, slot["lesson"]


def test_without_the_teacher_s_folder_there_is_a_site_without_it(tmp_path, monkeypatch):
    for path in runner.ROOT.iterdir():
        if path.name not in ("build", ".git", "teach"):
            (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "teach", None)  # to import it is an error
    layout.lay_out(executed=False)
    pages = {path.relative_to(layout.SOURCE).as_posix(): path.read_text(encoding="utf-8")
             for path in layout.SOURCE.rglob("*") if path.suffix in (".md", ".ipynb")}
    assert "index.md" in pages and not [name for name in pages if name.startswith("teach")]
    for name, text in pages.items():
        for target in re.findall(r"\]\(((?!\w+:)[^)#:\s]+\.(?:md|ipynb))[)#]", text):
            exists = (layout.SOURCE / name).parent.joinpath(target).resolve().is_file()
            named = (name, target) == ("README.md", "teach/README.md")
            assert exists or named or name.startswith("download/"), f"{name} links to {target}"


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
    assert "B. 1" in question and "✓" not in question and "Six divided" not in question and "averaged" not in answer
    assert "**✓ B. 1**" in answer and "Six divided" in answer and "rank 0 alone" in notes


def test_a_wrong_number_is_one_line():
    done = runner.run(0, "--slides", "99", script="site/build_site.py", PYTHONPATH=str(runner.ROOT))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "scripts/site: error: --slides: no lesson 99; there are 00, 01" in done.stderr


def test_a_damaged_notebook_is_named(tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks/05_x.ipynb").write_text("no notebook")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match="notebooks/05_x.ipynb makes no slides"):
        slides.write("05_x")


@pytest.fixture
def opened(open_page):
    """opened(name): makes the slides of a lesson and shows them. See open_page in conftest.py."""
    def open_slides(name):
        url = slides.write(name)[0].resolve().as_uri()
        return open_page(url, url, viewport={"width": 1280, "height": 720})

    return open_slides


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
        page.wait_for_function(f"{at} === {place}")
    note = page.locator("aside").first
    expect(note).to_be_hidden()
    page.keyboard.press("n")
    expect(note).to_be_visible()
    for _ in range(2 * page.evaluate("slides.length")):
        page.keyboard.press("PageDown")
    page.wait_for_function("scrollY + innerHeight >= document.documentElement.scrollHeight - 1")


@pytest.mark.browser
def test_nothing_serious_hinders_anybody(opened):
    violations = Axe().run(opened("06_ddp")).response["violations"]
    assert [(violation["id"], violation["nodes"][0]["html"][:200]) for violation in violations
            if violation["impact"] in ("serious", "critical")] == []
