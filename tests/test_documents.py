"""The documents name files that exist, and the README's table has every lesson with its minutes."""

import re

import nbformat
import pytest

from course import runs
from course.lesson import ROOT, notebooks

DOCUMENTS = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md", "TROUBLESHOOTING.md")),
             *ROOT.glob("site/pages/*.md"), ROOT / "teach/README.md", *ROOT.glob("lessons/*/teach.md")]
FOLDERS = "scripts|tests|teach|course|doctor|lessons|notebooks|site|results/recorded"
TO_BE_MADE = re.compile(r"lNN_|17_name")  # a place that the reader fills


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_paths_that_a_document_names_exist(document):
    text = document.read_text(encoding="utf-8")
    named = re.findall(rf"(?<![\w/.-])(?:{FOLDERS})/[\w./-]*\w", text)
    assert [name for name in named if not TO_BE_MADE.search(name) and not (ROOT / name).exists()] == []


def test_the_readme_lists_every_lesson_and_the_figures_of_recorded_runs():
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    lessons = {number: (f"notebooks/{path.name}", nbformat.read(path, as_version=4).metadata.course.minutes)
               for number, path in notebooks().items()}
    table = re.findall(r"\| \[(\w+) [^|]+\]\((\S+)\) \| (\d+) \| (core|elective) \|", readme)
    assert [(number, (file, int(minutes))) for number, file, minutes, _ in table] == [*lessons.items()]
    parts = lessons, [number for number, *_, part in table if part == "core"]
    assert re.findall(r"(?:about|core) (\d+)", readme) == [
        f"{sum(lessons[number][1] for number in part) / 60:.0f}" for part in parts]
    seconds = runs.read_runs(ROOT / "results/recorded/same-training").groupby("label")["seconds"].sum().sort_values()
    assert "in {:.0f} s instead of {:.0f} s:".format(*seconds) in readme
