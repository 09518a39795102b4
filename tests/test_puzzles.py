"""The rank puzzles: the engine that MicroPython runs in the page, the judge, the page itself, and real ranks."""

import json
import random
import shutil
import subprocess
import sys

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe

from course.lesson import ROOT
from lessons.l06_ddp import check
from puzzles import build, engine, judge

PUZZLES = [puzzle for _, puzzle in build.puzzles()]
SOURCES = {puzzle["NAME"]: puzzle["SOLUTION"] for puzzle in PUZZLES}
WITH_MISTAKES = [pytest.param(puzzle, number, id=f"{puzzle['NAME']}-{number}")
                 for puzzle in PUZZLES for number in range(len(puzzle["MISTAKES"]))]
PLAIN = {"NAME": "answer", "RANKS": (3,), "LIMIT": (), "COST": (1, 0), "MISTAKES": [], "USES": (), "SOLUTION":
         "def answer(tensor):\n    pass\n",
         "case": lambda ranks: ([[engine.Torch().tensor([1, 2, 3])] for _ in range(ranks)], [[1, 2, 3]] * ranks)}
HEAD = "import torch\nimport torch.distributed as dist\ndef answer(tensor):\n    rank = dist.get_rank()\n"  # four lines


def used_by(puzzle):
    return [(name, SOURCES[name]) for name in puzzle["USES"]]


def stopped(lines, head=HEAD):
    """How an answer whose function holds these lines is stopped; None where it ends by itself."""
    return judge.check(PLAIN, head + "".join(f"    {line}\n" for line in lines))["outcome"]["stop"]


# ---------------------------------------------------------------- the engine and the judge


@pytest.mark.parametrize("puzzle", PUZZLES, ids=lambda puzzle: puzzle["NAME"])
def test_a_solution_is_right_and_what_is_left_of_it_is_not(puzzle):
    assert judge.check(puzzle, puzzle["SOLUTION"], used_by(puzzle))["right"]
    assert not judge.check(puzzle, puzzle["CODE"], used_by(puzzle))["right"]


@pytest.mark.parametrize(("puzzle", "number"), WITH_MISTAKES)
def test_a_mistake_is_named(puzzle, number):
    edits, says, *_ = puzzle["MISTAKES"][number]
    found = judge.check(puzzle, judge.mistaken(puzzle, edits), used_by(puzzle))
    assert not found["right"] and found["mistake"] == says


def test_a_deadlock_names_its_circle_with_lines():
    stop = stopped(["dist.send(tensor, dst=(rank + 1) % 3)", "dist.recv(tensor, src=(rank + 2) % 3)"])
    assert stop["kind"] == "deadlock" and stop["circle"] == [[0, "send", 1], [1, "send", 2], [2, "send", 0]]
    assert stop["text"].count("line 5") == 3
    stop = stopped(["if rank == 1:", "    dist.recv(tensor, src=2)"])
    assert stop["circle"] == [[1, "recv", 2]] and "line 6" in stop["text"]


@pytest.mark.parametrize(("lines", "line"), [
    (["while True:", "    pass"], 5), (["while (", "        rank >= 0):", "    rank = 0"], 5),
    (["while rank < 9:", "    try:", "        x = 1", "    except:", "        pass"], 5),
    (["try:", "    while True: pass", "except:", "    pass", "for i in range(10): pass"], 6),
    (["import itertools", "for i in itertools.count(): tensor += 1"], 6),
    (["while rank < 2:", "    dist.send(tensor, dst=1) if rank == 0 else dist.recv(tensor, src=0)"], 6),
])
def test_an_endless_loop_ends_with_its_line(lines, line):
    stop = stopped(lines)
    assert stop["kind"] == "endless" and f"line {line}" in stop["text"]


@pytest.mark.parametrize(("lines", "kind", "line"), [
    (["if rank < 2: work = dist.isend(tensor, dst=1) if rank == 0 else dist.irecv(tensor, src=0)"], "race", 5),
    (["other = torch.zeros(2)", "if rank == 0: dist.send(tensor, dst=1)", "if rank == 1: dist.recv(other, src=0)"],
     "sizes", 6),
    (["if rank == 0:", "    work = dist.isend(tensor, dst=1)", "    tensor += 1", "    work.wait()",
      "if rank == 1: dist.recv(tensor, src=0)"], "race", 6),
    (["tensor[7] = 1"], "error", 5), (["dist.send(tensor, dst=3)"], "error", 5),
    (["dist.all_reduce(tensor)"], "error", 5),
    (["tensor += torch.zeros(2)"], "error", 5), (["x = = 1"], "syntax", 5),
    (["return torch.zeros(10**6)"], "error", 5),
])
def test_what_else_goes_wrong_has_its_line(lines, kind, line):
    stop = stopped(lines)
    assert stop["kind"] == kind and f"line {line}" in stop["text"]


