"""The web edition in a browser: it opens from files alone, asks nobody for anything, can be found, read and used."""

import html.parser
import os
import re
import subprocess
import tomllib

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

import layout
from course.hosts import Cluster
from teach import plans
from tests import runner

PHONE, DESK = {"width": 360, "height": 740}, {"width": 1280, "height": 900}
WHY_NOT = Cluster.available()

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    return tmp_path_factory.mktemp("clone")


@pytest.fixture(scope="module")
def built(clone):
    """The finished `scripts/site` in a clone, without a network where the system lets a test take it away."""
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    alone = ["unshare", "--net", *root] if WHY_NOT is None else []
    done = subprocess.run([*alone, "scripts/site"], cwd=clone, env=runner.clone(clone), capture_output=True,
                          text=True, timeout=400)
    assert (done.returncode, done.stderr) == (0, "")  # no warning
    return done


@pytest.fixture(scope="module")
def site(built, clone):
    return clone / layout.SITE


@pytest.fixture(scope="module")
def documents(site):
    names = (path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html")))
    return {name: Document(site / name) for name in names if not name.startswith("_")}  # _static: the theme's own


@pytest.fixture
def opened(site, open_page):
    """opened(name, size=DESK, scheme="light") shows a page of the site: see open_page in conftest.py."""
    return lambda name, size=DESK, scheme="light": open_page(f"{site.as_uri()}/{name}", site.as_uri(), viewport=size,
                                                             color_scheme=scheme)


class Document(html.parser.HTMLParser):
    """What the tests ask of a page's text: its links, anchors, headings and pictures."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors, self.headings, self.pictures, self.sources = [], set(), [], [], []
        self.longest = 0  # characters of the longest word, at which no line breaks
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.add(attributes.get("id"))
        if "src" in attributes:
            self.sources.append(attributes["src"])
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        elif tag == "img":
            self.pictures.append((attributes.get("src"), attributes.get("alt")))
        elif tag in {"h1", "h2", "h3", "h4", "h5", "h6"}:
            self.headings.append(int(tag[1]))

    def handle_data(self, data):
        self.longest = max(self.longest, *map(len, data.split()), 0)


# ------------------------------------------------------------------------------------------------------ what was made


@pytest.mark.promise("offline pages")
@pytest.mark.skipif(WHY_NOT is not None, reason=f"no hosts: {WHY_NOT}")
def test_a_clone_becomes_pages_without_a_network(built, site):
    assert built.args[0] == "unshare" and (site / "index.html").is_file()
    assert built.stdout == f"the site: {(site / 'index.html').as_uri()}\n"


def test_every_lesson_has_its_page_and_its_notebook(documents, site):
    lessons = sorted(path.stem for path in (runner.ROOT / "notebooks").glob("*.ipynb"))
    for name in lessons:
        assert f"notebooks/{name}.html" in documents["index.html"].links
        assert (site / f"download/{name}.ipynb").read_bytes() == (runner.ROOT / f"notebooks/{name}.ipynb").read_bytes()


def test_teachers_have_a_page_for_each_lesson_and_plan(documents):
    links = documents["teach/index.html"].links
    assert "teach/index.html" in documents["index.html"].links and {"README.html", "tests.html"} <= set(links)
    for path in (runner.ROOT / "notebooks").glob("*.ipynb"):
        assert f"lessons/{path.stem}.html" in links
    for plan in plans.read()["plan"]:
        assert f"plans/{plans.stem(plan)}.html" in links


def test_no_page_shows_a_path_of_the_machine(site, clone):
    paths = str(runner.ROOT), str(clone)
    assert [page for page in site.rglob("*.html") for path in paths if path in page.read_text(encoding="utf-8")] == []


def test_every_link_leads_somewhere(documents, site):
    broken = []
    for name, document in documents.items():
        for link in document.links:
            target, _, anchor = link.partition("#")
            if ":" in target:
                continue  # elsewhere, and nothing is loaded from there
            path = ((site / name).parent / target).resolve() if target else site / name
            path = path / "index.html" if path.is_dir() else path
            page = documents.get(path.relative_to(site).as_posix())
            if not path.is_file() or (anchor and page and anchor not in page.anchors):
                broken.append((name, link))
    assert broken == []


def test_every_picture_has_words_and_headings_go_down_one_by_one(documents):
    for name, document in documents.items():
        assert [src for src, alt in document.pictures if not alt or alt.startswith(("..", "_images", "/"))] == [], name
        steps = zip(document.headings, document.headings[1:], strict=False)
        assert document.headings[:1] == [1] and all(below <= above + 1 for above, below in steps), name


@pytest.mark.promise("offline pages")
def test_no_page_shows_or_runs_a_file_of_another_host(documents):
    for name, document in documents.items():
        assert [source for source in document.sources if re.match("(https?:)?//", source)] == [], name


# ------------------------------------------------------------------------------------------------------- in a browser


@pytest.mark.promise("offline pages")
def test_every_page_opens_on_a_phone_and_asks_nobody(documents, site, opened):
    """Without an error, and nobody scrolls sideways. Of Troubleshooting, all in one form, every tenth entry, and the
    one with the longest word."""
    page = opened("index.html", PHONE)
    entries = [name for name in documents if name.startswith("troubleshooting/")]
    chosen = {*entries[::10], max(entries, key=lambda name: documents[name].longest)}
    for name in documents.keys() - set(entries) | chosen:
        page.goto(f"{site.as_uri()}/{name}")
        assert page.complaints == [], name
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], name


@pytest.mark.parametrize(("name", "size", "scheme"), [
    ("index", PHONE, "light"), ("index", DESK, "dark"), ("notebooks/03_processes_and_ranks", PHONE, "light"),
    ("notebooks/12_break_it", DESK, "dark"), ("site/pages/glossary", DESK, "dark"), ("TROUBLESHOOTING", PHONE, "light"),
    ("troubleshooting/1-a-parameter-without-a-gradient", DESK, "dark")])
def test_nothing_serious_hinders_anybody(name, size, scheme, opened):
    violations = Axe().run(opened(f"{name}.html", size, scheme)).response["violations"]
    assert [(violation["id"], [node["html"][:200] for node in violation["nodes"]][:3]) for violation in violations
            if violation["impact"] in ("serious", "critical")] == []


def test_a_pasted_message_finds_its_entry(opened):
    """Lines as people paste them (tests/pasted_messages.toml): each leads to its entries, and to no other."""
    page = opened("search.html?q=rank")
    page.wait_for_function("Search.hasIndex()")
    wrong = {}
    for pasted in tomllib.loads((runner.ROOT / "tests/pasted_messages.toml").read_text())["message"]:
        names = page.evaluate("""query => {
            const [, words, excluded] = Search._parseQuery(query);
            return Search.performTermsSearch(words, excluded).filter((page) => page[4] > 2000).map((page) => page[0]);
        }""", pasted["line"])
        numbers = [name.removeprefix("troubleshooting/").partition("-")[0] for name in names]
        if numbers != pasted["entries"]:
            wrong[pasted["line"]] = numbers, pasted["entries"]
    assert wrong == {}


def test_search_shows_what_it_found(opened):
    page = opened("search.html?q=world+size")
    page.wait_for_selector("#search-results li a")
    assert page.complaints == []
    page = opened("search.html?q=Error: Expected to have finished reduction in the prior iteration, rank 7 of x")
    first = page.wait_for_selector("#search-results li a")
    assert first.inner_text().startswith(("1. ", "27. "))
    assert "No entry" not in page.inner_text("#search-results")
    page = opened("search.html?q=RuntimeError: CUDA error: device-side assert triggered")
    page.wait_for_selector("#search-results li a")
    assert "No entry of Troubleshooting has this message" in page.inner_text("#search-results")


def test_solutions_are_folded(opened):
    page = opened("notebooks/05_distributed_sampler.html")
    solution = page.locator("details", has=page.get_by_text("Solution", exact=True)).first
    code = solution.locator("pre")
    expect(code).to_be_hidden()
    solution.locator("summary").click()
    expect(code).to_be_visible()
    expect(code).to_contain_text("def my_shard")


def test_paper_shows_what_is_folded_in_colours_for_paper(opened):
    page = opened("notebooks/05_distributed_sampler.html", scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(page.locator("details pre").first).to_be_visible()
    expect(page.locator("body")).to_have_css("background-color", "rgb(255, 255, 255)")


def test_each_lesson_says_on_what_it_was_verified(site):
    for path in sorted((site / "notebooks").glob("*.html")):
        verified = r"Last verified: Python [\d.]+, PyTorch [\d.]+, .*\d{4}-\d\d-\d\d"
        assert re.search(verified, path.read_text()), path.name


def test_a_lesson_shows_what_a_term_means_and_links_to_its_entry(opened):
    page = opened("notebooks/06_ddp.html")
    term = page.locator("a.term", has_text="all-reduce").first
    assert "collective" in term.get_attribute("title")
    term.click()
    expect(page).to_have_url(re.compile("#term-all-reduce$"))
    expect(page.locator("#term-all-reduce")).to_be_visible()
