"""The traps of lesson 07: what notices each of them, and what a repair must keep. And the card that has a program."""

import re

import pytest

from course import exercise
from course.one_process import compare
from lessons.l07_traps import capstone, plant
from tests import runner

WRONG = {  # "repairs" that are none: number of the trap, edits of it, a part of the message
    "the rule deleted": (1, {"step and losses": "False and losses"}, "Keep what it does there"),
    "rank 0 alone decides": (1, {"if step and losses": "if rank == 0 and step and losses"}, "What do the ranks do"),
    "class 3 counts again": (2, {"ignore_index=3": "ignore_index=-100"}, "Keep what it does there"),
    "divided by all images": (2, {"ignore_index=3)": 'ignore_index=3, reduction="sum") / len(labels)'},
                              "Keep what it does there"),
    "some images left out": (3, {"-(-1000 // world_size)": "1000 // world_size"}, "those of one process are"),
}


def written(folder, number, edits):
    path = folder / "train.py"
    path.write_text(exercise.edited(plant.edited(plant.COURSES.read_text(), number), edits))
    return path


@pytest.fixture(autouse=True)
def the_courses_program(monkeypatch):
    """Whoever runs the tests may have a program of their own in mine/."""
    monkeypatch.setattr(plant, "text_of", lambda number: plant.edited(plant.COURSES.read_text(), number))


@pytest.mark.weekly
@pytest.mark.parametrize("number", plant.TRAPS)
def test_what_notices_a_trap_and_what_does_not(number, tmp_path):
    one, two, three = compare(written(tmp_path, number, {}), capstone.FEW, to_end=True)
    assert [two.one_model, two.equal] == {1: [False, False], 2: [True, False], 3: [True, True]}[number]
    assert two.status == three.status == (number == 1), "the program itself compares the ranks' weights, and no more"
    if number == 1:
        parting = two.between_ranks[1]
        assert parting.update > 1 and not parting.gradient, "one rank's step was smaller, with the same gradient"
    if number == 2:
        assert two.from_one.gradient[1] > 1e-3, "it points elsewhere"
    if number == 3:
        printed = [capstone.EPOCH.findall(each.printed) for each in (one, two, three)]
        assert printed[0] == printed[1] != printed[2], "1,000 images cannot be shared by three"


@pytest.mark.weekly
@pytest.mark.parametrize("number", plant.TRAPS)
def test_our_repair_is_right_and_an_untouched_trap_is_untried(number, tmp_path):
    outcome, message = getattr(capstone, f"trap_{number}").verdict(written(tmp_path, number, capstone.REPAIRS[number]))
    assert outcome == "right", message
    assert getattr(capstone, f"trap_{number}").verdict(written(tmp_path, number, {}))[0] == "untried"


@pytest.mark.weekly
@pytest.mark.parametrize("name", WRONG)
def test_a_repair_that_is_none_is_told_why(name, tmp_path):
    number, edits, words = WRONG[name]
    outcome, message = getattr(capstone, f"trap_{number}").verdict(written(tmp_path, number, edits))
    assert outcome == "wrong" and words in message, message


def test_planting_keeps_a_repair_and_falls_back_on_the_course_s_program(tmp_path, monkeypatch, capsys):
    courses = plant.COURSES.read_text()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    monkeypatch.setattr(plant, "COURSES", tmp_path / "courses.py")
    plant.COURSES.write_text(courses)
    (tmp_path / "mine/train.py").write_text(courses.replace("1000,", "1000 + 0,") + "# mine\n")
    (tmp_path / "mine/trap_2.py").write_text("repaired")
    plant.main()
    first, second, third = (tmp_path.joinpath(f"mine/trap_{number}.py").read_text() for number in plant.TRAPS)
    assert first.endswith("# mine\n") and second == "repaired" and not third.endswith("# mine\n")
    assert len({courses, first, third}) == 3 and "stays as it is" in capsys.readouterr().out


@pytest.mark.weekly
def test_a_model_that_changes_its_type_after_ddp_is_no_longer_synchronised():
    done = runner.run(2, script="lessons/l07_traps/cards/converted_late.py")
    late, early = re.findall(r"apart by (\S+)", done.stdout)
    assert float(late) > 1e-3 and float(early) == 0, done.stderr
