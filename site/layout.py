"""The web edition: lays out notebooks and texts as Sphinx reads them, lets it make the pages, and publishes them.

A page's source keeps its path in the course, so that links between texts hold. Added on the way: when a lesson was last
verified, the committed notebook to download, and solutions to unfold. Each entry of TROUBLESHOOTING.md becomes a page
of its own, so that a search for a message finds the entry.
"""

import base64
import html
import importlib
import inspect
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from PIL import Image

import cards
from course import twins
from course.lesson import NONE_PREDICTED, NOTHING_PREDICTED, some
from gallery import guide
from gallery.table import read_messages
from puzzles import build as puzzles
from trainer import files

EXECUTED = Path("build/notebooks")  # what scripts/run has executed
SOURCE, CACHE, MADE = Path("build/site-source"), Path("build/site-cache"), Path("build/site-made")  # Sphinx's
SITE = Path("build/site")  # what readers open
ORPHAN = "---\norphan: true\n---\n\n"  # a page that links lead to, and no list
SLOW = 300  # seconds that Sphinx may take

CONTENTS = Path("site/contents.txt")  # the front page, to be filled in

CARD = """::::{{container}} lesson
{picture}

**[{title}](notebooks/{name}.ipynb)**

{question}

[{time}]{{.time}}
::::
"""


class Lesson:
    """A notebook, as the site needs it."""

    def __init__(self, path: Path, executed: bool):
        run = EXECUTED / path.name
        newer = executed and run.exists() and run.stat().st_mtime > path.stat().st_mtime
        self.name, self.number = path.stem, path.stem.split("_")[0]
        self.notebook = nbformat.read(run if newer else path, as_version=4)
        self.run = self.notebook.metadata.get("course_run") if newer else None
        text = "\n\n".join(cell.source for cell in self.notebook.cells if cell.cell_type == "markdown")
        self.title = twins.title_of(self.notebook, path.stem)
        question = re.search(r"\*\*The question\.\*\*(.+?)(?:\n\n|$)", text, re.S)
        self.question = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(question[1].split())) if question else ""

    @property
    def time(self) -> str:
        """The minutes it takes, and how it ended where scripts/run has executed it."""
        course = self.notebook.metadata.get("course", {})
        parts = [f"about {some(course['minutes'], 'minute')} for you"] if "minutes" in course else []
        if "seconds" in course:
            parts.append(f"{some(math.ceil(course['seconds'] / 60), 'minute')} for a machine with two cores")
        if self.run:
            parts.append(f"{self.run['status']} here after {self.run['seconds']:.0f} s, {self.run['finished']}"
                         + (", quick tier" if self.run["tier"] == "quick" else ""))
        return "; ".join(parts)

    @property
    def verified(self) -> str:
        """The line that lesson.begin() printed: versions, machine, date; and how quiet the machine was."""
        others = self.notebook.metadata.get("others")
        quiet = "" if others is None else f"; other programs took {others:.3f} of a core"
        for cell in self.notebook.cells:
            for output in cell.get("outputs", []) if "lesson.begin()" in cell.source else []:
                if output.output_type == "stream":
                    return output.text.strip() + quiet
        return ""

    @property
    def cover(self) -> NotebookNode | None:
        """The output with its first picture; None where it has none."""
        outputs = (output for cell in self.notebook.cells for output in cell.get("outputs", []))
        return next((output for output in outputs if "image/png" in output.get("data", {})), None)


def build(executed: bool) -> Path:
    """Make the pages from the committed notebooks, or from what scripts/run has executed since; the path of the first.

    Sphinx's warnings go to stderr. RuntimeError where it made no pages.
    """
    if not Path("site/conf.py").is_file():
        raise RuntimeError("no pages: site/ is missing; is this a whole clone of the course?")
    Path("build").mkdir(exist_ok=True)
    with files.file_lock("build/site.lock", 2 * SLOW):
        if lay_out(executed) or not executed:  # Sphinx removes no page
            shutil.rmtree(MADE, ignore_errors=True)
            shutil.rmtree(CACHE, ignore_errors=True)
        command, done = [sys.executable, "-m", "sphinx", "-q", "-c", "site", "-d", CACHE, SOURCE, MADE], False
        try:
            subprocess.run(command, timeout=SLOW, check=True)
            done = True
        except subprocess.SubprocessError as failed:
            raise RuntimeError(f"Sphinx made no pages: {failed}") from None
        finally:
            if not done:  # stopped by Ctrl-C, too: Sphinx does not mend pages made by half
                shutil.rmtree(MADE, ignore_errors=True)
        new = SITE.with_name("site-new")
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(MADE, new, ignore=shutil.ignore_patterns("*.map", "*.woff2"))  # the theme's, 3 MB
        style = new / "_static/styles/pydata-sphinx-theme.css"
        text = re.sub(r"(\.fa-[\w-]+,?)+\{--fa:[^}]*\}", "", style.read_text(encoding="utf-8"))  # 2,000 icons
        style.write_text(text, encoding="utf-8")
        (new / "puzzles.html").write_text(puzzles.page(), encoding="utf-8")
        shutil.rmtree(SITE, ignore_errors=True)
        new.rename(SITE)
    return SITE / "index.html"


