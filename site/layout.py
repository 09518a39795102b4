"""The web edition: lays out notebooks and texts as Sphinx reads them, and lets it build the pages.

A page's source keeps its path in the course, so that links between texts hold. What is added on the way: when a lesson
was last verified, solutions to unfold, links to the glossary. Each entry of TROUBLESHOOTING.md becomes a page of its
own, so that a search for a message finds the entry.
"""

import base64
import html
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import nbformat
import yaml

from course.lesson import some
from files import file_lock
from lessons.l12_break_it.gallery_table import anchor

EXECUTED = Path("build/notebooks")  # what scripts/run has executed
SOURCE, SITE, CACHE = Path("build/site-source"), Path("build/site"), Path("build/site-cache")
WHOLE_SITE = Path("build/site-is-whole")  # there when Sphinx came to its end
ORPHAN = "---\norphan: true\n---\n\n"  # a page that links lead to, and no list
SLOW = 300  # seconds that Sphinx may take

CONTENTS = """# {title}

{lead}

## The lessons

:::::{{container}} lessons
{cards}
:::::

## Beside the lessons

- [When something goes wrong](TROUBLESHOOTING.md): messages and silent mistakes, each with its repair.
- [Glossary](glossary.md): the words of the field.
{pages}
- [About the course](README.md): how to run it, how fast it is, what it survives.

```{{toctree}}
:hidden:
:caption: Lessons

{lessons}
```

```{{toctree}}
:hidden:
:caption: To look up

TROUBLESHOOTING
glossary
{others}
About the course <README>
```
"""

CARD = """::::{{container}} lesson
{picture}

**[{title}](notebooks/{name}.ipynb)**

{question}

[{time}]{{.time}}
::::
"""


class Lesson:
    """A notebook, as the site needs it."""

    def __init__(self, path, executed):
        run = EXECUTED / path.name
        newer = executed and run.exists() and run.stat().st_mtime > path.stat().st_mtime
        self.name, self.notebook = path.stem, nbformat.read(run if newer else path, as_version=4)
        self.run = self.notebook.metadata.get("course_run") if newer else None
        self.text = "\n\n".join(cell.source for cell in self.notebook.cells if cell.cell_type == "markdown")
        title = re.search(r"^# +(.+)", self.text, re.M)
        self.title = title[1] if title else path.stem
        question = re.search(r"\*\*The question\.\*\*(.+?)(?:\n\n|$)", self.text, re.S)
        self.question = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(question[1].split())) if question else ""

    @property
    def time(self):
        course = self.notebook.metadata.get("course", {})
        parts = [f"about {some(course['minutes'], 'minute')} for you"] if "minutes" in course else []
        if "seconds" in course:
            parts.append(f"{some(max(1, round(course['seconds'] / 60)), 'minute')} for a machine with two cores")
        if self.run:
            parts.append(f"{self.run['status']} here after {self.run['seconds']:.0f} s, {self.run['finished']}"
                         + (", quick tier" if self.run["tier"] == "quick" else ""))
        return "; ".join(parts)

    @property
    def verified(self):
        """What lesson.begin() printed: versions, machine, date."""
        for cell in self.notebook.cells:
            for output in cell.get("outputs", []) if "lesson.begin()" in cell.source else []:
                if output.output_type == "stream":
                    return output.text.strip()
        return ""

    @property
    def cover(self):
        """The output with its first picture; None where it has none."""
        outputs = (output for cell in self.notebook.cells for output in cell.get("outputs", []))
        return next((output for output in outputs if "image/png" in output.get("data", {})), None)


