"""Watch a training while it runs, and report which laws of data-parallel training it breaks.

    torchrun --nproc_per_node=2 -m doctor my_train.py --epochs 2

The script runs unchanged (runner.py). Hooks on torch's public functions (hooks.py) write what each rank does into its
event log (log.py). At the end, or when the script fails or stalls, the ranks put their records together (store.py).
Eight laws (laws.py) are judged on these, and the report (report.py) says which are broken, where. This folder needs
torch, and nothing of the course: copy it, and call `python -m doctor`.
"""

__version__ = "2.0"  # pyproject.toml reads it; in the course, scripts/run --build writes what CITATION.cff states