def lay_out(executed: bool) -> bool:
    """Write what Sphinx reads, but no file that is there already: only pages whose source changed are made again.

    True where a file had no source any more.
    """
    lessons = []
    texts = troubleshooting()  # {path below SOURCE: text or bytes}
    entries = {Path(name).stem for name in texts if name.startswith("troubleshooting/")}
    notebooks = sorted(Path("notebooks").glob("[0-9][0-9]*_*.ipynb"))
    for path in notebooks:
        try:
            lessons.append(Lesson(path, executed))
            texts |= page_of(lessons[-1], entries, f"{len(lessons)} of {len(notebooks)} lessons")
        except Exception as problem:  # whatever somebody's own notebook has in it, its name is what helps
            raise RuntimeError(f"{path} makes no page: {type(problem).__name__}: {problem}") from problem
    extra = sorted(Path("site/pages").glob("*.md"))
    for path in [*extra, Path("README.md")]:
        texts[path.as_posix()] = path.read_text(encoding="utf-8")
    if Path("teach").is_dir():
        from teach import teaching  # late: where teach/ is missing, it may be, too

        made = teaching.pages([Lesson(path, executed=False) for path in notebooks])
        texts |= {name: text if name == "teach/index.md" else ORPHAN + text for name, text in made.items()}
    texts["site/pages/cards.md"] = cards.page(lessons)
    texts["index.md"] = contents(lessons, extra, "teach/index.md" in texts)
    linked(texts)
    return keep(texts)


def page_of(lesson: Lesson, entries: set[str], place: str) -> dict[str, str | bytes]:
    """The files of a lesson's page: the notebook laid out, its picture for the contents, the notebook to download."""
    download = f'<a href="../download/{lesson.name}.ipynb" download>Download the notebook</a>'
    head = " · ".join([f"No. {place}", download, *twins.launch_links(lesson.name)])
    if verified := lesson.verified:
        head += f"<br>Last verified: {verified}"
    cells, asked, answered = [], False, False
    for cell in lesson.notebook.cells:
        if cell.cell_type == "markdown":
            asked = asked and not answered and not cell.source.startswith("## ")
            cells.append(cell)
            cell.source = to_entries(cell.source, entries, "../")
            if Path("teach").is_dir():
                cell.source = re.sub(r"^(?=## What to remember)", lambda _: quiz(lesson.name), cell.source, flags=re.M)
            continue
        if "lesson.begin()" in cell.source:
            cell.outputs = []  # they stand at the head of the page
            fold(cell, "hide-input", "Set-up")
        if re.search(r"^my_\w+ = None", cell.source, re.M):
            asked, answered = True, False
        if asked and cell.outputs and "lesson.interactive(" not in cell.source:  # whoever reads on predicts first, too
            fold(cell, "hide-output", "Show the {type}")
        answered = answered or "lesson.predicted(" in cell.source  # what follows, up to the next text, tells it, too
        for data in (output.get("data", {}) for output in cell.outputs):
            if text := data.get("text/markdown"):  # a page has no `None` to replace
                text = text.replace(NOTHING_PREDICTED, "").replace(NONE_PREDICTED, "")
                data["text/markdown"] = to_entries(text, entries, "../")
        cells += one_picture_each(cell)
        for checks, exercise in re.findall(r"^# (\w+)\.(\w+)\.solution\(\)", cell.source, re.M):
            module = f"lessons.l{lesson.name}.{checks}"
            cells.append(nbformat.v4.new_markdown_cell(folded(module, exercise), id=f"solution-{exercise}"))
    title, below, rest = cells[0].source.partition("\n")
    cells[0].source = f"{title}\n\n{{.verified}}\n{head}\n{below}{rest}"
    lesson.notebook.cells = cells
    made = {f"notebooks/{lesson.name}.ipynb": nbformat.writes(lesson.notebook),
            f"download/download/{lesson.name}.ipynb": (Path("notebooks") / f"{lesson.name}.ipynb").read_bytes()}
    if cover := lesson.cover:
        small = Image.open(io.BytesIO(base64.b64decode(cover.data["image/png"]))).convert("RGB")
        small.thumbnail((512, 512))
        small.quantize(64).save(file := io.BytesIO(), "png", optimize=True)
        made[f"pictures/{lesson.name}.png"] = file.getvalue()
    return made


