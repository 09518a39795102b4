"""The web edition in a browser: it opens from files alone, asks nobody for anything, can be found, read and used."""

import hashlib
import html.parser
import os
import re
import subprocess
import sys
import threading
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
    done = subprocess.run([sys.executable, "site/build_site.py", "--zip"], cwd=runner.ROOT, capture_output=True,
                          text=True, timeout=400, env=runner.environment(PYTHONPATH=str(runner.ROOT)))
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def documents(built):
    names = (path.relative_to(SITE).as_posix() for path in sorted(SITE.rglob("*.html")))
    return {name: Document(SITE / name) for name in names if not name.startswith("_")}  # _static: the theme's own


@pytest.fixture
def opened(chromium):
    """Opens a page of the site; errors, and requests to the network, stand in `page.complaints`."""
    contexts = []

    def open_page(name, size=DESK, scheme="light"):
        contexts.append(chromium.new_context(viewport=dict(zip(("width", "height"), size, strict=True)),
                                             color_scheme=scheme))
        page = contexts[-1].new_page()
        page.complaints = []
        page.on("console", lambda message: page.complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda request: page.complaints.append(request.url)
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


def test_every_lesson_has_its_page_and_its_notebook(documents):
    lessons = sorted(path.stem for path in (runner.ROOT / "notebooks").glob("*.ipynb"))
    for name in lessons:
        assert f"notebooks/{name}.html" in documents["index.html"].links
        assert (SITE / f"download/{name}.ipynb").read_bytes() == (runner.ROOT / f"notebooks/{name}.ipynb").read_bytes()


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


def test_a_file_can_be_read_at_every_moment_while_the_site_is_made_anew(tmp_path):
    made, site = tmp_path / "made", tmp_path / "site"
    made.mkdir()
    seen, done = set(), threading.Event()

    def read():
        while not done.is_set():
            seen.add((site / "picture.png").read_bytes())

    for round_ in range(50):
        (made / "picture.png").write_bytes(bytes([round_]) * 500_000)
        (made / f"page{round_}.html").write_text("a page")
        (made / f"page{round_ - 1}.html").unlink(missing_ok=True)
        layout.publish(made, site)
        if not round_:
            reader = threading.Thread(target=read)
            reader.start()
    done.set()
    reader.join()
    assert len(seen) > 1 and all(len(data) == 500_000 and len(set(data)) == 1 for data in seen)
    assert {path.name for path in site.iterdir()} == {"picture.png", "page49.html"}


# ------------------------------------------------------------------------------------------------------- in a browser


@pytest.mark.promise("offline pages")
def test_every_page_opens_without_an_error_and_asks_nobody(documents, opened):
    page = opened("index.html")
    for name in documents:
        page.goto(f"{SITE.as_uri()}/{name}")
        page.wait_for_load_state()
        assert page.complaints == [], name


@pytest.mark.parametrize(("size", "scheme"), [(PHONE, "light"), (DESK, "dark")], ids=["phone, light", "desk, dark"])
@pytest.mark.parametrize("name", ["index", "notebooks/05_distributed_sampler", "notebooks/12_break_it",
                                  "site/pages/glossary", "troubleshooting/1-a-parameter-without-a-gradient",
                                  "TROUBLESHOOTING"])
def test_nothing_serious_hinders_anybody(name, size, scheme, built, opened):
    page = opened(f"{name}.html", size, scheme)
    violations = Axe().run(page).response["violations"]
    serious = [(violation["id"], [node["html"][:200] for node in violation["nodes"]][:3]) for violation in violations
               if violation["impact"] in ("serious", "critical")]
    assert serious == []


def test_nobody_scrolls_sideways_on_a_phone(documents, opened):
    page = opened("index.html", PHONE)
    wide = {}
    for name in documents:
        page.goto(f"{SITE.as_uri()}/{name}")
        wide[name] = page.evaluate("document.documentElement.scrollWidth")
    assert {name: width for name, width in wide.items() if width > PHONE[0]} == {}


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
    assert page.complaints == []
    page = opened("search.html?q=Error: Expected to have finished reduction in the prior iteration, rank 7 of x")
    first = page.wait_for_selector("#search-results li a")
    assert first.inner_text().startswith(("1. ", "27. "))


def test_solutions_are_folded(built, opened):
    page = opened("notebooks/05_distributed_sampler.html")
    solution = page.locator("details", has=page.get_by_text("Solution", exact=True)).first
    code = solution.locator("pre")
    assert not code.is_visible()
    solution.locator("summary").click()
    assert code.is_visible() and "def my_shard" in code.inner_text()


def test_paper_shows_what_is_folded_in_colours_for_paper(built, opened):
    page = opened("notebooks/05_distributed_sampler.html", scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details pre").first.is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_each_lesson_says_on_what_it_was_verified(documents):
    for path in sorted((SITE / "notebooks").glob("*.html")):
        verified = r"Last verified: Python [\d.]+, PyTorch [\d.]+, .*\d{4}-\d\d-\d\d"
        assert re.search(verified, path.read_text()), path.name


def test_a_lesson_shows_what_a_term_means_and_links_to_its_entry(built, opened):
    page = opened("notebooks/06_ddp.html")
    term = page.locator("a.term", has_text="all-reduce").first
    assert "collective" in term.get_attribute("title")
    term.click()
    assert page.url.endswith("#term-all-reduce") and page.locator("#term-all-reduce").is_visible()
