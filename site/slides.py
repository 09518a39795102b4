"""Slides of a lesson, made of the cells of its notebook: its question, each prediction and then what came out,
questions by show of hands where teach/ stands, and what to remember. One HTML file, which asks nobody for anything.
"""

import html
import importlib.util
import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from nbconvert.filters import markdown2html, strip_ansi

import files
import layout

FOLDER, TEMPLATE = Path("build/slides"), Path("site/slides.html")
LINES, FEW, ROWS = 24, 3, 12  # most lines of a printed text; so many share a slide; most rows of a table
ABOUT, MOST = 80, 150  # words that stand on the slide of a question; that have a slide before it. The rest: its notes
NOTHING = "Nothing predicted yet: replace `None` above. "  # as course.lesson.predicted words it


@dataclass
class Slide:
    label: str
    heading: str
    body: list[str]
    """HTML, one part below the other."""
    notes: str = ""
    title: bool = False


def write(name):
    """Makes the slides of the lesson whose notebook is notebooks/NAME.ipynb; the path of the file, and how many."""
    path = Path(f"notebooks/{name}.ipynb")
    try:
        lesson = layout.Lesson(path, executed=True)
        slides = of_lesson(lesson)
    except Exception as problem:  # whatever somebody's own notebook has in it, its name is what helps
        raise RuntimeError(f"{path} makes no slides: {type(problem).__name__}: {problem}") from problem
    inside = "\n".join(page_of(slide) for slide in slides)
    parts = {"title": html.escape(f"{lesson.title}: slides"), "slides": inside,
             "mathjax": mathjax() if "$$" in inside else ""}
    FOLDER.mkdir(parents=True, exist_ok=True)
    target = FOLDER / f"{name}.html"
    with files.whole(target) as file:
        template = TEMPLATE.read_text(encoding="utf-8")
        file.write_text(re.sub(r"@(title|slides|mathjax)@", lambda part: parts[part[1]], template), encoding="utf-8")
    return target, len(slides)


def of_lesson(lesson):
    cells = lesson.notebook.cells
    headings, asked = headings_of(cells), predictions(cells)
    answers = {place: number for number in asked for place in answers_of(number, asked, cells, headings)}
    small = [f'<p class="small">{html.escape(text)}</p>' for text in (lesson.time, lesson.verified)]
    slides = [Slide("", lesson.title, [f"<p>{inline(lesson.question)}</p>", *small], title=True)]
    for place in range(len(cells)):
        if place in asked:
            slides += question(place, cells, headings[place], answers)
        elif place in answers and place - 1 not in answers:  # the first of several without a word between
            together = [place, *takewhile(answers.__contains__, range(place + 1, len(cells)))]
            group = [other for other, number in answers.items() if number == answers[place]]
            printed = not any(main for other in group for _, main in shown(cells[other], printed=False))
            items = [item for other in together for item in shown(cells[other], printed)]
            slides += filled("What came out", headings[place], items)
            for below in filter(is_text, cells[together[-1] + 1:together[-1] + 2] if items else []):
                slides[-1].notes = text_of(re.split(r"^#+ ", below.source, flags=re.M)[0])
    return [*slides, *show_of_hands(lesson.name), *remembered(lesson)]


# ------------------------------------------------------------------------------------------ predictions and answers


def headings_of(cells):
    """Of each cell the headings above it: (its section's, the nearest), the same where there is no lower one."""
    found, section, own = [], "", ""
    for cell in cells:
        if cell.cell_type == "markdown":
            for hashes, text in re.findall(r"^(##+) +(.+)", cell.source, re.M):
                section, own = (text, text) if hashes == "##" else (section, text)
        found.append((section, own))
    return found


def predictions(cells):
    """{place of a cell that asks for a prediction: the names that it sets to None}; exercises are none."""
    return {place: names for place, (cell, (_, heading)) in enumerate(zip(cells, headings_of(cells), strict=True))
            if cell.cell_type == "code" and not heading.startswith("Exercise")
            and (names := re.findall(r"^(my_\w+) = None", cell.source, re.M))}


