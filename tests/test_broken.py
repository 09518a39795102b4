"""The gallery of mistakes: each broken script shows its symptom, each repaired one does not, and nothing is left.

The ranks of most pairs are forked from one process (course/forked_ranks.py). A pair that is about a launcher is started
by that launcher. Lesson 12 starts all of them by torchrun.
"""

import json
import os
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from course import processes
from lessons.l12_break_it.gallery_table import anchor, guide, read_notes, read_patients, read_table
from scripts.broken import gallery
from tests import runner

TABLE = read_table()
BROKEN = runner.ROOT / "scripts" / "broken"
SPECIAL = {"gallery", "worker"}
each_entry = pytest.mark.parametrize("entry", TABLE.values(), ids=TABLE)


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """{name: what `gallery.py check` found} of the pairs whose tests were chosen, all run at once."""
    wanted = {item.callspec.params["entry"].name for item in request.session.items
              if item.module is request.module and "outcomes" in item.fixturenames and hasattr(item, "callspec")}
    file = tmp_path_factory.mktemp("gallery") / "found.json"
    command = [sys.executable, "scripts/broken/gallery.py", "check", "--fork", "--out", str(file), *sorted(wanted)]
    status = processes.run(command, 280, f"test_broken {os.getpid()}", runner.environment(), cwd=runner.ROOT)
    assert status is not None, "not all pairs ended within 280 s"
    return {outcome["name"]: outcome for outcome in json.loads(file.read_text())}


@pytest.mark.timeout(300)
@each_entry
def test_broken_shows_its_symptom_and_repaired_does_not(entry, outcomes):
    """The judge has no complaint, and several when the two forms are exchanged. The excerpt shows what it looks for."""
    outcome = outcomes[entry.name]
    assert not outcome["complaints"], json.dumps(outcome, indent=1)
    broken, repaired = (gallery.Outcome(**outcome[form]) for form in ("broken", "repaired"))
    assert len(gallery.complaints(entry, repaired, broken)) >= 4
    assert len(gallery.complaints(entry, broken, replace(repaired, status=None))) == 1
    for form in (broken, repaired):
        lines = gallery.excerpt(form.output, entry.lines)
        assert lines and not any("/home/" in line or str(runner.ROOT) in line for line in lines)
    assert not entry.look or gallery.excerpt(broken.output, entry.look)


def test_show_fails_where_the_symptom_is_not_seen(monkeypatch, capsys):
    same = gallery.Outcome(0, "epoch 0, rank 0 sees: 1\nepoch 1, rank 0 sees: 1\nepoch 2, rank 0 sees: 1\n")
    other = gallery.Outcome(0, same.output.replace("sees: 1\nepoch 1", "sees: 2\nepoch 1"))
    for pair, status in (((same, other), 0), ((other, other), 1), ((same, same), 1)):
        monkeypatch.setattr(gallery, "run_pair", lambda entry, pair=pair: pair)
        assert gallery.main(["show", "set_epoch"]) == status
        assert ("NOT AS EXPECTED" in capsys.readouterr().out) == bool(status)


# ------------------------------------------------------------------------------------------ lesson 12's patients


@pytest.fixture
def ill(monkeypatch, tmp_path):
    """Patient 3 without a run: set ill.output, what its script prints."""
    outcome = gallery.Outcome(1, "")
    monkeypatch.setattr(gallery, "LOGS", tmp_path)
    monkeypatch.setattr(gallery, "run", lambda entry, form: outcome)
    return outcome


def test_a_patient_without_its_symptom_fails_and_so_does_a_repair_without_its_proof(ill, capsys):
    ill.output = "rank 0: some other Error: \n"
    assert gallery.main(["patient", "3"]) == 1
    assert gallery.main(["patient", "3", "--lines", "some other"]) == 0  # a tool may change the message
    assert gallery.main(["look", "3", "no such line"]) == 1
    assert gallery.main(["repair", "3"]) == 1
    ill.output = "mean loss 1.5\n"
    assert gallery.main(["repair", "3"]) == 0
    assert capsys.readouterr().out.count("NOT AS EXPECTED") == 3


