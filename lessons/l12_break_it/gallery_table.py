"""The gallery of mistakes as a table, and what is made of it in Markdown: TROUBLESHOOTING.md, and lesson 12's tables.

The table is scripts/broken/gallery.toml. scripts/broken/gallery.py runs what stands in it.
"""

import ast
import difflib
import itertools
import os
import re
import textwrap
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "scripts/broken/gallery.toml"


def anchor(heading):
    """The end of a link to a heading, as code-hosting sites, Jupyter's viewers and MyST make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@dataclass(frozen=True, kw_only=True)
class Message:
    """What people meet, and what to do. gallery.toml says what each field is."""

    number: str
    title: str
    symptom: str
    tool: str
    why: str
    repair: str
    silent: bool = False
    source: str = ""
    doctor: str = ""
    leads: tuple = ()

    @property
    def heading(self):
        return f"{self.number}. {self.title}"

    @property
    def anchor(self):
        return anchor(self.heading)

    @property
    def plain(self):
        """How the symptom begins, as one line of text: up to the first message."""
        begins = re.match(r"(?:(?!> ).+\n?)*(?:> .+\n?)*", self.symptom.strip())[0]
        return " ".join(re.sub("^> ", "", begins, flags=re.M).split())

    @property
    def shown(self):
        """The symptom as lines of Markdown: what programs print stands in blocks."""
        for printed, group in itertools.groupby(self.symptom.strip().splitlines(), lambda line: line.startswith("> ")):
            lines = [line.removeprefix("> ") for line in group]
            yield from ["```text", *lines, "```", ""] if printed else [*lines, ""]

    @property
    def cell(self):
        """The same, shortened, as a cell of a Markdown table."""
        begins = textwrap.shorten(self.plain, 140, placeholder=" …")
        escaped = re.sub(r"(`[^`|]*`)|([`|<_*])", lambda match: match[1] or f"\\{match[2]}", begins)
        return "*silent:* " * self.silent + escaped


@dataclass(frozen=True, kw_only=True)
class Note(Message):
    """One that has no script, because it comes by chance, or needs what is not here. Only the page has it."""

    origin: str = "Printed by a short script with PyTorch 2.14.1 and gloo."


@dataclass(frozen=True, kw_only=True)
class Entry(Message):
    """One that a pair of scripts shows: the mistake and its repair."""

    name: str
    shows: str
    proof: str
    lines: str = "."
    look: str = ""
    broken: str = ""
    repaired: str = ""
    run: str = "torchrun --nproc_per_node=2 {script}"
    env: dict = field(default_factory=dict)
    ranks: int = 2
    also_repaired_fails: bool = False
    fork: bool = True
    apart: bool = False
    gpu: str = ""
    patient: int = 0
    seen: str = ""

    def script(self, form):
        """Path of a form, "broken" or "repaired", from the repository's root."""
        return getattr(self, form) or f"scripts/broken/{self.name}{'_repaired' * (form == 'repaired')}.py"

    def command(self, form):
        """The command line, as a shell reads it."""
        env = "".join(f"{name}={value} " for name, value in self.env.items()) if form == "broken" else ""
        return env + self.run.format(script=self.script(form), job=os.getpid())

    def difference(self):
        """Lines of the smallest diff, without the docstrings and empty lines: "+…" is the repair."""
        sources = ((ROOT / self.script(form)).read_text() for form in ("broken", "repaired"))
        forms = [source.splitlines()[ast.parse(source).body[0].end_lineno:] for source in sources]
        lines = list(difflib.unified_diff(*forms, n=1, lineterm=""))[2:]
        return [line for line in lines if line[1:].strip() and not line.startswith("@@")]


def in_order(messages):
    """Entries and notes by their numbers, as the page has them."""
    return sorted(messages, key=lambda message: int(re.match(r"\d+", message.number)[0]))


def read_table():
    """{name: Entry}; what is reported most often stands near the top."""
    rows = tomllib.loads(TABLE.read_text())["entry"]
    return {row["name"]: Entry(**row) for row in rows}


def read_notes():
    """Notes, in their order on the page."""
    return [Note(**row) for row in tomllib.loads(TABLE.read_text())["note"]]


