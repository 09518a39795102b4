"""The learning rate of each update, where a batch is larger than the one that a rate was chosen for."""


def rate(lr, times, update, warm_up):
    """The rate of an update; the first one is number 0. `lr` was right for a batch; this one is `times` as large.

    The linear rule, reached in equal steps: `lr` at update 0, `lr * times` from update `warm_up` on.
    """
    risen = min(1, update / warm_up) if warm_up else 1
    return lr * (1 + (times - 1) * risen)