def fold(cell: NotebookNode, tag: str, prompt: str) -> None:
    """Fold a part of the cell behind `prompt`."""
    cell.metadata["tags"] = [*cell.metadata.get("tags", []), tag]
    cell.metadata["mystnb"] = {"code_prompt_show": prompt, "code_prompt_hide": prompt}


def quiz(lesson: str) -> str:
    """A lesson's three questions for a show of hands: choices to click, which course.js judges, and the answer."""
    from teach import teaching  # late: where teach/ is missing, it may be, too

    text = "## Three questions\n\nChoose, then unfold the answer.\n\n"
    for number, asked in enumerate(teaching.questions_of(lesson), 1):
        name = f"question-{number}"
        choices = "\n\n".join(f'<label><input type="radio" name="{name}" value="{letter}"> {letter}. {option}</label>'
                              for letter, option in asked.options.items())
        text += (f'<div class="question" data-right="{asked.right}" role="radiogroup" aria-labelledby="{name}">'
                 f'<div id="{name}">\n\n**{number}.** {asked.text}\n\n</div>\n\n{choices}\n\n'
                 f'<p role="status"></p><details><summary>The answer</summary>\n\n**{asked.right}.** {asked.why}\n\n'
                 "</details></div>\n\n")
    return text


def one_picture_each(cell: NotebookNode) -> list[NotebookNode]:
    """`cell`, and below it one for each further picture: myst-nb takes the alt text from the cell. (Of a cell without
    source it shows no outputs.)"""
    cells = [cell]
    outputs, cell.outputs = cell.outputs, []
    for output in outputs:
        if "image/png" in output.get("data", {}):
            if "image" in cells[-1].metadata.get("mystnb", {}):
                bare = {"tags": ["remove-input", *(tag for tag in cell.metadata.get("tags", []) if "output" in tag)]}
                cells.append(nbformat.v4.new_code_cell("pass", metadata=bare, id=f"{cell.id}-{len(cells)}"))
            cells[-1].metadata.setdefault("mystnb", {})["image"] = {"alt": alt_text(output)}
        cells[-1].outputs.append(output)
    return cells


def folded(module: str, name: str) -> str:
    """Hint and solution of an exercise, to unfold."""
    exercise = getattr(importlib.import_module(module), name)
    answer = exercise.answer
    solution = (answer.read_text(encoding="utf-8") if isinstance(answer, Path) else
                textwrap.dedent(inspect.getsource(answer)) if callable(answer) else str(answer))
    hints = "".join(f"<details><summary>{'Hint' if number == 1 else 'More'}</summary><p>"
                    + re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(hint)) + "</p></details>\n"
                    for number, hint in enumerate(exercise.hints, start=1))
    return (f"{hints}"
            f"<details><summary>Solution</summary>\n\n```python\n{solution.strip()}\n```\n\n</details>")


def troubleshooting() -> dict[str, str]:
    """TROUBLESHOOTING.md, each entry of the gallery's table a page, and what the search knows of the entries."""
    messages = read_messages()
    entries = {message.number: message.anchor for message in messages}

    def page(text, up):
        return to_entries(text.replace("](#", "](TROUBLESHOOTING.md#"), entries.values(), up)

    def to_links(named):
        """"entry 39 or 40", each number a link."""
        return re.sub(r"\d+\w?", lambda number: f"[{number[0]}](#{entries[number[0]]})", named[0])

    texts = {"TROUBLESHOOTING.md": page(f"{guide.head()}\n{guide.contents()}", "")}
    for message in messages:
        text = re.sub(r"\bentr(?:y|ies) \d+\w?(?:(?:,| and| or) \d+\w?)*", to_links, guide.section(message))
        texts[f"troubleshooting/{message.anchor}.md"] = (  # a page's heading is of level 1
            f"{ORPHAN}{page(text[1:], '../')}\n[All of troubleshooting](../TROUBLESHOOTING.md)".replace(
                "](README", "](../README"))
    seen = {f"troubleshooting/{message.anchor}": guide.searched(message) for message in messages}
    return texts | {"messages.js": f"const SEEN = {json.dumps(seen, ensure_ascii=False)};\n"}


