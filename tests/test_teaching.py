"""What teachers get: pages, plans that fit their time, slides that open without a network. None of it is for learners.
"""

import copy
import re
import subprocess
import sys
from itertools import takewhile
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


@pytest.mark.parametrize("name", NAMES)
def test_each_lesson_has_a_page_in_its_form(name):
    text, questions = teaching.read(teaching.source(name))
    assert text and len(questions) == 3


def test_a_page_in_its_form_is_read(tmp_path):
    (tmp_path / "teach.md").write_text(PAGE)
    _, questions = teaching.read(tmp_path / "teach.md")
    assert questions[1] == teaching.Question("Which one?", {"A": "this\n  one", "B": "that one"}, "B",
                                             "Because it is\nso.", {"A": "a\n  guess."})


@pytest.mark.parametrize(("old", "new", "message"), [
    ("## In the room\n\nDo it.\n\n", "", "needs the sections In the room"),
    ("Do it.", "", "needs the sections In the room"),
    ("## In the room", "Hello\n\n## In the room", "nothing above them"),
    ("### 3. Which one?", "", "section Show of hands: needs the headings"),
    ("- A. this\n  one", "", "section Show of hands: question 1"),
    ("**B.** Because", "Because", "section Show of hands: question 1"),
    ("**B.** Because", "**A.** So.\n\n**B.** Because", "section Show of hands: question 1"),
    ("- **A** reveals:", "- **B** reveals:", "section Show of hands: question 1"),
    ("| 8 | it | that |\n", "", "section With 0, 1, 2, 8 GPUs")])
def test_a_page_that_breaks_its_form_is_named_with_the_section(old, new, message, tmp_path):
    path = tmp_path / "teach.md"
    assert old in PAGE
    path.write_text(PAGE.replace(old, new, 1))
    with pytest.raises(RuntimeError, match=re.escape(str(path))) as error:
        teaching.read(path)
    assert message in str(error.value)


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


def test_a_slot_takes_the_minutes_of_its_sections_and_questions():
    sections = {"04": {"a": (10.2, 7), "b": (4, 0), "c": (1, 1)}}
    minutes = {"whole": {}, "two": {"sections": ["a", "b"]}, "rest": {"without": ["a"]},
               "text": {"sections": ["a"], "exercises": False}}
    assert {name: plans.minutes_of({"lesson": "04", **slot}, sections, "here")[0] for name, slot in minutes.items()
            } == {"whole": 24, "two": 22, "rest": 6, "text": 11}
    assert plans.minutes_of({"lesson": "04", "questions": [1, 3]}, sections, "here") == (24, 2 * plans.HANDS, 0, 0)
    for slot, message in (({"lesson": "99"}, "here: no lesson 99"),
                          ({"lesson": "04", "sections": ["d"]}, "here: lesson 04 has no section d"),
                          ({"lesson": "04", "without": ["d"]}, "here: lesson 04 has no section d")):
        with pytest.raises(RuntimeError, match=message):
            plans.minutes_of(slot, sections, "here")


@pytest.mark.parametrize("plan", PLANS, ids=plans.stem)
def test_a_plan_fits_its_days_and_takes_each_section_and_question_once(plan, of_lessons):
    for slack in plans.slack(plan, of_lessons):
        assert 0 <= slack <= LOOSE * plan["minutes"]
    left = [number for each in plan["left_out"] for number in each["lessons"]]
    assert sorted(plans.taken(plan) + plan.get("done_before", []) + left) == [name[:2] for name in NAMES]
    for number in plans.taken(plan):
        slots = [slot for day in plan["days"] for slot in day if slot.get("lesson") == number]
        sections = [name for slot in slots for name in plans.chosen(slot, of_lessons[number])]
        questions = [question for slot in slots for question in slot.get("questions", [])]
        assert len(sections) == len(set(sections)), number
        assert len(questions) == len(set(questions)) and set(questions) <= {1, 2, 3}, number


