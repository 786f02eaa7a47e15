"""One picture, however it is stored, gives the same pixels; what a file says and zoo does not follow is refused."""

import io
import re
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageOps
from tiny import ROOT

from zoo.data.pictures import read_pixels
from zoo.data.vision import ImageDecoder

SIZE = (10, 6)
GREY = np.random.default_rng(0).integers(0, 256, (SIZE[1], SIZE[0]), np.uint8)
COLOURS = np.random.default_rng(1).integers(0, 256, (SIZE[1], SIZE[0], 3), np.uint8)
PRIMARIES = {
    b"rXYZ": (0.4361, 0.2225, 0.0139),
    b"gXYZ": (0.3851, 0.7169, 0.0971),
    b"bXYZ": (0.1431, 0.0606, 0.7141),
}
"""Those of sRGB under the white of profiles."""
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""How to turn a picture so that the tag turns it back."""


def write(picture, kind="PNG", **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def write_png(bits, kind, rows, *chunks):
    """A PNG file of packed rows, with any chunks before the pixels."""

    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", *SIZE, bits, kind, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    parts = [chunk(b"IHDR", header), *(chunk(*one) for one in chunks)]
    return b"".join([b"\x89PNG\r\n\x1a\n", *parts, chunk(b"IDAT", pixels), chunk(b"IEND", b"")])


def decode(content, channels=3):
    return ImageDecoder((SIZE[1], SIZE[0]), channels, "exact").decode(content).transpose(1, 2, 0)


def tag(turn):
    exif = Image.Exif()
    exif[0x0112] = turn
    return exif


def widen(pixels):
    return pixels.astype(">u2") * 257


def quantize():
    """The same picture with a palette: its colours are few."""
    few = Image.fromarray(COLOURS // 128 * 255)
    return few, few.quantize(8)


def clear(picture):
    return picture.convert("RGBA")


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("turn", TURNS)
def test_pictures_are_turned_as_they_say(turn, kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    turned = Image.fromarray(COLOURS).transpose(TURNS[turn])
    assert np.array_equal(decode(write(turned, kind, exif=tag(turn), **options)), COLOURS)


GREYS = {
    "PNG of 16 bits": lambda: write(Image.fromarray(widen(GREY).astype("u2"))),
    "turned, of 16 bits": lambda: write(
        Image.fromarray(widen(GREY).astype("u2")).transpose(TURNS[3]), exif=tag(3)
    ),
    "TIFF of 16 bits": lambda: write(Image.fromarray(widen(GREY).astype("u2")), "TIFF"),
    "TIFF of 16 bits, white is 0": lambda: write(
        Image.fromarray((65535 - widen(GREY)).astype("u2")), "TIFF", tiffinfo={262: 0}
    ),
    "JPEG 2000 of 16 bits": lambda: write(Image.fromarray(widen(GREY).astype("u2")), "JPEG2000"),
    "PGM of 16 bits": lambda: b"P5\n10 6\n65535\n" + widen(GREY).tobytes(),
    "with transparency": lambda: write(Image.fromarray(GREY).convert("LA")),
    "grey and transparency of 16 bits": lambda: write_png(
        16, 4, [b"".join(struct.pack(">HH", 257 * int(v), 65535) for v in row) for row in GREY]
    ),
    "colours": lambda: write(Image.fromarray(GREY).convert("RGB")),
    "palette": lambda: write(Image.fromarray(GREY).convert("P")),
    "GIF": lambda: write(Image.fromarray(GREY), "GIF"),
}
COLOURED = {
    "BMP": lambda: write(Image.fromarray(COLOURS), "BMP"),
    "PNG of 16 bits": lambda: write_png(16, 2, [row.tobytes() for row in widen(COLOURS)]),
    "PPM of 16 bits": lambda: b"P6\n10 6\n65535\n" + widen(COLOURS).tobytes(),
    "with transparency": lambda: write(Image.fromarray(COLOURS).convert("RGBA")),
    "with multiplied transparency": lambda: write(
        Image.fromarray(COLOURS).convert("RGBA"), "TIFF", tiffinfo={338: 1}
    ),
    "WebP": lambda: write(Image.fromarray(COLOURS), "WEBP", lossless=True),
    "sRGB profile": lambda: write(
        Image.fromarray(COLOURS),
        icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes(),
    ),
    "gamma of sRGB": lambda: write_png(
        8, 2, [row.tobytes() for row in COLOURS], (b"gAMA", struct.pack(">I", 45455))
    ),
}


@pytest.mark.parametrize("name", GREYS)
def test_grey_is_grey_however_it_is_stored(name):
    assert np.array_equal(decode(GREYS[name](), 1)[..., 0], GREY)
    assert np.array_equal(decode(GREYS[name]()), np.repeat(GREY[..., None], 3, -1))


@pytest.mark.parametrize("name", COLOURED)
def test_colours_are_the_same_however_they_are_stored(name):
    assert np.array_equal(decode(COLOURED[name]()), COLOURS)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_few_bits_and_their_transparent_grey(bits):
    top = 2**bits - 1
    levels = GREY >> (8 - bits)
    each = [np.unpackbits(row[:, None], axis=1)[:, -bits:].reshape(-1) for row in levels]
    rows = [np.packbits(row).tobytes() for row in each]
    found = decode(write_png(bits, 0, rows), 1)[..., 0]
    assert np.array_equal(found, levels * (255 // top))
    # black is transparent: it becomes white
    found = decode(write_png(bits, 0, rows, (b"tRNS", struct.pack(">H", 0))), 1)[..., 0]
    assert np.array_equal(found, np.where(levels == 0, 255, levels * (255 // top)))
    found = decode(write_png(bits, 0, rows, (b"tRNS", struct.pack(">H", top - 1))), 1)[..., 0]
    assert np.array_equal(found, np.where(levels == top - 1, 255, levels * (255 // top)))


def test_transparency_shows_white_however_it_is_stored():
    few, palette = quantize()
    pixels = np.asarray(few)
    is_black = (pixels == 0).all(-1)
    expected = np.where(is_black[..., None], 255, pixels)
    number = int(np.asarray(palette)[is_black][0])
    channel = few.convert("RGBA")
    channel.putalpha(Image.fromarray(np.where(is_black, 0, 255).astype("u1")))
    alphas = bytes(0 if one == number else 255 for one in range(8))
    stored = {
        "channel": write(channel),
        "WebP": write(channel, "WEBP", lossless=True),
        "one of a palette": write(palette, transparency=number),
        "palette": write(palette, transparency=alphas),
        "GIF": write(palette, "GIF", transparency=number),
        "a colour": write(few, transparency=(0, 0, 0)),
    }
    for name, content in stored.items():
        assert np.array_equal(decode(content), expected), name
    grey = Image.fromarray(widen(GREY).astype("u2"))
    found = decode(write(grey, transparency=257 * int(GREY[0, 0])), 1)[..., 0]
    assert np.array_equal(found, np.where(GREY[0, 0] == GREY, 255, GREY))
    # half of black is grey
    half = Image.new("RGBA", SIZE, (0, 0, 0, 128))
    assert set(decode(write(half)).flat) == {127}


def make_profile(name="sRGB", *, gamma=None, primaries=PRIMARIES):
    """A profile of three colours with curves: a gamma, or the parameters of sRGB."""

    def pad(data):
        return data + bytes(-len(data) % 4)

    def fixed(*numbers):
        return struct.pack(f">{len(numbers)}i", *(round(number * 65536) for number in numbers))

    curve = b"curv" + bytes(4) + struct.pack(">IH", 1, round((gamma or 0) * 256))
    if gamma is None:
        numbers = fixed(2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)
        curve = b"para" + bytes(4) + struct.pack(">HH", 3, 0) + numbers
    title = name.encode()
    tags = {
        b"desc": b"desc" + bytes(4) + struct.pack(">I", len(title) + 1) + title + bytes(79),
        b"wtpt": b"XYZ " + bytes(4) + fixed(0.9642, 1.0, 0.8249),
        **{band: b"XYZ " + bytes(4) + fixed(*one) for band, one in primaries.items()},
        **dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve),
    }
    entries, body, place = b"", b"", 132 + 12 * len(tags)
    for key, data in tags.items():
        entries += key + struct.pack(">II", place + len(body), len(data))
        body += pad(data)
    header = struct.pack(">II", place + len(body), 0) + struct.pack(">I", 0x02400000)
    header += b"mntrRGB XYZ " + bytes(12) + b"acsp" + bytes(28) + fixed(0.9642, 1.0, 0.8249)
    return header.ljust(128, b"\0") + struct.pack(">I", len(tags)) + entries + body


def test_profiles_of_srgb_are_known_by_their_content():
    grey = Image.fromarray(GREY)
    pillow = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for profile in (pillow, make_profile(), make_profile("c2"), make_profile("GIMP built-in")):
        assert np.array_equal(decode(write(Image.fromarray(COLOURS), icc_profile=profile)), COLOURS)
        # many programs leave a profile of colours on grey
        assert np.array_equal(decode(write(grey, icc_profile=profile), 1)[..., 0], GREY)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_other_profiles_are_refused_by_name(kind):
    wide = {**PRIMARIES, b"gXYZ": (0.2051, 0.6257, 0.0609), b"rXYZ": (0.6097, 0.3111, 0.0195)}
    others = {
        "Adobe RGB (1998)": make_profile("Adobe RGB (1998)", gamma=2.2, primaries=wide),
        # a name is no proof
        "sRGB": make_profile("sRGB", gamma=1.0),
        "swapped": make_profile(
            "swapped",
            primaries={**PRIMARIES, b"rXYZ": PRIMARIES[b"bXYZ"], b"bXYZ": PRIMARIES[b"rXYZ"]},
        ),
    }
    for name, profile in others.items():
        problem = f"colour profile is {name!r}, not sRGB; convert it: vips icc_transform"
        with pytest.raises(ValueError, match=re.escape(problem)):
            decode(write(Image.fromarray(COLOURS), kind, icc_profile=profile))


def test_the_page_has_a_conversion_that_works(tmp_path):
    """What docs/images.md says about a refused file makes it readable, in the right colours."""
    page = (ROOT / "docs" / "images.md").read_text(encoding="utf-8")
    (script,) = [one for one in re.findall(r"```python\n(.*?)```", page, re.S) if "ImageCms" in one]
    path = tmp_path / "photo.png"
    red = PRIMARIES[b"rXYZ"]
    swapped = make_profile(primaries={**PRIMARIES, b"rXYZ": PRIMARIES[b"bXYZ"], b"bXYZ": red})
    path.write_bytes(write(Image.fromarray(COLOURS), icc_profile=swapped))
    code = script.replace('"photos"', repr(str(tmp_path)))
    assert code != script
    exec(compile(code, "images.md", "exec"), {})
    assert np.abs(decode(path.read_bytes()) - COLOURS[..., ::-1].astype(int)).max() <= 2


def test_main_pictures_of_stacks_are_read():
    first, second = Image.fromarray(COLOURS), Image.fromarray(GREY)
    content = write(first, "MPO", save_all=True, append_images=[second.convert("RGB")], quality=100)
    plain = write(first, "JPEG", quality=100)
    assert np.array_equal(decode(content), decode(plain))


def test_cmyk_is_read():
    assert decode(write(Image.new("CMYK", SIZE, (0, 255, 255, 0)), "TIFF")).tolist()[0][0] == [
        255,
        0,
        0,
    ]


def list_refused():
    first, second = Image.fromarray(COLOURS), Image.fromarray(255 - COLOURS)
    frames = {"save_all": True, "append_images": [second]}
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    key = (b"tRNS", struct.pack(">HHH", 1, 2, 3))
    rows = [row.tobytes() for row in widen(COLOURS)]
    primaries = struct.pack(">8I", *[31270, 32900, 64000, 33000, 21000, 71000, 15000, 6000])
    small = [row.tobytes() for row in COLOURS]
    return {
        "GIF": (write(first, "GIF", **frames), "several pictures"),
        "APNG": (write(first, "PNG", **frames), "several pictures"),
        "WebP": (write(first, "WEBP", **frames), "several pictures"),
        "pages": (write(first, "TIFF", **frames), "several pictures"),
        "floating": (write(Image.fromarray(GREY / np.float32(255)), "TIFF"), "said to be white"),
        "32 bits": (write(Image.fromarray(GREY.astype("i4")), "TIFF"), "said to be white"),
        "signed": (write(Image.fromarray(GREY), "TIFF", tiffinfo={339: 2}), "said to be white"),
        "key of 16 bits": (write_png(16, 2, rows, key), "only 8 are read"),
        "primaries": (write_png(8, 2, small, (b"cHRM", primaries)), "primaries"),
        "gamma": (
            write_png(8, 2, small, (b"gAMA", struct.pack(">I", 100000))),
            "gamma is 1, not 0.45455 of sRGB",
        ),
        "profile": (write(first, icc_profile=b"no profile"), "colour profile"),
        "cut profile": (write(first, icc_profile=profile[:200]), "colour profile"),
        "profile of colours for CMYK": (
            write(Image.new("CMYK", SIZE), "JPEG", icc_profile=profile),
            "colour profile",
        ),
        "nothing to see": (write(Image.new("RGBA", SIZE, (0, 0, 0, 0))), "nothing to see"),
        "cut": (write(first)[:-40], "truncated|broken"),
    }


@pytest.mark.parametrize("name", list_refused())
def test_what_is_not_followed_is_refused(name):
    content, problem = list_refused()[name]
    with pytest.raises(ValueError, match=problem):
        decode(content)


def test_pictures_in_memory_are_read_alike_and_left_as_they_were():
    turned = Image.open(
        io.BytesIO(write(Image.fromarray(COLOURS).transpose(TURNS[6]), exif=tag(6)))
    )
    before = turned.size
    assert np.array_equal(np.asarray(read_pixels(turned, "RGB")), COLOURS)
    assert turned.size == before
    assert ImageOps.exif_transpose(turned).size == SIZE
    with pytest.raises(ValueError, match="said to be white"):
        read_pixels(Image.fromarray(GREY.astype("f4")), "L")