def build(executed=False):
    """Makes the pages from the committed notebooks, or from what scripts/run has executed since; the path of the first.

    Sphinx's warnings go to stderr. RuntimeError where it made no pages.
    """
    if not Path("site/conf.py").is_file():
        raise RuntimeError("no pages: site/ is missing; is this a whole clone of the course?")
    citation = yaml.safe_load(Path("CITATION.cff").read_text(encoding="utf-8"))
    Path("build").mkdir(exist_ok=True)
    with file_lock("build/site.lock", 2 * SLOW):
        changed = lay_out(executed, citation["repository-code"], citation["version"])
        if changed or not executed or not WHOLE_SITE.exists():  # Sphinx mends no half site, and removes no page
            shutil.rmtree(SITE, ignore_errors=True)
            shutil.rmtree(CACHE, ignore_errors=True)
        WHOLE_SITE.unlink(missing_ok=True)
        command = [sys.executable, "-m", "sphinx", "-q", "-c", "site", "-d", str(CACHE), str(SOURCE), str(SITE)]
        try:
            subprocess.run(command, env=os.environ | {"COURSE_VERSION": citation["version"]}, timeout=SLOW, check=True)
        except subprocess.SubprocessError as failed:
            raise RuntimeError(f"Sphinx made no pages: {failed}") from None
        WHOLE_SITE.touch()
    return SITE / "index.html"


def lay_out(executed, repository, version):
    """Writes what Sphinx reads, but nothing that is there already: only pages whose source changed are made again.

    True where something that was there has no source any more.
    """
    lessons = []
    terms = tomllib.loads(Path("site/glossary.toml").read_text(encoding="utf-8"))["term"]
    files = {}  # {path below SOURCE: text or bytes}
    uses = {term["name"]: [] for term in terms}  # {name of a term: the lessons that use it}
    files |= troubleshooting()
    entries = {Path(name).stem for name in files if name.startswith("troubleshooting/")}
    notebooks = sorted(Path("notebooks").glob("[0-9][0-9]_*.ipynb"))
    for path in notebooks:
        try:
            lessons.append(Lesson(path, executed))
            files |= page_of(lessons[-1], terms, uses, entries, doors(path.stem, repository, version))
        except Exception as problem:  # whatever somebody's own notebook has in it, its name is what helps
            raise RuntimeError(f"{path} makes no page: {type(problem).__name__}: {problem}") from problem
    files["glossary.md"] = glossary(terms, uses)
    extra = sorted(Path("site/pages").glob("*.md"))
    for path in [*extra, Path("README.md")]:
        files[path.as_posix()] = path.read_text(encoding="utf-8")
    if Path("teach").is_dir():
        from teach import teaching  # late: where teach/ is missing, it may be, too

        made = teaching.pages([Lesson(path, executed=False) for path in notebooks])
        files |= {name: text if name == "teach/index.md" else ORPHAN + text for name, text in made.items()}
    files["index.md"] = contents(lessons, extra, "teach/index.md" in files)
    linked(files)
    return keep(files)


def page_of(lesson, terms, uses, entries, doors):
    """The files of a lesson's page: the notebook laid out, its picture for the contents, the notebook to download."""
    verified = lesson.verified  # before its cell loses what it printed
    notebook, committed = lesson.notebook, (Path("notebooks") / f"{lesson.name}.ipynb").read_bytes()
    another = {term["name"] for term in terms if lesson.name[:2] in term.get("not_in", ())}  # a word of many meanings
    cells, seen = [], set(another)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cells.append(cell)
            cell.source = link_terms(to_entries(cell.source, entries, "../"), terms, seen)
            continue
        if "lesson.begin()" in cell.source:
            cell.outputs = []  # told at the head of the page
        for data in (output.get("data", {}) for output in cell.outputs):
            if text := data.get("text/markdown"):
                data["text/markdown"] = to_entries(text, entries, "../")
        cells += one_picture_each(cell)
        for checks, exercise in re.findall(r"^# (\w+)\.(\w+)\.solution\(\)", cell.source, re.M):
            module = f"lessons.l{lesson.name}.{checks}"
            cells.append(nbformat.v4.new_markdown_cell(folded(module, exercise), id=f"solution-{exercise}"))
    for name in seen - another:
        uses[name].append(lesson)
    head = " · ".join(([f"Last verified: {verified}"] if verified else []) + doors)
    first = cells[0]
    first.source = re.sub(r"^(# .+)$", lambda match: f"{match[1]}\n\n{{.verified}}\n{head}", first.source, count=1,
                          flags=re.M)
    notebook.cells = cells
    files = {f"notebooks/{lesson.name}.ipynb": nbformat.writes(notebook),
             f"download/download/{lesson.name}.ipynb": committed}
    if cover := lesson.cover:
        files[f"pictures/{lesson.name}.png"] = base64.b64decode(cover.data["image/png"])
    return files


