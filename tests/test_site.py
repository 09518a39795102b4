"""The web edition in a browser: it opens from files alone, asks nobody for anything, can be found, read and used."""

import html
import html.parser
import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.parse
import urllib.request
from pathlib import Path

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


# axe's violations. Its slowest rule, for contrast, looks at the first of all elements that look alike, as in code.
AXE = """async (scheme) => {
    const seen = new Set();
    for (const each of document.querySelectorAll("body *")) {
        let look = "";
        for (let at = each; at; at = at.parentElement)
            look += at.tagName + at.className + at.style?.cssText + at.rowIndex % 2;
        each.toggleAttribute("data-seen", seen.has(look));
        seen.add(look);
    }
    axe.configure({rules: [{id: "color-contrast", selector: "*:not([data-seen])"}]});
    const options = {preload: false, iframes: false, resultTypes: ["violations"]};
    if (scheme === "dark") options.runOnly = ["color-contrast", "link-in-text-block"];  // the rest is as in the light
    return (await axe.run(options)).violations;
}"""
SOME = ["index.html", "notebooks/03_processes_and_ranks.html", "notebooks/12_break_it.html", "site/pages/glossary.html",
        "main.py.html", "TROUBLESHOOTING.html"]


@pytest.mark.promise("offline pages")
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=[pytest.mark.weekly, pytest.mark.timeout(2400)])])
def test_pages_ask_nobody_and_hinder_nobody(every, documents, site, opened):
    """From a phone to a desk, light and dark, all unfolded: no error, nobody scrolls sideways, and axe finds nothing
    serious. Daily a page of each form, and the entry with the longest word. A first visit loads at most 1 MB."""
    longest = max((name for name in documents if "troubleshooting/" in name), key=lambda name: documents[name].longest)
    page, wrong, loaded = opened("index.html", PHONE), {}, set()
    page.on("request", lambda request: loaded.add(urllib.request.url2pathname(urllib.parse.urlsplit(request.url).path)))
    names, widths = (documents, (360, 768, 1280)) if every else ([*SOME, longest], (360, 1280))
    for width, name in itertools.product(widths, names):
        loaded.clear()
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(f"{site.as_uri()}/{name}")
        assert {f"{site}/_static/course.css", f"{site}/{name}"} <= loaded, name
        size = sum(Path(each).stat().st_size for each in loaded if each.startswith(f"{site}/"))
        page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        found = [f"{size} bytes"] * (size > 1e6)
        found += ["scrolls"] * page.evaluate("document.documentElement.scrollWidth > innerWidth")
        page.evaluate(Axe().axe_script)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            page.wait_for_selector(f"html[data-theme={scheme}]")
            page.evaluate("Promise.allSettled(document.getAnimations().map((each) => each.finished))")  # of colours
            found += [(scheme, violation["id"], [node["html"][:200] for node in violation["nodes"]][:3])
                      for violation in page.evaluate(AXE, scheme) if violation["impact"] in ("serious", "critical")]
        wrong[name, width] = found + page.complaints
        page.complaints.clear()
    assert {where: found for where, found in wrong.items() if found} == {}
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < 20e6


def test_a_pasted_message_finds_its_entry(opened):
    """Lines as people paste or describe them (gallery/pasted_messages.toml): a message leads to its entries, and to no
    other; of a symptom these stand first."""
    page = opened("search.html?q=rank")
    page.wait_for_function("Search.hasIndex()")
    lines, wrong = tomllib.loads((runner.ROOT / "gallery/pasted_messages.toml").read_text()), {}
    for pasted in lines["message"] + lines["symptom"]:
        pages = page.evaluate("""query => Search._performSearch(...Search._parseQuery(query)).reverse()
            .map((page) => [page[0], page[4] > 2000])""", pasted["line"])
        found = [name for name, certain in pages if certain] if "printed" in pasted else [
            name for name, _ in pages[:len(pasted["entries"])]]
        numbers = [name.removeprefix("troubleshooting/").partition("-")[0] for name in found]
        if set(numbers) != set(pasted["entries"]):
            wrong[pasted["line"]] = numbers, pasted["entries"]
    assert wrong == {}


