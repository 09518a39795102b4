"""Reads the console text of a run as launchers write it: banners, `[rank0]:` and `0: ` prefixes, lines glued together,
a last line cut off. A number that may have been cut is no number."""

import io
import re

from course import log_fields
from course.lesson import some

HEADER = re.compile(r"#[ \t]*([A-Za-z][\w ]*?)[ \t]*:[ \t]*(.*?)[ \t]*\n")
READ_AS = {"string": str, "Int64": int, "float64": float,
           "boolean": lambda word: {"true": True, "false": False}[word.lower()]}
COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # of Ray's prefixes
STAMP = re.compile(r"(?m)^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z ")  # of a hosted CI, before all that follows
PREFIXES = re.compile("|".join((  # of launchers, alone or one after the other; the group is the rank
    r"\[[A-Za-z]+([0-9]+)\]:?[ \t]*",  # [rank0]: (PyTorch), [default0]: (torchrun --tee)
    r"([0-9]+):[ \t]+",  # 0: (srun --label)
    r"\[(?:[\w.-]+@)?[0-9]+,(?:mpirank:)?([0-9]+)(?:,[\w-]+)?\]<std(?:out|err)>:[ \t]*",  # [1,0]<stdout>: (Open MPI)
    r"\[([0-9]+)\][ \t]+",  # [0] (MPICH -l)
    r"\[pod/[\w.-]*-([0-9]+)/[\w.-]+\][ \t]+",  # [pod/train-worker-0/pytorch] (kubectl --prefix)
    r"[A-Za-z][\w.-]*/([0-9]+)[ \t]+",  # job/0 (torchx)
    r"[A-Za-z][\w.-]*-([0-9]+)[ \t]+\|[ \t]*",  # trainer-0 | (docker compose)
    r"\(\w+ pid=[0-9]+(?:, ip=[^)\s]+)?\)[ \t]*",  # (RayTrainWorker pid=100, ip=10.0.0.1): Ray says no rank
)))
PREFIX = re.sub(r"(?<!\\)\((?!\?)", "(?:", PREFIXES.pattern)  # without groups
START = re.compile(rf"[ \t]*((?:{PREFIX})+)")
EPOCH = re.compile(r"[ \t]*([0-9]{1,9}),")
NUMBER = r"[-+]?(?:[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|nan|inf)"
# A number counts only if the text behind it shows that it was written to its end: a unit, a comma, or the line's end.
FIELD = re.compile(
    rf",[ \t]+([A-Za-z][A-Za-z /_]*?)[ \t]*:[ \t]*({NUMBER})(?:(s)(?=,?\s|\Z|Epoch:|\[)|(?=(,\s|[ \t]*\n)))")
NAMES = {"loss": "loss", "acc": "accuracy", "accuracy": "accuracy", "time cost": "seconds", "val loss": "val_loss",
         "val acc": "val_accuracy", "images/s": "images_per_second"}
ALWAYS_THERE = ("loss", "accuracy", "seconds")


def read(text: str, notes: list[str]) -> tuple[dict, dict[int, dict]]:
    """(the fields of the run, {epoch: the numbers of its line}) of console text; doubts are added to `notes`."""
    plain = COLOUR.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    info, body = _header(STAMP.sub("", plain), notes)
    if re.search(r"(?m)^\(\w+ pid=[0-9]+", body):
        notes.append("Ray's prefix does not say which rank has printed a line")
    printed = []  # (rank or None, row), as they stand in the file
    in_part = 0
    for line in io.StringIO(body):
        rank = _rank(line)
        for piece in re.split("(?<=Epoch:)", line)[1:]:  # each with the text behind it, which shows that it is whole
            row = _row(piece)
            if len(row) > 1:  # an epoch number alone says nothing
                printed.append((rank, row))
            in_part += not _is_whole(row)
    last = body.rpartition("\n")[2]
    cut_off = "Epoch:" in last and not re.search(r"[0-9]s\s*$", last)
    if cut_off:
        notes.append("last line cut off")
        in_part -= not _is_whole(_row(last.rpartition("Epoch:")[2]))
    if in_part:
        notes.append(f"{some(in_part, 'epoch line')} not read in full")

    rows = _one_row_an_epoch(printed, notes)
    if rows and re.search(r"\bSYNTHETIC\b", body):  # main.py says so at the start
        info.setdefault("synthetic", True)
    if info or rows:
        expected = info.get("epochs")
        finished = "unknown" if expected is None else "completed" if len(rows) >= expected else "unfinished"
        info["status"] = "unfinished" if cut_off else finished
    return info, rows


def _header(text: str, notes: list[str]) -> tuple[dict, str]:
    """Lines `# key: value` at the top of a text file fill the run's fields."""
    info, end = {}, 0
    while match := HEADER.match(text, end):
        end = match.end()
        name, value = match[1].lower().replace(" ", "_"), match[2]
        name = "origin" if name == "source" else name
        try:
            info[name] = READ_AS[log_fields.RUN[name]](value)
        except (KeyError, ValueError):  # typed by hand: no such field, or no such value
            notes.append(f"header left out: {name}: {value}")
    return info, text[end:]


def _rank(line: str) -> tuple[int, ...] | None:
    """The rank in the prefix of a line; (node, local rank) where srun and torchrun both put a prefix."""
    start = START.match(line)
    ranks = [int(prefix[prefix.lastindex]) for prefix in PREFIXES.finditer(start[1] if start else "")
             if prefix.lastindex]
    return tuple(ranks) or None


def _row(piece: str) -> dict:
    """The figures between one `Epoch:` and the next, found by name; empty if they make no epoch."""
    epoch = EPOCH.match(piece)
    if not epoch:
        return {}
    row = {"epoch": int(epoch[1])}
    for name, value, unit, after in FIELD.findall(piece, epoch.end() - 1):
        column = NAMES.get(name.lower())
        whole = unit if column == "seconds" else not unit and (after[0] == "," or column not in ALWAYS_THERE)
        if column and whole:
            row.setdefault(column, float(value))
    return row


def _is_whole(row: dict) -> bool:
    return row.keys() >= {"epoch", *ALWAYS_THERE}


def _one_row_an_epoch(printed: list[tuple], notes: list[str]) -> dict[int, dict]:
    """Rank 0's line of each epoch; the first line where lines do not say their rank."""
    speaker = min((rank for rank, _ in printed if rank is not None), default=())
    if any(speaker):
        notes.append(f"rank 0 is not in this file: rank {'.'.join(map(str, speaker))} read instead")
    rows: dict[int, dict] = {}
    disagree = set()
    for rank, row in printed:
        if rank in (None, speaker) and repr(rows.setdefault(row["epoch"], row)) != repr(row):
            disagree.add(row["epoch"])
    if disagree:
        notes.append(f"{some(len(disagree), 'epoch')} printed more than once with other values: first kept")
    return rows
