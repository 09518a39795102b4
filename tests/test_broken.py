"""The gallery of mistakes: each broken program shows its symptom, each repaired one does not.

The ranks of most are started by hand, which takes less time. What is about a launcher is started by it.
"""

import re
import tomllib
from concurrent.futures import ThreadPoolExecutor

import pytest

from gallery import __main__ as gallery
from gallery import guide
from gallery.table import read_messages, read_table
from tests import runner

TABLE = read_table()
each_entry = pytest.mark.parametrize("entry", TABLE.values(), ids=TABLE)


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """{name: the Outcomes of both forms} of the entries whose tests were chosen, four at a time: many of them wait."""
    def run(entry, form):
        if entry.launcher:
            return gallery.run(entry, form)
        folder = tmp_path_factory.mktemp("form")
        script = folder / f"{entry.name}.py"
        script.write_text(entry.text(form))
        env = {"TMPDIR": str(folder)} | (entry.env if form == "broken" else {})
        done = runner.run(entry.ranks if entry.run.startswith("torchrun") else 0, script=script, **env)
        return gallery.Outcome(done.returncode, done.stdout + done.stderr)

    wanted = [item.callspec.params["entry"] for item in request.session.items
              if item.module is request.module and "outcomes" in item.fixturenames]
    with ThreadPoolExecutor(4) as pool:
        return dict(pool.map(lambda entry: (entry.name, [run(entry, form) for form in ("broken", "repaired")]), wanted))


@pytest.mark.weekly
@pytest.mark.timeout(1800)  # the first waits for the programs of all
@each_entry
def test_broken_shows_its_symptom_and_repaired_does_not(entry, outcomes):
    broken, repaired = outcomes[entry.name]
    assert not gallery.complaints(entry, broken, repaired), (broken, repaired)
    assert all(gallery.excerpt(form.output, entry.lines) for form in (broken, repaired))
    assert not entry.look or gallery.excerpt(broken.output, entry.look)


def test_what_does_not_behave_as_it_should_is_status_1(monkeypatch):
    outcome = gallery.Outcome(1, "rank 0: some other Error: \n")
    monkeypatch.setattr(gallery, "run", lambda entry, form: outcome)
    assert gallery.main(["show", "hang_rank_0"]) == 1


@pytest.mark.parametrize("arguments", [["show", "no_such"], ["write", "set_epoch", "/no/such/folder/x"], []])
def test_bad_input_is_one_line(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        gallery.main(arguments)
    assert end.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1


# ------------------------------------------------------------------------------------------ the table


def test_the_files_that_are_made_of_the_table_are_up_to_date():
    for name, text in guide.made().items():
        assert (runner.ROOT / name).read_text() == text, "run python -m gallery guide"


def test_the_table_is_in_order_and_names_each_program_once():
    numbers = [int(re.match(r"\d+", message.number)[0]) for message in read_messages()]
    assert sorted(set(numbers)) == list(range(1, max(numbers) + 1))
    for field in ("number", "title", "symptom"):
        assert len({getattr(message, field) for message in read_messages()}) == len(read_messages())
    programs = {path.stem for path in (runner.ROOT / "gallery").glob("*.py")}
    assert programs == {*TABLE, "__init__", "__main__", "guide", "table", "worker"}


@each_entry
def test_a_repair_is_small_and_the_symptom_is_in_the_words_that_a_program_prints(entry):
    assert 1 <= len([line for line in entry.difference() if line[0] in "+-"]) <= 8
    printed = "\n".join(line for by_program, lines in entry.parts if by_program for line in lines)
    assert entry.silent or re.search(entry.shows, printed)


def test_each_message_of_the_page_was_seen_somewhere():
    pasted = tomllib.loads((runner.ROOT / "gallery/pasted_messages.toml").read_text())["message"]
    assert {message.number for message in read_messages() if not message.silent} <= {
        number for message in pasted for number in message["entries"]}


def test_the_stacks_that_the_page_shows_are_those_of_the_program():
    stacks = re.findall(r"^    (\w+) \(torch/.*\n.*\n    <module> \((\w+)\.py:(\d+)\)", guide.head(), re.M)
    calls = [TABLE[name].text("broken").splitlines()[int(line) - 1] for _, name, line in stacks]
    assert len(stacks) == 2 and all(f"dist.{call}(" in line for (call, *_), line in zip(stacks, calls, strict=True))
