"""The exercise of lesson 12 that is a whole program, judged by course/one_process.py."""

import re
import tempfile
from pathlib import Path

from course.exercise import Case, exercise
from course.lesson import ROOT, some
from course.one_process import compare

JOB_4802 = Path(__file__).with_name("jobs") / "job_4802.py"
FEW = ["--images", 672, "--epochs", 2]  # twice 14 micro-batches
EPOCH = re.compile(r"epoch \d+: loss (\S+), accuracy (\S+),")
REPAIR = {"if full else parallel.no_sync()": "if full or number == len(loader) else parallel.no_sync()"}


@exercise(
    solution="In train_epoch, in the place of\n    quiet = contextlib.nullcontext() if full else parallel.no_sync()\n"
             "write\n    quiet = contextlib.nullcontext() if full or number == len(loader) else parallel.no_sync()",
    hint=("The first updates are right on all ranks. In which update do they part, and how many updates has an epoch?",
          "The last update of an epoch. Its micro-batches are fewer than --accumulate. Which of them sends gradients?",
          "Whatever updates the weights must have sent its gradients: `full` alone decides over the one, `full or "
          "number == len(loader)` over the other."),
    mistakes={}, limit=400)  # each mistake would train the program six times: the messages below tell them apart
def repaired(attempt):
    """On 2 and 3 ranks it trains what one process trains, and prints what one process prints. Two conditions that must
    agree stood in two lines, and differed once per epoch."""
    path = Path(attempt).resolve()
    if not path.exists() or path.read_text() == JOB_4802.read_text():
        raise NotImplementedError
    with tempfile.TemporaryDirectory() as folder:
        for count in (1, 2, 3):
            Path(folder, str(count)).mkdir()
            Path(folder, str(count), "data").symlink_to(ROOT / "data")
        answers = compare(path, FEW, updates=99, to_end=True, folder=Path(folder))
    wanted = EPOCH.findall(answers[0].printed)
    yield Case(answers[0].updates, 8, "In one process it made 4 updates per epoch: each followed 4 micro-batches, and "
               "the last 2. Without the last micro-batches the ranks are equal, too, but train less than one process.")
    for answer in answers[1:]:
        yield Case(answer.one_model, True, f"{answer}" if answer.failure else
                   f"{answer}\nThe evaluation was right: each rank evaluated a model of its own.")
        yield Case(answer.equal, True, f"{answer}")
        printed = EPOCH.findall(answer.printed)
        yield Case(printed, wanted, f"On {some(answer.ranks, 'rank')} it prints {printed}; one process: {wanted}.")
