"""The gradient of a rank's batch, from parts that are small enough for its memory."""

import contextlib


def backward(parallel, loss_function, images, labels, micro_batches):
    """Leave the gradient of the mean loss in the parameters; return that loss, without its graph.

    `parallel` communicates once, in the last micro-batch.
    """
    total = 0.0
    parts = list(zip(images.chunk(micro_batches), labels.chunk(micro_batches), strict=True))
    for number, (some_images, some_labels) in enumerate(parts):
        last = number == len(parts) - 1
        with contextlib.nullcontext() if last else parallel.no_sync():
            loss = loss_function(parallel(some_images), some_labels) * (len(some_labels) / len(labels))
            loss.backward()
        total += loss.detach()
    return total
