"""Pictures, animations and what is neither: tables, each row a file and what must come of it."""

from __future__ import annotations

import io
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from engines.media import (
    IMAGE_SUFFIXES,
    SUFFIXES,
    VIDEO_SUFFIXES,
    FrameSampling,
    Media,
    MediaError,
    MediaLimits,
    load_all,
    load_media,
)

RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)
DEEP = MediaLimits(max_image_pixels=400_000_000)


def corner_mark(width: int = 40, height: int = 24) -> Image.Image:
    """White with a red block at the top left and a blue one at the bottom right."""
    image = Image.new("RGB", (width, height), WHITE)
    image.paste(RED, (0, 0, 8, 8))
    image.paste(BLUE, (width - 8, height - 8, width, height))
    return image


def saved(folder: Path, image: Image.Image, name: str, **options: object) -> Path:
    path = folder / name
    image.save(path, **options)  # type: ignore[arg-type]
    return path


def raw(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def near(pixel: np.ndarray, colour: tuple[int, int, int], by: int = 12) -> bool:
    return bool(np.abs(pixel.astype(int) - np.array(colour)).max() <= by)


def with_orientation(tag: int, name: str) -> Callable[[Path], Path]:
    """A file that holds the corner mark turned so that a reader who honours the tag sees it upright."""
    undo = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[tag]

    def make(folder: Path) -> Path:
        image = corner_mark()
        exif = Image.Exif()
        exif[0x0112] = tag
        return saved(folder, image.transpose(undo) if undo is not None else image, name, exif=exif, quality=95)

    return make


def is_upright(media: Media) -> None:
    assert media.frames.shape == (1, 24, 40, 3)
    assert media.kind == "image"
    assert near(media.frames[0, 3, 3], RED, 40)
    assert near(media.frames[0, -4, -4], BLUE, 40)
    assert near(media.frames[0, 3, -4], WHITE, 40)


def all_are(colour: tuple[int, int, int], by: int = 1, note: str = "") -> Callable[[Media], None]:
    def check(media: Media) -> None:
        for pixel in media.frames.reshape(-1, 3):
            assert near(pixel, colour, by), pixel
        assert note in " ".join(media.notes)

    return check


def shape_is(*shape: int) -> Callable[[Media], None]:
    def check(media: Media) -> None:
        assert media.frames.shape == shape

    return check


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_header(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims to be huge."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + png_chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + png_chunk(b"IEND", b"")
    )


def grey16_png_with_key(folder: Path) -> Path:
    """16-bit grey, one of its values declared transparent."""
    rows = b"".join(b"\0" + struct.pack(">2H", 0x1234, 0x8080) for _ in range(2))
    return raw(
        folder,
        "key.png",
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 2, 16, 0, 0, 0, 0))
        + png_chunk(b"tRNS", struct.pack(">H", 0x1234))
        + png_chunk(b"IDAT", zlib.compress(rows))
        + png_chunk(b"IEND", b""),
    )


def left_white_right_grey(media: Media) -> None:
    assert media.frames[0, 0].tolist() == [[255, 255, 255], [128, 128, 128]]


def palette_image(transparent: bool) -> Image.Image:
    image = Image.new("P", (6, 4), 1)
    image.putpalette([0, 0, 0, 0, 255, 0] + [9] * 3 * 254)
    if transparent:
        image.info["transparency"] = 1
    return image


def animation(colours: list[tuple[int, int, int]], size: tuple[int, int] = (20, 12)) -> list[Image.Image]:
    return [Image.new("RGB", size, colour) for colour in colours]


def animated(name: str, durations: list[int], **options: object) -> Callable[[Path], Path]:
    frames = animation([RED, GREEN, BLUE, BLACK][: len(durations)])

    def make(folder: Path) -> Path:
        return saved(
            folder,
            frames[0],
            name,
            save_all=True,
            append_images=frames[1:],
            duration=durations,
            loop=0,
            **options,
        )

    return make