def doors(name, repository, version):
    """Where a lesson can be opened, as links. The services know public repositories of GitHub alone."""
    links = [f'<a href="../download/{name}.ipynb" download>Download the notebook</a>']
    if match := re.fullmatch(r"https://github\.com/([\w-]+/[\w.-]+?)(?:\.git)?/?", repository):
        place = f"{match[1]}/blob/v{version}/notebooks/{name}.ipynb"
        links += [f"[Colab](https://colab.research.google.com/github/{place})",
                  f"[Kaggle](https://kaggle.com/kernels/welcome?src=https://github.com/{place})",
                  f"[Binder](https://mybinder.org/v2/gh/{match[1]}/v{version}?labpath=notebooks/{name}.ipynb)"]
    return links


def one_picture_each(cell):
    """`cell`, and below it one without source for each further picture: myst-nb takes the alt text from the cell."""
    cells = [cell]
    outputs, cell.outputs = cell.outputs, []
    for output in outputs:
        if "image/png" in output.get("data", {}):
            if "mystnb" in cells[-1].metadata:
                bare = {"tags": ["remove-input"]}
                cells.append(nbformat.v4.new_code_cell(metadata=bare, id=f"{cell.id}-{len(cells)}"))
            cells[-1].metadata["mystnb"] = {"image": {"alt": alt_text(output)}}
        cells[-1].outputs.append(output)
    return cells


def folded(module, name):
    """Hint and solution of an exercise, to unfold."""
    exercise = getattr(importlib.import_module(module), name)
    answer = exercise.answer
    solution = textwrap.dedent(inspect.getsource(answer)) if callable(answer) else str(answer)
    hint = re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(exercise.hint_text))
    return (f"<details><summary>Hint</summary><p>{hint}</p></details>\n"
            f"<details><summary>Solution</summary>\n\n```python\n{solution.strip()}\n```\n\n</details>")


# What no link to the glossary may go into: code, links, headings, tables, formulas, HTML.
LEFT_ALONE = (r"```.*?```|``.*?``|`[^`]*`|https?://\S+|<(?P<tag>a|summary|details)\b.*?</(?P=tag)>|"
              r"!?\[[^\]]*\](?:\([^)]*\)|\[[^\]]*\])|^\[.*?$|^#.*?$|^\|.*?$|\$[^$]*\$|<[^>]*>")


def link_terms(text, terms, seen):
    """`text` with a link to the glossary at each term that is not yet in `seen`, the names of those that were."""
    names = {form: term["name"] for term in terms for form in (term["name"], *term.get("forms", ()))}
    longest_first = sorted(names, key=len, reverse=True)
    words = "|".join(re.escape(form).replace(r"\ ", r"\s+") if form != form.lower() else
                     f"(?i:{re.escape(form)})".replace(r"\ ", r"\s+") for form in longest_first)

    def link(match):
        word = " ".join((match["word"] or "").split())
        name = names.get(word) or names.get(word.lower())
        if name is None or name in seen:
            return match[0]
        seen.add(name)
        return f"[{match['word']}](../glossary.md#{anchor(name)}){{.term}}"

    return re.sub(rf"(?ms:{LEFT_ALONE})|(?<![\w.-])(?P<word>{words})(?![\w-]|\.\w)", link, text)


