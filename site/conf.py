"""How Sphinx makes the web edition. site/layout.py lays out what it reads; scripts/site starts it.

No page asks the network for anything: MathJax comes from a package, and the scripts for widgets stay out.
"""

import os

project, author = "Data-parallel training in PyTorch", "The authors of this course"
version = release = os.environ["COURSE_VERSION"]  # of CITATION.cff
extensions = ["myst_nb", "sphinx_copybutton", "sphinx-mathjax-offline"]
exclude_patterns = ["download"]
templates_path = []

nb_execution_mode = "off"  # the pages show what was committed, or what scripts/run has just executed
nb_ipywidgets_js = {}
nb_merge_streams = True
nb_render_markdown_format = "myst"  # links in what a cell shows lead to pages, too
myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["misc.highlighting_failure"]  # the lexer knows no !command that goes on in the next line

html_theme = "sphinx_book_theme"
html_title = project
html_static_path = [os.path.join(os.path.dirname(__file__), "static")]
html_css_files = ["course.css"]
html_js_files = ["course.js"]
html_extra_path = [os.path.abspath(os.path.join(os.path.dirname(__file__), "../build/site-source/download"))]
html_copy_source = False  # the notebook to download is the committed one, not the one that was laid out
html_show_sourcelink = False
html_context = {"default_mode": "auto"}
html_use_index = False
smartquotes = False  # a message must stay what it is, for whoever searches or copies it
html_theme_options = {
    "navbar_persistent": [],  # the sidebar has the search
    "footer_content_items": [],
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
}
