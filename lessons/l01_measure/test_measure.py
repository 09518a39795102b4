"""Programs take turns: each trains on the images of its turn, and stands still until the next."""

import time

import pytest

from lessons.l01_measure.turns import taking_turns

PROGRAM = """
import os, sys
import torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = int(sys.argv[1]) // int(os.environ.get("WORLD_SIZE", 1))
for _ in range(int(sys.argv[2])):
    model(torch.randn(batch, 3)).sum().backward()
    optimizer.step()
    with open(sys.argv[3] + os.environ.get("RANK", "0"), "a") as file:
        file.write(".")
sys.exit("all of it")
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    return lambda batch, updates, log: f"{tmp_path}/program.py {batch} {updates} {tmp_path}/{log}"


@pytest.mark.weekly
def test_each_turn_is_as_many_images_whatever_the_batch_and_the_ranks(program, tmp_path):
    commands = {"small": f"python {program(4, 99, 'small')}", "large": f"python {program(12, 99, 'large')}",
                "ranks": f"torchrun --nproc_per_node=2 {program(12, 99, 'ranks')}"}

    def updates():  # the file is written after the hook: of a turn's last update in the next turn
        return [len(path.read_text()) if (path := tmp_path / name).exists() else 0
                for name in ("small0", "large0", "ranks0", "ranks1")]

    with taking_turns(commands, images=24) as programs:
        for train in programs.values():
            train()
        first = updates()
        time.sleep(0.3)
        assert updates() == first == [5, 1, 1, 1], "all stand still"
        programs["small"]()
        assert updates() == [11, 1, 1, 1]
        programs["ranks"]()
        assert updates() == [11, 1, 3, 3]


@pytest.mark.weekly
def test_a_program_that_ends_before_its_turn_is_named_with_what_it_printed(program):
    with taking_turns({"short": f"python {program(4, 7, 'short')}"}, images=24) as programs:
        programs["short"]()
        with pytest.raises(RuntimeError, match=r"program.py 4 7 .*did not finish turn 2(.|\n)*all of it"):
            programs["short"]()
