"""What is made of the table: TROUBLESHOOTING.md, the doctor's links, and what the site's search knows."""

import itertools
import json
import re
import textwrap
from typing import Any

from .table import ROOT, TABLE, Entry, Message, hangs, read_messages, read_table


def write() -> None:
    """Write the two files that are made here, and committed."""
    for name, text in made().items():
        (ROOT / name).write_text(text, encoding="utf-8")


def made() -> dict[str, str]:
    """{file: its text}"""
    sections = "".join(f"\n{section(message)}" for message in read_messages())
    return {"TROUBLESHOOTING.md": head() + sections + f"\n{contents()}",
            "doctor/entries.json": json.dumps(doctors_entries(), indent=1) + "\n"}


# ---- TROUBLESHOOTING.md, in parts: the site makes a page of each section -------------------------------------


def head() -> str:
    """How the page begins, up to the first entry."""
    page = TABLE["page"]
    return "\n".join(["# Troubleshooting", "", "<!-- Made by `python -m gallery guide`. Do not edit it here. -->", "",
                      *markdown(symptoms()), "",
                      page["opening"], "", "## It hangs now, and no recorder is set", "", page["hangs_now"], "",
                      "## Which hang is it?", "", *markdown(hangs()), "", *readings()]) + "\n"


def symptoms() -> list[dict[str, str]]:
    """Rows of the table that leads from what one sees to three entries."""
    entries = {message.number: f"[{message.heading}](#{message.anchor})" for message in read_messages()}
    return [{"what you see": row["sees"], "look first at": " · ".join(entries[number] for number in row["entries"])}
            for row in TABLE["symptom"]]


def section(message: Message) -> str:
    """An entry or a note."""
    lines = [f"## {message.heading}", ""]
    for printed, those in message.parts:
        lines += ["```text", *those, "```", ""] if printed else [*those, ""]
    for word, text in (("Look", message.tool), ("Why", message.why), ("Repair", message.repair)):
        lines += [f"**{word}:** {text}", ""]
    found = f"The [doctor](README.md#the-doctor) finds it: `{message.doctor}`" if message.doctor else ""
    if isinstance(message, Entry):
        lines += ["```diff", *message.difference(), "```", ""]
        facts = [f"`python -m gallery show {message.name}`",
                 found or "The [doctor](README.md#the-doctor) does not find it here", message.gpu]
    else:
        facts = [message.origin, found]
    if message.leads:
        facts.append("The doctor's related findings: " + ", ".join(f"`{name}`" for name in message.leads))
    if "/issues/" in message.source:
        facts.append(f"[Reported here]({message.source}), among other places.")
    elif message.source:
        facts.append(f"[Read more]({message.source}).")
    return "\n".join([*lines, " · ".join(filter(None, facts))]) + "\n"


def contents() -> str:
    """The table of all entries at the end."""
    rows = [{"entry": f"[{message.heading}](#{message.anchor})", "what you see": cell(message)}
            for message in read_messages()]
    return "\n".join(["## All entries", "", *markdown(rows)]) + "\n"


def cell(message):
    """How the symptom begins, shortened, as a cell of a Markdown table."""
    begins = textwrap.shorten(message.plain, 140, placeholder=" …")
    escaped = re.sub(r"(`[^`|]*`)|([`|<_*])", lambda match: match[1] or f"\\{match[2]}", begins)
    return "*silent:* " * message.silent + escaped


def readings():
    """Lines of Markdown: a log of a hang under NCCL, read line by line."""
    about = TABLE["flight_recorder"]
    lines = ["## A hang under NCCL: the flight recorder", "", about["origin"], "", about["how"]]
    for what, rows in itertools.groupby(TABLE["reading"], lambda row: row["what"]):
        rows = list(rows)
        sources = dict.fromkeys(row["source"] for row in rows)
        lines += ["", *markdown([{what: f"`{row['line']}`", "what it says": row["says"]} for row in rows]), "",
                  f"From {', '.join(f'<{source}>' for source in sources)}."]
    return lines


def markdown(rows):
    """Lines of a Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (rows[0], [":--"] * len(rows[0]), *(row.values() for row in rows))]


# ---- for the doctor, and for the site's search ---------------------------------------------------------------


def doctors_entries() -> dict[str, dict[str, Any]]:
    """{finding of the doctor: {"link": its entry, "look": how to see it, "usually": the titles of all entries that lead
    to it, if they are several; where an error's message "says" it: "why" and "repair", too}}"""
    cited = dict(re.findall(r'^(version|repository-code): "(.+)"', (ROOT / "CITATION.cff").read_text(), re.M))
    page = f"{cited.get('repository-code', '')}/blob/v{cited['version']}/TROUBLESHOOTING.md#"
    entries = {}
    of_findings = [(name, message) for message in read_messages() for name in (message.doctor, *message.leads) if name]
    for name, message in [*reversed(of_findings), *read_table().items()]:  # the entry of the same name, else the first
        link = (f"{page}{message.anchor}" if page.startswith("https://github.com/") else
                f"TROUBLESHOOTING.md, entry {message.number}")
        entries[name] = {"link": link, "look": plain(message.tool)}
        if message.says and name in (message.doctor, getattr(message, "name", "")):
            entries[name] |= {"says": message.says, "why": plain(message.why), "repair": plain(message.repair)}
        titles = [other.title for known, other in of_findings if known == name]
        entries[name] |= {"usually": titles} if len(titles) > 1 else {}
    return dict(sorted(entries.items()))


def plain(text: str) -> str:
    """Markdown without its links."""
    return re.sub(r"\[(.+?)\]\(.+?\)", r"\1", text)


def searched(message: Message) -> list[str]:
    """What the site's search knows of an entry: its title and what one sees, in words; how it begins; each message."""
    words = ["\n".join(lines) for printed, lines in message.parts if not printed]
    messages = ["\n".join(lines) for printed, lines in message.parts if printed]
    return [" ".join([message.heading, *words]), textwrap.shorten(message.plain, 100, placeholder=" …"), *messages]
