"""Make the learner's own copies of the notebooks, in my-notebooks/. scripts/lab starts it.

The copies have no outputs: no prediction is answered before it is asked. A copy is made where it is missing, and never
changed. If the course's notebook has changed since, the new one is put beside it, as NN_name.new.ipynb; if it changes
again, as NN_name.new-2.ipynb, and so on.

--path NAME makes those of a plan of teach/plans.toml in my-notebooks/NAME: what the plan leaves out is folded there.

Exit status: 0 done, 2 bad input, 130 stopped by Ctrl-C.
"""

import hashlib
import itertools
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import nbformat

from course import rank_program, twins
from course.lesson import ROOT

OWN, PLANS = Path("my-notebooks"), Path("teach/plans.toml")
LEFT_OUT = "*Not on this path. The key ↓ goes on below it, Shift+Enter unfolds it.*"
MADE_OF = "made_of"  # in a copy's metadata: the digest of the course's notebook; an earlier version wrote a list


def update(lessons: Path = twins.NOTEBOOKS, own: Path = OWN, slots: list[dict] | None = None) -> Iterator[str]:
    """Make what is missing in the folder `own`. Yields a line for each new lesson that is put beside an older copy.

    `slots`: of a plan; then its lessons alone are copied, and what it leaves out is folded.
    """
    own.mkdir(parents=True, exist_ok=True)
    for path in sorted(lessons.glob("[0-9][0-9]*_*.ipynb")):
        of_lesson = [slot for slot in slots or () if slot.get("lesson") == path.name.partition("_")[0]]
        if slots is not None and not of_lesson:
            continue
        course = twins.without_outputs(nbformat.read(path, as_version=4))
        if of_lesson:
            fold(course, of_lesson)
            for cell in course.cells:
                cell.source = cell.source.replace("](../", "](../../")  # one folder further down
        digest = hashlib.sha256("\0".join(cell.source for cell in course.cells).encode()).hexdigest()[:16]
        course.metadata[MADE_OF] = digest
        copy = own / path.name
        if not copy.exists():
            twins.write(course, copy)
            continue
        marks = [mark for each in own.glob(f"{path.stem}*.ipynb")
                 for mark in re.findall(rf'"{MADE_OF}":\s*"(\w+)"', each.read_text(encoding="utf-8", errors="replace"))]
        if digest not in marks:
            new, number = own / f"{path.stem}.new.ipynb", 1
            while new.exists():  # a learner may work in it
                new = own / f"{path.stem}.new-{(number := number + 1)}.ipynb"
            twins.write(course, new)
            yield (f"{path.name} has changed since your copy was made. Yours stays; the new one is {new}" if marks else
                   f"{copy} does not say of which version it was made. It stays; the course's is {new}")


def fold(notebook: nbformat.NotebookNode, slots: list[dict]) -> None:
    """Fold, as JupyterLab does it, what the slots of this lesson leave out: where each names its `sections`, every
    section that is not named and holds none that is; else what all of them are `without`."""
    named = {section for slot in slots for section in slot.get("sections", ())}
    whole = not all("sections" in slot for slot in slots)
    without = set.intersection(*(set(slot.get("without", ())) for slot in slots))
    cut(notebook)
    headings = [(len(match[1]), match[2].strip(), cell) for cell in notebook.cells
                if cell.cell_type == "markdown" and (match := re.match(r"(##+) (.+)", cell.source))]
    for at, (level, title, cell) in enumerate(headings):
        # A folded cell hides all cells up to the next one that opens with a heading of its level.
        hidden = itertools.takewhile(lambda later, own=level: later[0] > own, headings[at + 1:])
        around = [each[1] for each in headings[:at] if each[0] < level][-1:]
        kept = title not in without if whole else {title, *(each[1] for each in hidden), *around} & named
        if not kept:
            heading, _, text = cell.source.partition("\n")
            cell.source, cell.metadata["jp-MarkdownHeadingCollapsed"] = f"{heading}\n\n{LEFT_OUT}", True
            if text.strip():  # JupyterLab shows all of a cell that is folded
                below = nbformat.v4.new_markdown_cell(text.strip(), id=f"{cell.id}-text")
                notebook.cells.insert(notebook.cells.index(cell) + 1, below)


def cut(notebook: nbformat.NotebookNode) -> None:
    """Let each heading below the title open a cell, since JupyterLab folds from such a cell to the next."""
    cells = []
    for cell in notebook.cells:
        first, *more = re.split(r"\n+(?=##+ )", cell.source) if cell.cell_type == "markdown" else [cell.source]
        cell.source = first
        cells += [cell, *(nbformat.v4.new_markdown_cell(text, id=f"{cell.id}-{number}")
                          for number, text in enumerate(more, 2))]
    notebook.cells = cells


def plans() -> dict[str, list[dict]]:
    """{name, such as four-hours: its slots in their order}"""
    return {re.sub(r"\W+", "-", plan["name"].lower()): [slot for day in plan["days"] for slot in day]
            for plan in tomllib.loads(PLANS.read_text(encoding="utf-8"))["plan"]}


def main() -> int:
    parser = rank_program.parser(__doc__)
    os.chdir(ROOT)
    parser.add_argument("--path", choices=plans() if PLANS.exists() else (), help="a plan of teach/plans.toml")
    args = parser.parse_args()
    with rank_program.stoppable(parser):
        slots = plans()[args.path] if args.path else None
        for line in update(own=OWN / args.path if args.path else OWN, slots=slots):
            print(line, flush=True)
        for slot in slots or ():
            but = f"all but {'; '.join(slot['without'])}" if "without" in slot else "all"
            what = f"lesson {slot['lesson']}: {'; '.join(slot.get('sections', [but]))}" if "lesson" in slot else \
                slot.get("what", "a break")
            print(f"{slot.get('pause', slot.get('minutes')):3} minutes  {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