def test_a_rank_that_catches_all_still_waits_for_its_message():
    """The exception that ends a run for now must get through `except:` and `finally`."""
    source = HEAD + """    arrived = tensor.clone()
    try:
        if rank == 1:
            dist.recv(arrived, src=0)
        elif rank == 0:
            tensor += 4
            dist.send(tensor, dst=1)
    except:
        print("caught")
    finally:
        rank = 7
    return arrived
"""
    outcome = judge.check(PLAIN, source)["outcome"]
    assert outcome["results"][1] == [5, 6, 7] and outcome["prints"] == [[], [], []]


def test_a_tensor_does_what_torchs_does():
    random.seed(0)
    program = """
def values(torch):
    tensor = torch.tensor([float(each) for each in GIVEN])
    a, b = tensor.tensor_split(2)
    a += 2; b *= 3  # in place: tensor, too
    part = tensor[1:-1]
    part /= 4
    tensor[0] = 9.5
    steps = tensor[::2]
    steps -= tensor[1] * torch.ones(len(steps))
    yield tensor.tolist()
    yield (2 * tensor - tensor / 2 + (1 - tensor)).tolist()
    yield [tensor.sum().item(), tensor.mean().item(), tensor[-1].item(), len(tensor), tensor.numel()]
    yield torch.cat([a, -b]).tolist() + torch.tensor([tensor.sum(), len(tensor)]).tolist()
    yield [each.tolist() for each in tensor.tensor_split(3)]
    yield [tensor[i].item() for i in range(len(tensor)) if tensor[i] > 1]
    flat = tensor.clone().view(-1)
    flat.zero_()
    yield flat.tolist()
    "a /= b"; x = 8; x /= 2; x *= 3  # numbers and strings stay what they are
    yield x
"""
    for size in (5, 8, 13):
        given = [random.uniform(-9, 9) for _ in range(size)]
        found = []
        for source, library in ((program, torch), (engine.rewritten(program, "line %d"), engine.Torch())):
            space = {"GIVEN": given, "_div": engine.divided, "_mul": engine.multiplied, "_turns": lambda _, each: each}
            exec(source, space)
            found.append(list(space["values"](library)))
        assert judge.alike(found[1], found[0])


def test_the_lines_of_an_answer_stay_where_they_were():
    for source in [*SOURCES.values(), 'while (1,\n  "for x in y: /= ")[0]: pass  # x /= 2\n"""\nwhile True:\n"""\n']:
        assert engine.rewritten(source, "line %d").count("\n") == source.count("\n")


# ---------------------------------------------------------------- on real ranks


@pytest.mark.weekly
@pytest.mark.timeout(900)
def test_gloo_agrees(tmp_path):
    subprocess.run([sys.executable, "site/puzzles/on_gloo.py", tmp_path / "verdicts.json"], cwd=ROOT, check=True)
    for title, number, right, why in json.loads((tmp_path / "verdicts.json").read_text()):
        mistakes = next(puzzle["MISTAKES"] for puzzle in PUZZLES if puzzle["TITLE"] == title)
        assert right == (number < 0 or mistakes[number][2:] == ("right on gloo",)), (title, number, why)


# ---------------------------------------------------------------- the page

in_a_browser = pytest.mark.browser


@pytest.fixture
def opened(open_page, tmp_path):
    """opened(width, **settings of the context): the page from a file, its Python ready."""
    file = tmp_path / "puzzles.html"
    file.write_text(build.page(), encoding="utf-8")

    def opened(width, **settings):
        page = open_page(file.as_uri(), file.as_uri(), viewport={"width": width, "height": 800}, **settings)
        page.evaluate("ready")
        return page

    return opened


def verdict(page):
    page.locator("#verdict.right, #verdict.wrong").wait_for(timeout=90_000)
    return page.locator("#verdict").inner_text()


def test_the_page_is_less_than_a_megabyte_and_names_no_file():
    page = build.page()
    assert len(page.encode()) < 1_000_000 and "src=" not in page.split("<script>")[0]


@in_a_browser
@pytest.mark.parametrize("mistakes", [1, pytest.param(None, marks=pytest.mark.weekly)])
def test_solutions_and_mistakes_in_the_page(opened, mistakes):
    """MicroPython says what CPython said above."""
    page = opened(1280)
    for number, puzzle in enumerate(PUZZLES):
        ask = "([i, source]) => ask({title: PUZZLES[i].title, puzzle: PUZZLES[i].text, source, " \
              "used: PUZZLES[i].uses.map(name => [name, answer(numbered(name))])})"
        assert page.evaluate(ask, [number, puzzle["SOLUTION"]])["right"], puzzle["TITLE"]
        for edits, says, *_ in puzzle["MISTAKES"][:mistakes]:
            found = page.evaluate(ask, [number, judge.mistaken(puzzle, edits)])
            assert not found["right"] and found["mistake"] == says