def test_search_shows_what_it_found(opened):
    page = opened("search.html?q=world+size")
    page.wait_for_selector("#search-results li a")
    assert page.complaints == []
    page = opened("search.html?q=Error: Expected to have finished reduction in the prior iteration, rank 7 of x")
    first = page.wait_for_selector("#search-results li a")
    assert first.inner_text().startswith(("1. ", "27. "))
    assert "(RuntimeError: Expected to have finished" in page.inner_text("#search-results")
    assert "No entry" not in page.inner_text("#search-results")
    assert page.evaluate("localStorage.getItem('sphinx_highlight_terms')") is None
    page = opened("search.html?q=RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    page.wait_for_selector("#search-results li a")
    assert "No entry of Troubleshooting has exactly this message" in page.inner_text("#search-results")


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


def test_a_lesson_shows_what_a_term_means_and_links_to_its_entry(site, opened):
    page = opened("notebooks/06_ddp.html")
    term, meaning = page.locator("a.term", has_text="all-reduce").first, page.locator("#meaning")
    expect(meaning).to_be_hidden()
    term.hover()
    expect(meaning).to_contain_text("collective")
    meaning.hover()  # to be read by whoever magnifies
    page.wait_for_timeout(300)
    expect(meaning).to_be_visible()
    page.keyboard.press("Escape")
    expect(meaning).to_be_hidden()
    term.focus()
    expect(meaning).to_contain_text("collective")
    term.click()
    expect(page).to_have_url(re.compile("#term-all-reduce$"))
    expect(page.locator("#term-all-reduce")).to_be_visible()


def test_a_tap_shows_what_a_term_means_and_a_second_one_follows_the_link(site, open_page):
    page = open_page(f"{site.as_uri()}/notebooks/06_ddp.html", site.as_uri(), viewport=PHONE, has_touch=True)
    term = page.locator("a.term", has_text="shard").first
    term.tap()
    expect(page.locator("#meaning")).to_be_visible()
    assert "06_ddp" in page.url and page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    term.tap()
    expect(page).to_have_url(re.compile("#term-shard$"))


def test_a_lesson_is_ticked_off_with_the_keyboard(site, opened):
    page = opened("notebooks/06_ddp.html")
    lessons = len(list((site / "notebooks").glob("*.html")))
    expect(page.locator(".verified")).to_contain_text(f"of {lessons} lessons")
    page.get_by_label("I have finished this lesson").focus()
    page.keyboard.press("Space")
    expect(page.get_by_text(f"1 of {lessons} lessons finished")).to_be_visible()
    expect(page.locator(".bd-sidebar-primary a.done")).to_have_text(["06 · DistributedDataParallel"])
    page.goto(f"{site.as_uri()}/index.html")
    expect(page.get_by_text(f"1 of {lessons} lessons finished")).to_be_visible()
    expect(page.locator(".lesson a.done")).to_have_text(["06 · DistributedDataParallel"])
    page.goto(f"{site.as_uri()}/notebooks/06_ddp.html")
    page.get_by_label("I have finished this lesson").uncheck()
    page.reload()
    expect(page.get_by_label("I have finished this lesson")).not_to_be_checked()


def test_each_lesson_says_on_what_it_was_verified_shows_its_pictures_and_judges_a_choice(site, opened):
    for path in sorted((site / "notebooks").glob("*.html")):
        pictures = (runner.ROOT / f"notebooks/{path.stem}.ipynb").read_text().count('"image/png": "')
        assert path.read_text().count('src="../_images/') == pictures, path.name
        head, _, quiz = path.read_text().partition('id="three-questions"')
        assert re.search(r"Last verified: Python [\d.]+, PyTorch [\d.]+, .*\d{4}-\d\d-\d\d", head), path.name
        assert quiz.count("<summary>The answer</summary>") == quiz.count('role="radiogroup"') == 3, path.name
    page = opened("notebooks/06_ddp.html")
    question = page.get_by_role("radiogroup", name="When does DDP send the first gradients?")
    answer, unfold = question.get_by_text("As soon as a bucket is full."), question.locator("summary")
    verdict = question.get_by_role("status")
    unfold.click()
    expect(verdict).to_have_text("Choose first.")
    expect(answer).to_be_hidden()
    question.get_by_label("A.").focus()
    for key in ("ArrowDown", "ArrowDown", "Tab", "Enter"):
        page.keyboard.press(key)
    expect(question.get_by_label("C. while backward() still runs")).to_be_checked()
    expect(verdict).to_have_text("✓ Right.")
    expect(answer).to_be_visible()
    question.get_by_label("A.").check()
    expect(answer).to_be_hidden()
    unfold.click()
    expect(verdict).to_have_text("✗ A is wrong. The answer is C.")


def test_with_an_address_each_page_says_where_to_report_a_mistake(documents, site, tmp_path):
    """The address is CITATION.cff's. Without one no page promises anything."""
    for name in documents.keys() - {"search.html"}:
        text = (site / name).read_text()
        assert re.search(r"version [\d.]+( and later changes)?; page made \d{4}-\d\d-\d\d", text), name
        assert "Something wrong" not in text, name
    shutil.copytree(runner.ROOT / "site", tmp_path / "site")
    citation = (runner.ROOT / "CITATION.cff").read_text()
    address = re.search(r'repository-code: "(.+)"', citation)[1]
    (tmp_path / "CITATION.cff").write_text(citation.replace(address, "https://github.com/somebody/course"))
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Next\n")
    for name in ("index", "site/pages/glossary", "notebooks/a & b"):
        (tmp_path / f"source/{name}.md").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"source/{name}.md").write_text("---\norphan: true\n---\n\n# A page\n")
    subprocess.run([sys.executable, "-m", "sphinx", "-q", "-c", "site", "source", "made"], cwd=tmp_path, timeout=100,
                   check=True, env=runner.environment())
    link = re.search(r'href="(.+?)">Something wrong here', (tmp_path / "made/notebooks/a & b.html").read_text())[1]
    parts = urllib.parse.urlsplit(html.unescape(link))
    asked = urllib.parse.parse_qs(parts.query)
    assert (parts.netloc, parts.path) == ("github.com", "/somebody/course/issues/new")
    version = re.search(r'version: "(.+?)"', citation)[1]
    assert asked["title"] == ["notebooks/a & b: "]
    assert asked["body"][0].startswith(f"Page: notebooks/a & b\nVersion: {version} and later changes, made 2")
