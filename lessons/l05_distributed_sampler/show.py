"""Lesson 05: shards of unequal length, and accuracies from padded and dropped ones."""

ROWS = {"one process": "one process, batches of {ranks}", "padded": "padded", "dropped": "dropped", "Join": "Join",
        "Join, False": "Join, divided by\nthe ranks left"}


def counts(found):
    """{way: how often each image counts}, for a picture, of what uneven_shards.py found."""
    names = {way: name.format(ranks=found["world_size"]) for way, name in ROWS.items()}
    return {name: found[way] if way == "one process" else found[way]["counts"] for way, name in names.items()}


def averages(found):
    """A row a way: the mean loss that it measures, and its average gradient, against those of all images, each once."""
    rows = [{"way": "one process, each image once", "images": found["images"], "mean loss": f"{found['loss']:.4f}",
             "its error": "–", "mean of the ranks' means, error": "–", "average gradient, error": "–"}]
    for way in ("padded", "dropped", "Join", "Join, False"):
        losses = found[way]["losses"]
        images = sum(map(len, losses))
        mean = sum(map(sum, losses)) / images
        of_means = sum(sum(mine) / len(mine) for mine in losses) / len(losses)
        rows.append({"way": ROWS[way].replace("\n", " "), "images": images, "mean loss": f"{mean:.4f}",
                     "its error": off(mean, found["loss"]),
                     "mean of the ranks' means, error": off(of_means, found["loss"]),
                     "average gradient, error": percent(found[way]["gradient_off"])})
    return rows


def off(value, truth):
    share = 100 * (value - truth) / truth
    return f"{share:+.1f} %" if abs(share) >= 0.05 else "0.0 %"


def percent(share):
    return f"{100 * share:.0f} %"


def momentum(found):
    """What Join leaves unequal, in a sentence that the measured differences choose."""
    plain, with_momentum = found["apart"]["plain SGD"], found["apart"]["momentum"]
    said = ("One step after an epoch with Join, the largest difference of a weight between two ranks is "
            f"**{plain:.2g}** with plain SGD, and **{with_momentum:.2g}** with momentum.")
    if with_momentum > plain:
        return f"{said} Join has sent the weights of a rank that made every step to all ranks, but not its momentum."
    return f"{said} Here momentum makes no difference."


def accuracies(found, truth):
    """A row for each of {way: accuracy}, beside the true one: both 0 to 1."""
    return [{"way": way, "accuracy": f"{100 * accuracy:.2f} %", "points off": f"{100 * (accuracy - truth) + 0.0:+.2f}"}
            for way, accuracy in found.items()]


def hidden(sizes, ranks):
    """A row for each size of a test set: how many images padding repeats, and how far the accuracy is off at most."""
    repeated = {n: -n % ranks for n in sizes}
    return [{"test images": f"{n:,}", f"seen twice on {ranks} ranks": d,
             "accuracy off by at most": f"{100 * ((n - d) / n - (n - d) / (n + d)):.2f} points"}
            for n, d in repeated.items()]