@in_a_browser
@pytest.mark.parametrize(("width", "touch"), [(390, True), (1280, False)])
def test_by_touch_or_mouse_from_a_wrong_answer_to_a_right_one(opened, width, touch):
    page = opened(width, has_touch=touch, color_scheme="dark" if touch else "light")
    press = (lambda name: page.locator(name).tap()) if touch else (lambda name: page.locator(name).click())
    wrong = judge.mistaken(PUZZLES[0], PUZZLES[0]["MISTAKES"][1][0])
    page.fill("#code", wrong)
    press("#run")
    assert "rank 0 (line 6, recv) waits for rank 1" in verdict(page)
    assert PUZZLES[0]["MISTAKES"][1][1] in page.locator("#verdict").inner_text()
    page.fill("#code", PUZZLES[0]["SOLUTION"])
    press("#run")
    page.locator("#verdict.right").wait_for()
    steps = [page.locator("#told").inner_text()]
    for name in ("#next", "#next", "#back", "#back"):
        press(name)
        steps.append(page.locator("#told").inner_text())
    assert steps == steps[::-1] and len(set(steps)) == 3
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    found = Axe().run(page).response["violations"]
    assert not [each["id"] for each in found if each["impact"] in ("serious", "critical")], found
    page.reload()  # what was solved is still there
    assert page.locator("nav .solved").count() == 1 and page.locator("#code").input_value() == PUZZLES[0]["SOLUTION"]


@in_a_browser
def test_by_keyboard_alone(opened):
    page = opened(1280)
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "code":
            break
    page.keyboard.press("ControlOrMeta+a")
    for line in PUZZLES[0]["CODE"].splitlines()[:5]:  # up to the dots; the page indents
        page.keyboard.type(line.strip() + "\n")
    page.keyboard.type("if rank == 0:\ndist.send(tensor, dst=1)\n")
    page.keyboard.press("Backspace")
    page.keyboard.type("else:\ndist.recv(tensor, src=0)")
    page.keyboard.press("Control+Enter")
    assert verdict(page).startswith("✓"), page.locator("#code").input_value()


@in_a_browser
def test_what_does_not_end_is_ended_and_the_next_run_works(opened):
    page = opened(390)
    page.fill("#code", "def give(tensor):\n    while True:\n        pass\n")
    page.locator("#run").click()
    assert "line 2" in verdict(page)
    page.evaluate("PATIENCE = 2000")
    page.evaluate("sum_forever = ask({title: PUZZLES[0].title, puzzle: PUZZLES[0].text, used: [], source: "
                  "'def give(tensor):\\n    sum(range(10**9))'}).catch(problem => problem.message)")
    assert "seconds" in page.evaluate("sum_forever")
    page.fill("#code", PUZZLES[0]["SOLUTION"])
    page.locator("#run").click()
    page.locator("#verdict.right").wait_for()


def solved(page, mine):
    """The folder with the files that the page gives for each solution that trains."""
    for puzzle in (each for each in PUZZLES if each["FILE"]):
        page.evaluate("i => show(i)", PUZZLES.index(puzzle))
        page.fill("#code", puzzle["SOLUTION"])
        page.locator("#run").click()
        page.locator("#verdict.right").wait_for(timeout=90_000)
        with page.expect_download() as download:
            page.locator("#file").click()
        download.value.save_as(mine / download.value.suggested_filename)
    return mine


@in_a_browser
def test_what_was_solved_in_the_page_can_be_taken_home(opened, tmp_path):
    mine = solved(opened(390), tmp_path / "mine")
    assert {path.name for path in mine.iterdir()} == {each["FILE"] for each in PUZZLES if each["FILE"]}


@pytest.mark.weekly
@in_a_browser
def test_what_was_solved_in_the_page_trains_at_home(opened, tmp_path):
    mine = solved(opened(390), tmp_path / "mine")
    shutil.copy(ROOT / "lessons/start/train.py", mine)
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
                           mine / "train.py", "--images=384", "--epochs=1"], cwd=ROOT, capture_output=True, text=True,
                          timeout=200)
    assert done.returncode == 0, done.stderr
    assert "all_reduce (mine), shard (mine)" in done.stdout and "my_ddp (mine)" in done.stdout
    assert check.mean_gradients.verdict(mine / "my_ddp.py")[0] == "right"
