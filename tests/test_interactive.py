"""The pages of course/interactive/ in a browser: their numbers are torch's and the course's, and all can use them."""

import json
import random
import re
import threading
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DistributedSampler

from course import interactive, lesson
from course.plots.style import COLOURS, GREY
from lessons.l04_collectives import collectives_shown
from lessons.l06_ddp.buckets import make_buckets
from lessons.l08_predict_scaling.scaling import Job, Link, StepTime, ddp_buckets, speedup

in_a_browser = pytest.mark.browser
each_page = pytest.mark.parametrize("name", interactive.TITLES)


@pytest.fixture
def opened(open_page, tmp_path):
    """opened(name, width=1280, theme="light", html=None) shows a page from a file. That it asked for nothing else, and
    wrote no error to the console, is checked at the end."""
    pages = []

    def opened(name, width=1280, theme="light", html=None):
        file = tmp_path / f"{name}.html"
        file.write_text(html or interactive.page(name), encoding="utf-8")
        pages.append(open_page(file.as_uri(), file.as_uri(), viewport={"width": width, "height": 800},
                               color_scheme=theme))
        return pages[-1]

    yield opened
    assert [page.complaints for page in pages if page.complaints] == []


def sentence(page):
    return page.locator("#said").inner_text()


def slide(page, name, value):
    """Move a slider with the keyboard alone, from its beginning."""
    page.locator(f"#{name}").focus()
    page.keyboard.press("Home")
    for _ in range(value):
        page.keyboard.press("ArrowRight")


# ---------------------------------------------------------------- the files


@each_page
def test_a_page_holds_all_that_it_needs(name):
    html = interactive.page(name).replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert html.startswith("<!DOCTYPE html>") and html.count("<script>") == html.count("</script>") == 2
    assert not any(f"@{part}@" in html for part in ("title", "style", "body", "orders"))
    assert not any(sign in html for sign in ("http:", "https:", "src=", "href=", "url(", "import("))
    assert "default-src 'none'" in html, "the browser itself refuses every request"


def test_the_orders_are_torchs():
    """Where they are not: python -c 'from course import interactive; interactive.write_orders()'"""
    assert json.loads(interactive.ORDERS.read_text()) == interactive.orders()


def test_the_colours_are_those_of_the_plots():
    shell = interactive.page("ring")
    assert all(f"['{colour}'" in shell for colour in [*COLOURS, GREY])


@each_page
def test_what_a_notebook_keeps_is_small(name, monkeypatch):
    kept = shown_in_a_notebook(name, monkeypatch)
    assert len(json.dumps(kept)) < 30_000
    assert kept["text/plain"] == interactive.TITLES[name] and "JupyterLab" in kept["text/html"]


def shown_in_a_notebook(name, monkeypatch):
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: shown.append(data))
    lesson.interactive(name)
    return shown[0]


# ---------------------------------------------------------------- their numbers


@in_a_browser
def test_the_sampler_deals_as_torchs_does(opened):
    cases = [[n, ranks, shuffle, (7 * n + ranks) % interactive.EPOCHS if shuffle else 0, drop_last]
             for n in range(1, interactive.MOST_ITEMS + 1) for ranks in range(1, 9)
             for shuffle in (False, True) for drop_last in (False, True)]
    cases += [[n, 2, True, epoch, False] for n in (20, 32) for epoch in range(interactive.EPOCHS)]
    found = opened("sampler").evaluate("cases => cases.map(each => deal(...each))", cases)
    for (n, ranks, shuffle, epoch, drop_last), dealt in zip(cases, found, strict=True):
        samplers = [DistributedSampler(range(n), ranks, rank, shuffle, drop_last=drop_last) for rank in range(ranks)]
        for sampler in samplers:
            sampler.set_epoch(epoch)
        shards = [list(sampler) for sampler in samplers]
        case = n, ranks, shuffle, epoch, drop_last
        assert dealt["shards"] == shards, case
        assert dealt["length"] == samplers[0].num_samples and len(dealt["places"]) == samplers[0].total_size, case
        assert dealt["padding"] == max(0, samplers[0].total_size - n), case
        assert set(dealt["dropped"]) == set(range(n)).difference(*shards), case


