"""The web edition in a browser: it opens from files alone, asks nobody for anything, can be found, read and used."""

import hashlib
import html.parser
import os
import re
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

import layout
from course.hosts import Cluster
from tests import runner

SITE = runner.ROOT / layout.SITE
PHONE, DESK = (360, 740), (1280, 900)
WHY_NOT = Cluster.available()

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def built():
    done = subprocess.run(["scripts/site", "--zip"], cwd=runner.ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def documents(built):
    names = (path.relative_to(SITE).as_posix() for path in sorted(SITE.rglob("*.html")))
    return {name: Document(SITE / name) for name in names if not name.startswith("_")}  # _static: the theme's own


@pytest.fixture
def opened(chromium):
    """Opens a page of the site; (size, colour scheme) as asked. What the page complains of stands in `page.said`."""
    contexts = []

    def open_page(name, size=DESK, scheme="light"):
        contexts.append(chromium.new_context(viewport=dict(zip(("width", "height"), size, strict=True)),
                                             color_scheme=scheme))
        page = contexts[-1].new_page()
        page.said = []
        page.on("console", lambda message: page.said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.said.append(request.url)
                if not request.url.startswith((SITE.as_uri(), "data:", "blob:", "about:")) else None)
        page.goto(f"{SITE.as_uri()}/{name}")
        return page

    yield open_page
    for context in contexts:
        context.close()


class Document(html.parser.HTMLParser):
    """What the tests ask of a page's text: its links, anchors, headings and pictures."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors, self.headings, self.pictures = [], set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.add(attributes.get("id"))
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        elif tag == "img":
            self.pictures.append((attributes.get("src"), attributes.get("alt")))
        elif tag in {"h1", "h2", "h3", "h4", "h5", "h6"}:
            self.headings.append(int(tag[1]))


# ------------------------------------------------------------------------------------------------------ what was made


def test_it_is_made_without_a_warning_and_packed_with_its_checksum(built):
    assert built.stderr == ""
    packed = runner.ROOT / re.search(r"its archive: (\S+\.zip),", built.stdout)[1]
    said, name = Path(f"{packed}.sha256").read_text().split()
    assert name == packed.name and said == hashlib.sha256(packed.read_bytes()).hexdigest()
    assert packed.stat().st_size < 40e6
    with zipfile.ZipFile(packed) as archive:
        assert archive.testzip() is None and f"{packed.stem}/index.html" in archive.namelist()


@pytest.mark.promise("offline pages")
@pytest.mark.skipif(WHY_NOT is not None, reason=f"no hosts: {WHY_NOT}")
def test_a_clone_becomes_pages_without_a_network(tmp_path):
    env = runner.clone(tmp_path / "clone")
    alone = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    done = subprocess.run([*alone, "scripts/site"], cwd=tmp_path / "clone", env=env, capture_output=True, text=True,
                          timeout=400)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"the site: {(tmp_path / 'clone' / layout.SITE / 'index.html').as_uri()}\n"


def test_every_lesson_has_its_page_its_picture_and_its_notebook(documents):
    lessons = sorted(path.stem for path in (runner.ROOT / "notebooks").glob("*.ipynb"))
    for name in lessons:
        assert f"notebooks/{name}.html" in documents["index.html"].links
        assert (SITE / f"download/{name}.ipynb").read_bytes() == (runner.ROOT / f"notebooks/{name}.ipynb").read_bytes()
    pictures = [src for src, _ in documents["index.html"].pictures]
    assert len(pictures) == len(lessons) + 1, "one a lesson, and that of the README"


def test_no_page_shows_a_path_of_the_machine(built):
    assert [path for path in SITE.rglob("*.html") if str(runner.ROOT) in path.read_text(encoding="utf-8")] == []


def test_every_link_leads_somewhere(documents):
    broken = []
    for name, document in documents.items():
        for link in document.links:
            target, _, anchor = link.partition("#")
            if ":" in target:
                continue  # elsewhere, and nothing is loaded from there
            path = ((SITE / name).parent / target).resolve() if target else SITE / name
            path = path / "index.html" if path.is_dir() else path
            there = documents.get(path.relative_to(SITE).as_posix())
            if not path.is_file() or (anchor and there and anchor not in there.anchors):
                broken.append((name, link))
    assert broken == []


def test_every_picture_has_words_and_headings_go_down_one_by_one(documents):
    for name, document in documents.items():
        assert [src for src, alt in document.pictures if not alt or alt.startswith(("..", "_images", "/"))] == [], name
        steps = zip(document.headings, document.headings[1:], strict=False)
        assert document.headings[:1] == [1] and all(below <= above + 1 for above, below in steps), name


# ------------------------------------------------------------------------------------------------------- in a browser


@pytest.mark.promise("offline pages")
def test_every_page_opens_without_an_error_and_asks_nobody(documents, opened):
    page = opened("index.html")
    for name in documents:
        page.goto(f"{SITE.as_uri()}/{name}")
        page.wait_for_load_state()
        assert page.said == [], name


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("name", ["index", "notebooks/05_distributed_sampler", "notebooks/12_break_it", "glossary",
                                  "troubleshooting/1-a-parameter-without-a-gradient", "README", "TROUBLESHOOTING"])
def test_nothing_serious_hinders_anybody(name, size, scheme, built, opened):
    page = opened(f"{name}.html", size, scheme)
    found = Axe().run(page).response["violations"]
    serious = [(one["id"], [node["html"][:200] for node in one["nodes"]][:3]) for one in found
               if one["impact"] in ("serious", "critical")]
    assert serious == []


def test_nobody_scrolls_sideways_on_a_phone(documents, opened):
    page = opened("index.html", PHONE)
    wide = {}
    for name in documents:
        page.goto(f"{SITE.as_uri()}/{name}")
        wide[name] = page.evaluate("document.documentElement.scrollWidth")
    assert {name: width for name, width in wide.items() if width > PHONE[0]} == {}


@pytest.mark.parametrize("button", ["primary-toggle", "secondary-toggle"])
def test_a_phone_opens_the_menu_and_the_contents_of_a_page(button, built, opened):
    page = opened("notebooks/05_distributed_sampler.html", PHONE)
    page.locator(f".{button}:visible").first.click()
    assert page.locator("dialog[open]").is_visible()


def test_a_pasted_message_finds_its_entry(built, opened):
    """Lines as people paste them (tests/pasted_messages.toml): each of their entries is among the first three pages."""
    page = opened("search.html?q=rank")
    page.wait_for_function("Search.hasIndex()")
    missed = {}
    lines = tomllib.loads((runner.ROOT / "tests/pasted_messages.toml").read_text())["message"]
    for pasted in lines + [{"line": "RuntimeError: Address already in use", "entries": ["3"]},
                           {"line": "OSError: Too many open files", "entries": ["46"]},
                           {"line": "Connection reset by peer", "entries": []}]:
        found = page.evaluate("""query => {
            const [, words, excluded] = Search._parseQuery(query);
            const pages = Search.performTermsSearch(words, excluded);
            return pages.sort((one, other) => other[4] - one[4]).map((page) => page[0]);
        }""", pasted["line"])
        first = [name.removeprefix("troubleshooting/").partition("-")[0] for name in found[:3]]
        if not set(pasted["entries"]) <= set(first):
            missed[pasted["line"]] = pasted["entries"], found[:4]
    assert missed == {}


def test_search_shows_what_it_found(built, opened):
    page = opened("search.html?q=world+size")
    page.wait_for_selector("#search-results li a")
    assert page.said == []
    page = opened("search.html?q=Error: Expected to have finished reduction in the prior iteration, rank 7 of x")
    first = page.wait_for_selector("#search-results li a")
    assert first.inner_text().startswith(("1. ", "27. "))


def test_solutions_are_folded_and_code_can_be_copied(built, opened):
    page = opened("notebooks/05_distributed_sampler.html")
    solution = page.locator("details", has=page.get_by_text("Solution", exact=True)).first
    code = solution.locator("pre")
    assert not code.is_visible()
    solution.locator("summary").click()
    assert code.is_visible() and "def my_shard" in code.inner_text()
    assert page.locator("button.copybtn").count() > 10


def test_paper_shows_what_is_folded_in_colours_for_paper(built, opened):
    page = opened("notebooks/05_distributed_sampler.html", scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details pre").first.is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_each_lesson_says_on_what_it_was_verified(documents):
    for path in sorted((SITE / "notebooks").glob("*.html")):
        verified = r"Last verified: Python [\d.]+, PyTorch [\d.]+, .*\d{4}-\d\d-\d\d"
        assert re.search(verified, path.read_text()), path.name


def test_light_and_dark_can_be_chosen(built, opened):
    page = opened("index.html")
    ground, seen = "getComputedStyle(document.body).backgroundColor", set()
    for mode in ("Dark", "Light"):
        page.locator("button.theme-switch-button").first.click()
        page.locator(".theme-switch-container, .dropdown-menu").get_by_text(mode).first.click()
        seen.add(page.evaluate(ground))
    assert len(seen) == 2


def test_the_glossary_and_the_lessons_are_linked_both_ways(documents):
    links = {link.rpartition("/")[2] for link in documents["notebooks/06_ddp.html"].links}
    assert {"glossary.html#rank", "glossary.html#all-reduce"} <= links
    assert "notebooks/06_ddp.html" in documents["glossary.html"].links


def test_a_published_course_has_doors_to_the_services_that_run_it():
    assert len(layout.doors("05_x", "https://course.invalid/data-parallel", "1.0")) == 1
    links = layout.doors("05_x", "https://github.com/someone/some-course", "1.0")
    place = "github.com/someone/some-course/blob/v1.0/notebooks/05_x.ipynb"
    assert f"[Kaggle](https://kaggle.com/kernels/welcome?src=https://{place})" in links and len(links) == 4
