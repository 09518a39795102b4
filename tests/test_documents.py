"""The documents name files that exist, and the README's table has every lesson with its minutes."""

import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md", "TROUBLESHOOTING.md")),
             *ROOT.glob("site/pages/*.md"), ROOT / "teach/README.md", *ROOT.glob("lessons/*/teach.md")]
FOLDERS = "scripts|tests|teach|course|doctor|lessons|notebooks|site|results/recorded"
TO_BE_MADE = re.compile(r"lNN_|17_name")  # a place that the reader fills


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_paths_that_a_document_names_exist(document):
    text = document.read_text(encoding="utf-8")
    named = re.findall(rf"(?<![\w/.-])(?:{FOLDERS})/[\w./-]*\w", text)
    assert [name for name in named if not TO_BE_MADE.search(name) and not (ROOT / name).exists()] == []


def test_the_readme_lists_every_lesson_with_the_minutes_of_its_notebook():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[(\d\d[a-z]?) .+\]\((notebooks/\w+\.ipynb)\) \| (\d+) \|", readme, re.M)
    lessons = sorted(ROOT.glob("notebooks/*.ipynb"))
    assert listed == [(path.stem.split("_")[0], f"notebooks/{path.name}",
                       str(nbformat.read(path, as_version=4).metadata.course.minutes)) for path in lessons]


def test_the_sections_that_a_tutorials_lines_lead_to_exist():
    page = (ROOT / "site/pages/tutorial.md").read_text(encoding="utf-8")
    named = re.findall(r"\(\.\./\.\./(notebooks/\w+\.ipynb)\), (?:exercise )?\*([^*]+)\*", page)
    for notebook, section in named:
        texts = [cell.source for cell in nbformat.read(ROOT / notebook, as_version=4).cells]
        headings = re.findall(r"^#+ (.+)", "\n".join(texts).replace("`", ""), re.M)
        assert any(section.replace("`", "") in heading for heading in headings), f"{notebook} has no {section}"
    assert len(named) > 20