def plays(times: tuple[float, ...], duration_s: float, note: str = "") -> Callable[[Media], None]:
    def check(media: Media) -> None:
        assert media.kind == "video"
        assert media.timestamps_s == pytest.approx(times)
        assert media.duration_s == pytest.approx(duration_s)
        for picture, colour in zip(media.frames, [RED, GREEN, BLUE, BLACK], strict=False):
            assert near(picture[5, 5], colour, 60)
        assert note in " ".join(media.notes)

    return check


def broken(make: Callable[[Path], Path], keep: float) -> Callable[[Path], Path]:
    def cut(folder: Path) -> Path:
        path = make(folder)
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * keep)])
        return path

    return cut


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def zipped(folder: Path) -> Path:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.txt", "hello")
    return raw(folder, "photos.jpg", buffer.getvalue())


def linked(folder: Path) -> Path:
    (folder / "elsewhere").mkdir()
    target = saved(folder / "elsewhere", corner_mark(), "secret.png")
    link = folder / "photo.png"
    link.symlink_to(target)
    return link


def folder_named_like_a_picture(folder: Path) -> Path:
    (folder / "album.png").mkdir()
    return folder / "album.png"


def half_float(value: float) -> Image.Image:
    return Image.fromarray(np.full((3, 4), value, np.float32))


def grey16(value: int) -> Image.Image:
    return Image.fromarray(np.full((3, 4), value, np.uint16))


def pages(folder: Path) -> Path:
    return saved(folder, Image.new("RGB", (5, 5), RED), "p.tif", save_all=True, append_images=animation([GREEN, BLUE]))


def text(folder: Path, name: str, content: str) -> Path:
    return raw(folder, name, content.encode())


SVG = '<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"><image href="http://127.0.0.1/x"/></svg>'
HLS = "#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/secret.ts\n#EXT-X-ENDLIST\n"
HALF_RED = Image.new("RGBA", (4, 4), (255, 0, 0, 128))

