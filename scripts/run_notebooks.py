"""Executes the notebooks of the course with papermill and writes a page of each.

    scripts/run                     every notebook, in order
    scripts/run --quick 07          the quick tier of notebook 07
    scripts/run --in-place          executes from the text twins and refreshes the committed outputs
    scripts/run --build 07          builds the .ipynb from its text twin, executes nothing

Executed notebooks go to build/notebooks/, with an HTML page of each; build/index.html lists them.
Exit status: 0 all passed, 1 a notebook failed, 2 bad input, 130 stopped by Ctrl-C.

A notebook says what to expect of it in its metadata:
    {"course": {"seconds": 60, "quick": {"seconds": 20, "parameters": {"epochs": 1}}}}
`seconds` is the expected time on two cores; `parameters` is what papermill sets for the quick tier.
"""

import argparse
import base64
import html
import io
import logging
import os
import re
import shutil
import signal
import sys
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Everything below is relative to ROOT, so that no path of this machine gets into a notebook's metadata.
NOTEBOOKS = Path("notebooks")
TWINS = NOTEBOOKS / "text"
BUILD = Path("build")
# Written instead of what the kernel reports, so that another Python version changes no committed notebook.
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE_INFO = {
    "codemirror_mode": {"name": "ipython", "version": 3},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
    "version": "3",
}
RUN_MARK = "COURSE_RUN_MARK"


@dataclass
class Result:
    """What came of one notebook; kept in the executed notebook's metadata, where the index finds it."""

    name: str
    title: str
    tier: str
    status: str = "passed"  # passed, failed or stopped
    seconds: float = 0.0
    cell: int = 0
    """Number of the failing cell, as in `In [cell]`; 0 when none ran."""
    error: list[str] = field(default_factory=list)
    """The last lines of what the failing cell said, without colour codes."""
    finished: str = ""


# ---- which notebooks -------------------------------------------------------------------------------


def choose(wanted, available):
    """Those of `available` (stems, sorted) that `wanted` names: `07`, `07_name` or a path of the notebook.

    Raises ValueError with a line for the user when a name fits none.
    """
    stems = [Path(name).name.removesuffix(".ipynb").removesuffix(".py") for name in wanted]
    for name, stem in zip(wanted, stems, strict=True):
        if not any(stem in (have, have.split("_")[0]) for have in available):
            raise ValueError(f"no notebook {name!r}; there are: {', '.join(available) or 'none'}")
    return [have for have in available if not stems or have in stems or have.split("_")[0] in stems]


def title_of(notebook, name):
    headings = (re.search(r"^# +(.+)", cell.source, re.M) for cell in notebook.cells if cell.cell_type == "markdown")
    return next((found[1].strip() for found in headings if found), name)


# ---- text twin -> notebook -------------------------------------------------------------------------


def built_from_twin(name):
    """The notebook that the text twin describes, with the committed notebook's cell ids, and its outputs where
    the code of the cell is unchanged."""
    import jupytext
    import nbformat
    from jupytext.combine import combine_inputs_with_outputs

    twin = jupytext.read(TWINS / f"{name}.py")
    notebook, committed = twin, NOTEBOOKS / f"{name}.ipynb"
    with suppress(FileNotFoundError, nbformat.reader.NotJSONError):  # as after a merge that went wrong
        old = nbformat.v4.upgrade(nbformat.read(committed, as_version=4))
        code = {cell.id: cell.source for cell in old.cells}
        notebook = combine_inputs_with_outputs(jupytext.read(TWINS / f"{name}.py"), old)
        for cell in notebook.cells:
            # jupytext also pairs cells by position; what changed code once printed must not stay
            if cell.cell_type == "code" and code.get(cell.id) != cell.source:
                cell.outputs, cell.execution_count = [], None
    return as_committed(notebook, twin)


def as_committed(notebook, twin):
    """`notebook` with the metadata of its `twin` alone: no timestamps, no paths, no versions."""
    kept = {key: value for key, value in twin.metadata.items() if key not in ("jupytext", "widgets")}
    if widgets := notebook.metadata.get("widgets"):
        kept["widgets"] = widgets
    notebook.metadata = type(notebook.metadata)(kept | {"kernelspec": KERNELSPEC, "language_info": LANGUAGE_INFO})
    for cell, source in zip(notebook.cells, twin.cells, strict=True):
        # jupytext's own notes on blank lines concern the twin alone
        kept = {key: value for key, value in source.metadata.items() if not key.startswith("lines_to_")}
        cell.metadata = type(cell.metadata)(kept)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def write(notebook, path):
    """Writes `path` whole or not at all."""
    import nbformat

    write_whole(path, nbformat.writes(notebook) + "\n")


