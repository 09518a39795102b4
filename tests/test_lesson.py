"""course/lesson.py: what the first cell of every lesson does, and the tables that lessons show."""

import json
import subprocess
import sys
from pathlib import Path

import jupytext
import launch
import pandas as pd
import pytest

from course import lesson

TWIN = sorted(Path(launch.ROOT, "notebooks/text").glob("*.py"))[0]
FIRST_CELL = next(cell.source for cell in jupytext.read(TWIN).cells if cell.cell_type == "code")
TOLD = """
import json, os, shutil
print(json.dumps([os.getcwd(), sys.path[0], sys.path.count(os.getcwd()), sys.executable, shutil.which("python"),
                  os.environ["PATH"].split(os.pathsep), os.environ["PYTHONPATH"].split(os.pathsep),
                  get_ipython().system_raise_on_error]))
"""


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("place", ["the root", "notebooks", "the folder that holds the clone"])
def test_a_lesson_begins_from_anywhere_any_number_of_times(place, times, tmp_path):
    (tmp_path / "clone").symlink_to(launch.ROOT)
    folder = {"the root": launch.ROOT, "notebooks": launch.ROOT / "notebooks"}.get(place, tmp_path)
    code = (FIRST_CELL + "\n") * times + TOLD
    env = launch.environment(PYTHONPATH="/elsewhere", PATH="/usr/bin:/bin", IPYTHONDIR=str(tmp_path))
    done = subprocess.run([sys.executable, "-m", "IPython", "--colors=NoColor", "-c", code], cwd=folder, env=env,
                          capture_output=True, text=True, timeout=launch.LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    here, first, count, python, found, paths, python_paths, raises = json.loads(done.stdout.splitlines()[-1])
    assert here == first == str(launch.ROOT) and count == 1
    assert Path(found).parent == Path(python).parent, "commands of cells are this environment's"
    assert paths == [str(Path(python).parent), "/usr/bin", "/bin"]
    assert python_paths == [str(launch.ROOT), "/elsewhere"]
    assert raises is True


@pytest.mark.parametrize(("mine", "found", "unit", "said"), [
    (None, 1.5, "ms", "Nothing predicted yet: replace `None` above. Here it is **1.5 ms**."),
    (3, 1234.5678, "µs", "You predicted **3 µs**. Here it is **1,235 µs**."),
    (3.0, 3, "", "You predicted **3**, and that is what came out."),
    (19, "19", "", "You predicted **19**, and that is what came out."),
    ("b", "a", "", "You predicted **b**. Here it is **a**."),
    ([10, 20], [10, 20], "", "You predicted **[10, 20]**, and that is what came out."),
    (False, True, "", "You predicted **False**. Here it is **True**."),
])
def test_a_prediction_stands_beside_what_came_out(mine, found, unit, said, shown):
    lesson.predicted(mine, found, unit)
    assert shown == [said]


@pytest.fixture
def shown(monkeypatch):
    """What was shown, as Markdown."""
    texts = []
    monkeypatch.setattr(lesson, "_show", texts.append)
    return texts


def test_a_table_of_dicts_and_one_of_a_frame_are_the_same(shown):
    rows = [{"run": "one | two", "s": 1.5, "change": "−3 %"}, {"run": "three", "s": 2, "change": "–"}]
    lesson.table(rows)
    lesson.table(pd.DataFrame(rows, dtype=object))
    assert shown[0] == shown[1] == "\n".join([
        r"| run | s | change |",
        r"| :-- | --: | --: |",
        r"| one \| two | 1.5 | −3 % |",
        r"| three | 2 | – |",
    ])


def test_columns_of_figures_stand_to_the_right(shown):
    lesson.table([{"figure": figure, "word": "ddp2", "mixed": mixed}
                  for figure, mixed in (("1,024", "1"), ("<0.1", "one"), ("+2 %", "2"), ("nan", "3"), (".5", "4"))])
    assert shown[0].splitlines()[1] == "| --: | :-- | :-- |"


def test_code_is_shown_as_it_stands_in_its_file(shown):
    lesson.code(lesson.some, lesson.code)
    assert shown[0].startswith('```python\ndef some(number, what):\n    """"1 rank"')
    assert shown[0].endswith("\n```") and "\n\ndef code(*functions):" in shown[0]


def test_some_words_a_number():
    assert [lesson.some(n, "rank") for n in (0, 1, 8, 50_000)] == ["0 ranks", "1 rank", "8 ranks", "50,000 ranks"]


def test_a_difference_shows_what_a_function_adds_and_what_it_keeps(shown):
    def old(x):
        return x

    def new(x):
        x += 1
        return x

    lesson.difference(old, new)
    assert shown == ["```diff\n-    def old(x):\n+    def new(x):\n+        x += 1\n         return x\n```"]