# What is read: id -> (how to make the file, what must be true of the result).
READ: dict[str, tuple[Callable[[Path], Path], Callable[[Media], None]]] = {
    **{f"jpeg-orientation-{tag}": (with_orientation(tag, "phone.jpg"), is_upright) for tag in range(1, 9)},
    "png-orientation-6": (with_orientation(6, "phone.png"), is_upright),
    "webp-orientation-8": (with_orientation(8, "phone.webp"), is_upright),
    "tiff-orientation-6-once": (with_orientation(6, "scan.tif"), is_upright),
    "jpeg-grey": (lambda d: saved(d, Image.new("L", (9, 7), 77), "g.jpg"), all_are((77, 77, 77), 2)),
    "jpeg-cmyk-adobe": (
        lambda d: saved(d, Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "print.jpg", quality=95),
        all_are(RED, 3, "CMYK"),
    ),
    "tiff-cmyk": (lambda d: saved(d, Image.new("CMYK", (5, 5), (255, 0, 255, 0)), "c.tif"), all_are(GREEN)),
    "png-16-bit-mid-grey": (
        lambda d: saved(d, grey16(32896), "g.png"),
        all_are((128, 128, 128), 1, "16-bit"),
    ),
    "png-16-bit-bright": (lambda d: saved(d, grey16(65535), "g.png"), all_are(WHITE, 0)),
    "png-16-bit-colour-key": (grey16_png_with_key, left_white_right_grey),
    "tiff-16-bit-mid-grey": (lambda d: saved(d, grey16(32768), "g.tif"), all_are((128, 128, 128))),
    "tiff-float": (
        lambda d: saved(d, half_float(0.5), "f.tif"),
        all_are((128, 128, 128), 1, "Floating-point"),
    ),
    "tiff-float-nan": (lambda d: saved(d, half_float(float("nan")), "f.tif"), all_are(BLACK)),
    "tiff-three-pages": (pages, all_are(RED, 0, "3 pages")),
    "png-1-bit": (lambda d: saved(d, Image.new("1", (9, 3), 1), "b.png"), all_are(WHITE, 0)),
    "png-palette": (lambda d: saved(d, palette_image(False), "p.png"), all_are(GREEN, 0)),
    "png-palette-transparent": (
        lambda d: saved(d, palette_image(True), "p.png"),
        all_are(WHITE, 0, "over white"),
    ),
    "png-alpha-half": (lambda d: saved(d, HALF_RED, "a.png"), all_are((255, 127, 127))),
    "webp-alpha-half": (lambda d: saved(d, HALF_RED, "a.webp", lossless=True), all_are((255, 127, 127))),
    "png-grey-alpha-clear": (lambda d: saved(d, Image.new("LA", (4, 4), (0, 0)), "a.png"), all_are(WHITE, 0)),
    "png-colour-key": (
        lambda d: saved(d, Image.new("RGB", (4, 4), RED), "k.png", transparency=RED),
        all_are(WHITE, 0),
    ),
    "bmp": (lambda d: saved(d, corner_mark(), "x.bmp"), is_upright),
    "gif-still": (lambda d: saved(d, Image.new("RGB", (5, 4), BLUE), "s.gif"), shape_is(1, 4, 5, 3)),
    "one-pixel": (lambda d: saved(d, Image.new("RGB", (1, 1), RED), "1.png"), shape_is(1, 1, 1, 3)),
    "strip-200-to-1": (lambda d: saved(d, Image.new("RGB", (400, 2)), "strip.png"), shape_is(1, 2, 400, 3)),
    "jpeg-named-mp4": (lambda d: saved(d, corner_mark(), "x.mp4", format="PNG"), is_upright),
    "name-with-newline": (lambda d: saved(d, corner_mark(), "a\nb\x07.png"), is_upright),
    "gif-animated": (animated("a.gif", [500, 1500, 200]), plays((0, 0.5, 2.0), 2.2)),
    "gif-hasty": (animated("a.gif", [0, 0, 0]), plays((0, 0.1, 0.2), 0.3, "0.1 s")),
    "webp-animated": (animated("a.webp", [500, 1500, 200], lossless=True), plays((0, 0.5, 2.0), 2.2)),
    "png-animated": (animated("a.png", [500, 1500, 200]), plays((0, 0.5, 2.0), 2.2)),
    "png-animated-stand-in": (
        lambda d: saved(
            d,
            Image.new("RGB", (20, 12), WHITE),
            "a.png",
            save_all=True,
            append_images=animation([RED, GREEN]),
            duration=[300, 300],
            default_image=True,
        ),
        plays((0, 0.3), 0.6),
    ),
}

