"""Pictures as files."""

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd

from course.plots import comparison, training
from trainer import files

OF_RUNS = (training.loss_by_epoch, training.loss_by_time, training.accuracy_by_epoch, training.phases,
           training.accuracy_twice)
OF_TABLE = (comparison.seconds_per_epoch, comparison.throughput, comparison.speedup, comparison.efficiency)


def write_all(df: pd.DataFrame, table: pd.DataFrame, folder: Path,
              say: Callable[[str], object]) -> list[Path]:
    """Write a PNG, named after its function, for each picture that can be drawn; return their paths.

    `df` is of `runs.read_runs`, `table` its `runs.speedup_table`, or, where nothing can be compared, its
    `runs.seconds_per_epoch`. `say(line)` gets a line for each picture that cannot be drawn, with the reason. OSError
    where `folder` cannot be written.
    """
    mpl.use("Agg")  # no window
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for draw, data in [*((draw, df) for draw in OF_RUNS), *((draw, table) for draw in OF_TABLE)]:
        try:
            figure = draw(data).figure
        except ValueError as error:
            say(f"{draw.__name__}: {error}")
            continue
        path = folder / f"{draw.__name__}.png"
        with files.whole(path) as part:
            figure.savefig(part, format="png")
        plt.close(figure)
        written.append(path)
    return written
