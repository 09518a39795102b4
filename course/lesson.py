"""How a lesson begins, compares a prediction, and shows a table, a verdict or a function."""

import ast
import inspect
import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from course.exercise import is_stub, same

if TYPE_CHECKING:
    import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
NOTHING_PREDICTED = "Nothing predicted yet: replace `None` above. "  # a page of the site leaves it out
NONE_PREDICTED = "Nothing was predicted."  # and this one, too
_captions: list[str] = []  # of the figures so far: a cell that runs again keeps its number
_predictions: dict[str, list[str]] = {}  # what was predicted, and what came, by the question


def notebooks() -> dict[str, Path]:
    """{number of a lesson, such as 13: its notebook}, in the order of the course."""
    return {path.stem.split("_")[0]: path for path in sorted(ROOT.glob("notebooks/[0-9][0-9]*_*.ipynb"))}


def begin() -> None:
    """Set the folder, the programs on PATH and the import path of all cells, and let commands that fail raise.

    The first cell of every lesson calls it, from the root or from a folder in it, any number of times. It prints the
    machine, the versions and the date of the outputs that follow. Raises UsageError on Windows.
    """
    if sys.platform == "win32":
        from IPython.core.error import UsageError  # shown as one line

        raise UsageError("needs Linux or macOS; on Windows: WSL, see site/pages/systems.md")
    os.chdir(ROOT)
    Path("results/live").mkdir(parents=True, exist_ok=True)  # where commands of the lessons write
    known = (path for path in sys.path if path != str(ROOT) and (os.path.isabs(path) or not path))
    sys.path[:] = [str(ROOT), *known]
    for variable, first in (("PATH", str(Path(sys.executable).parent)), ("PYTHONPATH", str(ROOT))):  # of each !command
        paths = os.environ.get(variable, "").split(os.pathsep)
        os.environ[variable] = os.pathsep.join([first, *(path for path in paths if path not in ("", first))])
    # Let glibc keep what is freed for the next step (mallopt(3)): up to a third of a small ResNet's step goes there
    os.environ.update(MALLOC_TRIM_THRESHOLD_="-1", MALLOC_MMAP_MAX_="0")
    _captions.clear()
    _predictions.clear()
    begin_program()
    shell = get_ipython()
    shell.register_magic_function(mine, "cell")
    shell.system_raise_on_error = True  # a !command that fails, fails its cell, the notebook and papermill
    # By name: a lesson without pictures needs no matplotlib. The bundle's formatter, not that of PNGs: matplotlib
    # replaces the latter when the first figure is made, and what is drawn stays its business.
    shell.display_formatter.mimebundle_formatter.for_type_by_name("matplotlib.figure", "Figure", _alt_text)
    print(_machine())


def begin_program() -> None:
    """Copy train.py and train_gpt.py, the learner's own programs, into mine/, unless they are there. Each is whole
    when it appears."""
    Path("mine").mkdir(exist_ok=True)
    for name in ("train.py", "train_gpt.py"):
        if not Path("mine", name).exists():
            beside = Path("mine", f".{name}-{os.getpid()}")
            shutil.copyfile(f"lessons/start/{name}", beside)
            beside.replace(Path("mine", name))


def mine(line: str, cell: str) -> None:
    """The magic `%%mine shard.py`: save the cell as mine/shard.py, where train.py takes its part from.

    `%%mine my_ddp.py MyDDP`: the cell's functions become methods of that class in the file, in the place of those of
    the same names. An exercise's stub is not saved, so that the program goes on with the course's part.
    """
    name, _, owner = line.strip().partition(" ")
    path = Path("mine", name)
    try:
        stub = is_stub(ast.parse(cell))
    except SyntaxError:
        stub = False  # whoever runs the file learns of it
    if stub:
        print(f"{path}: not written yet. " + ("The one of before stays." if path.exists() else
                                              "The program takes the course's part."))
    elif not owner:
        path.write_text(cell, encoding="utf-8")
        print(f"Saved as {path}.")
    elif not path.exists():
        print(f"There is no {path} yet. Write the class first, in its cell above.")
    else:
        changed = _with_methods(path.read_text(encoding="utf-8"), owner, cell)
        path.write_text(changed, encoding="utf-8")
        print(f"Changed {owner} in {path}.")


def _with_methods(text: str, owner: str, cell: str) -> str:
    """The text of a file, with a cell's functions as methods of the class `owner`, and its imports above it.
    SyntaxError where one of both is no Python."""
    lines, methods = cell.splitlines(), ast.parse(cell).body
    starts = [_first_line(method) for method in methods]
    for method, start, end in zip(methods, starts, [*starts[1:], len(lines)], strict=True):
        own = "\n".join(lines[start:end]).rstrip()
        indented = textwrap.indent(own, "    ").splitlines()
        [found] = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == owner]
        old = next((node for node in found.body if getattr(node, "name", None) == getattr(method, "name", "")), None)
        into = text.splitlines()
        if isinstance(method, ast.Import | ast.ImportFrom):
            into.insert(_first_line(found), own)
        elif old:
            into[_first_line(old):old.end_lineno] = indented
        else:
            into[found.end_lineno:found.end_lineno] = ["", *indented]
        text = "\n".join(into) + "\n"
    return text


def _first_line(node: ast.stmt) -> int:
    """From 0; decorators belong to a function."""
    return min(each.lineno for each in [node, *getattr(node, "decorator_list", [])]) - 1


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


def _machine() -> str:
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


