"""What is known of a finding before it is seen: `--explain NAME`."""

import argparse
import difflib
import re

from . import at_scale, detectors
from .detectors import ENTRIES, ERRORS, Finding
from .findings import indented

KNOWN = {}  # {name: the forms of that finding}
for finding in [*vars(detectors).values(), *ERRORS.values(), *vars(at_scale).values()]:
    if isinstance(finding, Finding):
        KNOWN.setdefault(finding.name, []).append(finding)


class Explain(argparse.Action):
    """As --help: prints, and ends."""

    def __call__(self, parser, _, name, __=None):
        if name and name not in KNOWN:
            near = ", ".join(difflib.get_close_matches(name, KNOWN, cutoff=0.4))
            parser.error(f"there is no finding {name}; " + (f"near it: {near}" if near else "--explain lists all"))
        parser.exit(print(explained(name) if name else listed()))


def listed():
    return "\n".join(f"{name:22}{', '.join(dict.fromkeys(form.level for form in forms))}"
                     for name, forms in sorted(KNOWN.items()))


def explained(name):
    lines = []
    for form in KNOWN[name]:
        said = next((pattern for pattern, finding in ERRORS.items() if finding is form), "")
        seen = f'an error that says "{said}"' if said else re.sub(r"{.*?}", "…", form.seen)
        lines += [f"{name}: {form.level}", *indented(f"Seen: {seen}"), *indented(f"Means: {form.means}"),
                  *indented(f"Repair: {form.repair}")]
    if entry := ENTRIES.get(name):
        lines += [*indented(f"Look: {entry['look']}"), f"    More: {entry['link']}"]
    return "\n".join(lines)
