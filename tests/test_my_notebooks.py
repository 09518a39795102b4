"""scripts/my_notebooks.py: a copy of one's own, made once, that takes the course's changes and loses no work."""

import json
import re
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from scripts import my_notebooks
from tests import runner

NAME = "05b_shards.ipynb"
STUB = "def my_shard(n):\n    raise NotImplementedError"
CELLS = {"title": "# 05 Shards", "guess": "my_guess = None", "stub": STUB, "check": "check.shard(my_shard)",
         "end": "The end."}


def cell(name, source):
    if source[0].isupper() or source[0] == "#":
        return new_markdown_cell(source, id=name)
    return new_code_cell(source, id=name, execution_count=1, outputs=[new_output("stream", text="the answer")])


@pytest.fixture
def course(tmp_path):
    """publish(cells) writes the course's notebook, lines() updates the copies; mine() and save(notebook) are the
    learner's."""
    class Course:
        lessons, own = tmp_path / "notebooks", tmp_path / "mine"

        def publish(self, cells):
            notebook = new_notebook(cells=[cell(*each) for each in cells.items()], metadata={"course": {"minutes": 60}})
            nbformat.write(notebook, self.lessons / NAME)

        def lines(self):
            return list(my_notebooks.update(self.lessons, self.own))

        def mine(self):
            return nbformat.read(self.own / NAME, as_version=4)

        def save(self, notebook):
            nbformat.write(notebook, self.own / NAME)

        def write(self, name, source):
            notebook = self.mine()
            (changed,) = [each for each in notebook.cells if each.id == name]
            changed.source = source
            self.save(notebook)

        def sources(self):
            return [each.source for each in self.mine().cells]

        def others(self):
            return sorted(path for path in self.own.glob("*") if path.name not in (NAME, ".lock"))

    made = Course()
    made.lessons.mkdir()
    made.publish(CELLS)
    assert made.lines() == []
    return made


def test_a_copy_is_the_course_s_without_outputs_and_the_second_time_nothing_is_written(course):
    assert course.sources() == list(CELLS.values()) and course.mine().metadata.course.minutes == 60
    assert not any(each.get("outputs") or each.get("execution_count") for each in course.mine().cells)
    before = (course.own / NAME).stat()
    assert course.lines() == [] and course.others() == []
    assert (course.own / NAME).stat().st_mtime_ns == before.st_mtime_ns
    course.write("stub", "my answer")
    assert course.lines() == [] and "my answer" in course.sources() and course.others() == []


def test_a_copy_that_nobody_has_touched_becomes_the_new_lesson_without_a_word(course):
    course.publish(CELLS | {"guess": "my_guess = 0", "new": "x = 1"})
    assert course.lines() == [] and course.others() == []
    assert course.sources() == ["# 05 Shards", "my_guess = 0", STUB, "check.shard(my_shard)", "The end.", "x = 1"]


def test_an_update_keeps_answers_and_outputs_and_takes_changed_and_new_cells(course):
    course.write("stub", "def my_shard(n):\n    return n")
    notebook = course.mine()
    notebook.cells[3].outputs = [new_output("stream", text="Right.")]
    notebook.cells.insert(3, new_code_cell("my_shard(3)"))
    course.save(notebook)
    was = (course.own / NAME).read_bytes()
    course.publish({"title": "# 05 Who sees what", "guess": CELLS["guess"], "why": "Why so?", "stub": STUB,
                    "check": CELLS["check"]})
    (line,) = course.lines()
    assert course.sources() == ["# 05 Who sees what", "my_guess = None", "Why so?", "def my_shard(n):\n    return n",
                                "my_shard(3)", "check.shard(my_shard)"]
    assert course.mine().cells[-1].outputs[0].text == "Right."
    (kept,) = course.others()
    assert str(kept) in line and kept.read_bytes() == was
    assert course.lines() == [] and course.others() == [kept]


def test_a_cell_that_both_have_changed_stays_the_learner_s_and_the_course_s_stands_below(course):
    course.write("stub", "def my_shard(n):\n    return n")
    course.publish(CELLS | {"stub": "def my_shard(n, rank):\n    raise NotImplementedError"})
    _, both = course.lines()
    assert both.endswith("yours stays: def my_shard(n):")
    texts = course.sources()
    assert texts[2] == "def my_shard(n):\n    return n" and len(texts) == 6
    assert "def my_shard(n, rank):" in texts[3] and course.mine().cells[3].cell_type == "markdown"
    assert course.lines() == []
    course.publish(CELLS | {"stub": "def my_shard(n, rank):\n    raise NotImplementedError", "end": "It ends."})
    course.lines()
    assert course.sources() == [*texts[:-1], "It ends."]  # no second note


def test_work_in_a_cell_that_the_course_has_dropped_stays_and_is_named(course):
    course.write("stub", "my answer")
    course.publish({name: source for name, source in CELLS.items() if name not in ("stub", "guess")})
    assert course.lines()[1].endswith("my answer")
    assert course.sources() == ["# 05 Shards", "my answer", "check.shard(my_shard)", "The end."]


@pytest.mark.filterwarnings("error")  # nbformat's, of an id that stands twice
def test_a_cell_kept_under_an_id_that_another_cell_has_now_gets_a_new_one(course):
    course.write("stub", "my answer")
    course.publish({"title": CELLS["title"], "stub": CELLS["guess"], "end": CELLS["end"]})
    course.lines()
    assert course.sources() == ["# 05 Shards", "my_guess = None", "my answer", "The end."]


