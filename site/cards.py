"""Cards of one screen, for reference: made from the glossary, the tables of a few pages, the lessons and the entries of
Troubleshooting, so that nothing is said twice. The page has a search of its own (static/cards.js)."""

import re
from collections.abc import Iterator
from pathlib import Path

from gallery.table import read_messages

PAGES = Path("site/pages")
TABLES = {"methods": "method", "launchers": "launcher or variable", "systems": "where it runs"}
HEAD = """---
orphan: true
nosearch: true
---

# Cards

<p><label>Find a card <input type="search" id="card-search" autocomplete="off"></label>
<span role="status" id="card-count"></span></p>

"""


def cards(lessons: list) -> Iterator[tuple[str, str, str]]:
    """(kind, title, Markdown) of each card, as seen from site/pages. `lessons`: layout.Lesson of each notebook."""
    glossary = (PAGES / "glossary.md").read_text(encoding="utf-8")
    entries = glossary.partition(":sorted:\n")[2].partition("\n```")[0].strip().split("\n\n")
    for entry in entries:
        terms, definition = re.match(r"((?:\S.*\n)+)((?: .*\n?)+)", f"{entry}\n").groups()
        yield "term", ", ".join(terms.split("\n")[:-1]), " ".join(definition.split())
    for page, kind in TABLES.items():
        for table in re.findall(r"(?:^\|.+\n)+", (PAGES / f"{page}.md").read_text(encoding="utf-8"), re.M):
            head, _, *rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
                              for row in table.splitlines())
            for title, *rest in rows:
                text = "\n".join(f"- *{name}:* {cell}" for name, cell in zip(head[1:], rest, strict=True) if cell)
                yield kind, re.sub(r"\[(.+?)\]\(.+?\)", r"\1", title), f"{text}\n- [the page]({page}.md)"
    for lesson in lessons:
        yield "lesson", lesson.title, f"{lesson.question} [Open](../../notebooks/{lesson.name}.ipynb)"
    for message in read_messages():
        seen, link = message.plain.replace("`", ""), f"../../troubleshooting/{message.anchor}.md"
        yield ("when it goes wrong", message.heading.replace("[", r"\["),
               f"`{seen[:200]}{'…' * (len(seen) > 200)}` [Why, and the repair]({link})")


def page(lessons: list) -> str:
    """The page's Markdown."""
    links = "\n".join(re.findall(r"^\[\w+\]: .+$", (PAGES / "glossary.md").read_text(encoding="utf-8"), re.M))
    text = "\n".join(f":::{{container}} card-of-one-screen\n[{kind}]{{.kind}} **{title}**\n\n{text}\n:::\n"
                     for kind, title, text in cards(lessons))
    return f"{HEAD}::::{{container}} cards\n{text}\n::::\n\n{links}\n"