@pytest.mark.parametrize("plan", PLANS, ids=plans.stem)
def test_the_page_of_a_plan_has_every_minute_and_each_question(plan, lessons, of_lessons):
    questions = {name[:2]: teaching.questions_of(name) for name in NAMES}
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
        assert text.count(f"Open with: {lesson.question} ") == (lesson.name[:2] in plans.taken(plan)), lesson.name
    for slot in (slot for day in plan["days"] for slot in day if 0 < len(slot.get("questions", [])) < 3):
        for number in slot["questions"]:
            assert f"{number}. {questions[slot['lesson']][number - 1].text.splitlines()[0]}" in text, slot["lesson"]


# --------------------------------------------------------------------------------------------------- part of the site


@pytest.mark.parametrize("teachers", [True, False])
def test_the_site_has_a_door_for_teachers_where_teach_is(teachers, tmp_path, monkeypatch):
    for path in runner.ROOT.iterdir():
        if path.name not in ("build", ".git") and (teachers or path.name != "teach"):
            (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    if not teachers:
        monkeypatch.setitem(sys.modules, "teach", None)  # to import it is an error
    layout.lay_out(False, "https://course.invalid/x", "1.0")
    files = {path.relative_to(layout.SOURCE).as_posix(): path.read_text(encoding="utf-8")
             for path in layout.SOURCE.rglob("*") if path.suffix in (".md", ".ipynb")}
    pages = {"teach/README.md", "teach/tests.md", *(f"teach/plans/{plans.stem(plan)}.md" for plan in PLANS),
             *(f"teach/lessons/{name}.md" for name in NAMES)}
    if teachers:
        assert "teach/index" in files["index.md"] and pages <= files.keys()
        assert all(f"]({page.removeprefix('teach/')})" in files["teach/index.md"] for page in pages)
    else:
        assert not [name for name in files if name.startswith("teach")] and "each/" not in files["index.md"]
    for name, text in files.items():
        for target in re.findall(r"\]\(((?!\w+:)[^)#:\s]+\.(?:md|ipynb))[)#]", text):
            there = (layout.SOURCE / name).parent.joinpath(target).resolve().is_file()
            assert there or name.startswith("download/"), f"{name} links to {target}"


# -------------------------------------------------------------------------------------------------------------- slides


@pytest.fixture(scope="module")
def decks(lessons):
    return {lesson.name: slides.of_lesson(lesson) for lesson in lessons}


def asked(lesson):
    """The predictions of a lesson, by their names."""
    return [names for names in slides.predictions(lesson.notebook.cells).values()]


def test_each_prediction_has_a_slide_and_an_answer_behind_it(lessons, decks):
    for lesson in lessons:
        deck = decks[lesson.name]
        questions = [place for place, slide in enumerate(deck) if slide.label == "Predict"]
        assert len(questions) == len(asked(lesson)) >= 2, lesson.name
        for place, names in zip(questions, asked(lesson), strict=True):
            assert all(f"{name} = None" in deck[place].body[-1] for name in names)
        assert deck[questions[-1] + 1].label == "What came out"
        comparisons = " ".join(cell.source for cell in lesson.notebook.cells).count("lesson.predicted(my_")
        answers = sum(part.count("Here it is <strong>") for slide in deck for part in slide.body)
        assert answers == comparisons, lesson.name


def test_no_slide_shows_an_answer_before_it_was_asked(lessons, decks):
    for lesson in lessons:
        for slide in decks[lesson.name]:
            if slide.label in ("Predict", "Before you predict"):
                assert "Here it is" not in "".join(slide.body), (lesson.name, slide.heading)


def test_a_picture_that_answers_has_a_slide_and_words(decks):
    shown = [part for deck in decks.values() for slide in deck for part in slide.body if part.startswith("<img")]
    assert len(shown) > 40
    assert all(re.match(r'<img alt="[^"]{10,}" src="data:image/png;base64,[\w+/=]{1000,}">$', part) for part in shown)


def test_slides_begin_with_the_question_and_end_with_what_to_remember(lessons, decks):
    for lesson in lessons:
        first, last = decks[lesson.name][0], decks[lesson.name][-1]
        assert first.heading == lesson.title and first.title
        assert slides.inline(lesson.question) in first.body[0]
        assert last.heading == "What to remember" and last.body[0].count("<li>") >= 3


def test_a_question_by_show_of_hands_hides_its_answer_until_the_next_slide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "teach", None)  # to import it is an error
        assert slides.show_of_hands("05_x") == []
    Path("teach").mkdir()
    assert slides.show_of_hands("05_x") == []
    teaching.source("05_x").parent.mkdir(parents=True)
    teaching.source("05_x").write_text(PAGE)
    deck = slides.show_of_hands("05_x")
    assert [slide.label for slide in deck] == ["Show of hands", "The answer"] * 3
    question, answer = ("".join(slide.body) for slide in deck[:2])
    assert "that one" in question and "✓" not in question and "Because" not in question and not deck[0].notes
    assert re.search(r"<li class=right>✓ B\. that one</li>", answer) and "Because it is" in answer
    assert "a guess" in re.sub(r"\s+", " ", deck[1].notes)


