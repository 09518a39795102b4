"""A browser, for the tests of pages, and the doctor's command."""

import shutil

import pytest


@pytest.fixture
def doctor_ended(monkeypatch, capsys):
    """doctor_ended(*words): the status with which `python -m doctor` ends, here in this process, its stdout, its
    stderr."""
    from doctor import __main__ as command

    def ended(*words):
        monkeypatch.setattr("sys.argv", ["doctor", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            command.main()
        return end.value.code, *capsys.readouterr()

    return ended


@pytest.fixture(scope="module")
def chromium():
    """A browser; only one at a time can be driven from a process, so it ends with its file."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not program:
        pytest.skip("no chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[
            "--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--no-first-run"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """open_page(url, own, **settings of the context): a page. Its errors and warnings, and its requests to any other
    address than those that begin with `own`, stand in page.complaints: there must be none at the end."""
    pages = []

    def opened(url, own, **settings):
        page = chromium.new_context(**settings).new_page()
        pages.append(page)
        page.complaints = []
        page.on("console", lambda message: page.complaints.append(message.text)
                if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda request: page.complaints.append(request.url)
                if not request.url.startswith((own, "data:", "blob:", "about:")) else None)
        page.goto(url)
        return page

    yield opened
    for page in pages:
        page.context.close()
    assert [page.complaints for page in pages if page.complaints] == []
