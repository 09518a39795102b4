"""Reads the console text of a run: main.py's, or a tutorial's, behind a launcher's prefixes, lines glued together,
the last line cut off. A number that may have been cut is no number."""

import re
from contextlib import suppress

from course import log_fields
from course.lesson import some

HEADER = re.compile(r"#[ \t]*([A-Za-z][\w ]*?)[ \t]*:[ \t]*(.*?)[ \t]*\n")
READ_AS = {"string": str, "Int64": int, "float64": float, "boolean": {"true": True, "false": False}.__getitem__}
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Of a collector of logs, or a hosted CI: a time, and a level or a host, where a rank stands behind it
STAMP = re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?\]?[ \t]"
                   r"(?:[^\n\[:]*?(?=\[rank\d+\]))?")
PREFIX = re.compile("|".join((  # of launchers, alone or one after the other; the group is the rank
    r"[ \t]*\[[A-Za-z]*([0-9]+)\]:?[ \t]*",  # [default0]: (torchrun --tee), [rank0]: (a traceback), [0] (MPICH -l)
    r"[ \t]*([0-9]+):[ \t]+",  # 0: (srun --label)
    # [1,0]<stdout>: (Open MPI)
    r"[ \t]*\[(?:[\w.-]+@)?[0-9]+,(?:mpirank:)?([0-9]+)(?:,[\w-]+)?\]<std(?:out|err)>:[ \t]*",
)))
BEFORE = re.compile(f"(?m)^(?:{COLOUR.pattern}|{STAMP.pattern}|{PREFIX.pattern})+")
NUMBER = r"[-+]?(?:[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|nan|inf)"
# The text behind a number shows that it was written to its end: a unit, a comma, or the line's end.
FIELD = re.compile(rf",[ \t]+([A-Za-z][A-Za-z /]*?)[ \t]*:[ \t]*({NUMBER})(?:s(?=Epoch:|\W|\Z)|(?=[,\s]))")
NAMES = {"loss": "loss", "acc": "accuracy", "time cost": "seconds", "val loss": "val_loss", "val acc": "val_accuracy",
         "images/s": "images_per_second"}


def without_prefixes(text: str) -> str:
    """The text without what stands in front of its lines: colours, times, ranks."""
    return BEFORE.sub("", text)


def read(text: str, notes: list[str]) -> tuple[dict, dict[int, dict]]:
    """(the fields of the run, {epoch: the numbers of its line}) of console text; doubts are added to `notes`."""
    text = re.sub(f"(?m)^{STAMP.pattern}", "", COLOUR.sub("", text))
    info, body = _header(text.replace("\r\n", "\n").replace("\r", "\n"))
    printed = []  # (rank or None, row), as they stand in the file
    for line in body.splitlines(keepends=True):
        for piece in re.split("(?<=Epoch:)", line)[1:]:  # each with the text behind it, which shows that it is whole
            row = _row(piece)
            if len(row) > 1:  # an epoch number alone says nothing
                printed.append((_rank(line), row))
    last = body.rpartition("\n")[2]
    if cut_off := "Epoch:" in last and not re.search(r"[0-9]s\s*$", last):
        notes.append("last line cut off")
    rows = _one_row_per_epoch(printed, notes)
    if rows and re.search(r"\bSYNTHETIC\b", body):  # main.py says so at the start
        info.setdefault("synthetic", True)
    if info or rows:
        expected = info.get("epochs")
        finished = "unknown" if expected is None else "completed" if len(rows) >= expected else "unfinished"
        info["status"] = "unfinished" if cut_off else finished
    return info, rows


def _header(text: str) -> tuple[dict, str]:
    """Lines `# key: value` at the top of a text file fill the run's fields; what is no such field is left out."""
    info, end = {}, 0
    while match := HEADER.match(text, end):
        end = match.end()
        name = match[1].lower().replace(" ", "_")
        with suppress(KeyError, ValueError):
            info[name] = READ_AS[log_fields.RUN[name]](match[2])
    return info, text[end:]


def _rank(line: str) -> tuple[int, ...] | None:
    """The rank in the prefix of a line; (node, local rank) where srun and torchrun both put a prefix."""
    ranks, at = [], 0
    while match := PREFIX.match(line, at):
        ranks.append(int(match[match.lastindex]))
        at = match.end()
    return tuple(ranks) or None


def _row(piece: str) -> dict:
    """The figures between one `Epoch:` and the next, found by name; empty if they make no epoch."""
    epoch = re.match(r"[ \t]*([0-9]{1,9}),", piece)
    row = {"epoch": int(epoch[1])} if epoch else {}
    for name, value in FIELD.findall(piece, epoch.end() - 1) if epoch else ():
        if column := NAMES.get(name.lower()):
            row.setdefault(column, float(value))
    return row


def _one_row_per_epoch(printed: list[tuple], notes: list[str]) -> dict[int, dict]:
    """Rank 0's line of each epoch; the first line where lines do not say their rank."""
    speaker = min((rank for rank, _ in printed if rank is not None), default=())
    if any(speaker):
        notes.append(f"rank 0 is not in this file: rank {'.'.join(map(str, speaker))} read instead")
    rows, disagree = {}, set()
    for rank, row in printed:
        if rank in (None, speaker) and repr(rows.setdefault(row["epoch"], row)) != repr(row):
            disagree.add(row["epoch"])
    if disagree:
        notes.append(f"{some(len(disagree), 'epoch')} printed more than once with other values: first kept")
    return rows
