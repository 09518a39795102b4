"""Executed notebooks as web pages: one of each, and an index."""

from pathlib import Path

import jinja2
import nbformat
from nbconvert import HTMLExporter

FOLDER = Path("build/notebooks")
INDEX = FOLDER.with_name("index.html")
TEMPLATE = jinja2.Template("""<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>Executed notebooks</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto }
td { padding: .4rem; border-bottom: 1px solid #ddd; vertical-align: top }
pre { white-space: pre-wrap; color: #b00020 }
</style>
<h1>Executed notebooks</h1>
<table><tr><th>Notebook<th>Status<th>Seconds<th>Tier<th>Finished</tr>
{% for run in runs %}
<tr><td><a href="notebooks/{{run.name}}.html">{{run.title}}</a><br><small>{{run.name}}</small>\
<td class="{{run.status}}">{{run.status}}\
{% if run.error %}<pre>cell [{{run.cell}}]\n{{run.error | join("\n")}}</pre>{% endif %}\
<td>{{run.seconds}}<td>{{run.tier}}<td>{{run.finished}}</tr>
{% endfor %}
</table></html>
""", autoescape=True)


def write_page(notebook, name):
    exporter = HTMLExporter(embed_images=True)
    page, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": name, "path": "notebooks"}})
    # nbconvert loads its formula renderer from the network; deferred, its absence does not hold up the page
    page = page.replace('<script src="http', '<script defer src="http')
    (FOLDER / f"{name}.html").write_text(page, encoding="utf-8")


def write_index(names):
    """Lists every notebook of `names` that has been executed, in this run or an earlier one."""
    paths = [path for path in (FOLDER / f"{name}.ipynb" for name in names) if path.exists()]
    told = [nbformat.read(path, as_version=4).metadata.get("course_run") for path in paths]
    INDEX.write_text(TEMPLATE.render(runs=filter(None, told)), encoding="utf-8")
