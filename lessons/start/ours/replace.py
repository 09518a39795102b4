"""A file whose content is, at every moment, all of the old data or all of the new."""

import os


def replace(path, data):
    """Replace the content of the file `path` by the bytes `data`."""
    with open(f"{path}.part", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # a power cut takes what has not reached the disk
    os.replace(f"{path}.part", path)