def write_whole(path, text):
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def commit(notebook, name):
    """Writes the notebook, and its twin with the blank lines that jupytext would write: JupyterLab refuses to open a
    notebook that is newer than its twin (as one is after `git pull`) while their texts differ in even one of them."""
    import jupytext

    twin = TWINS / f"{name}.py"
    shrink_pictures(notebook)
    write(notebook, NOTEBOOKS / f"{name}.ipynb")
    if [cell.source for cell in jupytext.read(twin).cells] == [cell.source for cell in notebook.cells]:
        head = twin.read_text(encoding="utf-8").split("# ---\n", 2)[:2]
        write_whole(twin, "# ---\n".join([*head, jupytext.writes(notebook, fmt="py:percent").split("# ---\n", 2)[2]]))
    # else somebody has edited it since, and keeps what they wrote


# ---- progress --------------------------------------------------------------------------------------


class Progress:
    """Shows cell and time while a notebook runs: one live line on a terminal, else a line now and then."""

    def __init__(self, label):
        self.label, self.cells, self.cell = label, 0, 0
        self.expected, self.seconds = "", 0.0
        self.live = sys.stdout.isatty()
        self.done = threading.Event()
        self.ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self):
        self.start = time.monotonic()
        self._show()
        self.ticker.start()
        return self

    def __exit__(self, *_):
        self.seconds = time.monotonic() - self.start
        self.done.set()
        self.ticker.join()

    def cell_starts(self, **_):
        self.cell += 1

    def report(self, outcome):
        self._print(f"{self.label}: {outcome}, {self.seconds:.0f} s{self.expected}", last=True)

    def _tick(self):
        while not self.done.wait(1 if self.live else 20):
            self._show()

    def _show(self):
        elapsed = time.monotonic() - self.start
        self._print(f"{self.label}: cell {self.cell}/{self.cells}, {elapsed:.0f} s{self.expected}")

    def _print(self, line, last=False):
        if self.live:  # return to the line's start, clear it; cut, because a wrapped line cannot be cleared
            line = f"\r\033[K{line if last else line[: shutil.get_terminal_size().columns - 1]}"
        print(line, end="\n" if last or not self.live else "", flush=True)


# ---- executing -------------------------------------------------------------------------------------


def use_this_python():
    """Makes kernels, and the commands that their cells shell out to, use the environment of this program."""
    environment = Path(sys.prefix)
    for variable, first in (
        ("PATH", environment / "bin"),
        ("JUPYTER_PATH", environment / "share" / "jupyter"),
    ):
        os.environ[variable] = os.pathsep.join(filter(None, (str(first), os.environ.get(variable))))
    os.environ.pop("MPLBACKEND", None)  # pictures belong into the notebook
    os.environ[RUN_MARK] = uuid.uuid4().hex


def end_leftovers():
    """Ends what a notebook left running. torchrun's workers have sessions of their own, and outlive a kernel
    that is killed; the mark in their environment finds them."""
    import psutil

    def marked(process):
        try:
            return process.pid != os.getpid() and process.environ().get(RUN_MARK) == os.environ[RUN_MARK]
        except (psutil.Error, OSError):  # gone, or another user's
            return False

    impatient = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not cut this short
    for end in (psutil.Process.terminate, psutil.Process.kill):
        left = [process for process in psutil.process_iter() if marked(process)]
        for process in left:
            with suppress(psutil.NoSuchProcess):
                end(process)
        psutil.wait_procs(left, timeout=3)
    signal.signal(signal.SIGINT, impatient)


def failure(notebook, error, cell, timeout):
    """Number of the failing cell and the last lines of what it said, without colour codes."""
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from nbconvert.filters import strip_ansi

    if isinstance(error, CellTimeoutError):
        return cell, [f"the cell took longer than {timeout} s and was stopped (--timeout sets the limit)"]
    if isinstance(error, DeadKernelError):
        return cell, ["the kernel died: often the machine ran out of memory"]
    for candidate in notebook.cells:
        outputs = candidate.get("outputs", [])
        for output in outputs:
            if output.output_type == "error":
                # a failed command says why in the text before the error
                printed = "".join(each.text for each in outputs if each.output_type == "stream")
                lines = printed.splitlines()[-6:] + f"{output.ename}: {output.evalue}".splitlines()[-6:]
                return candidate.execution_count, [strip_ansi(line) for line in lines if line.strip()]
    return cell, f"{type(error).__name__}: {strip_ansi(str(error)).strip()}".splitlines()[-6:]


