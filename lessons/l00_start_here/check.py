"""The exercise of notebook 00: lines that every rank runs, and a line that one rank alone runs."""

import contextlib
import io
import re

from course.exercise import Case, exercise, mistake
from lessons.start.ours.hello import my_hello


@exercise(
    solution=my_hello,
    hint=(
        "Every rank runs the same lines. Which of your two lines is every rank's, and which is one rank's alone?",
        "The first `print` needs no condition. The second one does: what does a rank know that the others do "
        "not?",
        "`print(f\"hello from rank {rank}\")`. Below it `if rank == 0:`, and in it the same for `world_size`."),
    mistakes={
        "Every rank has to say hello: print that without a condition.":
            mistake(my_hello, {'    print(f"hello': '    if rank == 0:\n        print(f"hello'}),
        "Print the number of this rank, `rank`.": mistake(my_hello, {"rank {rank}": "rank 0"}),
        "Ranks are counted from 0. Print the number as it is.":
            mistake(my_hello, {"rank {rank}": "rank {rank + 1}"}),
        "Every rank runs all your lines, unless a condition says which rank does: rank 0 alone.":
            mistake(my_hello, {"if rank == 0": "if True"}),
        "Let rank 0 print the number of ranks, `world_size`.":
            mistake(my_hello, {"if rank == 0": "if False"}),
        "Rank 0 speaks for all: every job has a rank 0.": mistake(my_hello, {"rank == 0": "rank == world_size - 1"}),
        "Nobody sees here what a function returns: print it.":
            lambda rank, world_size: f"hello from rank {rank}, world size {world_size}",
    },
)
def hello(answer):
    """Every rank runs your lines by itself, and each knows who it is. `if rank == 0` is how one process of many prints,
    saves or writes a log: look for it in train.py."""
    ranks = 3
    for rank in range(ranks):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            answer(rank, ranks)
        text = " ".join(printed.getvalue().split())
        for words, wanted in (("hello from rank", [rank]), ("world size", [ranks] if rank == 0 else [])):
            numbers = [int(number) for number in re.findall(rf"{words}\W*(\d+)", text, re.I)]
            should = f"`{words}` and {wanted[0]}, once" if wanted else f"no `{words}`"
            yield Case(numbers, wanted,
                       f"Rank {rank} of {ranks} should print {should}. It printed: {text or 'nothing'}.")