class RanksInThreads:
    """What collectives_shown.ring_steps needs of torch.distributed, for ranks that are threads of this process."""

    isend, irecv, P2POp = "send", "recv", staticmethod(lambda *told: told)

    def __init__(self, ranks):
        self.ranks, self.here, self.sent = ranks, threading.local(), [None] * ranks
        self.all_have_come = threading.Barrier(ranks, timeout=60)

    def get_rank(self):
        return self.here.rank

    def get_world_size(self):
        return self.ranks

    def batch_isend_irecv(self, transfers):
        (_, outgoing, right), (_, arriving, left) = transfers
        self.sent[self.here.rank] = right, outgoing.clone()
        self.all_have_come.wait()
        to, tensor = self.sent[left]
        assert to == self.here.rank
        arriving.copy_(tensor)
        self.all_have_come.wait()
        return [SimpleNamespace(wait=lambda: None)] * 2


def ring_in_python(values, monkeypatch):
    """(cells, chunks sent, bytes sent so far) of all ranks after each step of the lesson's own ring."""
    ranks = len(values)
    dist = RanksInThreads(ranks)
    monkeypatch.setattr(collectives_shown, "dist", dist)
    steps = [[] for _ in values]

    def be(rank):
        dist.here.rank, mine, sum_of_bytes = rank, torch.tensor(values[rank], dtype=torch.float32), 0
        for chunk, sent in collectives_shown.ring_steps(mine):
            sum_of_bytes += sent
            steps[rank].append((mine.tolist(), chunk, sum_of_bytes))

    threads = [threading.Thread(target=be, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return [tuple(map(list, zip(*step, strict=True))) for step in zip(*steps, strict=True)]


@in_a_browser
def test_the_ring_goes_as_the_lessons_ring(opened, monkeypatch):
    random.seed(0)
    cases = [[[random.randint(-99, 99) for _ in range(ranks)] for _ in range(ranks)]
             for ranks in range(2, 9) for _ in range(5)]
    found = opened("ring").evaluate("""cases => cases.map(values => ring(values).map((state, step) =>
        ({...state, bytes: sent_bytes(4 * values.length, values.length, step)})))""", cases)
    for values, (start, *states) in zip(cases, found, strict=True):
        ranks = len(values)
        assert start["cells"] == values and start["sent"] is None and start["bytes"] == 0
        wanted = ring_in_python(values, monkeypatch)
        assert len(states) == len(wanted) == 2 * (ranks - 1)
        for state, (cells, sent, sent_bytes) in zip(states, wanted, strict=True):
            assert state["cells"] == cells and state["sent"] == sent
            assert [state["bytes"]] * ranks == sent_bytes
            for row, cell_row in zip(state["from"], state["cells"], strict=True):
                for chunk, (bits, cell) in enumerate(zip(row, cell_row, strict=True)):
                    assert cell == sum(values[rank][chunk] for rank in range(ranks) if bits >> rank & 1)
        assert states[-1]["cells"] == [[sum(column) for column in zip(*values, strict=True)]] * ranks
        assert states[-1]["bytes"] == pytest.approx(2 * (ranks - 1) / ranks * 4 * ranks)


@in_a_browser
def test_the_scaling_model_is_the_courses(opened):
    random.seed(0)
    cases = []
    for _ in range(600):
        size = 10 ** random.uniform(4, 10)
        cases.append([{
            "fixed": random.choice([0, 10 ** random.uniform(-5, 0)]), "per_image": 10 ** random.uniform(-6, -1),
            "backward": random.random(), "latency": random.choice([0, 10 ** random.uniform(-7, -2)]),
            "bandwidth": 10 ** random.uniform(7, 12), "bytes": size,
            "buckets": random.choice([1, 2, 7, ddp_buckets(size)]), "overlap": random.random() < 0.5,
            "cores": random.choice([None, 1, 2, 8, 64]),
        }, random.choice([1, 2, 3, 8, 64, 1024]), random.choice([1, 12, 64, 256, 1024]), random.random() < 0.5])
    found = opened("scaling").evaluate("""cases => cases.map(([job, ranks, batch, strong]) => [
        predict(job, ranks, batch), speedup(job, ranks, batch, strong), ddp_buckets(job.bytes)])""", cases)
    close = {"rel": 1e-12, "abs": 1e-18}
    uneven = 0
    for (told, ranks, batch, strong), (step, ratio, buckets) in zip(cases, found, strict=True):
        job = Job(StepTime(told["fixed"], told["per_image"], told["backward"]), told["bytes"],
                  Link(told["latency"], told["bandwidth"]), told["buckets"], told["overlap"], told["cores"])
        wanted = job.predict(ranks, batch)
        for part in ("compute", "communication", "exposed", "seconds"):
            assert step[part] == pytest.approx(getattr(wanted, part), **close), (part, told, ranks, batch)
        assert buckets == ddp_buckets(told["bytes"])
        if strong and batch % ranks:
            uneven += 1
            assert ratio is None
        else:
            assert ratio == pytest.approx(speedup(job, ranks, batch, strong)[0], **close)
    assert 0 < uneven < 300


@in_a_browser
def test_the_buckets_are_the_lessons_and_leave_in_turn(opened):
    random.seed(0)
    sizes = [[random.randint(1, 400) for _ in range(random.randint(1, 20))] for _ in range(50)]
    cases = [([4 * size for size in reversed(each)], random.randint(1, 3000)) for each in sizes]
    page = opened("buckets")
    found = page.evaluate("cases => cases.map(([bytes, cap]) => make_buckets(bytes, cap))", cases)
    for each, (_, cap), buckets in zip(sizes, cases, found, strict=True):
        module = torch.nn.ParameterList([torch.zeros(size) for size in each])
        parameters = list(module.parameters())[::-1]
        assert [[id(parameters[place]) for place in bucket] for bucket in buckets] == [
            [id(parameter) for parameter in bucket] for bucket in make_buckets(module, cap)]
    sent = page.evaluate("send([8, 8, 8], [1, 2, 3], 1, 2, 1, 0.125)")  # a message of 8 bytes takes 2 (1 + 8 / 8 / 2)
    assert [(bucket["full"], bucket["leaves"], bucket["back"]) for bucket in sent] == [(1, 1, 4), (2, 4, 7), (3, 7, 10)]


# ---------------------------------------------------------------- in use


@in_a_browser
def test_the_sampler_with_the_keyboard(opened):
    page = opened("sampler")
    assert "21 items, 2 ranks: each rank gets 11. 1 of the 22 places is padding" in sentence(page)
    slide(page, "ranks", 4)
    assert "21 items, 5 ranks: each rank gets 5. 4 of the 25 places are padding: 4 items are seen" in sentence(page)
    assert page.locator("#order .again").count() == page.locator("#shards .again").count() == 4
    page.locator("#drop_last").focus()
    page.keyboard.press("Space")
    assert "each rank gets 4. 1 item is seen by nobody in this epoch." in sentence(page)
    assert page.locator("#order .nobody").all_inner_texts() == ["20×\nnone"]
    page.get_by_label("shuffle").check()
    slide(page, "epoch", 3)
    order = torch.randperm(21, generator=torch.Generator().manual_seed(3)).tolist()
    assert [int(text.strip("×")) for text in page.locator("#order b").all_inner_texts()] == order
    assert "Epoch 3 has its own order" in sentence(page)
    slide(page, "n", 2)
    assert "3 items, 5 ranks: each rank gets 0. There is no step, and no error" in sentence(page)
    page.get_by_label("drop_last").uncheck()
    slide(page, "ranks", 7)
    assert "5 of the 8 places are padding: an item is seen up to 3 times." in sentence(page)


@in_a_browser
def test_the_ring_with_the_keyboard(opened):
    page = opened("ring")
    assert sentence(page) == "Step 0 of 14: each rank holds its own numbers."
    page.get_by_role("button", name="Next step").focus()
    held = []  # who holds the whole sum of chunk 0, after each step
    for _ in range(20):  # beyond the end nothing happens
        page.keyboard.press("Enter")
        held.append([row for row in range(8) if "sum of all ranks" in
                     page.locator("#cells tr").nth(row).locator("td").first.inner_text()])
    assert [ranks for ranks in held if ranks][0] == [7] and held[12] == [0, 1, 2, 3, 4, 5, 7], "lesson 04 says so"
    assert sentence(page) == "Step 14 of 14, all-gather: what arrives is copied. All ranks hold all sums."
    assert page.locator("#grid .all").count() == 64 and page.locator("#grid .came").count() == 8
    assert page.locator("#sends li").count() == 8
    assert "(1.75 times its tensor)" in page.locator("#bytes tr").first.inner_text()
    page.get_by_role("button", name="Step back").click()
    assert sentence(page).startswith("Step 13 of 14") and page.locator("#grid .all").count() == 56
    before = page.locator("#cells").inner_text()
    page.get_by_role("button", name="To the start").click()
    page.get_by_role("button", name="Step back").click(force=True)  # it says that it does nothing here
    assert sentence(page).startswith("Step 0 of 14")
    page.get_by_role("button", name="Other numbers").click()
    assert page.locator("#cells").inner_text() != before and page.locator("#sends").inner_text() == "Nothing yet."


@in_a_browser
@pytest.mark.parametrize(("name", "answers", "of_2"), [
    ("sampler", [5, 8], "With 2 ranks the last round has 1 item: 1 repetition."),
    ("ring", [7, 6], "Rank 2 holds it after step 10 of 14."),
    ("buckets", [4, "smaller"], "With 2 MiB (6 buckets) the step takes 21 ms."),
    ("scaling", [16, "more ranks"], "With 2 ranks a step takes 135 ms: computing 133 ms, ")])
def test_a_page_takes_a_guess_and_then_tells_why(name, answers, of_2, opened):
    page = opened(name)
    lists, compare = page.locator(".guess select"), page.get_by_role("button", name="Compare")
    compare.click(force=True)  # nothing is told before the guess
    assert page.locator("#told").inner_text() == "Choose a guess first."
    for number, answer in enumerate(answers):
        lists.nth(number).select_option(str(answer))
    compare.click()
    told = page.locator("#told").inner_text()
    assert told.count("✓") == told.count("as you guessed") == 2 and of_2 not in told
    lists.first.select_option("2")
    compare.click()
    told = page.locator("#told").inner_text()
    assert told.startswith("✗") and f" {answers[0]}, not 2." in told and of_2 in told


@in_a_browser
def test_buttons_move_a_slider_by_one_and_all_steps_are_drawn_on_one_axis(opened):
    page = opened("buckets")
    page.get_by_role("button", name="less: Bucket size").click(click_count=3)
    assert sentence(page).startswith("3 buckets: the step waits") and page.locator("#sent tbody tr").count() == 3
    page.get_by_role("button", name="more: Bucket size").click()
    assert page.locator("#cap_told").inner_text() == "6 MiB"
    steps = page.locator("#plot text", has_text=re.compile(r"^(★ )?\d+ MiB: "))
    assert steps.all_text_contents() == ["1 MiB: not tried", "2 MiB: not tried", "3 MiB: not tried", "★ 4 MiB: 15.5 ms",
                                       "6 MiB: 15.9 ms", "8 MiB: 15.8 ms", "12 MiB: 17 ms"]
    page.evaluate("for (const size of sizes) tried.add(size); draw()")
    scale = page.evaluate("""[...document.querySelectorAll('#plot rect')].slice(0, sizes.length).map(
        (bar, i) => bar.width.baseVal.value / ends(sizes[i]))""")
    assert scale == pytest.approx([scale[0]] * 7) and 250 < page.evaluate("ends(1)") * scale[0] < 350


@in_a_browser
def test_the_scaling_model_with_the_keyboard(opened):
    page = opened("scaling")
    assert sentence(page).startswith("8 ranks: ")
    slide(page, "ranks", 9)
    assert "A batch of 256 has no more than 256 parts. 16 ranks would be faster." in sentence(page)
    job = Job(StepTime(0.005, 0.001), 1e8, Link(50e-6, 1e10), ddp_buckets(1e8))
    by_ranks = {2**k: speedup(job, 2**k, 256, strong=True)[0] for k in range(9)}
    assert max(by_ranks, key=by_ranks.get) == 16, "the model of lesson 08 begins as the page does"
    assert sentence(page).startswith(f"256 ranks: {by_ranks[256]:.3g} times as fast as one")
    assert page.locator("#plot circle").count() == len(by_ranks)
    assert page.locator("#ranks_told").inner_text() == "256 of 1024 ranks have a part"
    page.get_by_label("each rank").check()
    slide(page, "ranks", 0)
    slide(page, "cores", 0)
    slide(page, "bandwidth", 0)
    page.get_by_label("overlap").uncheck()
    assert "One rank alone is faster." in sentence(page)
    assert page.locator("#plot").get_attribute("aria-label").endswith(sentence(page))
    page.evaluate("plot([[1, 1], [2, 2 ** -8], [4, 2 ** -9]], 4)")  # far slower than one rank, and still in the picture
    heights = page.evaluate("[...document.querySelectorAll('#plot circle')].map(each => each.cy.baseVal.value)")
    assert heights[0] < heights[1] < heights[2] < 216
    page.get_by_role("button", name="GPUs on Ethernet").click()
    assert sentence(page).startswith("64 ranks: ")


# ---------------------------------------------------------------- for everyone

FULL = {  # each page as full as it gets
    "sampler": "at('n').value = 32; at('ranks').value = 7; at('shuffle').checked = true; draw()",
    "ring": "at('ranks').value = 8; begin(); go(9)",
    "buckets": "at('cap').value = 0; draw()",
    "scaling": "at('strong').checked = true; at('ranks').value = 9; at('batch').value = 12; draw()",
}
CUT_OFF = """() => [...document.querySelectorAll('body *')].filter(each => !each.closest('.unseen, svg') &&
    each.clientWidth && each.scrollWidth > each.clientWidth + 1).map(each => each.outerHTML)"""


@in_a_browser
@each_page
@pytest.mark.parametrize(("theme", "width"), [("light", 328), ("dark", 1280)])  # 328: in a page on a phone
def test_a_page_can_be_read(name, theme, width, opened):
    from axe_playwright_python.sync_playwright import Axe

    page = opened(name, width, theme)
    page.evaluate(FULL[name])
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CUT_OFF) == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 28)"
    assert dark == (theme == "dark")
    violations = Axe().run(page).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"]) for each in violations] == []