def glossary(terms, uses):
    page = ["# Glossary", "The words of the field, as the lessons use them.", "## Terms"]
    for term in terms:
        page += [f"### {term['name']}", term["text"]]
        lessons = uses[term["name"]]
        links = {lesson.name[:2]: f"[{lesson.name[:2]}](notebooks/{lesson.name}.ipynb)" for lesson in lessons}
        taught = links.pop(term["taught"], None)
        told = filter(None, (taught and f"Explained in lesson {taught}.",
                             links and f"{'Also in' if taught else 'In'} {', '.join(links.values())}."))
        page.append(f"[{' '.join(told)}]{{.time}}")
    return "\n\n".join(page) + "\n"


def troubleshooting():
    """TROUBLESHOOTING.md, each numbered entry a page."""
    text = Path("TROUBLESHOOTING.md").read_text(encoding="utf-8").replace("](#", "](TROUBLESHOOTING.md#")
    head, *entries = re.split(r"^(?=## \d+\w?\. )", text, flags=re.M)
    entries = {anchor(entry.splitlines()[0][3:]): entry[1:] for entry in entries}  # a page's heading is of level 1
    back = "[All of troubleshooting](../TROUBLESHOOTING.md)"
    files = {f"troubleshooting/{name}.md": ORPHAN + to_entries(entry, entries, "../").replace("](README", "](../README")
             + back for name, entry in entries.items()}
    return files | {"TROUBLESHOOTING.md": to_entries(head, entries, "")}


def to_entries(text, entries, up):
    """Links to an entry of TROUBLESHOOTING.md lead to its page. `up`: from here to the root of the course."""
    return re.sub(r"\((?:\.\./)?TROUBLESHOOTING\.md#([\w-]+)\)", lambda link: f"({up}troubleshooting/{link[1]}.md)"
                  if link[1] in entries else f"({up}TROUBLESHOOTING.md#{link[1]})", text)


def contents(lessons, extra, teachers):
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
    return CONTENTS.format(title=title, lead=lead, cards=cards, pages=pages, others=others,
                           lessons="\n".join(f"notebooks/{lesson.name}" for lesson in lessons))


def alt_of(lesson):
    alt = alt_text(lesson.cover).replace("[", "(").replace("]", ")")
    return alt or f"A picture of lesson {lesson.name[:2]}"


def alt_text(output):
    return output.metadata.get("image/png", {}).get("alt", "")


def linked(files):
    """Adds to `files` what of the course they link to, and what that links to: texts as pages, programs to download."""
    waiting = list(files)
    while waiting:
        name = waiting.pop()
        if not name.endswith((".md", ".ipynb")) or name.startswith("download/"):
            continue
        text = files[name]
        for target in set(re.findall(r"\]\(([^)#:\s]+)", text)):
            path = Path(os.path.normpath(Path(name).parent / target.replace("\\n", "")))
            if path.as_posix() in files or path.is_absolute() or ".." in path.parts:
                continue
            if (path / "README.md").is_file():  # a folder's page
                text = files[name] = text.replace(f"]({target})", f"]({target}/README.md)")
                path /= "README.md"
            if path.is_file() and path.as_posix() not in files:
                files[path.as_posix()] = (ORPHAN + path.read_text(encoding="utf-8") if path.suffix == ".md"
                                          else path.read_bytes())
                waiting.append(path.as_posix())


def keep(files):
    """Makes SOURCE hold `files` and nothing else; a file that is the same keeps its time. True if it removed some."""
    stale = [path for path in SOURCE.rglob("*") if path.is_file() and path.relative_to(SOURCE).as_posix() not in files]
    for path in stale:
        path.unlink()
    for name, data in files.items():
        path, data = SOURCE / name, data.encode() if isinstance(data, str) else data
        if not path.exists() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return bool(stale)