def test_a_build_that_gives_an_id_to_another_cell_loses_nothing(course):
    """As jupytext's pairing by position does: here all ids move one cell down."""
    course.write("stub", "my answer")
    names = [*CELLS, "last"]
    course.publish(dict(zip(names, ["# 05 Shards", "x = 1", "my_guess = None", STUB, "check.shard(my_shard)",
                                    "The end."], strict=True)))
    course.lines()
    assert course.sources() == ["# 05 Shards", "x = 1", "my_guess = None", "my answer", "check.shard(my_shard)",
                                "The end."]
    course.publish(dict(zip(names, ["# 05", "x = 2", "my_guess = 0", STUB, "check.shard(my_shard)", "End."],
                            strict=True)))
    course.lines()
    assert course.sources() == ["# 05", "x = 2", "my_guess = 0", "my answer", "check.shard(my_shard)", "End."]
    nbformat.validate(course.mine())


def test_a_stub_that_the_learner_copied_before_answering_does_not_take_the_answer_s_place(course):
    notebook = course.mine()
    notebook.cells.insert(3, new_code_cell(STUB))
    notebook.cells[2].source = "my answer"
    course.save(notebook)
    course.publish(CELLS | {"stub": STUB.replace("n", "m")})
    course.lines()
    assert course.sources()[2] == "my answer" and course.sources()[4] == STUB  # not the new stub, which would win


def test_a_deleted_cell_stays_away_until_the_course_changes_it(course):
    notebook = course.mine()
    del notebook.cells[1]
    course.save(notebook)
    course.publish(CELLS | {"end": "It ends."})
    course.lines()
    assert course.sources() == ["# 05 Shards", STUB, "check.shard(my_shard)", "It ends."]
    course.publish(CELLS | {"end": "It ends.", "guess": "my_guess = 0"})
    course.lines()
    assert course.sources() == ["# 05 Shards", "my_guess = 0", STUB, "check.shard(my_shard)", "It ends."]


@pytest.mark.parametrize("text", ["", '{"cells": [', "[]", '{"nbformat": 4, "nbformat_minor": 5}', '{"cells": 1}', None,
                                  '{"nbformat": 4, "nbformat_minor": 5, "metadata": {"made_of": 3}, "cells": []}'])
def test_a_torn_file_is_kept_beside_a_new_copy(text, course):
    (course.own / NAME).unlink()
    if text is None:
        (course.own / NAME).mkdir()
    else:
        (course.own / NAME).write_text(text)
    (line,) = course.lines()
    (kept,) = course.others()
    assert str(kept) in line and (text is None or kept.read_text() == text)
    assert course.sources() == list(CELLS.values()) and course.lines() == []


def test_a_damaged_notebook_of_the_course_stops_no_other_and_leaves_the_copy(course):
    course.write("stub", "my answer")
    (course.lessons / NAME).write_text("<<<<<<< HEAD")
    nbformat.write(new_notebook(cells=[cell("title", "# 06 Next")]), course.lessons / "06_next.ipynb")
    (line,) = course.lines()
    assert NAME in line and "my answer" in course.sources() and (course.own / "06_next.ipynb").exists()


@pytest.mark.parametrize("minor", [4, 5])  # 5 asks for ids, and not every program writes them
def test_a_foreign_notebook_of_that_name_keeps_its_cells_and_gets_the_lesson(course, minor):
    """Without ids, and without a word of what it was made of."""
    foreign = new_notebook(cells=[new_code_cell("import os"), new_code_cell(CELLS["guess"], outputs=[
        new_output("stream", text="1")])])
    foreign.nbformat_minor = minor
    for each in foreign.cells:
        del each["id"]
    (course.own / NAME).write_text(json.dumps(foreign))
    (line,) = course.lines()
    assert sorted(course.sources()) == sorted(["import os", *CELLS.values()])
    assert str(course.others()[0]) in line
    nbformat.validate(course.mine())


def test_files_of_the_learner_s_own_stay(course):
    (course.own / "notes.ipynb").write_text("mine")
    course.publish(CELLS | {"end": "It ends."})
    course.lines()
    assert (course.own / "notes.ipynb").read_text() == "mine"


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clone")
    return folder, runner.clone(folder)


def start(folder, environment):
    return subprocess.Popen([sys.executable, "scripts/my_notebooks.py"], cwd=folder, env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_two_at_the_same_time_make_one_whole_copy_and_touch_nothing_else(clone):
    folder, environment = clone
    before = {path: path.stat().st_mtime_ns for path in folder.glob("notebooks/**/*") if path.is_file()}
    both = [start(folder, environment) for _ in range(2)]
    assert [(process.communicate(timeout=120)[0], process.returncode) for process in both] == [("", 0)] * 2
    lessons = {path.name: nbformat.read(path, as_version=4) for path in folder.glob("notebooks/*.ipynb")}
    copies = {path.name: nbformat.read(path, as_version=4) for path in folder.glob("my-notebooks/*")
              if path.name != ".lock"}
    assert copies.keys() == lessons.keys()
    for name, copy in copies.items():
        assert [each.source for each in copy.cells] == [each.source for each in lessons[name].cells]
        assert not any(each.get("outputs") for each in copy.cells)
    assert before == {path: path.stat().st_mtime_ns for path in folder.glob("notebooks/**/*") if path.is_file()}


def test_a_file_in_the_folder_s_place_is_refused_in_one_line(clone, tmp_path):
    folder, environment = clone
    (folder / "my-notebooks").rename(tmp_path / "aside")
    (folder / "my-notebooks").write_text("mine")
    process = start(folder, environment)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 2 and re.fullmatch(r".*my-notebooks: File exists\n", out), out
    assert (folder / "my-notebooks").read_text() == "mine"


def test_git_ignores_the_copy():
    done = subprocess.run(["git", "check-ignore", "my-notebooks/05.ipynb"], cwd=runner.ROOT, capture_output=True,
                          timeout=60)
    assert done.returncode == 0
