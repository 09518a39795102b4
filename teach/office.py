"""What a teacher's office adds to a grading: who is in the class, what an LMS calls them, weights, and marks by hand.

How an LMS names what it downloads, and what it reads back, is taken from its source:

    Canvas   janedoe[_LATE]_USER_FILE_05_distributed_sampler[-1].ipynb; -1 if it was handed in again
             github.com/instructure/canvas-lms, lib/content_zipper.rb, lib/gradebook_importer.rb
    Moodle   Jane Doe_PARTICIPANT_assignsubmission_file/05_distributed_sampler.ipynb, or "_" in place of "/"
             github.com/moodle/moodle, mod/assign/classes/downloader.php, grade/import/csv/classes/load_data.php,
             mod/assign/feedback/offline/importgradeslib.php
"""

import csv
import io
import re
import shutil
import zipfile
import zlib
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pandas as pd

from course.lesson import notebooks
from teach import handed_in
from trainer.files import check_input

CANVAS = re.compile(r"(?P<name>.+?)(?P<late>_late)?_(?P<id>\d+)_\d+_(?P<file>.+?)(?:-\d+)?(?P<end>\.\w+)", re.I)
MOODLE = re.compile(r"(?P<name>[^_]+)_(?P<id>\d+)_assignsubmission_[a-z]+_?(?P<file>.*?)(?P<end>\.\w+|)(?P<late>)")
WANTED = (".ipynb", ".py", ".sh", ".sbatch", ".zip")
MOST = 50 * handed_in.LARGEST  # bytes that a zip may hold of these
MARKS = {"weight": float("inf"), "points": 1}  # the most that a teacher may set


@dataclass
class HandIn:
    """A notebook of a learner; `path` is None where there is none, and `folder` too where nothing was handed in."""

    learner: str
    folder: Path | None
    path: Path | None
    late: str = ""

    @property
    def file(self) -> str:
        return handed_in.plain(self.path.relative_to(self.folder) if self.path else f"{self.learner}/")


class ClassList:
    """Those who are in the class. A learner is called as in the column `learner`, or `Student` (Canvas), or `Full name`
    (Moodle), else as in the first two columns (Moodle: first name, last name)."""

    def __init__(self, path: Path | None):
        self.rows, named = {}, defaultdict(set)  # {learner: row}
        for row in table_in("--class", path) if path else ():
            columns = list(row)  # behind Section, Canvas has the grades
            row = {name: row[name] for name in columns[:columns.index("Section") + 1 if "Section" in columns else None]}
            cells = list(row.values())
            if not cells[0] or "Points Possible" in cells[0]:  # Canvas says something of its columns
                continue
            called = next((row[name] for name in ("learner", "Student", "Full name") if row.get(name)), None)
            learner = handed_in.plain(called or " ".join(cells[:2]))
            if learner in self.rows:
                raise ValueError(f"--class {path}: two are called {learner}; tell them apart in a column `learner`")
            self.rows[learner] = row
            for word in [learner, "".join(cells[:2]), *cells, re.search(r"\d*$", cells[0])[0]]:  # Participant 123456
                named[bare(word)].add(learner)
        self.known = {word: learners.pop() for word, learners in named.items() if word and len(learners) == 1}

    def learner(self, *words: str) -> str:
        """The learner whom the first of these words names that names one; else the last."""
        return next((self.known[bare(word)] for word in words if bare(word) in self.known), words[-1])

    def of(self, entry: Path) -> str:
        """The learner to whom a file or a folder belongs, by its name."""
        if lms := as_lms(entry):
            return handed_in.plain(self.learner(lms["id"], lms["name"], f"{lms['name']}_{lms['id']}"))
        return handed_in.plain(self.learner(entry.name if entry.is_dir() else entry.stem))

    def for_lms(self, percent: pd.DataFrame) -> pd.DataFrame:
        """The class list with a column of percent for each lesson, as Canvas and Moodle import it.

        Of one lesson, Moodle's grading worksheet has the column already. Canvas wants the points of a new one.
        """
        first, *_ = self.rows.values()
        column = "Grade" if "Grade" in first and percent.shape[1] == 1 else "lesson {}"
        rows = [row | {column.format(lesson): percent[lesson].get(learner, "") for lesson in percent}
                for learner, row in self.rows.items()]
        points = dict.fromkeys(first, "") | {column.format(lesson): 100 for lesson in percent}
        points |= {next(iter(first)): "    Points Possible"}
        return pd.DataFrame([points] * ("Section" in first) + rows)


def bare(text):
    """As Canvas writes a name: letters and digits alone."""
    return re.sub(r"\W", "", text).casefold()


