"""Looks over a running training's shoulder, and says what is wrong with it.

    torchrun --nproc_per_node=2 -m doctor my_train.py --epochs 2

The script runs unchanged (visit.py). Each rank notes what it does at the public seams of torch (seams.py) in a diary
(diary.py). At the end, or when the script fails or stalls, the ranks put their diaries together (exchange.py), in which
detectors look for mistakes (detectors.py). A report names these (findings.py). This folder needs nothing but torch, and
nothing of the course: copy it, and call `python -m doctor`.
"""
