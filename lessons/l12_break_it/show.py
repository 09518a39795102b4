"""Lesson 12: the suspects, all mistakes of the gallery with a link to each; the losses that a patient prints."""

import re


def suspects(entries, page, columns=3):
    """Rows of a table that reads down its columns."""
    links = [f"[{entry.heading}]({page}#{entry.anchor})" for entry in entries]
    height = -(-len(links) // columns)
    links += [""] * (height * columns - len(links))
    return [{" " * column or "suspects": links[row + column * height] for column in range(columns)}
            for row in range(height)]


def losses(printed):
    """{epoch: losses of its batches} from lines such as "losses of epoch 0: 0.15 0.26"; other lines tell nothing.

    ValueError where no line has any: then the script failed, and its last line says why.
    """
    found = list(filter(None, (re.match(r"losses of epoch (\d+): (.+)", line) for line in printed)))
    if not found:
        raise ValueError(f"no losses were printed, but: {printed[-1] if printed else 'nothing'}")
    return {int(line[1]): [float(loss) for loss in line[2].split()] for line in found}
