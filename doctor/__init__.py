"""Watch a training while it runs, and report its mistakes.

    torchrun --nproc_per_node=2 -m doctor my_train.py --epochs 2

The script runs unchanged (visit.py). Hooks at the public seams of torch (seams.py) note what each rank does, in its
diary (diary.py). At the end, or when the script fails or stalls, the ranks put their diaries together (exchange.py).
Detectors (detectors.py) look for mistakes in the diaries, and the report (findings.py) names them. This folder needs
torch, and nothing of the course: copy it, and call `python -m doctor`.
"""

__version__ = "2.0"  # pyproject.toml reads it; in the course, scripts/run --build writes what CITATION.cff states
