"""Pictures with few colours, in few bytes: a repository keeps every version of each. Needs no matplotlib."""

import io

from PIL import Image, ImageChops, ImageStat


def small_png(png: bytes) -> bytes:
    """The same PNG with a palette of 256 colours, a third of the bytes; as it came where somebody would see a
    difference (a photograph), or where it was small already."""
    with Image.open(io.BytesIO(png)) as image:
        colours = image.convert("RGB")
    few = colours.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    off = max(ImageStat.Stat(ImageChops.difference(colours, few.convert("RGB"))).mean)  # levels, of 255
    few.save(file := io.BytesIO(), "PNG", optimize=True)
    return min(png, file.getvalue(), key=len) if off < 0.5 else png
