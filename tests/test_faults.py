"""One fault on purpose against each promise of tests/test_promises.py: a test that holds the promise must turn red.

Each is tried in a copy of the tree. It takes minutes, and its news is rare: scripts/test -m weekly.
"""

import subprocess
import sys
from collections import namedtuple

import pytest

from tests import runner, test_promises

pytestmark = [pytest.mark.weekly, pytest.mark.timeout(1200)]
Fault = namedtuple("Fault", "what file old new test")
FAULTS = {
    "one model": Fault(
        "gradients are summed over the ranks, and not averaged", "main.py",
        "(loss * share).backward()", "(loss * share * placement.world_size).backward()",
        "test_main.py::test_ddp_equals_one_process_on_the_whole_batch[2]"),
    "each image once": Fault(
        "an evaluation is that of rank 0's test images alone", "utils.py",
        "loss, hits, images = all_sum(sums)", "loss, hits, images = sums.tolist()",
        "test_main.py::test_reported_evaluation_is_that_of_the_saved_model"),
    "undisturbed": Fault(
        "a checkpoint leaves the optimizer out", "run.py",
        '"optimizer": optimizer, ', "",
        "test_checkpoint.py::test_stopped_by_a_signal_and_resumed_is_the_undisturbed_run[0]"),
    "bounded waits": Fault(
        "the ranks wait for each other as long as gloo likes", "launch.py",
        "timeout=bound, store=store,\n", "store=store,\n",
        "test_checkpoint.py::test_a_rank_that_hangs_is_named_by_the_others"),
    "loud commands": Fault(
        "a cell swallows the exit status of its command", "course/lesson.py",
        "system_raise_on_error = True", "system_raise_on_error = False",
        "test_run_notebooks.py::test_papermill_itself_fails_where_a_command_fails"),
    "whole logs": Fault(
        "a log is complete until its `end` says otherwise", "course/runs.py",
        '{"status": "unfinished", "restarts": 0}', '{"status": "completed", "restarts": 0}',
        "test_runs.py::test_a_log_without_end_is_unfinished"),
    "gallery": Fault(
        "a broken program is not broken any more", "gallery/set_epoch.py",
        "    seen.append(", "    sampler.set_epoch(epoch)\n    seen.append(",
        "test_broken.py::test_broken_shows_its_symptom_and_repaired_does_not[set_epoch]"),
    "one line": Fault(
        "what is wrong with the options is a traceback", "options.py",
        "            self.error(str(error))\n\n", "            raise\n\n",
        "test_bad_input.py::test_each_is_one_line_and_nothing_is_left"),
    "shield": Fault(
        "an answer can read what others have handed in", "teach/shield.py",
        '"--tmpfs", str(path), "--remount-ro", str(path)', '"--ro-bind", str(path), str(path)',
        "test_grade.py::test_what_can_be_seen_and_written_in_a_room"),
    "offline pages": Fault(
        "the pages load a font from another host", "site/conf.py",
        '["course.css"]', '["course.css", "https://fonts.invalid/inter.css"]',
        "test_site.py::test_pages_ask_nobody_and_hinder_nobody[False]"),
}


def tried(folder, *tests, fault=None):
    """The finished pytest of these tests in a copy of the tree, with a fault in it or with none."""
    env = runner.clone(folder)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, timeout=60, check=True)  # a test makes a clone of it
    if fault:
        text = (folder / fault.file).read_text(encoding="utf-8")
        assert text.count(fault.old) == 1, f"{fault.file} has changed: how is it broken in this way now?"
        (folder / fault.file).write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", *(f"tests/{test}" for test in tests)]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=1100)


def test_without_a_fault_they_are_green(tmp_path):
    done = tried(tmp_path, *(fault.test for fault in FAULTS.values()))
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.mark.parametrize("promise", test_promises.PROMISES)
def test_a_fault_turns_a_test_of_its_promise_red(promise, tmp_path):
    fault = FAULTS[promise]
    assert f"tests/{fault.test.split('[')[0]}" in test_promises.marked()[promise]
    done = tried(tmp_path, fault.test, fault=fault)
    assert done.returncode == 1 and f"FAILED tests/{fault.test}" in done.stdout, f"{fault.what}:\n{done.stdout[-5000:]}"
