"""Tell what a file is by its first bytes, never by its suffix.

The answer names the one decoder that will read it, so nothing downstream probes: a playlist, a concat script
or a numbered-picture pattern can never reach a demuxer that would open further files or addresses.
"""

from __future__ import annotations

from .limits import ALLOWED, MediaError
from .record import Kind

HEAD_BYTES = 4096

_IMAGES: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),
    (b"MM\0+", "TIFF"),
)
_VIDEOS: tuple[tuple[bytes, str], ...] = (
    (b"\x1a\x45\xdf\xa3", "matroska"),  # MKV and WebM
    (b"OggS", "ogg"),
)
_MOV_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot")
# Still pictures that come in the same box structure as MP4.
_STILL_BRANDS = {b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIC", b"avif": "AVIF", b"avis": "AVIF"}

_FOREIGN: tuple[tuple[bytes, str], ...] = (
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive or an Office document"),
    (b"PK\x05\x06", "an empty ZIP archive"),
    (b"Rar!", "a RAR archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"ID3", "an audio file"),
    (b"\xff\xfb", "an audio file"),
    (b"fLaC", "an audio file"),
    (b"FLV", "a Flash video"),
    (b"\0\0\1\0", "an icon file"),
    (b"8BPS", "a Photoshop file"),
    (b"#EXTM3U", "a playlist"),
    (b"ffconcat", "a playlist"),
)


def sniff(name: str, head: bytes) -> tuple[Kind, str]:
    """("image", Pillow's format) or ("video", the demuxer) for the first bytes of a file; else MediaError."""
    if not head:
        raise MediaError(f"{name} is empty (0 bytes): upload {ALLOWED}.")
    for magic, image_format in _IMAGES:
        if head.startswith(magic) and not (magic == b"BM" and not _is_bmp(head)):
            return "image", image_format
    if head[:4] == b"RIFF":
        if head[8:12] == b"WEBP":
            return "image", "WEBP"
        if head[8:12] == b"AVI ":
            return "video", "avi"
    for magic, demuxer in _VIDEOS:
        if head.startswith(magic):
            return "video", demuxer
    if head[4:8] in _MOV_BOXES:
        still = _STILL_BRANDS.get(head[8:12]) if head[4:8] == b"ftyp" else None
        if still:
            raise MediaError(f"{name} is {still}, a kind of picture that is not read here: save it as JPEG or PNG.")
        return "video", "mov"
    if _is_mpegts(head):
        return "video", "mpegts"
    raise MediaError(f"{name} is {_describe(head)}, not a picture or a video: upload {ALLOWED}.")


def _is_bmp(head: bytes) -> bool:
    # Two letters are weak evidence: text may begin with them. The header length that follows is one of a few.
    return int.from_bytes(head[14:18], "little") in (12, 16, 40, 52, 56, 64, 108, 124)


def _is_mpegts(head: bytes) -> bool:
    # A sync byte every 188 bytes, or every 192 with four bytes of time code before each (M2TS).
    return any(len(head) > 2 * step and head[at::step].count(0x47) == len(head[at::step])
               for at, step in ((0, 188), (4, 192)))  # fmt: skip


def _describe(head: bytes) -> str:
    for magic, what in _FOREIGN:
        if head.startswith(magic):
            return what
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return "an audio file"
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        # A character cut by the end of `head` is no sign of binary data.
        if len(head) < HEAD_BYTES or error.start < len(head) - 4:
            return "of a kind that is not known here"
        text = head[: error.start].decode("utf-8")
    start = text.lstrip("\ufeff \t\r\n").lower()
    if "<svg" in start:
        return "an SVG drawing"
    if start.startswith(("<!doctype html", "<html")):
        return "a web page"
    if any(ord(letter) < 9 for letter in text):
        return "of a kind that is not known here"
    return "a text file"