@in_a_browser
def test_in_a_notebook_it_is_as_high_as_it_is_long_and_as_dark_as_the_page_around_it(opened, monkeypatch):
    output = shown_in_a_notebook("ring", monkeypatch)["text/html"]
    page = opened("notebook", html="<!DOCTYPE html><html lang='en' data-theme='dark'><meta charset='utf-8'><style>"
                                   f"button {{ display: none }}</style><body>{output}</body></html>")
    inside = page.frame_locator("iframe")
    inside.locator("#said").wait_for()
    background = "getComputedStyle(document.querySelector('iframe').contentDocument.body).backgroundColor"
    page.wait_for_function(f"{background} === 'rgb(22, 24, 28)'")
    page.evaluate("document.documentElement.dataset.theme = 'light'")
    page.wait_for_function(f"{background} === 'rgb(255, 255, 255)'")
    page.evaluate("delete document.documentElement.dataset.theme; document.body.dataset.jpThemeLight = 'false'")
    page.wait_for_function(f"{background} === 'rgb(22, 24, 28)'")
    page.wait_for_function("""() => { const frame = document.querySelector('iframe'), inside = frame.contentDocument
        return inside.documentElement.scrollHeight <= frame.clientHeight + 1 && frame.clientHeight < 1500 }""")
    assert not page.get_by_text("run this cell in JupyterLab").is_visible()
    height = page.locator("iframe").evaluate("frame => frame.clientHeight")
    page.set_viewport_size({"width": 360, "height": 800})
    page.wait_for_function(f"document.querySelector('iframe').clientHeight > {height}")
    assert inside.get_by_role("button", name="Next step").is_visible(), "the notebook's style does not reach inside"
