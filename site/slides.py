"""Slides of a lesson: its notebook without the code, a slide for each text with the results below it.

nbconvert makes the slides. site/slides.html.j2 stands in place of its own template, which loads five libraries from the
network, reveal.js among them; a page that scrolls also has room for a text longer than the screen.
"""

import re
from pathlib import Path

import nbformat
from docutils.utils.math.latex2mathml import tex2mathml
from nbconvert import SlidesExporter
from nbformat import NotebookNode

import layout
from trainer import files

FOLDER, TEMPLATE = Path("build/slides"), Path("site/slides.html.j2")
NOTHING = "Nothing predicted yet: replace `None` above. "  # as course.lesson.predicted words it
ASKS = re.compile(r"^my_\w+ = None.*", re.M)


def write(name: str) -> tuple[Path, int]:
    """Make slides of notebooks/NAME.ipynb: the path of the file, which needs no other, and the number of slides.

    RuntimeError where the notebook cannot be read.
    """
    path = Path(f"notebooks/{name}.ipynb")
    try:
        lesson = layout.Lesson(path, executed=True)
        cells = cells_of(lesson)
        page, _ = SlidesExporter(
            template_file=str(TEMPLATE.resolve()), exclude_input=True, exclude_output_prompt=True,
        ).from_notebook_node(nbformat.v4.new_notebook(cells=cells, metadata={"title": lesson.title}))
    except Exception as problem:  # whatever somebody's own notebook has in it, its name is what helps
        raise RuntimeError(f"{path} makes no slides: {type(problem).__name__}: {problem}") from problem
    FOLDER.mkdir(parents=True, exist_ok=True)
    target = FOLDER / f"{name}.html"
    with files.whole(target) as file:
        file.write_text(page, encoding="utf-8")
    return target, sum(cell.metadata.slideshow.slide_type == "slide" for cell in cells)


def cells_of(lesson: layout.Lesson) -> list[NotebookNode]:
    """The cells of the slides. A prediction ends its slide, so that no answer is seen before its question was asked."""
    cells, heading, asked = [], "", False
    for cell in lesson.notebook.cells:
        if cell.cell_type == "markdown":
            in_code = "```" in cell.source  # where a line that begins with # is a comment
            parts = [cell.source] if in_code else re.split(r"^(?=#+ )", cell.source, flags=re.M)
            for part in filter(str.strip, parts):
                title = re.match(r"#+ +(.+)", part)
                heading = title[1] if title else heading
                if heading == "What to remember":
                    cells += show_of_hands(lesson.name)
                cells.append(text(part if title else f"## {heading}\n\n{part}"))
            asked = False
        elif lines := ASKS.findall(cell.source):
            cells.append(text("\n".join(["```python", *lines, "```"]), "-"))
            asked = True
        elif cell.outputs and not heading.startswith("Exercise"):
            if asked:
                cells.append(text(f"## {heading}"))
                asked = False
            for output in cell.outputs:
                if markdown := output.get("data", {}).get("text/markdown"):
                    output.data["text/markdown"] = without_links(markdown.replace(NOTHING, ""))
            cell.metadata.slideshow = {"slide_type": "-"}
            cells.append(cell)
    return cells


def show_of_hands(name: str) -> list[NotebookNode]:
    """The teacher's questions on a lesson, each on a slide of its own, then with its answer. Notes: what a wrong answer
    reveals."""
    if not Path("teach").is_dir():
        return []
    from teach import teaching  # late: where teach/ is missing, it may be, too

    cells = []
    for number, question in enumerate(teaching.questions_of(name), 1):
        ask = f"## Show of hands, question {number}\n\n{question.text}\n\n"
        options = {letter: f"{letter}. {option}" for letter, option in question.options.items()}
        cells.append(text(ask + "\n".join(f"- {option}" for option in options.values())))
        options[question.right] = f"**✓ {options[question.right]}**"
        cells.append(text(ask + "\n".join(f"- {option}" for option in options.values()) + f"\n\n{question.why}"))
        reveals = "\n".join(f"- **{letter}** reveals: {reveals}" for letter, reveals in question.reveals.items())
        cells.append(text(reveals, "notes"))
    return cells


def text(source: str, slide_type: str = "slide") -> NotebookNode:
    """A cell of Markdown."""
    source = re.sub(r"\$\$(.+?)\$\$", lambda formula: tex2mathml(formula[1], as_block=True), without_links(source))
    return nbformat.v4.new_markdown_cell(source, metadata={"slideshow": {"slide_type": slide_type}})


def without_links(markdown: str) -> str:
    """Links into the course lead nowhere from a file that stands alone: their words stay."""
    return re.sub(r"(?<!!)\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", markdown)