# What is refused: id -> (how to make the file, a part of the sentence).
REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "empty": (lambda d: raw(d, "empty.png", b""), "empty.png is empty (0 bytes)"),
    "one-byte": (lambda d: raw(d, "one.png", b"\x89"), "of a kind that is not known"),
    "text-named-mp4": (
        lambda d: text(d, "notes.mp4", "Buy milk\n"),
        "notes.mp4 is a text file, not a picture",
    ),
    "text-in-chinese": (lambda d: text(d, "n.jpg", "买牛奶" * 2000), "is a text file"),
    "text-that-begins-like-a-bmp": (lambda d: text(d, "cars.bmp", "BMW 320i\n" * 9), "is a text file"),
    "random-bytes": (lambda d: raw(d, "r.png", bytes(range(256)) * 20), "of a kind that is not known"),
    "svg": (lambda d: text(d, "logo.svg", SVG), "an SVG drawing"),
    "svg-named-png": (lambda d: text(d, "logo.png", SVG), "an SVG drawing"),
    "html": (lambda d: text(d, "page.jpg", "<!DOCTYPE html><html><body>404"), "a web page"),
    "pdf": (lambda d: raw(d, "paper.pdf", b"%PDF-1.7\n%\xe2\xe3"), "a PDF document"),
    "zip-named-jpg": (zipped, "a ZIP archive"),
    "playlist-named-mp4": (lambda d: text(d, "clip.mp4", HLS), "a playlist"),
    "concat-script-named-mkv": (
        lambda d: text(d, "c.mkv", "ffconcat version 1.0\nfile /etc/hosts\n"),
        "a playlist",
    ),
    "heic": (lambda d: raw(d, "p.heic", b"\0\0\0\x18ftypheic" + bytes(40)), "is HEIC"),
    "wav": (lambda d: raw(d, "a.wav", b"RIFF\x24\0\0\0WAVEfmt " + bytes(40)), "an audio file"),
    "folder": (folder_named_like_a_picture, "album.png is a folder"),
    "missing": (lambda d: d / "gone.png", "gone.png does not exist"),
    "link": (linked, "photo.png is a link to another place"),
    "nul-in-path": (lambda d: Path(f"{d}/a\0b.png"), "cannot be opened"),
    "address": (lambda d: Path("https://example.com/x.png"), "does not exist"),
    "jpeg-cut-in-half": (
        broken(lambda d: saved(d, noise(64, 64), "h.jpg"), 0.5),
        "h.jpg is damaged or incomplete",
    ),
    "jpeg-header-only": (lambda d: raw(d, "j.jpg", b"\xff\xd8\xff\xe0"), "is damaged or incomplete"),
    "png-cut-in-half": (broken(lambda d: saved(d, noise(64, 64), "h.png"), 0.5), "is damaged or incomplete"),
    "png-signature-only": (lambda d: raw(d, "s.png", b"\x89PNG\r\n\x1a\n"), "is damaged or incomplete"),
    "png-too-little-data": (lambda d: raw(d, "l.png", png_header(100, 100)), "is damaged or incomplete"),
    "webp-cut-in-half": (
        broken(lambda d: saved(d, noise(64, 64), "h.webp"), 0.5),
        "is damaged or incomplete",
    ),
    "bmp-cut-in-half": (broken(lambda d: saved(d, noise(64, 64), "h.bmp"), 0.5), "is damaged or incomplete"),
    "tiff-cut-in-half": (broken(lambda d: saved(d, noise(64, 64), "h.tif"), 0.5), "is damaged or incomplete"),
    "gif-cut-in-half": (broken(lambda d: saved(d, noise(64, 64), "h.gif"), 0.5), "is damaged or incomplete"),
    "png-bomb": (lambda d: raw(d, "bomb.png", png_header(60000, 60000)), "at most 50.0 million are allowed"),
    "png-over-the-limit": (lambda d: raw(d, "big.png", png_header(10000, 10001)), "= 100.0 million pixels"),
    "png-zero-wide": (lambda d: raw(d, "z.png", png_header(0, 5)), "z.png"),
    "gif-zero-high": (lambda d: raw(d, "z.gif", b"GIF89a" + struct.pack("<HH", 9, 0) + bytes(9)), "z.gif"),
    "strip-201-to-1": (
        lambda d: saved(d, Image.new("RGB", (201, 1)), "s.png"),
        "at most 200 times the shorter",
    ),
    "gif-animated-too-long": (animated("slow.gif", [400_000, 400_000]), "longer than 600 s"),
}


@pytest.mark.parametrize("row", READ)
def test_read(row: str, tmp_path: Path) -> None:
    make, check = READ[row]
    media = load_media(make(tmp_path), sampling=FrameSampling(fps=20, max_frames=64))
    assert media.frames.dtype == np.uint8
    assert media.frames.flags.c_contiguous
    assert media.frames.shape == (media.n_frames, media.height, media.width, 3)
    assert len(media.timestamps_s) == (media.n_frames if media.kind == "video" else 0)
    assert media.name.isprintable()
    assert "/" not in media.name
    check(media)


@pytest.mark.parametrize("row", REFUSED)
def test_refused(row: str, tmp_path: Path) -> None:
    make, says = REFUSED[row]
    path = make(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MediaError) as caught:
            load_media(path)
    sentence = str(caught.value)
    assert says in sentence
    assert str(tmp_path) not in sentence
    assert "\n" not in sentence
    assert sentence.endswith(".")


def test_table_is_long_enough() -> None:
    assert len(READ) + len(REFUSED) >= 34


