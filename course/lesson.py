"""How a lesson begins, asks for a prediction, and shows a table, a verdict or a function. What is taught stays in the
notebook."""

import difflib
import inspect
import os
import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from datetime import date
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def begin():
    """Make a cell's surroundings the course's: the folder, this environment's programs, and commands that fail loudly.

    The first cell of every lesson calls it, from the root or from notebooks/, any number of times. It prints what a
    reader of the outputs wants to know: on what, with which versions, and when they were made.
    """
    if sys.platform == "win32":
        from IPython.core.error import UsageError  # shown as one line

        raise UsageError("needs Linux or macOS; on Windows: WSL, see site/pages/systems.md")
    os.chdir(ROOT)
    Path("results/live").mkdir(parents=True, exist_ok=True)  # where commands of the lessons write
    known = (path for path in sys.path if path != str(ROOT) and (os.path.isabs(path) or not path))
    sys.path[:] = [str(ROOT), *known]  # without the relative path that the first cell has found this by
    for variable, first in (("PATH", str(Path(sys.executable).parent)), ("PYTHONPATH", str(ROOT))):  # of each !command
        paths = os.environ.get(variable, "").split(os.pathsep)
        os.environ[variable] = os.pathsep.join([first, *(path for path in paths if path not in ("", first))])
    shell = get_ipython()
    shell.system_raise_on_error = True  # a !command that fails, fails its cell, the notebook and papermill
    # By name: a lesson without pictures needs no matplotlib. The bundle's formatter, not that of PNGs: matplotlib
    # replaces the latter when the first figure is made, and what is drawn stays its business.
    shell.display_formatter.mimebundle_formatter.for_type_by_name("matplotlib.figure", "Figure", _alt_text)
    print(_machine())


def _alt_text(figure):
    """No picture, but what belongs to one: (data, metadata) of a mime bundle."""
    return {}, {"image/png": {"alt": alt_text(figure)}}


def alt_text(figure) -> str:
    """A matplotlib figure in words, for a reader who cannot see it: titles, axes, then the names of series and rows.

    At most 400 characters: a screen reader reads them in one go, and nobody can skip a part.
    """
    parts, names = [figure.get_suptitle()], [text for legend in figure.legends for text in legend.get_texts()]
    for ax in figure.axes:
        parts += [ax.get_title(loc=side) for side in ("left", "center", "right")]
        parts.append(" against ".join(filter(None, (ax.get_ylabel(), ax.get_xlabel()))) if ax.axison else "")
        legend = ax.get_legend()
        names += [*(legend.get_texts() if legend else ()), *ax.get_yticklabels(), *ax.texts]
    words = dict.fromkeys(" ".join(name.get_text().split()) for name in names)
    words = [word for word in words if re.search(r"[^\W\d_]{2}", word) and "$" not in word]  # no numbers on an axis
    sentences = [" ".join(part.split()) for part in dict.fromkeys(parts) if part]
    sentences += [f"It names {', '.join(words)}"] if words else []
    text = " ".join(sentence if sentence.endswith((".", "?", "!")) else f"{sentence}." for sentence in sentences)
    return (text if len(text) <= 400 else f"{text[:399]}…") or "A picture without words."


def _machine():
    """Versions, cores, processor or GPUs, and the day, in one line: no name and no path of the machine.

    torch is not asked (nor launch.py, which brings it): a lesson may set variables before it imports torch, and
    torch would start CUDA in this process, after which a forked one cannot use it.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cpuinfo = Path("/proc/cpuinfo")  # Linux; elsewhere the kind of processor has to do
    processor = re.search(r"model name\s*: (.+)", cpuinfo.read_text() if cpuinfo.exists() else "")
    gpus = []
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        with suppress(subprocess.SubprocessError):  # a driver that fails, or does not answer
            asked = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
            gpus = asked.stdout.splitlines()
    return ", ".join([f"Python {platform.python_version()}", f"PyTorch {version('torch')}",
                      f"{some(cores, 'core')} of {processor[1] if processor else platform.machine()}",
                      *([f"{count} × {name}" for name, count in Counter(gpus).items()] or ["no NVIDIA GPU"]),
                      str(date.today())])


def table(rows):
    """Show a table: a DataFrame, or a list with a dict a row. Columns of figures stand to the right."""
    rows = rows if isinstance(rows, list) else rows.to_dict("records")
    cells = [[str(cell).replace("|", "\\|") for cell in line] for line in (rows[0], *(row.values() for row in rows))]
    columns = zip(*cells[1:], strict=True)
    figures = [all(re.match(r"[-+–−<]? ?[\d.]|–$|nan$", cell) for cell in column) for column in columns]
    cells.insert(1, ["--:" if right else ":--" for right in figures])
    _show("\n".join(f"| {' | '.join(line)} |" for line in cells))


def code(*functions):
    """Show the source of functions as it stands in their files."""
    _show("```python\n" + "\n\n".join(inspect.getsource(function).rstrip() for function in functions) + "\n```")


def difference(old, new):
    """Show what the source of a function adds (+) to that of another, and leaves out (-)."""
    before, after = (inspect.getsource(function).rstrip().splitlines() for function in (old, new))
    lines = list(difflib.unified_diff(before, after, n=100, lineterm=""))[3:]
    _show("```diff\n" + "\n".join(lines) + "\n```")


def predicted(mine, found, unit=""):
    """Put what was predicted beside what came out, in one line. None: nothing was predicted.

    Figures are shown to three digits, with `unit` behind them; all else as it is.
    """
    if mine is None:
        _show(f"Nothing predicted yet: replace `None` above. Here it is **{_told(found, unit)}**.")
    elif mine == found or _told(mine, unit) == _told(found, unit):
        _show(f"You predicted **{_told(mine, unit)}**, and that is what came out.")
    else:
        _show(f"You predicted **{_told(mine, unit)}**. Here it is **{_told(found, unit)}**.")


def verdict(text):
    """Show a message as Markdown: a line, or a list of lines."""
    _show(text if isinstance(text, str) else "\n".join(f"- {line}" for line in text))


def sign(name):
    """Keep what the class's board shall call this machine, beside the logs; None: it stays without a name."""
    if name is not None:
        (ROOT / "results" / "live" / "name.txt").write_text(f"{name}\n", encoding="utf-8")
        print(f"signed: {name}")


def interactive(name):
    """Show a page of course/interactive/ to try things on, in a frame: its style and the notebook's do not meet."""
    from IPython.display import display

    from course.interactive import TITLES, page

    inside = page(name).replace("&", "&amp;").replace('"', "&quot;")
    frame = f'<iframe title="{TITLES[name]}" style="width:100%;height:720px;border:0" srcdoc="{inside}"></iframe>'
    absent = f"<p>Interactive: {TITLES[name]}. Where no page stands here, run this cell in JupyterLab.</p>"
    display({"text/html": frame + absent, "text/plain": TITLES[name]}, raw=True)  # the page hides the line below it


def _told(value, unit):
    figure = isinstance(value, int | float) and not isinstance(value, bool)
    told = f"{value}" if not figure else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{told} {unit}".strip()


def some(number, what):
    """"1 rank", "8 ranks", "50,000 images"."""
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def _show(text):
    from IPython.display import Markdown, display  # late: whoever only wants `some` needs no notebook

    display(Markdown(text))
