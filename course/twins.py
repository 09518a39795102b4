"""Text twin -> notebook: the .ipynb is built from notebooks/text/, and keeps what its unchanged cells once printed.

All paths are relative to the root of the course, so that no path of this machine gets into a notebook.
"""

import re
from contextlib import suppress
from pathlib import Path

import jupytext
import nbformat
from jupytext.combine import combine_inputs_with_outputs

from trainer import files

NOTEBOOKS = Path("notebooks")
TWINS = NOTEBOOKS / "text"
CLONE = re.compile(r"(?<=^!git clone -q --depth 1 -b ).+(?= course-files$)", re.M)  # in site/pages/systems.md
VERSION = re.compile(r'(?<=^__version__ = ")[^"]+', re.M)  # in the doctor, which can be copied alone
LAUNCH = re.compile(r"(?<=<!-- lesson 00, without installing: -->).*")  # in the README
# Written instead of what the kernel reports, so that another Python version changes no committed notebook.
KERNEL = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"codemirror_mode": {"name": "ipython", "version": 3}, "file_extension": ".py",
                      "mimetype": "text/x-python", "name": "python", "nbconvert_exporter": "python",
                      "pygments_lexer": "ipython3", "version": "3"},
}


def cited():
    """(version, address) of the course, as CITATION.cff says; no address, "", before it is published."""
    citation = Path("CITATION.cff").read_text(encoding="utf-8")
    said = dict(re.findall(r'^(version|repository-code): "(.+)"', citation, re.M))
    return said["version"], said.get("repository-code", "")


def launch_links(name):
    """Links that open the lesson on hosted services, in HTML: those find a notebook by its place on GitHub alone."""
    version, address = cited()
    at, file = address.partition("https://github.com/")[2].rstrip("/").removesuffix(".git"), f"notebooks/{name}.ipynb"
    links = {"Colab": f"colab.research.google.com/github/{at}/blob/v{version}/{file}",
             "Kaggle": f"kaggle.com/kernels/welcome?src=https://github.com/{at}/blob/v{version}/{file}",
             "Binder": f"mybinder.org/v2/gh/{at}/v{version}?urlpath=lab/tree/{file}"}
    return [f'<a href="https://{link}">Open in {service}</a>' for service, link in links.items() if at]


def set_address():
    """Writes what CITATION.cff says. Into the README: the links that open lesson 00 elsewhere. Into the page on where
    the course runs: where Colab and Kaggle get it. Into the doctor: the version."""
    version, address = cited()
    command, links = f"v{version} {address or 'ADDRESS'}", " · ".join(launch_links("00_start_here"))
    for page in filter(Path.exists, map(Path, ("README.md", "site/pages/systems.md", "doctor/__init__.py"))):
        text = page.read_text(encoding="utf-8")
        changed = VERSION.sub(version, LAUNCH.sub(links, CLONE.sub(command, text)))
        if changed != text:
            with files.whole(page) as part:
                part.write_text(changed, encoding="utf-8")


def build(name):
    """The notebook that the text twin describes, with the committed notebook's cell ids, and its outputs where the code
    of the cell is unchanged."""
    twin, notebook = (jupytext.read(TWINS / f"{name}.py") for _ in range(2))
    others = None
    with suppress(FileNotFoundError, nbformat.reader.NotJSONError):  # as after a merge that went wrong
        old = nbformat.v4.upgrade(nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4))
        code, others = {cell.id: cell.source for cell in old.cells}, old.metadata.get("others")
        notebook = combine_inputs_with_outputs(notebook, old)
        for cell in notebook.cells:
            # jupytext also pairs cells by position; what changed code once printed must not stay
            if cell.cell_type == "code" and code.get(cell.id) != cell.source:
                cell.outputs, cell.execution_count = [], None
    return as_committed(notebook, twin, others)


def as_committed(notebook, twin, others=None):
    """`notebook` with the metadata of its `twin`: no timestamps, no paths, no versions. And the cores that others took
    while it was executed, which say how far its times can be trusted."""
    kept = {key: value for key, value in twin.metadata.items() if key != "jupytext"}
    kept |= {} if others is None else {"others": others}
    notebook.metadata = nbformat.from_dict(kept | KERNEL)
    for cell, source in zip(notebook.cells, twin.cells, strict=True):
        # jupytext's own notes on blank lines concern the twin alone
        # sorted, as nbformat writes the keys
        metadata = {k: v for k, v in sorted(source.metadata.items()) if not k.startswith("lines_to_")}
        cell.metadata = nbformat.from_dict(metadata)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def commit(notebook, name):
    """Writes the notebook, and its twin with the blank lines that jupytext would write: JupyterLab refuses to open a
    notebook that is newer than its twin (as one is after `git pull`) while their texts differ in even one of them."""
    write(notebook, NOTEBOOKS / f"{name}.ipynb")
    twin = TWINS / f"{name}.py"
    if [cell.source for cell in jupytext.read(twin).cells] == [cell.source for cell in notebook.cells]:
        head = twin.read_text(encoding="utf-8").split("# ---\n", 2)[:2]
        body = jupytext.writes(notebook, fmt="py:percent").split("# ---\n", 2)[2]
        with files.whole(twin) as part:
            part.write_text("# ---\n".join([*head, body]), encoding="utf-8")
    # else somebody has edited it since, and keeps what they wrote


def write(notebook, path):
    """Writes `path` whole or not at all."""
    with files.whole(path) as part:
        nbformat.write(notebook, part)


def without_outputs(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook itself, as if no cell had run."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def title_of(notebook: nbformat.NotebookNode, name: str) -> str:
    """The first heading of level 1; `name` if there is none."""
    headings = (re.search(r"^# +(.+)", cell.source, re.M) for cell in notebook.cells if cell.cell_type == "markdown")
    return next((heading[1].strip() for heading in headings if heading), name)