def tidy_streams(notebook):
    """Merges what a cell printed in pieces, and leaves of a line rewritten in place (a progress bar) its end."""
    from nbconvert.preprocessors import CoalesceStreamsPreprocessor

    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output.text = re.sub(r"\r+\n", "\n", output.text)  # `!command` runs on a pseudo-terminal
    CoalesceStreamsPreprocessor().preprocess(notebook, {})


def shrink_pictures(notebook):
    """Stores each picture with a palette of 256 colours where nobody sees a difference (a plot, not a photograph): a
    third of the bytes, in a repository that keeps every version of them."""
    from PIL import Image, ImageChops, ImageStat

    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" not in output.get("data", {}):
                continue
            raw = base64.b64decode(output.data["image/png"])
            with Image.open(io.BytesIO(raw)) as picture:
                colours = picture.convert("RGB")
            few = colours.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
            off = max(ImageStat.Stat(ImageChops.difference(colours, few.convert("RGB"))).mean)  # levels, of 255
            few.save(small := io.BytesIO(), "PNG", optimize=True)
            if off < 0.5 and len(small.getvalue()) < len(raw):
                output.data["image/png"] = base64.b64encode(small.getvalue()).decode()


def execute(name, label, quick, in_place, timeout):
    """Runs one notebook, writes build/notebooks/NAME.ipynb and .html; refreshes the committed notebook when
    `in_place` and nothing failed."""
    import nbformat
    import papermill

    source, target = NOTEBOOKS / f"{name}.ipynb", BUILD / "notebooks" / f"{name}.ipynb"
    for stale in (target, target.with_suffix(".html")):
        stale.unlink(missing_ok=True)
    result = Result(name, name, "quick" if quick else "full")
    progress, error = Progress(label), None
    try:
        built = built_from_twin(name) if in_place else nbformat.read(source, as_version=4)
        course = built.metadata.get("course", {})
        tier = course.get("quick", {}) if quick else course
        parameters = tier.get("parameters", {}) if quick else {}
        result.title = title_of(built, name)
        progress.expected = f" of about {tier['seconds']:.0f} s" if "seconds" in tier else ""
        progress.cells = bool(parameters) + sum(
            cell.cell_type == "code" and cell.source.strip() != "" for cell in built.cells
        )
        write(built, target)
        with progress:
            papermill.execute_notebook(
                str(target),
                str(target),
                parameters=parameters,
                kernel_name="python3",
                progress_bar=False,
                execution_timeout=timeout,
                on_cell_execute=progress.cell_starts,
                extra_arguments=["--log-level=CRITICAL"],  # a kernel's own log would break the live line
            )
    except KeyboardInterrupt:
        result.status, error = "stopped", RuntimeError("stopped by Ctrl-C")
    except Exception as problem:  # whatever a notebook does wrong, the next one gets its turn
        result.status, error = "failed", problem
    finally:
        end_leftovers()
    result.seconds, result.finished = round(progress.seconds, 1), f"{datetime.now():%Y-%m-%d %H:%M}"
    if target.exists():
        notebook = nbformat.read(target, as_version=4)
        tidy_streams(notebook)
    else:
        notebook = nbformat.v4.new_notebook()  # the source itself could not be read
    if error:
        result.cell, result.error = failure(notebook, error, progress.cell, timeout)
    progress.report(result.status if not error else f"{result.status.upper()} in cell [{result.cell}]")
    notebook.metadata["course_run"] = asdict(result)
    write(notebook, target)
    write_page(notebook, name)
    if in_place and result.status == "passed":
        commit(as_committed(notebook, built), name)
    return result


# ---- pages -----------------------------------------------------------------------------------------


def write_page(notebook, name):
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(embed_images=True)
    page, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": name, "path": str(NOTEBOOKS)}})
    # nbconvert loads its formula renderer from the network; deferred, its absence does not hold up the page
    page = page.replace('<script src="http', '<script defer src="http')
    (BUILD / "notebooks" / f"{name}.html").write_text(page, encoding="utf-8")


