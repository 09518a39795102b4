"""How Sphinx makes the web edition. site/layout.py lays out what it reads; scripts/site starts it.

No page asks the network for anything: formulas are MathML, and the scripts for widgets stay out.
"""

import re
from pathlib import Path

import yaml
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
CITATION = yaml.safe_load((HERE.parent / "CITATION.cff").read_text(encoding="utf-8"))
ADDRESS = CITATION.get("repository-code", "")

project, author = "Data-parallel training in PyTorch", "The authors of this course"
version = release = CITATION["version"]
if "\n## Next\n" in (HERE.parent / "CHANGELOG.md").read_text(encoding="utf-8"):
    release += " and later changes"  # made between two releases
extensions = ["myst_nb", "sphinx_copybutton"]
exclude_patterns = ["download"]
templates_path = ["templates"]

nb_execution_mode = "off"  # the pages show what was committed, or what scripts/run has just executed
nb_ipywidgets_js = {}
nb_merge_streams = True
nb_render_markdown_format = "myst"  # links in what a cell shows lead to pages, too
myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
html_math_renderer = "mathml"
suppress_warnings = ["misc.highlighting_failure"]  # the lexer knows no !command that goes on in the next line

html_theme = "sphinx_book_theme"
html_title = project
html_static_path = [str(HERE / "static"), str(HERE.parent / "build/site-source/messages.js")]
html_favicon = str(HERE / "static/favicon.svg")
html_css_files = ["course.css"]
html_js_files = ["course.js", "cards.js"]
html_extra_path = [str(HERE.parent / "build/site-source/download")]
html_copy_source = False  # the notebook to download is the committed one, not the one that was laid out
html_show_sourcelink = False
html_last_updated_fmt = "%Y-%m-%d"
html_context = {"default_mode": "auto"}
html_use_index = False
smartquotes = False  # a message must stay what it is, for whoever searches or copies it
html_theme_options = {
    "navbar_persistent": [],  # the sidebar has the search
    "footer_content_items": ["about.html"],
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
}
if ADDRESS.startswith("https://github.com/"):  # where readers report a mistake
    html_context["issues"] = f"{ADDRESS.rstrip('/')}/issues/new"

GLOSSARY = "site/pages/glossary"
AMBIGUOUS = {"buffer", "handle", "pipeline", "signal", "step", "store"}  # everyday words, too: no link


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (mathml, None), (mathml, None))
    app.connect("doctree-resolved", link_terms)
    app.connect("html-page-context",  # what the search for a pasted message reads
                lambda app, page, *_: app.add_js_file("messages.js") if page == "search" else None)


def mathml(translator, formula: nodes.math | nodes.math_block) -> None:
    """Write a formula as every browser draws it, without a script."""
    translator.body.append(tex2mathml(formula.astext(), as_block=isinstance(formula, nodes.math_block)))
    raise nodes.SkipNode


def link_terms(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Link each term of the glossary where a page first uses it; course.js shows the link's title as its meaning."""
    if not docname.startswith(("notebooks/", "troubleshooting/")):
        return
    entries = {}  # {term: (its anchor, its definition)}
    for item in app.env.get_doctree(GLOSSARY).findall(nodes.definition_list_item):
        *terms, definition = item.children
        entries |= {term.astext(): (term["ids"][0], definition.astext()) for term in terms}
    longest_first = sorted(entries.keys() - AMBIGUOUS, key=len, reverse=True)
    words = "|".join((re.escape(term) if term != term.lower() else f"(?i:{re.escape(term)})").replace(r"\ ", r"\s+")
                     for term in longest_first)
    use = re.compile(rf"(?<![\w.-])({words})(?:e?s)?(?![\w-])")
    linked = set()
    for text in [text for text in doctree.findall(nodes.Text) if isinstance(text.parent, nodes.paragraph)]:
        parts, end = [], 0
        for match in use.finditer(text):
            term = " ".join(match[1].split())
            anchor, definition = entries.get(term) or entries[term.lower()]
            if anchor in linked:
                continue
            linked.add(anchor)
            address = f"{app.builder.get_relative_uri(docname, GLOSSARY)}#{anchor}"
            link = nodes.reference("", match[0], refuri=address, reftitle=definition, internal=True, classes=["term"])
            parts += [nodes.Text(text[end:match.start()]), link]
            end = match.end()
        text.parent.replace(text, [*parts, nodes.Text(text[end:])])