def read_patients():
    """{number: Entry} of those that lesson 12 works through."""
    return dict(sorted((entry.patient, entry) for entry in read_table().values() if entry.patient))


def hangs(page=""):
    """Rows of the table that tells one hang from another; the links lead to headings of `page`."""
    table = read_table()
    return [{"where the stacks of the ranks stand": row["stands"], "then check": row["check"],
             "it is": f"[{(entry := table[row['entry']]).heading}]({page}#{entry.anchor})"}
            for row in tomllib.loads(TABLE.read_text())["hang"]]


def readings():
    """Lines of Markdown: a log of a hang under NCCL, read line by line."""
    table = tomllib.loads(TABLE.read_text())
    about, lines = table["flight_recorder"], ["## A hang under NCCL: the flight recorder", ""]
    lines += [about["origin"], "", about["how"]]
    for what, rows in itertools.groupby(table["reading"], lambda row: row["what"]):
        rows = list(rows)
        sources = dict.fromkeys(row["source"] for row in rows)
        lines += ["", *markdown([{what: f"`{row['line']}`", "what it says": row["says"]} for row in rows]), "",
                  f"From {', '.join(f'<{source}>' for source in sources)}."]
    return lines


def markdown(rows):
    """Lines of a Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (rows[0], [":--"] * len(rows[0]), *(row.values() for row in rows))]


def doctors_entries():
    """{finding of the doctor: the link of its entry, and how to look}, for doctor/entries.json."""
    cited = dict(re.findall(r'^(version|repository-code): "(.+)"', (ROOT / "CITATION.cff").read_text(), re.M))
    page = f"{cited['repository-code']}/blob/v{cited['version']}/TROUBLESHOOTING.md#"
    table, entries = read_table(), {}
    of_findings = [(name, entry) for entry in in_order([*table.values(), *read_notes()])
                   for name in (entry.doctor, *entry.leads) if name]
    for name, entry in [*reversed(of_findings), *table.items()]:  # the entry of the same name, else the first
        link = f"{page}{entry.anchor}" if page.startswith("https://github.com/") else (
            f"TROUBLESHOOTING.md, entry {entry.number}")
        entries[name] = {"link": link, "look": re.sub(r"\[(.+?)\]\(.+?\)", r"\1", entry.tool)}
    return dict(sorted(entries.items()))


def guide(table):
    """The text of TROUBLESHOOTING.md."""
    every, page = in_order([*table.values(), *read_notes()]), tomllib.loads(TABLE.read_text())["page"]
    lines = ["# Troubleshooting", "",
             "<!-- Made by `python scripts/broken/gallery.py guide` from scripts/broken/. Do not edit it here. -->", "",
             page["opening"], "", "## It hangs now, and no recorder is set", "", page["hangs_now"], "",
             "## Which hang is it?", "", *markdown(hangs()), "", *readings()]
    for entry in every:
        lines += ["", f"## {entry.heading}", "", *entry.shown,
                  f"**Look:** {entry.tool}", "", f"**Why:** {entry.why}", "", f"**Repair:** {entry.repair}", ""]
        found = f"The [doctor](README.md#the-doctor) finds it: `{entry.doctor}`" if entry.doctor else ""
        if isinstance(entry, Note):
            proof = [entry.origin, found]
        else:
            lines += ["```diff", *entry.difference(), "```", ""]
            proof = [f"`python scripts/broken/gallery.py show {entry.name}`",
                     found or "The [doctor](README.md#the-doctor) does not find it here", entry.gpu]
        related = ", ".join(f"`{name}`" for name in entry.leads)
        source = ("Reported here", ", among other places") if "/issues/" in entry.source else ("Read more", "")
        lines.append(" · ".join(filter(None, (*proof, related and f"The doctor's related findings: {related}",
                                              entry.source and f"[{source[0]}]({entry.source}){source[1]}."))))
    rows = [{"entry": f"[{entry.heading}](#{entry.anchor})", "what you see": entry.cell} for entry in every]
    return "\n".join([*lines, "", "## All entries", "", *markdown(rows)]) + "\n"
