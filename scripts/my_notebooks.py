"""Make the learner's own copy of the notebooks, my-notebooks/, or bring it up to date. scripts/lab starts it.

The copy has no outputs: no prediction is answered before it is asked. Each notebook in it carries the digests of the
course's cells that it was made of. So when the course has changed, a cell that the learner left alone becomes the
course's new one, and a cell that the learner wrote or changed stays. If the course has changed that cell, too, its
text follows as a note. A notebook that holds anything of the learner's is copied before it is changed.

Exit status: 0 up to date, 2 bad input (nothing is lost), 130 stopped by Ctrl-C.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import nbformat

from course import rank_program, twins
from course.lesson import ROOT
from trainer import files

OWN = Path("my-notebooks")
MADE_OF = "made_of"  # in a copy's metadata: the marks of the course's cells
NOTE = "**The course has changed the cell above. Yours stays. The course's is now:**\n\n````{kind}\n{source}\n````"


def update(lessons: Path = twins.NOTEBOOKS, own: Path = OWN) -> Iterator[str]:
    """Make or update the copies in the folder `own`. Yields, notebook by notebook, what to tell the learner: of work
    that has met a change of the course, and of a notebook that cannot be read."""
    own.mkdir(exist_ok=True)
    with files.file_lock(own / ".lock", timeout=60):
        for path in sorted(lessons.glob("[0-9][0-9]*_*.ipynb")):
            try:
                course, copy = twins.without_outputs(read(path)), own / path.name
            except Exception:  # as below; git leaves its marks in a file that has a conflict
                yield f"{path} is no whole notebook: your copy stays as it is, if there is one. git status says more."
                continue
            course.metadata[MADE_OF] = made_of = marks(course)
            if copy.exists():
                try:
                    mine = read(copy)
                    before = mine.metadata.get(MADE_OF)
                    if before == made_of:
                        continue
                    touched = marks(mine) != before or any(cell.get("outputs") for cell in mine.cells)
                    if before is None:  # somebody else's notebook: what it lacks, nobody has deleted
                        before = [mark for mark in made_of if any(set(mark) & set(each) for each in marks(mine))]
                    course, both = merged(mine, before, course)
                except Exception:  # half a file, a folder, no notebook: nbformat raises many kinds
                    os.rename(copy, old := set_aside(copy))
                    yield f"{copy} was no whole notebook. It is a new copy now; the old file: {old}"
                else:
                    if touched:
                        shutil.copy2(copy, old := set_aside(copy))
                        yield f"{copy} gets the course's changes and keeps your work; as it was: {old}"
                        for line in both:
                            yield f"    you and the course changed this cell, yours stays: {line}"
            twins.write(course, copy)


def read(path: Path) -> nbformat.NotebookNode:
    """A notebook each of whose cells has an id, whatever format and program wrote it."""
    notebook = nbformat.v4.upgrade(nbformat.reader.reads(path.read_text(encoding="utf-8")))
    for cell in notebook.cells:
        cell.setdefault("id", nbformat.v4.new_raw_cell().id)
    return notebook


def set_aside(path: Path) -> Path:
    """The name of a copy, in the same folder, where it can be run."""
    return path.with_name(f"{path.stem}.{datetime.now():%Y-%m-%d.%H-%M-%S}.ipynb")


def marks(notebook) -> list[list[str]]:
    """[id, digest of the text] of each cell."""
    return [[cell.id, hashlib.sha256(cell.source.encode()).hexdigest()[:16]] for cell in notebook.cells]


def paired(old: list[list[str]], new: list[list[str]], first: int) -> dict[int, int]:
    """{place of a cell in `new`: its place in `old`}, by their marks: both alike, or else the id (first=0) or the text
    (first=1), or else the other one."""
    pairs, left = {}, list(range(len(old)))
    for same in (slice(None), first, 1 - first):
        for place in [place for place in range(len(new)) if place not in pairs]:
            match = next((other for other in left if old[other][same] == new[place][same]), None)
            if match is not None:
                pairs[place] = match
                left.remove(match)
    return pairs


def merged(mine, base: list[list[str]], course):
    """(`course` with all that the learner wrote into `mine`, a copy of the cells marked in `base`; the first line of
    each cell that both have changed)."""
    texts, new_texts = ([digest for _, digest in marks(notebook)] for notebook in (mine, course))
    # A learner edits a cell, and it keeps its id. A build of the course's notebook may give its id to another one.
    of_mine, of_course = paired(base, marks(mine), first=0), paired(base, marks(course), first=1)
    place_in_mine = {old: place for place, old in of_mine.items()}
    goes_on = {place_in_mine.get(old) for old in of_course.values()}
    cells, both, ids = [], [], {cell.id for cell in course.cells}

    def add_what_follows(cell_of_both):
        """The cells below it in `mine` that the course does not have, or has dropped; without those never touched."""
        for place in range(cell_of_both + 1, len(mine.cells)):
            if place in goes_on:
                return
            cell, old = mine.cells[place], of_mine.get(place)
            if old is None or texts[place] != base[old][1]:
                cell.id = nbformat.v4.new_raw_cell().id if cell.id in ids else cell.id
                cells.append(cell)
                both.extend([] if old is None else [first_line(cell)])

    add_what_follows(-1)
    for number, cell in enumerate(course.cells):
        old = of_course.get(number)
        place = place_in_mine.get(old)
        changed = old is None or new_texts[number] != base[old][1]
        if place is None:
            cells += [cell] if changed else []  # else the learner deleted it
            continue
        kept, untouched = mine.cells[place], texts[place] == base[old][1]
        if untouched and changed:
            cells.append(cell)
        else:
            kept.update(id=cell.id, metadata=cell.metadata)  # by this id the next update finds it
            cells.append(kept)
            if changed and texts[place] != new_texts[number]:
                kind = "python" if cell.cell_type == "code" else "markdown"
                cells.append(nbformat.v4.new_markdown_cell(NOTE.format(kind=kind, source=cell.source)))
                both.append(first_line(kept))
        add_what_follows(place)
    course.cells = cells
    return course, both


def first_line(cell) -> str:
    return (cell.source.strip().splitlines() or ["an empty cell"])[0]


def main() -> int:
    parser = rank_program.parser(__doc__)
    parser.parse_args()
    os.chdir(ROOT)
    with rank_program.stoppable(parser):
        for line in update():
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
