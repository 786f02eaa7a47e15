"""Read pictures as their files say that they look: upright, 8 bits, on white.

Everything that decodes a picture calls `read_pixels`, so that a picture gives the same pixels
however it is stored. Colours are those of sRGB; a file that says otherwise is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np

from zoo.packages import explain_imports

ORIENTATION = 0x0112
TILTED = (5, 6, 7, 8)
"""Orientations of pictures that lie on their side."""
SAMPLE_BITS, PHOTOMETRIC, SAMPLE_FORMAT = 258, 262, 339
"""Tags of EXIF and TIFF."""
GAMMA, PRIMARIES = 0.45455, (0.3127, 0.329, 0.64, 0.33, 0.3, 0.6, 0.15, 0.06)
"""Those of sRGB, as PNG states them: white, red, green and blue, each x and y."""
STACKS_WITH_A_MAIN_PICTURE = ("MPO", "PSD")
KEY_SCALES = {"1": 255, "L;2": 85, "L;4": 17}
"""White of a PNG by its raw mode, in units of which it states its transparent grey."""
MAX_ROUNDING = 3
"""A profile that changes no colour by more levels is sRGB, written by another program."""
CONVERT = "convert it: vips icc_transform FILE NEW srgb --embedded (docs/images.md: in Python)"


def read_pixels(file: Any, mode: str) -> Any:
    """Return a picture of Pillow the way it should be seen.

    Args:
        file: The opened file or a picture in memory. It may be loaded, and is otherwise unchanged.
        mode: "RGB" or "L".

    Returns:
        A picture of that mode: turned as its tags say, of 16 bits the upper eight, and laid on
        white where it is transparent.

    Raises:
        ValueError: It says something that is not followed: several pictures, numbers of an unknown
            range, colours other than those of sRGB, tags that are damaged.
    """
    if getattr(file, "is_animated", False) and file.format not in STACKS_WITH_A_MAIN_PICTURE:
        raise ValueError("it holds several pictures; save the one that counts as a file")
    # the raw mode is gone once a file is loaded
    raw_mode = _find_raw_mode(file)
    picture = _turn_upright(file)
    picture = _reduce_bits(picture, getattr(file, "format", None), getattr(file, "tag_v2", {}))
    colours, alpha = _split_alpha(picture, file.info.get("transparency"), raw_mode)
    _check_srgb(colours.mode, file.info)
    if colours.mode == "CMYK":
        colours = colours.convert("RGB")
    if alpha is not None:
        colours = _lay_on_white(colours, alpha)
    # Pillow would copy a picture that has the mode
    return colours if colours.mode == mode else colours.convert(mode)


def find_upright_size(file: Any) -> tuple[int, int]:
    """Return width and height that an opened JPEG will have once it is read upright.

    Raises:
        ValueError: Its tags are damaged.
    """
    with _report_damaged_tags():
        is_tilted = file.getexif().get(ORIENTATION, 1) in TILTED
    return (file.height, file.width) if is_tilted else (file.width, file.height)


def reduce_scale(file: Any, factor: float) -> None:
    """Decode a JPEG at a half, a quarter or an eighth, but not below a fraction of its size.

    Args:
        file: The opened JPEG, not loaded.
        factor: Fraction of its width and height that is needed.
    """
    if factor < 1:
        file.draft(None, (math.ceil(file.width * factor), math.ceil(file.height * factor)))


def _find_raw_mode(file: Any) -> str:
    for tile in getattr(file, "tile", ()):
        args = tile[3]
        return str(args[0] if isinstance(args, tuple) and args else args)
    return ""


def _turn_upright(file: Any) -> Any:
    from PIL import ImageOps

    file.load()
    with _report_damaged_tags():
        is_turned = file.getexif().get(ORIENTATION, 1) != 1
        return ImageOps.exif_transpose(file) if is_turned else file


@contextmanager
def _report_damaged_tags() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # the parser of tags raises errors of several kinds
        message = "its EXIF tags, which say how it is turned, are damaged"
        raise ValueError(f"{message} ({error}); remove them, or write it again") from None


def _reduce_bits(picture: Any, kind: str | None, tags: Mapping[int, Any]) -> Any:
    """Return a picture of 8 bits a channel: of 16 the upper eight, as Pillow does with colours.

    Args:
        picture: The picture.
        kind: The format of its file, if it has one.
        tags: The tags of a TIFF file.
    """
    from PIL import Image

    mode = picture.mode
    # Pillow scales what a PGM file has to 16 bits
    is_16_bits = mode.startswith("I;16") or (mode == "I" and kind == "PPM")
    is_unsigned = not tags or (np.atleast_1d(tags.get(SAMPLE_FORMAT, 1)) == 1).all()
    if not is_unsigned or kind == "FITS" or (mode in ("I", "F") and not is_16_bits):
        message = (
            "its numbers are signed, floating point or of 32 bits, and none is said to be white"
        )
        raise ValueError(f"{message}; save it with 8 or 16 bits")
    if not is_16_bits:
        return picture
    numbers: Any = np.asarray(picture).astype(np.uint32)
    # 12 bits are read as numbers below 4096
    if tags.get(SAMPLE_BITS) in (12, (12,)):
        numbers = numbers << 4
    if tags.get(PHOTOMETRIC) == 0:
        numbers = 65535 - numbers
    reduced = Image.fromarray((numbers >> 8).astype(np.uint8))
    key = picture.info.get("transparency")
    if key is not None:
        shown = np.where(numbers == key, 0, 255).astype(np.uint8)
        reduced = Image.merge("LA", [reduced, Image.fromarray(shown)])
    return reduced


def _split_alpha(picture: Any, key: Any, raw_mode: str) -> tuple[Any, Any]:
    """Return colours, in mode L, RGB or CMYK, and how far they cover; None: everywhere.

    Args:
        picture: A picture of 8 bits.
        key: The colour that is transparent, or the transparency of the colours of a palette.
        raw_mode: What the file had before Pillow read it.
    """
    from PIL import Image

    mode = picture.mode
    if mode == "P":
        mode = "RGBA" if picture.has_transparency_data else "RGB"
        picture = picture.convert(mode)
    elif mode in ("LA", "La", "PA", "RGBa"):
        picture = picture.convert("LA" if mode in ("LA", "La") else "RGBA")
        mode = picture.mode
    if mode in ("LA", "RGBA"):
        *bands, alpha = picture.split()
        colours = bands[0] if mode == "LA" else Image.merge("RGB", bands)
        return colours, None if alpha.getextrema() == (255, 255) else alpha
    if mode not in ("L", "RGB", "CMYK"):
        picture = picture.convert("L" if mode == "1" else "RGB")
    if key is None or mode not in ("1", "L", "RGB"):
        return picture, None
    # Pillow has reduced the picture to 8 bits, and left the key at 16
    if "16" in raw_mode:
        message = "one colour of 16 bits is transparent, and only 8 are read"
        raise ValueError(f"{message}; save it with a channel of transparency")
    numbers = np.asarray(picture)
    if mode == "RGB":
        is_key = (numbers == np.array(key)).all(-1)
    else:
        is_key = numbers == key * KEY_SCALES.get(raw_mode, 1)
    shown = Image.fromarray(np.where(is_key, 0, 255).astype(np.uint8))
    return picture, shown if is_key.any() else None


def _lay_on_white(colours: Any, alpha: Any) -> Any:
    from PIL import Image

    if alpha.getextrema()[1] == 0:
        raise ValueError("it is transparent everywhere, so there is nothing to see")
    return Image.composite(colours, Image.new(colours.mode, colours.size, "white"), alpha)


def _check_srgb(mode: str, info: Mapping[str, Any]) -> None:
    """Check that colours in a mode are those of sRGB, as far as a file says which they are.

    Raises:
        ValueError: The profile, the gamma or the primaries of the file are others.
    """
    if profile := info.get("icc_profile"):
        name = _find_other_profile(profile, mode)
        if name is not None:
            raise ValueError(f"its colour profile is {name!r:.60}, not sRGB; {CONVERT}")
    elif "srgb" not in info:
        gamma, primaries = info.get("gamma") or GAMMA, info.get("chromaticity")
        if mode != "L" and primaries and max(abs(np.subtract(primaries, PRIMARIES))) > 0.01:
            raise ValueError("its primaries are not those of sRGB; save it in sRGB")
        if abs(gamma / GAMMA - 1) > 0.05:
            raise ValueError(f"its gamma is {gamma:g}, not {GAMMA:g} of sRGB; save it in sRGB")


@lru_cache(maxsize=64)
def _find_other_profile(content: bytes, mode: str) -> str | None:
    """Return the name of a profile that is not sRGB; None for one that is.

    Many programs write sRGB profiles, under many names. What counts is that no colour changes.

    Raises:
        ValueError: The profile is damaged, or one of another kind of picture.
    """
    with explain_imports():
        from PIL import Image, ImageCms

    try:
        profile = ImageCms.ImageCmsProfile(BytesIO(content))
        name = ImageCms.getProfileDescription(profile).strip()
        is_rgb = profile.profile.xcolor_space.strip() == "RGB"
        # many programs leave a profile of colours on grey
        source = "RGB" if is_rgb and mode == "L" else mode
        transform = ImageCms.buildTransform(profile, ImageCms.createProfile("sRGB"), source, "RGB")
    except (ImageCms.PyCMSError, OSError, TypeError, ValueError) as error:
        message = "its colour profile is damaged, or that of another kind of picture"
        raise ValueError(f"{message} ({error}); remove it, or save the picture in sRGB") from None
    if source == "CMYK":
        return name
    # a cube of colours, or all greys
    steps = np.arange(256, dtype=np.uint8)[:: 1 if source == "L" else 17]
    cube = steps if source == "L" else np.stack(np.meshgrid(*[steps] * 3), -1).reshape(-1, 3)
    before = Image.fromarray(cube[None])
    after = np.asarray(ImageCms.applyTransform(before, transform)).astype(int)
    change = np.abs(after - np.asarray(before.convert("RGB"))).max()
    return None if change <= MAX_ROUNDING else name