def test_links_into_the_course_are_words_on_a_slide():
    assert slides.inline("[03](03_x.ipynb), [all](https://a.invalid/b)") == '03, <a href="https://a.invalid/b">all</a>'
    assert slides.inline("6. Machines") == "6. Machines"


def test_what_is_too_long_for_a_slide_is_cut():
    rows = ["| a |", "| --- |", *(f"| {row} |" for row in range(30)), "", "Below."]
    cut = slides.fewer_rows("\n".join(rows)).splitlines()
    kept = list(takewhile(lambda line: line.startswith("|"), cut))
    assert len(kept) == 2 + slides.ROWS and cut[-1] == "Below."
    assert f"… and {30 - slides.ROWS} more in the lesson" in cut
    words, above = slides.last_words("\n\n".join(["one " * 60, "two " * 60, "three " * 60]))
    assert words.split() == ["two"] * 60 + ["three"] * 60 and above.split() == ["one"] * 60


@pytest.mark.parametrize(("arguments", "said"), [
    (["--slides", "99"], "scripts/site: error: --slides: no lesson 99; there are 00, 01"),
    (["--slides", "05", "5"], "scripts/site: error: --slides: no lesson 5;"),
    (["--slides"], "scripts/site: error: argument --slides: expected at least one argument"),
    (["--zip", "--slides", "05"], "not allowed with argument --zip"),
])
def test_a_wrong_number_is_one_line(arguments, said):
    done = subprocess.run([sys.executable, "site/build_site.py", *arguments], cwd=runner.ROOT, capture_output=True,
                          text=True, timeout=60, env=runner.environment(PYTHONPATH=str(runner.ROOT)))
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


