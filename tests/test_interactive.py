"""The pages of course/interactive/ in a browser: their numbers are torch's and the course's, and all can use them."""

import random

import IPython.display
import pytest
import torch

from course import interactive, lesson
from course.predict.fit import ring_seconds
from lessons.l08_performance import check
from lessons.start.ours.my_ddp import MyDDP

in_a_browser = pytest.mark.browser


@pytest.fixture
def opened(open_page, tmp_path):
    """opened(name, html=None) shows a page from a file."""
    def opened(name, html=None):
        file = tmp_path / f"{name}.html"
        file.write_text(html or interactive.page(name), encoding="utf-8")
        return open_page(file.as_uri(), file.as_uri(), viewport={"width": 1280, "height": 800})

    return opened


# ---------------------------------------------------------------- their numbers


@in_a_browser
def test_the_scaling_model_follows_each_bucket(opened):
    random.seed(0)
    cases = []
    for _ in range(600):
        cases.append([{
            "fixed": random.choice([0, 10 ** random.uniform(-5, 0)]), "per_image": 10 ** random.uniform(-6, -1),
            "backward": random.random(), "latency": random.choice([0, 10 ** random.uniform(-7, -2)]),
            "bandwidth": 10 ** random.uniform(7, 12), "bytes": 10 ** random.uniform(4, 10),
            "buckets": random.choice([1, 2, 7, 100]), "overlap": random.random() < 0.5,
            "cores": random.choice([None, 1, 2, 8, 64]),
        }, random.choice([1, 2, 3, 8, 64, 1024]), random.choice([1, 12, 64, 256, 1024]), random.random() < 0.5])
    page = opened("scaling")
    found = page.evaluate("""cases => cases.map(([job, ranks, batch, strong]) => [
        predict(job, ranks, batch), speedup(job, ranks, batch, strong)])""", cases)

    def followed(job, ranks, batch):
        """(computing, communication, step, exposed), in seconds"""
        buckets = job["buckets"]
        computing = max(1, ranks / (job["cores"] or ranks)) * (job["fixed"] + job["per_image"] * batch)
        backward = job["backward"] * computing
        each = ring_seconds(job["bytes"] / buckets, ranks, job["latency"], 1 / job["bandwidth"])
        ready = [backward * (number / buckets if job["overlap"] else 1) for number in range(1, buckets + 1)]
        return computing, buckets * each, *check.predict(ready, backward, computing, [each] * buckets)

    for (job, ranks, batch, strong), (step, ratio) in zip(cases, found, strict=True):
        wanted = followed(job, ranks, batch)
        close = {"rel": 1e-9, "abs": 1e-12 * wanted[2]}
        assert [step[part] for part in ("compute", "communication", "seconds", "exposed")] == [
            pytest.approx(value, **close) for value in wanted], (job, ranks, batch)
        if strong and batch % ranks:
            assert ratio is None
        else:
            many = followed(job, ranks, batch / ranks if strong else batch)[2]
            assert ratio == pytest.approx(followed(job, 1, batch)[2] / many * (1 if strong else ranks), **close)
    mb = 2**20
    sizes = [0, 0.25 * mb, mb, mb + 1, 26 * mb, 26 * mb + 1, 97.5 * mb]
    assert page.evaluate("sizes => sizes.map(bytes => ddp_buckets(bytes))", sizes) == [1, 1, 1, 2, 2, 3, 5]


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
            [id(parameter) for parameter in bucket] for bucket in MyDDP.make_buckets(module, cap)]
    sent = page.evaluate("send([8, 8, 8], [1, 2, 3], 1, 2, 1, 0.125)")  # a message of 8 bytes takes 2 (1 + 8 / 8 / 2)
    assert [(bucket["full"], bucket["leaves"], bucket["back"]) for bucket in sent] == [(1, 1, 4), (2, 4, 7), (3, 7, 10)]


# ---------------------------------------------------------------- in use


@in_a_browser
@pytest.mark.parametrize(("name", "answers"), [("buckets", [4, "smaller"]), ("scaling", [16, "more ranks"])])
def test_a_page_takes_a_guess_and_then_tells(name, answers, opened):
    page = opened(name)
    lists, compare = page.locator(".guess select"), page.get_by_role("button", name="Compare")
    for number, answer in enumerate(answers):
        lists.nth(number).select_option(str(answer))
    compare.click()
    assert page.locator("#told").inner_text().count("✓") == 2
    lists.first.select_option("2")
    compare.click()
    assert page.locator("#told").inner_text().startswith("✗")


@in_a_browser
@pytest.mark.parametrize(("show", "name", "within"), [(lesson.interactive, "buckets", "#said"),
                                                      (lesson.puzzle, "shard", "h2:text('Who gets which item')")])
def test_in_a_notebook_it_is_as_high_as_it_is_long_and_as_dark_as_the_page_around_it(show, name, within, opened,
                                                                                    monkeypatch):
    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: shown.append(data))
    show(name)
    page = opened("notebook", html="<!DOCTYPE html><html lang='en' data-theme='dark'><meta charset='utf-8'>"
                                   f"<body>{shown[0]['text/html']}</body></html>")
    page.frame_locator("iframe").locator(within).wait_for()
    background = "getComputedStyle(document.querySelector('iframe').contentDocument.body).backgroundColor"
    page.wait_for_function(f"{background} === 'rgb(22, 24, 28)'")
    page.wait_for_function("""() => { const frame = document.querySelector('iframe'), inside = frame.contentDocument
        return inside.documentElement.scrollHeight <= frame.clientHeight + 1 && frame.clientHeight < 1500 }""")