INDEX = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Executed notebooks</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; padding: .4rem .8rem .4rem 0; border-bottom: 1px solid #ddd; vertical-align: top }}
td.failed, td.stopped {{ color: #b00020; font-weight: 600 }}
pre {{ margin: .3rem 0; white-space: pre-wrap; font-size: 13px; font-weight: 400 }}
</style></head><body>
<h1>Executed notebooks</h1>
<table><tr><th>Notebook</th><th>Status</th><th>Seconds</th><th>Tier</th><th>Finished</th></tr>
{rows}
</table></body></html>
"""
ROW = """<tr><td><a href="notebooks/{name}.html">{title}</a><br><small>{name}</small></td>\
<td class="{status}">{status}{details}</td><td>{seconds}</td><td>{tier}</td><td>{finished}</td></tr>"""


def write_index(names):
    """Lists every notebook of the course that has been executed, in this run or an earlier one."""
    import nbformat

    rows = []
    for path in (BUILD / "notebooks" / f"{name}.ipynb" for name in names):
        run = nbformat.read(path, as_version=4).metadata.get("course_run") if path.exists() else None
        if run:
            told = "\n".join([f"cell [{run.cell}]", *run.error]) if run.error else ""
            shown = {key: html.escape(str(value)) for key, value in run.items()}
            rows.append(ROW.format(**shown, details=f"<pre>{html.escape(told)}</pre>" if told else ""))
    (BUILD / "index.html").write_text(INDEX.format(rows="\n".join(rows)), encoding="utf-8")


# ---- command line ----------------------------------------------------------------------------------


def seconds(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of seconds above 0")
    return int(text)


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="scripts/run",
        description="Executes the notebooks of the course with papermill; pages go to build/.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="07, 07_performance or its path; default: all")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--quick", action="store_true", help="the quick tier, as the notebook's metadata sets it")
    modes.add_argument(
        "--in-place",
        action="store_true",
        help="execute from notebooks/text/ and refresh the committed outputs",
    )
    modes.add_argument(
        "--build",
        action="store_true",
        help="build .ipynb from notebooks/text/ and stop; unchanged cells keep outputs",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=600,
        metavar="SECONDS",
        help="longest time a cell may take (default: 600)",
    )
    options = parser.parse_args(arguments)
    folder, pattern = (TWINS, "*.py") if options.in_place or options.build else (NOTEBOOKS, "*.ipynb")
    course = sorted(path.stem for path in folder.glob(pattern) if re.match(r"\d\d_", path.name))
    if not course:
        parser.exit(2, f"scripts/run: no {pattern} in {folder}/; is this a whole clone of the course?\n")
    try:
        options.names = choose(options.names, course)
    except ValueError as problem:
        parser.exit(2, f"scripts/run: {problem}\n")
    return options, course


def main(arguments=None):
    os.chdir(ROOT)
    options, course = parse(arguments)
    if options.build:
        for name in options.names:
            commit(built_from_twin(name), name)
            print(f"built {NOTEBOOKS / name}.ipynb")
        return 0

    sys.stdout.reconfigure(errors="replace")  # a notebook's error may hold what this terminal cannot show
    logging.getLogger("papermill").addHandler(logging.NullHandler())  # failures are told below, once
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a stop from outside leaves nothing running either
    (BUILD / "notebooks").mkdir(parents=True, exist_ok=True)
    use_this_python()
    results = []
    for number, name in enumerate(options.names, 1):
        label = f"[{number}/{len(options.names)}] {name}"
        results.append(execute(name, label, options.quick, options.in_place, options.timeout))
        write_index(course)
        if results[-1].status == "stopped":
            break

    print()
    for result in results:
        if result.status == "failed":
            print(f"FAILED {result.name}, cell [{result.cell}]:")
            print("\n".join(f"    {line[:400]}" for line in result.error))
    passed = [result.name for result in results if result.status == "passed"]
    print(
        f"{len(passed)} of {len(options.names)} notebooks passed; read them: {(ROOT / BUILD / 'index.html').as_uri()}"
    )
    if results[-1].status == "stopped":
        print(f"Stopped in {results[-1].name}. Passed before: {', '.join(passed) or 'none'}.")
        return 130
    return 0 if len(passed) == len(options.names) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