def test_raised_limits_are_ours_alone(tmp_path: Path) -> None:
    """A size above Pillow's own bound is read without its warning when our limit allows it."""
    path = saved(tmp_path, Image.new("1", (10000, 10000)), "wide.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_media(path, limits=DEEP).width == 10000


def test_too_many_bytes(tmp_path: Path) -> None:
    path = raw(tmp_path, "big.mp4", bytes(3 * 1024 * 1024))
    with pytest.raises(MediaError, match=r"big\.mp4 is 3\.0 MiB, and at most 1\.0 MiB are allowed"):
        load_media(path, limits=MediaLimits(max_bytes=1024 * 1024))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(MediaError, match="not a plain file"):
        load_media(tmp_path / "pipe.png")


def test_addresses_are_not_opened() -> None:
    with pytest.raises(MediaError, match="addresses are not opened"):
        load_media("https://example.com/photo.png")


def test_damaged_animation_keeps_what_can_be_drawn(tmp_path: Path) -> None:
    frames = [noise(64, 64).rotate(90 * turn) for turn in range(4)]
    path = saved(tmp_path, frames[0], "cut.gif", save_all=True, append_images=frames[1:], duration=500)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    media = load_media(path)
    assert media.kind == "video"
    assert media.n_frames == 2
    assert any("promised" in note and "held 2" in note for note in media.notes)


def test_animation_is_bounded_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.media.animation.MAX_FRAMES_BYTES", 3 * 20 * 12 * 3 // 4)
    media = load_media(animated("a.gif", [500, 500, 500])(tmp_path))
    assert media.frames.shape == (3, 6, 10, 3)
    assert any("bound memory" in note for note in media.notes)


def test_animation_is_bounded_in_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.media.animation.MAX_DRAWN_PIXELS", 500)
    with pytest.raises(MediaError, match="too many to draw"):
        load_media(animated("a.gif", [500, 500, 500])(tmp_path))


def test_digest_is_of_content_and_not_of_name(tmp_path: Path) -> None:
    image = corner_mark()
    one = load_media(saved(tmp_path, image, "one.png"))
    same = load_media(saved(tmp_path, image, "two.bmp"))
    image.putpixel((20, 20), (255, 255, 254))
    other = load_media(saved(tmp_path, image, "one.png"))
    assert one.digest == same.digest != other.digest
    assert len(one.digest) == 64
    assert one.name == "one.png"
    assert same.name == "two.bmp"


def test_digest_knows_kind_shape_and_times(tmp_path: Path) -> None:
    wide = load_media(saved(tmp_path, Image.new("RGB", (8, 2)), "wide.png"))
    high = load_media(saved(tmp_path, Image.new("RGB", (2, 8)), "high.png"))
    slow = load_media(animated("slow.gif", [900, 900])(tmp_path))
    fast = load_media(animated("fast.gif", [500, 500])(tmp_path))
    assert np.array_equal(slow.frames, fast.frames)
    assert len({media.digest for media in (wide, high, slow, fast)}) == 4


def test_load_all(tmp_path: Path) -> None:
    path = saved(tmp_path, corner_mark(), "a.png")
    clip = animated("b.gif", [500, 500, 500])(tmp_path)
    media = load_all([path, str(clip)], sampling=FrameSampling(fps=None, num_frames=2))
    assert [m.kind for m in media] == ["image", "video"]
    assert media[1].n_frames == 2
    with pytest.raises(MediaError, match="9 files were given and at most 8"):
        load_all([path] * 9)
    assert load_all([]) == []


def test_suffixes_for_file_pickers() -> None:
    assert set(SUFFIXES) == set(IMAGE_SUFFIXES) | set(VIDEO_SUFFIXES)
    assert all(suffix.startswith(".") and suffix == suffix.lower() for suffix in SUFFIXES)


def test_gradios_own_pictures() -> None:
    gradio = pytest.importorskip("gradio")
    folder = Path(gradio.__file__).parent / "media_assets" / "images"
    lion, tower = load_all([folder / "lion.jpg", folder / "tower.jpg"])
    assert lion.frames.shape == (1, 256, 256, 3)
    assert tower.frames.shape == (1, 600, 377, 3)
    assert 20 < lion.frames.mean() < 235
    assert lion.frames.std() > 20
