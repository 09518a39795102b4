"""The web edition in a browser: it opens from files alone, asks nobody for anything, can be found, read and used."""

import html.parser
import itertools
import os
import re
import subprocess
import tomllib
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

import layout
from course.hosts import Cluster
from tests import runner

PHONE, DESK = {"width": 360, "height": 740}, {"width": 1280, "height": 900}
WHY_NOT = Cluster.available()

pytestmark = [pytest.mark.browser, pytest.mark.weekly, pytest.mark.timeout(600)]


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
    """opened(name, size=DESK) shows a page of the site: see open_page in tests/conftest.py."""
    return lambda name, size=DESK: open_page(f"{site.as_uri()}/{name}", site.as_uri(), viewport=size)


class Document(html.parser.HTMLParser):
    """What the tests ask of a page's text: its links, anchors, headings and pictures."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors, self.headings, self.pictures, self.sources = [], set(), [], [], []
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


# ------------------------------------------------------------------------------------------------------ what was made


@pytest.mark.skipif(WHY_NOT is not None, reason=f"no hosts: {WHY_NOT}")
def test_a_clone_becomes_pages_without_a_network(built, site):
    assert built.args[0] == "unshare" and (site / "index.html").is_file()
    assert built.stdout == f"the site: {(site / 'index.html').as_uri()}\n"


def test_every_lesson_has_its_page_and_its_notebook(documents, site):
    lessons = sorted(path.stem for path in (runner.ROOT / "notebooks").glob("*.ipynb"))
    for name in lessons:
        assert f"notebooks/{name}.html" in documents["index.html"].links
        assert (site / f"download/{name}.ipynb").read_bytes() == (runner.ROOT / f"notebooks/{name}.ipynb").read_bytes()


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


def test_pages_ask_nobody_and_hinder_nobody(site, opened):
    """From a phone to a desk, light and dark, all unfolded: no error, nobody scrolls sideways, and axe finds nothing
    serious, on a page of each form. A first visit loads at most 1 MB."""
    page, wrong, loaded = opened("index.html", PHONE), {}, set()
    page.on("request", lambda request: loaded.add(urllib.request.url2pathname(urllib.parse.urlsplit(request.url).path)))
    for width, name in itertools.product((360, 1280), SOME):
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


def test_a_card_is_found_by_its_words_and_by_the_address(opened):
    page = opened("site/pages/cards.html#rendezvous", PHONE)
    shown = page.locator(".card-of-one-screen:visible")
    assert 1 < shown.count() < 20
    assert page.locator(".card-of-one-screen:visible[style*='order: 0'] strong").all_inner_texts()[0] == "rendezvous"
    page.get_by_label("Find a card").fill("cuda visible")
    assert "CUDA_VISIBLE_DEVICES" in shown.first.inner_text()
    page.get_by_label("Find a card").fill("xyzzy")
    assert shown.count() == 0 and page.locator("#card-count").inner_text().startswith("0 of ")


def test_solutions_are_folded(opened):
    page = opened("notebooks/05_distributed_sampler.html")
    solution = page.locator("details", has=page.get_by_text("Solution", exact=True)).first
    code = solution.locator("pre")
    expect(code).to_be_hidden()
    solution.locator("summary").click()
    expect(code).to_be_visible()
    expect(code).to_contain_text("def shard")


def test_a_lesson_shows_what_a_term_means_and_links_to_its_entry(opened):
    page = opened("notebooks/06_ddp.html")
    term, meaning = page.locator("a.term", has_text="all-reduce").first, page.locator("#meaning")
    expect(meaning).to_be_hidden()
    term.focus()
    expect(meaning).to_contain_text("collective")
    page.keyboard.press("Escape")
    expect(meaning).to_be_hidden()
    term.click()
    expect(page).to_have_url(re.compile("#term-all-reduce$"))


def test_a_lesson_is_ticked_off_with_the_keyboard(site, opened):
    page = opened("notebooks/06_ddp.html")
    lessons = len(list((site / "notebooks").glob("*.html")))
    expect(page.locator(".verified")).to_contain_text(f"of {lessons} lessons")
    page.get_by_label("I have finished this lesson").focus()
    page.keyboard.press("Space")
    expect(page.get_by_text(f"1 of {lessons} lessons finished")).to_be_visible()
    expect(page.locator(".bd-sidebar-primary a.done")).to_have_text(["06 · DistributedDataParallel"])
    page.reload()
    expect(page.get_by_label("I have finished this lesson")).to_be_checked()


def test_each_lesson_shows_its_pictures_and_judges_a_choice(site, opened):
    for path in sorted((site / "notebooks").glob("*.html")):
        pictures = (runner.ROOT / f"notebooks/{path.stem}.ipynb").read_text().count('"image/png": "')
        assert path.read_text().count('src="../_images/') == pictures, path.name
    page = opened("notebooks/06_ddp.html")
    question = page.get_by_role("radiogroup").first
    unfold, verdict = question.locator("summary"), question.get_by_role("status")
    unfold.click()
    expect(verdict).to_have_text("Choose first.")
    question.get_by_label("A.").check()
    unfold.click()
    expect(verdict).not_to_have_text("Choose first.")