def to_entries(text: str, entries: Iterable[str], up: str) -> str:
    """Links to an entry of TROUBLESHOOTING.md lead to its page. `up`: from here to the root of the course."""
    return re.sub(r"\((?:\.\./)?TROUBLESHOOTING\.md#([\w-]+)\)", lambda link: f"({up}troubleshooting/{link[1]}.md)"
                  if link[1] in entries else f"({up}TROUBLESHOOTING.md#{link[1]})", text)


def contents(lessons: list[Lesson], extra: list[Path], teachers: bool) -> str:
    """The front page. `extra`: texts to look up; `teachers`: whether there are pages for them."""
    readme = Path("README.md").read_text(encoding="utf-8")
    title, lead = re.match(r"# (.+?)\n\n(.+?)\n\n## ", readme, re.S).groups()
    cards = "\n".join(CARD.format(
        picture=f"[![{alt_of(lesson)}](pictures/{lesson.name}.png)](notebooks/{lesson.name}.ipynb)"
        if lesson.cover else "", title=lesson.title, name=lesson.name, question=lesson.question, time=lesson.time)
        for lesson in lessons)
    pages = "\n".join(f"- [{re.match('# (.+)', path.read_text(encoding='utf-8'))[1]}]({path})" for path in extra)
    others = "\n".join(str(path.with_suffix("")) for path in extra)
    if teachers:
        pages += "\n- [For teachers](teach/index.md): plans, and a page a lesson."
        others += "\nteach/index"
    in_core = re.findall(r"^\| \[(\w+) .+\| core \|", readme, re.M)
    core = [lesson for lesson in lessons if lesson.number in in_core]
    return CONTENTS.read_text(encoding="utf-8").format(
        title=title, lead=lead, cards=cards, pages=pages, others=others, count=len(lessons), hours=hours(lessons),
        core_hours=hours(core), core=", ".join(f"[{lesson.title}](notebooks/{lesson.name}.ipynb)" for lesson in core),
        teachers="[copies, plans, grading](teach/index.md)" if teachers else "[copies, plans, grading](README.md)",
        lessons="\n".join(f"notebooks/{lesson.name}" for lesson in lessons))


def hours(lessons: list[Lesson]) -> str:
    """What the lessons state for a learner, to the half hour: "6½"."""
    halves = round(sum(lesson.notebook.metadata.get("course", {}).get("minutes", 0) for lesson in lessons) / 30)
    return f"{halves // 2}{'½' * (halves % 2)}"


def alt_of(lesson: Lesson) -> str:
    """The words of a lesson's picture, as a Markdown image takes them."""
    return alt_text(lesson.cover).replace("[", "(").replace("]", ")") or f"A picture of lesson {lesson.number}"


def alt_text(output: NotebookNode) -> str:
    """The words of a picture; empty where none were stored with it."""
    return output.metadata.get("image/png", {}).get("alt", "")


def linked(texts: dict[str, str | bytes]) -> None:
    """Add to `texts` the parts of the course that they link to, and so on: texts and programs as pages."""
    waiting = list(texts)
    while waiting:
        name = waiting.pop()
        if not name.endswith((".md", ".ipynb")) or name.startswith("download/"):
            continue
        text = texts[name]
        for target in set(re.findall(r"\]\(([^)#:\s]+)", text)):
            path = Path(os.path.normpath(Path(name).parent / target.replace("\\n", "")))
            if path.suffix == ".py" and path.is_file() and not name.endswith(".py.md"):  # a page of it
                text = texts[name] = text.replace(f"]({target})", f"]({target}.md)")
                page = f"{path}.md"
                if page not in texts:
                    texts[page] = (f"{ORPHAN}# `{path}`\n\n[Download]({path.name})\n\n~~~~python\n"
                                   f"{path.read_text(encoding='utf-8')}\n~~~~\n")
                    waiting.append(page)
                continue
            if path.as_posix() in texts or path.is_absolute() or ".." in path.parts:
                continue
            if (path / "README.md").is_file():  # a folder's page
                text = texts[name] = text.replace(f"]({target})", f"]({target}/README.md)")
                path /= "README.md"
            if path.is_file() and path.as_posix() not in texts:
                texts[path.as_posix()] = (ORPHAN + path.read_text(encoding="utf-8") if path.suffix == ".md"
                                          else path.read_bytes())
                waiting.append(path.as_posix())


def keep(texts: dict[str, str | bytes]) -> bool:
    """Make SOURCE hold `texts` and nothing else; a file that is the same keeps its time. True if it removed some."""
    stale = [path for path in SOURCE.rglob("*") if path.is_file() and path.relative_to(SOURCE).as_posix() not in texts]
    for path in stale:
        path.unlink()
    for name, data in texts.items():
        path, data = SOURCE / name, data.encode() if isinstance(data, str) else data
        if not path.exists() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return bool(stale)
