"""Is a program the same on ranks as in one process? Asked of the learner's program, and of mistakes in it."""

import re
import shutil

import pytest

from course import one_process
from course.exercise import edited
from tests import runner

START = runner.ROOT / "lessons/start"
FEW = ["--images", "36", "--batch", "12", "--epochs", "1"]


def program(folder, **parts):
    """train.py in a folder, with these parts: {name: edits of the course's}."""
    shutil.copy(START / "train.py", folder)
    for name, edits in parts.items():
        (folder / f"{name}.py").write_text(edited((START / f"ours/{name}.py").read_text(), edits))
    return folder / "train.py"


def answers(path, *options, ranks=(2, 3)):
    one, *many = one_process.compare(path, [*FEW, *options], ranks)
    assert one.equal, one
    return many


def test_the_program_is_that_of_one_process_with_the_courses_parts_and_with_pytorchs(tmp_path):
    said = set()
    for parts in ("ours", "torch"):
        options = [*FEW, "--parts", parts, "--micro-batches", "2"]
        for answer in one_process.compare(program(tmp_path), options, to_end=True):
            assert answer.equal and answer.updates == 3 and answer.status == 0, answer
            said.add(re.search(r"loss \S+, accuracy \S+", answer.printed)[0])
    assert len(said) == 1, "the same loss, and each test image counted once, on 1, 2 and 3 ranks"


@pytest.mark.parametrize("name, edits, expected", [
    # One model, and not that of one process: the sum in place of the mean, twice as large on two ranks, and in the
    # first update.
    ("my_ddp", {"flat / self.ranks": "flat"}, (None, 1, 2.0)),
    # Not one model: each rank keeps its own gradients
    pytest.param("my_ddp", {"self.unpack(flat / self.ranks, bucket)": "pass"}, (1, 1, None), marks=pytest.mark.weekly),
    # Another order than one process: the gradient points elsewhere
    pytest.param("shard", {"order[rank::world_size]": "order[rank * n // world_size:][:n // world_size]"},
                 (None, 1, None), marks=pytest.mark.weekly),
])
def test_a_mistake_is_named_by_the_first_update_and_tensor(tmp_path, name, edits, expected):
    [answer] = answers(program(tmp_path, **{name: edits}), ranks=[2])
    update_between, update_from_one, times = expected
    assert (answer.between_ranks and answer.between_ranks[1].update) == update_between
    assert answer.from_one.update == update_from_one and not answer.equal
    got, off = answer.from_one.gradient
    assert off < 1e-9 and got == pytest.approx(times) if times else off > 0.01
    assert answer.from_one.tensor == "0.weight"


@pytest.mark.weekly
def test_other_weights_before_the_first_update_and_a_program_that_fails(tmp_path):
    path = program(tmp_path, my_ddp={"dist.broadcast(tensor, src=0)": "pass"})
    path.write_text(path.read_text().replace("torch.manual_seed(args.seed)", "torch.manual_seed(rank)"))
    [answer] = answers(path, ranks=[2])
    rank, where = answer.between_ranks
    assert (rank, where.update, where.tensor) == (1, 0, "0.weight")
    assert answer.from_one.update == 1, "rank 0 begins as one process does, and takes the mean of other gradients"
    path.write_text(path.read_text().replace("parallel.finish()", "parallel.finished()"))
    one, two = one_process.compare(path, FEW, [2])
    assert "has no attribute 'finished'" in one.failure and "has no attribute 'finished'" in two.failure
    assert not one.equal and not two.one_model


def ask(path, *options):
    return runner.run(0, "--ranks", "2", *options, path, *FEW, script="course/one_process.py")


@pytest.mark.weekly
def test_the_command_says_it_by_its_status(tmp_path):
    wrong = ask(program(tmp_path, my_ddp={"flat / self.ranks": "flat"}), "--updates", "2")
    assert wrong.returncode == 1 and "2 times as large" in wrong.stdout and "2 updates" in wrong.stdout
    missing = ask(tmp_path / "missing.py")
    assert missing.returncode == 2 and len(missing.stderr.splitlines()) == 1


@pytest.mark.weekly
def test_the_command_says_that_all_is_well_and_refuses_float32(tmp_path):
    assert ask(program(tmp_path)).returncode == 0
    (tmp_path / "float32.py").write_text("import torch\nlinear = torch.nn.Linear(2, 2).float()\n"
                                         "linear(torch.ones(1, 2).float()).sum().backward()\n"
                                         "torch.optim.SGD(linear.parameters(), lr=1).step()")
    other = ask(tmp_path / "float32.py")
    assert other.returncode == 2 and "float32" in other.stderr


@pytest.mark.weekly
def test_a_ddp_that_sends_nothing_is_noticed_by_the_program_itself(tmp_path):
    path = program(tmp_path, my_ddp={"self.unpack(flat / self.ranks, bucket)": "pass"})
    done = runner.run(2, *FEW, script=str(path))
    assert done.returncode == 1 and "The ranks are not one model" in done.stderr


def test_bad_options_are_a_line_each(tmp_path):
    path = program(tmp_path)
    refused = runner.run(2, "--batch", "9", script=str(path))
    assert re.search("--batch 9 must be a multiple of the 2 ranks", refused.stderr)
