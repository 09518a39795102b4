"""Make the learner's own copies of the notebooks, in my-notebooks/. scripts/lab starts it.

The copies have no outputs: no prediction is answered before it is asked. A copy is made where it is missing, and never
changed. If the course's notebook has changed since, the new one is put beside it, as NN_name.new.ipynb; if it changes
again, as NN_name.new-2.ipynb, and so on.

Exit status: 0 done, 2 bad input, 130 stopped by Ctrl-C.
"""

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat

from course import rank_program, twins
from course.lesson import ROOT

OWN = Path("my-notebooks")
MADE_OF = "made_of"  # in a copy's metadata: the digest of the course's notebook; an earlier version wrote a list


def update(lessons: Path = twins.NOTEBOOKS, own: Path = OWN) -> Iterator[str]:
    """Make what is missing in the folder `own`. Yields a line for each new lesson that is put beside an older copy."""
    own.mkdir(exist_ok=True)
    for path in sorted(lessons.glob("[0-9][0-9]*_*.ipynb")):
        course = twins.without_outputs(nbformat.read(path, as_version=4))
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