def answers_of(number, asked, cells, headings):
    """Places of the cells that answer a prediction: those that use its name, what follows them without a word between,
    and what comes before the first in the same section."""
    name = re.compile(rf"\b({'|'.join(asked[number])})\b")
    answers = [place for place in range(number + 1, len(cells))
               if is_code(cells[place]) and name.search(cells[place].source)]
    for place in list(answers):
        while place + 1 < len(cells) and is_code(cells[place + 1]) and place + 1 not in asked:
            place += 1
            answers.append(place)
    for place in range(number + 1, min(answers, default=0)):
        if place in asked or headings[place] != headings[number]:
            break
        answers += [place] if is_code(cells[place]) else []
    return answers


def is_code(cell):
    return cell.cell_type == "code"


def is_text(cell):
    return cell.cell_type == "markdown"


def question(place, cells, heading, answers):
    """Slides of the prediction at `place`: what it is about, then what is asked; without any answer."""
    above = cells[place - 1]
    text = above.source if is_text(above) else ""
    context = [] if below_heading(text) != text else before(place - bool(text), cells)
    context = [cells[other] for other in context if other not in answers]
    printed = bool(context) and is_text(context[0])  # of the same section
    items = [item for cell in context for item in (
        shown(cell, printed) if is_code(cell) else [(text_of(below_heading(cell.source)), False)])]
    if len(items) == sum(map(is_text, context)):  # words alone: they need no slide of their own
        text, items = "\n\n".join([*(below_heading(cell.source) for cell in context if is_text(cell)), text]), []
    about, _, ask = below_heading(text).partition("**Predict")
    about, ask = (about.strip(), f"**Predict{ask}") if ask else ("", about.strip())
    about, cut = last_words(about)
    long = len(about.split()) > ABOUT
    slides = filled("Before you predict", heading, [*items, *([(text_of(about), True)] if long else [])])
    lines = "\n".join(re.findall(r"^my_.+", cells[place].source, re.M))
    box = f'<div class="ask">{text_of(ask)}<pre>{html.escape(lines)}</pre></div>'
    if ask or not slides:
        body = [text_of(about), box] if about and not long else [box]
        return [*slides, Slide("Predict", heading[1], body, text_of(cut) if cut else "")]
    slides[-1].label = "Predict"
    slides[-1].body.append(box)
    return slides


def last_words(text):
    """(the last paragraphs of a text, MOST words at most; what stands above them)"""
    paragraphs = [text] if "```" in text else text.split("\n\n")
    kept = paragraphs[-1:]
    while len(kept) < len(paragraphs) and len(" ".join(paragraphs[-len(kept) - 1:]).split()) <= MOST:
        kept = paragraphs[-len(kept) - 1:]
    return "\n\n".join(kept), "\n\n".join(paragraphs[:-len(kept)])


def before(place, cells):
    """Places of the cells above `place`, from the nearest heading on; where it is far, of the code right above."""
    heading = next(other for other in reversed(range(place)) if is_text(cells[other])
                   and re.search(r"^#", cells[other].source, re.M))
    if place - heading <= 3:
        return list(range(heading, place))
    return list(takewhile(lambda other: is_code(cells[other]), reversed(range(place))))[::-1]


def below_heading(text):
    """What stands below the last heading of a text: all of it, where there is none."""
    return re.split(r"^#+ .+\n", text, flags=re.M)[-1]


def remembered(lesson):
    """The slide of the lesson's last section."""
    text = re.split(r"^## What to remember\n", lesson.text, flags=re.M)
    return [Slide("", "What to remember", [text_of(text[1])])] if len(text) == 2 else []