def test_a_damaged_notebook_is_named(tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks/05_x.ipynb").write_text("no notebook")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match="notebooks/05_x.ipynb makes no slides"):
        slides.write("05_x")


# ----------------------------------------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def files():
    return {name: slides.write(name)[0].resolve() for name in NAMES}


@pytest.fixture
def opened(chromium, files):
    """Opens the slides of a lesson; what the page complains of, or asks the network for, stands in `page.said`."""
    contexts = []

    def open_slides(name, place=1, **options):
        contexts.append(chromium.new_context(**{"viewport": {"width": 1280, "height": 720}} | options))
        page = contexts[-1].new_page()
        page.said = []
        page.on("console", lambda message: page.said.append(message.text)
                if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.said.append(request.url)
                if not request.url.startswith((files[name].as_uri(), "data:", "about:")) else None)
        page.goto(f"{files[name].as_uri()}#{place}")
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_slides
    for context in contexts:
        context.close()


def progress(page):
    return page.locator("#at").inner_text()


@pytest.mark.promise("offline pages")
@pytest.mark.browser
@pytest.mark.parametrize("name", NAMES)
def test_slides_ask_nobody_and_nothing_is_cut_off(name, opened):
    page = opened(name)
    cut = page.evaluate("""slides.filter(slide => {
        const body = slide.querySelector('.body')
        return body.scrollHeight > body.clientHeight || body.scrollWidth > body.clientWidth
          || [...body.children].some(part => part.getBoundingClientRect().bottom > innerHeight - 50)
      }).map(slide => slide.innerText.slice(0, 80))""")
    assert cut == [] and page.said == []
    pictures = page.evaluate("[...document.images].map(image => image.naturalWidth * image.clientHeight)")
    assert all(pictures)
    assert page.evaluate("document.body.innerText.includes('$$')") is False, "a formula as it was typed"


@pytest.mark.browser
@pytest.mark.parametrize("name", ["04_collectives", "05_distributed_sampler", "08_predict_scaling"])
def test_a_page_to_try_things_on_is_seen_whole_wherever_its_controls_stand(name, opened):
    page = opened(name)
    frame = page.frames[1]
    hidden = "document.documentElement.scrollHeight - document.documentElement.clientHeight"
    assert len(page.frames) == 2 and frame.evaluate(hidden) == 0
    frame.evaluate("""() => {
        for (const control of document.querySelectorAll('input[type=range]')) {
            control.value = control.max
            control.dispatchEvent(new Event('input', {bubbles: true}))
        }
    }""")
    assert frame.evaluate(hidden) == 0 and page.said == []


@pytest.mark.browser
def test_keys_buttons_and_swipes_turn_slides(opened):
    page = opened("00_start_here", has_touch=True)
    count = page.evaluate("slides.length")
    assert progress(page) == f"1 / {count}" and page.locator("h1").is_visible()
    for key, at in (("ArrowRight", 2), ("Space", 3), ("PageDown", 4), ("ArrowLeft", 3), ("PageUp", 2),
                    ("Shift+Space", 1), ("ArrowLeft", 1), ("End", count), ("ArrowRight", count), ("Home", 1)):
        page.keyboard.press(key)
        assert progress(page) == f"{at} / {count}", key
    page.locator("#on").click()
    page.keyboard.press("Space")  # on the button: once, not twice
    assert progress(page) == f"3 / {count}"
    for began, ended, at in ((600, 200, 4), (200, 600, 3), (300, 320, 3)):
        page.evaluate("""([began, ended]) => {
            const touch = x => ({changedTouches: [new Touch({identifier: 1, target: document.body, clientX: x})]})
            dispatchEvent(new TouchEvent('touchstart', touch(began)))
            dispatchEvent(new TouchEvent('touchend', touch(ended)))
        }""", [began, ended])
        assert progress(page) == f"{at} / {count}"
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert progress(page) == f"3 / {count}", "where it was"
    assert page.locator("section:visible").count() == 1


@pytest.mark.browser
def test_notes_are_hidden_until_asked_for(opened):
    page = opened("05_distributed_sampler", place=3)
    note = page.locator(".now aside")
    assert not note.is_visible()
    page.keyboard.press("n")
    assert note.is_visible() and "strides" in note.inner_text()


@pytest.mark.browser
def test_printing_gives_a_page_a_slide(opened):
    page = opened("05_distributed_sampler")
    printed = page.pdf(prefer_css_page_size=True, print_background=True)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == page.evaluate("slides.length")


@pytest.mark.browser
def test_nothing_serious_hinders_anybody(opened):
    page, axe, found = opened("06_ddp"), Axe(), {}
    for place in range(page.evaluate("slides.length")):
        page.evaluate(f"show({place})")
        for one in axe.run(page).response["violations"]:
            if one["impact"] in ("serious", "critical"):
                found[place + 1] = one["id"], [node["html"][:200] for node in one["nodes"]][:3]
    assert found == {}


@pytest.mark.browser
def test_a_small_screen_shows_the_whole_slide(opened):
    page = opened("05_distributed_sampler", place=2, viewport={"width": 640, "height": 400})
    box = page.locator("section.now").bounding_box()
    assert box["x"] >= 0 and box["y"] >= 0 and box["x"] + box["width"] <= 640 and box["y"] + box["height"] <= 400


def test_the_file_names_nothing_outside_it(files):
    for path in map(Path, files.values()):
        text = path.read_text(encoding="utf-8").partition("<script>MathJax")[0]
        tags = re.findall(r"<(?:link|script|img|iframe|source)\b[^>]*?\s(?:src|href)=[\"']?([^\"'> ]{1,40})", text)
        assert all(target.startswith("data:") for target in tags), path.name
        assert "default-src 'none'" in text
