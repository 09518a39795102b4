"""Lesson 12: the suspects, all mistakes of the gallery with a link to each."""


def suspects(entries, page, columns=3):
    """Rows of a table that reads down its columns."""
    links = [f"[{entry.heading}]({page}#{entry.anchor})" for entry in entries]
    height = -(-len(links) // columns)
    links += [""] * (height * columns - len(links))
    return [{" " * column or "suspects": links[row + column * height] for column in range(columns)}
            for row in range(height)]
