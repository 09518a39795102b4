"""The table of the gallery, table.toml: what people meet, why, and what repairs it."""

import ast
import difflib
import itertools
import os
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from trainer import files

ROOT = Path(__file__).resolve().parents[1]
TABLE = tomllib.loads(Path(__file__).with_name("table.toml").read_text(encoding="utf-8"))
REPAIRED = Path("results/live/12_repaired")  # where repaired programs are written to be run


def anchor(heading: str) -> str:
    """The end of a link to a heading, as code-hosting sites, Jupyter's viewers and MyST make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@dataclass(frozen=True, kw_only=True)
class Message:
    """What people meet, and what to do. table.toml says what each field is."""

    number: str
    title: str
    symptom: str
    tool: str
    why: str
    repair: str
    silent: bool = False
    source: str = ""
    says: str = ""
    doctor: str = ""
    leads: tuple = ()

    @property
    def heading(self) -> str:
        return f"{self.number}. {self.title}"

    @property
    def anchor(self) -> str:
        return anchor(self.heading)

    @property
    def parts(self) -> list[tuple[bool, list[str]]]:
        """The symptom in its order: (whether a program prints it, lines)."""
        by_kind = itertools.groupby(self.symptom.strip().splitlines(), lambda line: line.startswith("> "))
        return [(printed, [line.removeprefix("> ") for line in lines]) for printed, lines in by_kind]

    @property
    def plain(self) -> str:
        """How the symptom begins, as one line of text: up to the first message."""
        parts = self.parts
        return " ".join(" ".join(line for _, lines in parts[:1 if parts[0][0] else 2] for line in lines).split())


@dataclass(frozen=True, kw_only=True)
class Note(Message):
    """One that has no program, because it comes by chance, or needs what is not here. Only the page has it."""

    origin: str = "Printed by a short script with PyTorch 2.14.1 and gloo."


@dataclass(frozen=True, kw_only=True)
class Entry(Message):
    """One that a program shows: the mistake, and the edits that repair it."""

    name: str
    edits: list
    shows: str
    proof: str
    lines: str = "."
    look: str = ""
    run: str = "torchrun --nproc_per_node=2 {script}"
    env: dict = field(default_factory=dict)
    ranks: int = 2
    also_repaired_fails: bool = False
    launcher: bool = False
    gpu: str = ""

    @property
    def program(self) -> str:
        """The path of the program with the mistake, from the repository's root."""
        return f"gallery/{self.name}.py"

    def text(self, form: str) -> str:
        """The program in a form, "broken" or "repaired". ValueError where an edit does not fit in one place."""
        text = (ROOT / self.program).read_text(encoding="utf-8")
        for old, new in self.edits if form == "repaired" else ():
            if text.count(old) != 1:
                raise ValueError(f"{self.program} has {text.count(old)} times, not once: {old}")
            text = text.replace(old, new)
        return text

    def written(self, form: str) -> str:
        """The path of a form, from the repository's root. The repaired one is written there."""
        if form == "broken":
            return self.program
        path = ROOT / REPAIRED / f"{self.name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.whole(path) as part:  # another `show` may run it
            part.write_text(self.text(form), encoding="utf-8")
        return str(REPAIRED / path.name)

    def command(self, form: str) -> str:
        """The command line, as a shell reads it; the program is there."""
        env = "".join(f"{name}={value} " for name, value in self.env.items()) if form == "broken" else ""
        return env + self.run.format(script=self.written(form), job=os.getpid())

    def difference(self) -> list[str]:
        """Lines of the smallest diff, without the docstrings and empty lines: "+…" is the repair."""
        texts = self.text("broken"), self.text("repaired")
        forms = [text.splitlines()[ast.parse(text).body[0].end_lineno:] for text in texts]
        lines = list(difflib.unified_diff(*forms, n=1, lineterm=""))[2:]
        return [line for line in lines if line[1:].strip() and not line.startswith("@@")]


def read_table() -> dict[str, Entry]:
    """{name: Entry}; what is reported most often stands near the top."""
    return {row["name"]: Entry(**row) for row in TABLE["entry"]}


def read_messages() -> list[Message]:
    """Entries and notes by their numbers, as the page has them."""
    every = [*read_table().values(), *(Note(**row) for row in TABLE["note"])]
    return sorted(every, key=lambda message: int(re.match(r"\d+", message.number)[0]))


def hangs() -> list[dict[str, str]]:
    """Rows of the table that tells one hang from another."""
    table = read_table()
    return [{"where the stacks of the ranks stand": row["stands"], "then check": row["check"],
             "it is": f"[{(entry := table[row['entry']]).heading}](#{entry.anchor})"} for row in TABLE["hang"]]