def figure(caption: str) -> None:
    """Show what this cell has drawn, and below it the figure's number and what to see in it."""
    import matplotlib.pyplot as plt  # late: a lesson without pictures needs no matplotlib
    from IPython.display import display

    for number in plt.get_fignums():
        display(plt.figure(number))
        plt.close(number)
    if caption not in _captions:
        _captions.append(caption)
    _show(f"**Figure {_captions.index(caption) + 1}.** {caption}")


def table(rows: "pd.DataFrame | list[dict]") -> None:
    """Show a table: a DataFrame, or a list with a dict a row. Columns of figures are aligned to the right."""
    rows = rows if isinstance(rows, list) else rows.to_dict("records")
    cells = [[str(cell).replace("|", "\\|") for cell in line] for line in (rows[0], *(row.values() for row in rows))]
    columns = zip(*cells[1:], strict=True)
    figures = [all(re.match(r"[-+–−<]? ?[\d.]|–$|nan$", cell) for cell in column) for column in columns]
    cells.insert(1, ["--:" if right else ":--" for right in figures])
    _show("\n".join(f"| {' | '.join(line)} |" for line in cells))


def small(difference: float) -> str:
    """A difference for a table: its size, or that there is none."""
    return f"{difference:.0e}" if difference else "0"


def code(*functions: Callable) -> None:
    """Show the source of functions as it stands in their files."""
    _show("```python\n" + "\n\n".join(inspect.getsource(function).rstrip() for function in functions) + "\n```")


def predicted(mine: object, measured: object, unit: str = "", what: str = "") -> None:
    """Show a prediction beside the measured value, in one line. `mine` is None where nothing was predicted: the value
    then stands folded, behind a click.

    Numbers are rounded to three digits and followed by `unit`; every other value is shown as it is. A tuple will do for
    a list, and two numbers for a range, where one number is measured. `what` names the question in the table of
    `predictions`.
    """
    mine = list(mine) if isinstance(mine, range) else mine
    right = _figure(measured, unit)
    _predictions.pop(what, None)
    if mine is None:
        return _show(f"{NOTHING_PREDICTED}<details><summary>What came out</summary>{right}</details>")
    if _is_number(measured) and isinstance(mine, tuple | list) and len(mine) == 2 and all(map(_is_number, mine)):
        guess, hit = f"{_figure(min(mine), '')} to {_figure(max(mine), unit)}", min(mine) <= measured <= max(mine)
        _show(f"You predicted **{guess}**. Here it is **{right}**, {'within' if hit else 'outside'} your range.")
    else:
        guess = _figure(mine, unit)
        hit = same(mine, measured) or guess == right
        _show(f"You predicted **{guess}**, and that is what came out." if hit else
              f"You predicted **{guess}**. Here it is **{right}**.")
    _predictions[what] = [guess, right, "yes" if hit else "no"]


def predictions() -> None:
    """Show what was predicted in this lesson, what came out, and whether it hit, in a table; at a lesson's end."""
    if _predictions:
        table([dict(zip(("question", "predicted", "came out", "hit"), [what, *row], strict=True))
               for what, row in _predictions.items()])
    else:
        _show(NONE_PREDICTED)


def verdict(text: str | list[str]) -> None:
    """Show a message as Markdown: a line, or a list of lines."""
    _show(text if isinstance(text, str) else "\n".join(f"- {line}" for line in text))


def live_ranks(count: int, timeout: float = 10) -> None:
    """Start `count` ranks that wait for cells: each cell that begins with %%px runs on all of them.

    They have met in a gloo group, in which a wait ends after `timeout` seconds with an error. Called again, it gives
    them a new group, and forgets what cells have defined on them. They end with the notebook's kernel.
    """
    from course import live_ranks

    print(live_ranks.start(count, timeout))


def sign(name: str | None) -> None:
    """Write the name of this machine for the class's board beside the logs; None leaves it without a name."""
    if name is not None:
        (ROOT / "results" / "live" / "name.txt").write_text(f"{name}\n", encoding="utf-8")
        print(f"signed: {name}")


def interactive(name: str) -> None:
    """Show the page `name` of course/interactive/ in a frame."""
    from course.interactive import TITLES, page

    _frame(TITLES[name], page(name))


def puzzle(name: str) -> None:
    """Show the rank puzzles in a frame, at the puzzle whose function is `name`."""
    made = Path("results/live/puzzles.html")
    subprocess.run([sys.executable, "site/puzzles/build.py", made], stdout=subprocess.DEVNULL, check=True)
    begin = "<html lang='en'"
    _frame("Rank puzzles", made.read_text(encoding="utf-8").replace(begin, f"{begin} data-puzzle='{name}'", 1))


def _frame(title: str, page: str) -> None:
    """Show an HTML page in a frame, which keeps its style and the notebook's apart. It hides the line below the frame.
    """
    from IPython.display import display

    inside = page.replace("&", "&amp;").replace('"', "&quot;")
    frame = f'<iframe title="{title}" style="width:100%;height:720px;border:0" srcdoc="{inside}"></iframe>'
    absent = f"<p>Interactive: {title}. Where no page stands here, run this cell in JupyterLab.</p>"
    display({"text/html": frame + absent, "text/plain": title}, raw=True)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _figure(value: object, unit: str) -> str:
    text = f"{value}" if not _is_number(value) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{text} {unit}".strip()


def some(number: int, noun: str) -> str:
    """"1 rank", "8 ranks", "50,000 images"."""
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def _show(text: str) -> None:
    from IPython.display import Markdown, display  # late: whoever only wants `some` needs no notebook

    display(Markdown(text))
