"""The names, sources and gaps of a table's runs. A table made by hand needs only the columns that are drawn."""

from collections.abc import Callable
from textwrap import fill

import pandas as pd


def need(table: pd.DataFrame, *columns: str, enough: Callable = all) -> None:
    """Raise ValueError where nothing can be drawn: no rows, or columns without a value. `enough=any`: one column of the
    named columns will do."""
    if table.empty:
        raise ValueError("nothing to draw: the table has no rows")
    known = {name: name in table and table[name].notna().any() for name in columns}
    if not enough(known.values()):
        raise ValueError(f"nothing to draw: no run here has {' or '.join(name for name in known if not known[name])}")


def by_run(df: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of each run, in the order of the table."""
    return _groups(df, "label", "path")


def by_machine(table: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of each machine's measured, recorded or predicted runs, in the order of the table."""
    return _groups(table, "source", "machine")


def _groups(table, *keys):
    keys = [key for key in keys if key in table]
    return [rows for _, rows in table.groupby(keys, sort=False, dropna=False)] if keys else [table]


def field(run: pd.Series, name: str, otherwise=None):
    """A field of a run; `otherwise` where it is missing, or where the table lacks the column."""
    value = run.get(name)
    return otherwise if value is None or pd.isna(value) else value


def source_of(run: pd.Series) -> str:
    """"live", "recorded" or "predicted"."""
    return field(run, "source", "live")


def machine_of(run: pd.Series) -> str:
    """"live: this machine", "recorded: 8xh200", "predicted"."""
    source, machine = source_of(run), field(run, "machine")
    return f"{source}: {plain(machine)}" if machine and machine != source else source


def name_of(run: pd.Series, width: int = 16) -> str:
    """A run's label in lines of at most `width` characters, and its status where it did not end well."""
    return fill(plain(field(run, "label", "run")), width) + unfinished(run)


def unfinished(run: pd.Series) -> str:
    """A line with the status of a run that did not end well, else nothing."""
    status = field(run, "status")
    return f"\n({status})" if status in ("unfinished", "failed", "resumable") else ""


def made_up(table: pd.DataFrame) -> str:
    """A warning that names the runs that did not train on real images; "" where there are none."""
    runs = [rows.iloc[-1] for rows in by_run(table) if source_of(rows.iloc[-1]) != "predicted"]
    fakes = [plain(field(run, "label", "run")) for run in runs if field(run, "synthetic", False)]
    if not fakes or len(fakes) == len(runs):
        return "SYNTHETIC DATA" if fakes else ""
    return f"SYNTHETIC DATA: {', '.join(fakes) if len(fakes) < 4 else f'{len(fakes)} of {len(runs)} runs'}"


def plain(text) -> str:
    """Text as it stands: between dollars matplotlib would read formulas."""
    return str(text).replace("$", r"\$")
