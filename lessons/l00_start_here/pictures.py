"""Images of a data set, as the network sees them."""

import matplotlib.pyplot as plt
import numpy as np

from course.plots.style import WARNING


def two_of_each(images, labels, classes, name):
    """Two images of each of ten classes, side by side; `images` is [N, C, H, W], uint8. Returns the axes."""
    fig, axes = plt.subplots(2, 5, figsize=(10, 4))
    for label, ax in enumerate(axes.flat):
        pair = images[np.flatnonzero(labels == label)[:2]]
        ax.imshow(np.concatenate([*pair], axis=2).transpose(1, 2, 0))  # matplotlib wants [H, W, C]
        ax.set_title(classes[label], fontsize=18, loc="center")
        ax.axis("off")
    made_up = name == "synthetic"
    fig.suptitle(f"{'SYNTHETIC DATA' if made_up else name}: two images of each class", x=0.01, ha="left", fontsize=21,
                 fontweight="bold", color=WARNING if made_up else "black")
    return axes
