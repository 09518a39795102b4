"""The pictures: the numbers that they show, and what they refuse."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from course import plots, runs
from scripts import notebook_runs
from tests.test_runs import as_text, end_record, epoch_record, run_record

mpl.use("Agg")
BY_RUN = [plots.loss_by_epoch, plots.loss_by_time, plots.accuracy_by_epoch, plots.phases]
BY_TABLE = [plots.seconds_per_epoch, plots.throughput, plots.speedup, plots.efficiency]


@pytest.fixture
def log(tmp_path):
    """Writes a log of 5 epochs of 12 / `world_size` seconds, one a second faster than the other; returns its path."""

    def log(label, world_size=1, epochs=(0, 1, 2, 3, 4), ended=True, **fields):
        seconds = 12.0 / world_size
        fields = dict(world_size=world_size, local_world_size=world_size, epochs=5) | fields
        records = [
            epoch_record(i, time=1.8e9 + (i + 1) * (seconds + 1.5), loss=2.0 - 0.2 * i + 0.01 * world_size,
                         seconds=seconds, images_per_second=50000 / seconds)
            for i in epochs
        ]
        path = tmp_path / f"{label}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(as_text([run_record(**fields), *records, *([end_record()] if ended else [])]))
        return path

    return log


@pytest.fixture
def live(log):
    return runs.read_runs([log("single", 1), log("ddp2", 2), log("ddp8", 8, epochs=(0, 1), ended=False)])


def line_of(ax, style):
    return [line for line in ax.lines if line.get_linestyle() == style and line.get_color() != plots.GREY]


# ---------------------------------------------------------------- every picture


@pytest.mark.parametrize("function", BY_RUN + BY_TABLE)
def test_a_picture_says_that_data_are_synthetic(function, log):
    table = runs.read_runs([log(f"ddp{n}", n, dataset="synthetic", synthetic=True) for n in (1, 2)])
    ax = function(table if function in BY_RUN else runs.speedup_table(table))
    assert "SYNTHETIC DATA" in [text.get_text() for text in ax.texts]


@pytest.mark.parametrize("function", BY_RUN + BY_TABLE)
def test_an_empty_table_is_refused(function, live):
    table = live if function in BY_RUN else runs.speedup_table(live)
    with pytest.raises(ValueError, match="no rows"):
        function(table.iloc[:0])
    unknown = table.assign(**{c: np.nan for c in table if table[c].dtype == "float64"})
    with pytest.raises(ValueError, match="nothing to draw"):
        function(unknown)
    with pytest.raises(ValueError, match="nothing to draw"):
        function(pd.DataFrame({"label": ["a"]}))
    assert not plt.get_fignums()


# ---------------------------------------------------------------- the curves


def test_curves_show_the_numbers(live):
    for line, (_, rows) in zip(plots.loss_by_epoch(live).lines, live.groupby("label", sort=False), strict=True):
        assert line.get_xdata().tolist() == rows["epoch"].tolist()
        assert line.get_ydata().tolist() == rows["loss"].tolist()
    assert plots.loss_by_time(live).lines[1].get_xdata().tolist() == [6, 12, 18, 24, 30]
    assert plots.accuracy_by_epoch(live).lines[0].get_ydata().tolist() == live["accuracy"].iloc[:5].tolist()


def test_a_lost_epoch_or_loss_is_a_gap_and_a_missing_time_ends_the_line(log):
    df = runs.read_run(log("a", epochs=(0, 1, 3, 4)))
    (line,) = plots.loss_by_epoch(df).lines
    assert np.isnan(line.get_ydata()).tolist() == [False, False, True, False, False]
    (line,) = plots.loss_by_time(df).lines
    known = line.get_xdata()[np.isfinite(line.get_xdata())]
    assert known.tolist() == [12, 24], "the time of what follows a lost epoch is not known"
    by_hand = pd.DataFrame({"label": "mine", "epoch": [0, 1, 2], "loss": [2.0, np.nan, 1.0]})
    assert np.isnan(plots.loss_by_epoch(by_hand).lines[0].get_ydata()).tolist() == [False, True, False]


# ---------------------------------------------------------------- run against run


def test_phases_are_stacked_medians_without_the_warm_up(log):
    df = runs.read_runs([log("a"), log("b", 2)])
    df.loc[0, "data_seconds"] = 99.0
    widths = [(bar.get_x(), bar.get_width()) for bar in plots.phases(df).patches]
    assert widths == [(0, 0.375), (0.375, 3.5), (3.875, 5.5), (9.375, 0.5)] * 2


def test_scaling_shows_the_numbers(live):
    table = runs.speedup_table(live)
    guess = pd.DataFrame({"label": "guess", "source": "predicted", "world_size": [1, 2, 8], "speedup": [1.0, 2.0, 7.0]})
    points = line_of(plots.speedup(table), "-")[0]
    assert (points.get_xdata().tolist(), points.get_ydata().tolist()) == ([1, 2, 8], [1, 2, 8])
    assert line_of(plots.efficiency(table), "-")[0].get_ydata().tolist() == [1, 1, 1]
    assert line_of(plots.throughput(table), "-")[0].get_ydata().tolist() == table["images_per_second"].tolist()
    assert line_of(plots.speedup(pd.concat([table, guess])), ":")[0].get_ydata().tolist() == [1, 2, 7]


def test_a_run_of_unknown_world_size_is_left_out(live):
    table = runs.speedup_table(live)
    table.loc[2, "world_size"] = pd.NA
    assert line_of(plots.throughput(table), "-")[0].get_xdata().tolist() == [1, 2]
    with pytest.raises(ValueError, match="nothing to draw"):
        plots.throughput(table.iloc[2:])


# ---------------------------------------------------------------- the files, and the command that writes them


def test_a_small_png_looks_the_same_and_a_photograph_stays_as_it_is(tmp_path):
    plots.loss_by_epoch(pd.DataFrame({"epoch": [0, 1], "loss": [2.0, 1.0]})).figure.savefig(tmp_path / "plot.png")
    plt.imsave(tmp_path / "noise.png", np.random.default_rng(0).random((64, 64, 3)))
    plot, noise = ((tmp_path / name).read_bytes() for name in ("plot.png", "noise.png"))
    (tmp_path / "small.png").write_bytes(small := notebook_runs.small_png(plot))
    before, after = (plt.imread(tmp_path / name)[..., :3] for name in ("plot.png", "small.png"))
    assert len(small) < len(plot) / 2 and abs(before - after).mean() < 0.5 / 255
    assert notebook_runs.small_png(noise) == noise


# ---------------------------------------------------------------- timeline


def happened(*rows):
    return pd.DataFrame(rows, columns=["rank", "lane", "event", "start", "end", "text"])


EVENTS = happened(
    (0, "compute", "forward", 0.0, 3.0, None),
    (0, "compute", "backward", 3.0, 9.0, None),
    (0, "all-reduce", "all-reduce", 5.0, 8.0, "0"),
    (0, "all-reduce", "all-reduce", 7.0, 9.5, "1"),
    (1, "compute", "forward", 0.0, 4.0, None),
    (1, "compute", "checkpoint", 4.0, 9.0, "$x$"),
)


def test_timeline_draws_each_event_from_its_start_to_its_end():
    ax = plots.timeline(EVENTS.sample(frac=1, random_state=0))
    drawn = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in ax.patches)
    np.testing.assert_allclose(drawn, sorted(zip(EVENTS["start"], EVENTS["end"], strict=True)))