@pytest.mark.timeout(300)
@pytest.mark.parametrize("entry", read_patients().values(), ids=lambda entry: entry.name)
def test_a_patient_shows_something_and_not_its_name(entry, outcomes):
    seen = gallery.excerpt(gallery.blind(entry, outcomes[entry.name]["broken"]["output"]), entry.seen)
    assert seen and not any(f"{entry.name}.py" in line for line in seen)
    assert gallery.excerpt(outcomes[entry.name]["repaired"]["output"], f"{entry.seen}|{entry.proof}")


def test_all_mistakes_are_there_in_order():
    entries, notes = ([int(re.match(r"\d+", message.number)[0]) for message in messages]
                      for messages in (TABLE.values(), read_notes()))
    assert entries == sorted(entries) and notes == sorted(notes)
    assert sorted(set(entries + notes)) == list(range(1, len(set(entries + notes)) + 1))
    every = [*TABLE.values(), *read_notes()]
    for field in ("number", "title", "symptom"):
        assert len({getattr(message, field) for message in every}) == len(every)
    assert all(message.silent or "> " in message.symptom for message in every)


@each_entry
def test_the_judge_recognises_a_message_as_people_paste_it(entry):
    printed = re.findall("^> (.+)", entry.symptom, re.M)
    assert entry.silent or re.search(entry.shows, "\n".join(printed))


PASTED = tomllib.loads((runner.ROOT / "tests/pasted_messages.toml").read_text())["message"]


def test_each_message_of_the_page_was_seen_somewhere():
    """All but those that say nothing, or need a second GPU."""
    seen = {number for pasted in PASTED for number in pasted["entries"]}
    assert {message.number for message in [*TABLE.values(), *read_notes()] if not message.silent} <= seen


def test_each_script_belongs_to_an_entry():
    listed = {Path(entry.script(form)) for entry in TABLE.values() for form in ("broken", "repaired")}
    assert all((runner.ROOT / path).is_file() for path in listed)
    assert {path.relative_to(runner.ROOT) for path in BROKEN.glob("*.py") if path.stem not in SPECIAL} <= listed


@each_entry
def test_the_two_forms_differ_in_the_mistake_alone(entry):
    changed = [line for line in entry.difference() if line[0] in "+-"]
    assert 1 <= len(changed) <= 8
    if not entry.broken:  # the two that lesson 10 has, too, have docstrings of their own
        sources = [(runner.ROOT / entry.script(form)).read_text() for form in ("broken", "repaired")]
        assert sources[0].split('"""')[1] == sources[1].split('"""')[1]
        assert all(len(source.splitlines()) <= 50 for source in sources)


def test_the_guide_is_up_to_date_and_its_links_lead_somewhere():
    text = gallery.GUIDE.read_text()
    assert text == guide(TABLE), "run python scripts/broken/gallery.py guide"
    assert set(re.findall(r"\]\(#([^)]*)\)", text)) == {anchor(line[3:]) for line in text.splitlines()
                                                        if line.startswith("## ")}


def test_the_stacks_that_the_guide_shows_are_those_of_the_script():
    stacks = re.findall(r"^    (\w+) \(torch/.*\n.*\n    <module> \((\w+\.py):(\d+)\)", gallery.GUIDE.read_text(), re.M)
    calls = [(BROKEN / script).read_text().splitlines()[int(line) - 1] for _, script, line in stacks]
    assert len(stacks) == 2 and all(f"dist.{call}(" in line for (call, *_), line in zip(stacks, calls, strict=True))


def alive(pid):
    """A killed process that nobody has asked for its status is a zombie: not alive."""
    try:
        return psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_run_that_never_ends_is_stopped_with_all_that_it_started(tmp_path):
    script = tmp_path / "for_ever.py"
    script.write_text("import os, subprocess, sys, time\n"
                      "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
                      " start_new_session=True)\n"
                      "print(os.getpid(), child.pid, flush=True)\ntime.sleep(600)\n")
    entry = replace(TABLE["set_epoch"], broken=str(script))
    outcome = gallery.run(entry, "broken", limit=5)
    assert outcome.status is None
    assert len(outcome.output.split()) == 2 and not any(map(alive, outcome.output.split()))
    complaints = gallery.complaints(entry, outcome, outcome)
    assert f"broken: it did not end within {gallery.LIMIT} s" in complaints


@pytest.mark.parametrize("arguments", [["show", "no_such"], ["check", "no_such"], []])
def test_bad_input_is_one_line(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        gallery.main(arguments)
    printed = capsys.readouterr()
    assert end.value.code == 2 and len(printed.err.strip().splitlines()) == 1 and not printed.out
