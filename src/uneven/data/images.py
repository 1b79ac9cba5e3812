"""Encoded image files to one uint8 tensor, of one size."""

import io
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from uneven.errors import DataError

_CHANNELS = {"1": "L", "L": "L", "RGB": "RGB", "P": "RGB", "YCbCr": "RGB"}


class _ColourMetError(Exception):
    """A colour image came after grey ones."""


def decode(
    files: Sequence[bytes],
    what: str,
    size: tuple[int, int] | None = None,
    rows: Sequence[int] | None = None,
) -> Tensor:
    """(n, 1 or 3, h, w) uint8: grey sets have one channel, sets with any colour image have three.

    ``size``: the height and width that every image is resized to, by Pillow's bilinear filter, which averages
    over all pixels under the filter where an image shrinks (no aliasing). ``what`` and ``rows`` name the files in
    messages; by default 0, 1, ...

    Raises `DataError` for a file that is no image, for images of unequal sizes where no size is given, and for
    modes that do not fit into 8 bits and 3 channels (16 bits, transparency).
    """
    named = list(zip(rows or range(len(files)), files, strict=True))
    mode = _open(*named[0], what)[1]
    try:
        pixels = _fill(named, mode, what, size)
    except _ColourMetError:
        pixels = _fill(named, "RGB", what, size)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()


def _fill(
    files: Sequence[tuple[int, bytes]], mode: str, what: str, size: tuple[int, int] | None
) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    first, _ = files[0]
    width, height = _open(*files[0], what)[0].size if size is None else reversed(size)
    pixels = np.empty((len(files), height, width, len(mode) if mode == "RGB" else 1), np.uint8)
    for i, (row, file) in enumerate(files):
        image, own = _open(row, file, what)
        if size is None and image.size != (width, height):
            sizes = f"{width}x{height} (row {first}) and {image.width}x{image.height} (row {row})"
            raise DataError(f"{what} holds images of unequal sizes: {sizes}; data.size = 32 would resize all")
        if own == "RGB" and mode == "L":
            raise _ColourMetError
        decoded = _decoded(image, mode, row, what).resize((width, height), Image.Resampling.BILINEAR)
        pixels[i] = np.frombuffer(decoded.tobytes(), np.uint8).reshape(pixels.shape[1:])
    return pixels


def _open(row: int, file: bytes, what: str) -> tuple[Image.Image, str]:
    """The image, still to be decoded, and the mode that holds all of it."""
    try:
        image = Image.open(io.BytesIO(file))
    except (UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise DataError(f"{what}, row {row}: not an image file that Pillow reads") from error
    if image.mode not in _CHANNELS or "transparency" in image.info:
        raise DataError(
            f"{what}, row {row}: an image of mode {image.mode}, with more than 8 bits or with transparency; "
            "convert the images to grey (L) or RGB first"
        )
    return image, _CHANNELS[image.mode]


def _decoded(image: Image.Image, mode: str, row: int, what: str) -> Image.Image:
    """In its mode before it is resized: entries of a palette cannot be averaged."""
    try:
        image.load()
        return image if image.mode == mode else image.convert(mode)
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{what}, row {row}: a damaged image: {error}") from error