def show_of_hands(name):
    """Each question, then its answer. What wrong answers reveal is in the notes: it is the teacher's."""
    if not Path("teach").is_dir():
        return []
    from teach import teaching  # late: where teach/ is missing, it may be, too

    slides = []
    for number, asked in enumerate(teaching.questions_of(name), 1):
        for answered in (False, True):
            options_shown = "".join(
                f'<li{" class=right" if answered and letter == asked.right else ""}>'
                f"{'✓' if answered and letter == asked.right else ''} {letter}. {inline(text)}</li>"
                for letter, text in asked.options.items())
            body = [text_of(asked.text), f'<ul class="options">{options_shown}</ul>',
                    *([text_of(asked.why)] if answered else [])]
            reveals = "\n".join(f"- **{letter}** reveals: {text}" for letter, text in asked.reveals.items())
            slides.append(Slide("The answer" if answered else "Show of hands", f"Question {number}", body,
                                text_of(reveals) if answered else ""))
    return slides


# --------------------------------------------------------------------------------------------------------- to HTML


def filled(label, heading, items):
    """Slides for [(HTML, whether it fills a slide), ...]: a picture or table each, with the lines around it."""
    slides, full = [], False
    for part, main in items:
        if not slides or (full and main):
            slides.append(Slide(label, heading[1], []))
            full = False
        slides[-1].body.append(part)
        full |= main
    return slides


def shown(cell, printed):
    """[(HTML, whether it fills a slide)] of the outputs of a cell: pictures, tables, lines, pages to try things on;
    what was `printed`, too."""
    items = []
    for output in cell.outputs:
        found = output.get("data", {})
        if "image/png" in found:
            alt = html.escape(layout.alt_text(output))
            picture = "".join(found["image/png"].split())
            items.append((f'<img alt="{alt}" src="data:image/png;base64,{picture}">', True))
        elif "<iframe" in found.get("text/html", ""):
            items.append((re.search(r"<iframe.*</iframe>", found["text/html"], re.S)[0], True))
        elif text := found.get("text/markdown"):
            items.append((text_of(fewer_rows(text.replace(NOTHING, ""))), bool(re.search(r"^(\||```)", text, re.M))))
        elif printed and output.output_type == "stream":
            lines = strip_ansi(output.text).strip("\n").splitlines()
            if len(lines) > LINES:
                lines = [*lines[:LINES // 2], "…", *lines[-LINES // 2 + 1:]]
            items.append((f"<pre>{html.escape(chr(10).join(lines))}</pre>", len(lines) > FEW))
    return items


def fewer_rows(text):
    """A table, or any other text, with no more rows than can be read from far away."""
    lines = text.splitlines()
    rows = [place for place, line in enumerate(lines) if line.startswith("|")][2:]  # below the heading and its line
    if len(rows) <= ROWS:
        return text
    return "\n".join([*lines[:rows[ROWS]], "", f"… and {len(rows) - ROWS} more in the lesson", *lines[rows[-1] + 1:]])


def text_of(text):
    """Markdown as HTML. Links into the course lead nowhere from a file that stands alone: their words stay."""
    text = re.sub(r"(?<!!)\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", text)
    return f'<div class="text">{markdown2html(text)}</div>'


def inline(text):
    """One line of Markdown, without the paragraph around it. A number at its beginning makes no list."""
    paragraph = text_of(re.sub(r"^(\d+)\.", r"\1\.", text))
    return re.sub(r'^<div class="text"><p>(.*)</p>\s*</div>$', r"\1", paragraph, flags=re.S)


def page_of(slide):
    kind = ' class="title"' if slide.title else ""
    heading = f"<h2>{inline(slide.heading)}</h2>"
    body = "\n".join(slide.body)
    if slide.title:
        heading, body = "", f"<h1>{inline(slide.heading)}</h1>\n{body}"
    notes = f"<aside>{slide.notes}</aside>" if slide.notes else ""
    return (f'<section{kind} tabindex="-1" aria-roledescription="slide"><p class="label">{slide.label}</p>{heading}\n'
            f'<div class="body">\n{body}\n</div>{notes}</section>')


def mathjax():
    """The script that draws formulas, from the package that the site takes it from: 2 MB, only where there are any."""
    package = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent
    script = (package / "static/mathjax/tex-svg-full.js").read_text(encoding="utf-8").replace("</script", r"<\/script")
    settings = "MathJax = {tex: {inlineMath: []}, options: {enableMenu: false}}"
    return f"<script>{settings}</script>\n<script>{script}</script>"