def table_in(option, path):
    """The rows of a .csv with a header, {column: text}; of any other file a name a line."""
    check_input(option, path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{option} {path}: save it as CSV UTF-8") from None
    if path.suffix.lower() != ".csv":
        return [{"learner": line.strip()} for line in text.splitlines()]
    first = text.partition("\n")[0]  # a spreadsheet may have put semicolons between the cells
    rows = csv.DictReader(io.StringIO(text), delimiter=max(",;\t", key=first.count), restkey="", restval="")
    return [{name: cell.strip() for name, cell in row.items() if name} for row in rows]


def as_lms(entry):
    """The parts of a name that Canvas or Moodle has made; None for any other."""
    return MOODLE.fullmatch(entry.name) or (None if entry.is_dir() else CANVAS.fullmatch(entry.name))


def hand_ins_in(places: list[Path], spare: Path, class_list: ClassList, deadline: float) -> list[HandIn]:
    """The notebooks in folders and zips: each subfolder or zip is a learner's, and each notebook that lies in none.

    `spare`: an empty folder, where learners whose files an LMS has named, or who handed in a zip, get a folder each.
    `deadline`: what was saved later in a folder is late. That is all that a time tells: copying changes it, and so can
    its learner. In a zip of an LMS it is that of the download.
    """
    hand_ins = []
    for number, folder in enumerate(places):
        late, found = set(), {}  # {file or folder: (its learner, where it lies)}
        if folder.is_file():
            folder = unpacked(folder, spare / f"{number}-zip")
        for entry in seen_in(folder, "*", Path.glob):
            learner, lms, files = class_list.of(entry), as_lms(entry), []
            own = spare / str(number) / bare(learner)
            if handed_in.own_file(entry):
                files = [entry] if lms or entry.suffix == ".zip" else []
                late |= {own} if lms and lms["late"] else set()
            elif not entry.is_symlink():
                files = seen_in(entry, "*.zip")
            if entry not in files and (entry.is_dir() or entry.suffix == ".ipynb"):
                found[entry] = learner, folder
            for file in filter(handed_in.own_file, files):
                own.mkdir(parents=True, exist_ok=True)
                found[own] = learner, own.parent
                if file.suffix != ".zip":
                    shutil.copy2(file, own / (lms["file"] + lms["end"]))
                    continue
                try:
                    unpacked(file, own)
                except handed_in.NotGraded:  # opened() says so
                    hand_ins.append(HandIn(learner, folder, file))
        for entry, (learner, folder) in found.items():
            paths = [entry]  # a link may lead to another's work: opened() says so
            if entry.is_dir() and not entry.is_symlink():
                paths = seen_in(entry, "*.ipynb")
            for path in paths or [None]:
                saved = path.lstat().st_mtime if path and not path.is_relative_to(spare) else 0
                when = f"{datetime.fromtimestamp(saved):%Y-%m-%d %H:%M}" if saved > deadline else ""
                hand_ins.append(HandIn(learner, folder, path, "LATE" if entry in late else when))
    came = {hand_in.learner for hand_in in hand_ins if hand_in.path}
    return [hand_in for hand_in in hand_ins if hand_in.path or hand_in.learner not in came]


def seen_in(folder, pattern, search=Path.rglob):
    """Without what is hidden: checkpoints of Jupyter, and the environment that a learner made in a copy."""
    return sorted(path for path in search(folder, pattern)
                  if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def unpacked(zipped, to):
    """The folder `to`, with the notebooks and answers of a zip. NotGraded if it cannot be had."""
    try:
        with zipfile.ZipFile(zipped) as file:
            members = [each for each in file.infolist() if Path(each.filename).suffix in WANTED
                       and not Path(each.filename).name.startswith(".")]  # macOS adds those
            if sum(each.file_size for each in members) > MOST:
                raise handed_in.NotGraded(f"{zipped.name}: more than {MOST / 1e9:g} GB of notebooks")
            to.mkdir(parents=True, exist_ok=True)
            file.extractall(to, members)
    except (zipfile.BadZipFile, zlib.error, RuntimeError, OSError) as problem:  # damaged, or with a password
        raise handed_in.NotGraded(f"{zipped.name} cannot be unpacked: {problem}") from None
    return to


def read_marks(path: Path) -> list[dict]:
    """The rows of a teacher's CSV. Each chooses answers by learner, lesson and exercise, of which an empty cell chooses
    all, and sets what stands in its columns weight, points (0 to 1) and comment."""
    rows = table_in("--marks", path)
    for number, row in enumerate(rows, 2):
        row["lesson"] = lesson_named(row.get("lesson", ""))
        for name in MARKS.keys() & {name for name, cell in row.items() if cell}:
            try:
                row[name] = float(row[name].replace(",", "."))
            except ValueError:
                row[name] = -1
            if not 0 <= row[name] <= MARKS[name]:
                raise ValueError(f"{path}, line {number}: {name} must be a number from 0 to {MARKS[name]}")
    return rows


def marked(answers: pd.DataFrame, marks: list[dict], class_list: ClassList) -> tuple[pd.DataFrame, list[str]]:
    """The answers with weight, points and comment, and a line for each row that chose none, but of other lessons."""
    points = {"right": 1.0, "wrong": 0.0, "untried": 0.0}  # what an answer "again" is worth, nobody knows yet
    made, unmet = answers.assign(weight=1.0, points=answers.outcome.map(points), comment=""), []
    for row in marks:
        by = {name: row[name] for name in ("learner", "lesson", "exercise") if row.get(name)}
        by |= {"learner": class_list.learner(by["learner"])} if "learner" in by else {}
        chosen = (made[list(by)] == list(by.values())).all(axis=1)
        for name in (*MARKS, "comment"):
            if row.get(name, "") != "":
                made.loc[chosen, name] = row[name]
        if not chosen.any() and row["lesson"] not in notebooks().keys() - set(answers.lesson):
            unmet.append(" ".join(by.values()))
    return made, unmet


def lesson_named(text: str) -> str:
    """A lesson as its notebook is numbered: 05 for 5, which a spreadsheet makes of it."""
    return text.zfill(2 + text[-1:].isalpha()) if text[:1].isdigit() else text
