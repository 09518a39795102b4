"""Two small pages to try things on: buckets, and the scaling model. `lesson.interactive` shows them.

Each is one file NAME.html here, put into shell.html: plain JavaScript without a library or a request. What a page
computes is in its functions above the line "drawing"; tests/test_interactive.py holds their numbers against torch's and
the course's.
"""

import re
from pathlib import Path

TITLES = {
    "buckets": "When a bucket leaves",
    "scaling": "Speed-up of many ranks, predicted",
}


def page(name: str) -> str:
    """The whole HTML of a page, with all that it needs."""
    style, body = re.fullmatch(r"(?:<style>\n(.*?)</style>\n)?(.*)", _text(f"{name}.html"), re.DOTALL).groups()
    parts = {"title": TITLES[name], "style": style or "", "body": body}
    return re.sub(r"@(title|style|body)@\n?", lambda found: parts[found[1]].rstrip(), _text("shell.html"))


def _text(name):
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
