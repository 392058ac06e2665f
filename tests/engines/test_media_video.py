"""Clips, whole and broken: each row of the table is a file made here and what must come of it.

Frame i of a clip made here is grey of level 20 + 6 i (with a red block at the top left), so a picture tells
which frame it is.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.stream import Disposition
from PIL import Image

from engines.media import FrameSampling, Media, MediaError, MediaLimits, load_media, video

ALL = FrameSampling(fps=240, max_frames=64)
RED = (255, 0, 0)


def level(index: int) -> int:
    return 20 + 6 * index


def drawing(index: int, width: int, height: int) -> np.ndarray:
    picture = np.full((height, width, 3), level(index), np.uint8)
    picture[: height // 4, : width // 4] = RED
    return picture


def clip(
    folder: Path,
    name: str = "clip.mp4",
    *,
    n: int = 30,
    rate: int = 10,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    size: tuple[int, int] = (64, 48),
    ticks: Sequence[int] | None = None,
    tick: Fraction | None = None,
    aspect: Fraction | None = None,
    sound: bool = False,
    alpha: int | None = None,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
) -> Path:
    """Write n frames; `ticks` are presentation times in units of `tick` seconds, default one a frame."""
    path = folder / name
    with av.open(str(path), "w", container_options=container_options or {}) as container:
        stream: Any = container.add_stream(codec, rate=rate, options=options or {})
        stream.width, stream.height = size
        stream.pix_fmt = pix_fmt
        stream.bit_rate = 4_000_000
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
        if tick is not None:
            stream.codec_context.time_base = tick
        audio: Any = container.add_stream("aac", rate=8000, layout="mono") if sound else None
        for i in range(n):
            picture = drawing(i, *size)
            if alpha is None:
                frame = av.VideoFrame.from_ndarray(picture, "rgb24")
            else:
                opacity = np.full((*picture.shape[:2], 1), alpha, np.uint8)
                frame = av.VideoFrame.from_ndarray(np.concatenate([picture, opacity], 2), "rgba")
            frame.pts = i if ticks is None else ticks[i]
            frame.time_base = tick or Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if audio is not None:
            add_sound(container, audio)
    return path


def add_sound(container: Any, audio: Any) -> None:
    silence = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), "fltp", "mono")
    silence.sample_rate, silence.pts = 8000, 0
    container.mux(audio.encode(silence))
    container.mux(audio.encode())


def sound_only(folder: Path) -> Path:
    path = folder / "song.mp4"
    with av.open(str(path), "w") as container:
        add_sound(container, container.add_stream("aac", rate=8000, layout="mono"))
    return path


def sound_with_cover(folder: Path) -> Path:
    """A song whose cover is stored as a picture track of one frame."""
    path = folder / "album.mp4"
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), RED).save(buffer, "JPEG")
    with av.open(str(path), "w") as container:
        audio = container.add_stream("aac", rate=8000, layout="mono")
        cover: Any = container.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 64, 64, "yuvj420p"
        cover.disposition = Disposition.attached_pic
        add_sound(container, audio)
        packet = av.Packet(buffer.getvalue())
        packet.stream, packet.pts, packet.dts = cover, 0, 0
        container.mux(packet)
    return path


def coloured(matrix: int, name: str) -> Callable[[Path], Path]:
    """One frame of (200, 40, 90), stored with the colour matrix of that number in ITU-T H.273 and tagged so."""

    def make(folder: Path) -> Path:
        path = folder / "colour.mp4"
        with av.open(str(path), "w") as container:
            stream: Any = container.add_stream("libx264", rate=10, options={"crf": "5"})
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            stream.codec_context.colorspace, stream.codec_context.color_range = matrix, 1
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), (200, 40, 90), np.uint8), "rgb24")
            frame = frame.reformat(format="yuv420p", dst_colorspace=name, dst_color_range="MPEG")
            frame.pts = 0
            container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return path

    return make


def has_its_colour(media: Media) -> None:
    assert np.abs(media.frames[0, 20, 20].astype(int) - (200, 40, 90)).max() <= 4


def patched(path: Path, old: bytes, change: Callable[[bytearray, int], None]) -> Path:
    """Change a file in place at the first occurrence of `old`."""
    content = bytearray(path.read_bytes())
    at = content.find(old)
    assert at >= 0
    change(content, at)
    path.write_bytes(bytes(content))
    return path


def turned(matrix: tuple[int, int, int, int]) -> Callable[[Path], Path]:
    """An MP4 whose track header shows the picture through the matrix (a, b, c, d)."""
    a, b, c, d = (value << 16 for value in matrix)

    def change(content: bytearray, at: int) -> None:
        # After "tkhd": version and flags (4 bytes), times and id (20), layer and volume (16), the matrix.
        content[at + 44 : at + 80] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)

    return lambda folder: patched(clip(folder, n=3), b"tkhd", change)


def avi_says(field: int, value: int, **options: Any) -> Callable[[Path], Path]:
    """An AVI with one 32-bit field of its main header ("avih", offset in bytes) changed."""

    def change(content: bytearray, at: int) -> None:
        content[at + 8 + field : at + 12 + field] = struct.pack("<I", value)

    return lambda folder: patched(clip(folder, "clip.avi", codec="mpeg4", **options), b"avih", change)


def avi_without_rate(folder: Path) -> Path:
    def change(content: bytearray, at: int) -> None:
        content[at + 28 : at + 36] = bytes(8)  # scale and rate of the stream header

    path = patched(clip(folder, "clip.avi", codec="mpeg4", n=6), b"strh", change)
    return patched(path, b"avih", lambda content, at: content.__setitem__(slice(at + 8, at + 12), bytes(4)))


def mp4_says_longer(folder: Path) -> Path:
    """The movie header claims ten hours."""

    def change(content: bytearray, at: int) -> None:
        scale = struct.unpack(">I", content[at + 16 : at + 20])[0]
        content[at + 20 : at + 24] = struct.pack(">I", scale * 36000)

    return patched(clip(folder, n=6), b"mvhd", change)


def cut(path: Path, keep: float) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    return path


def holed(path: Path, start: float, stop: float) -> Path:
    """Overwrite a part of an MP4's pictures, given in shares of what follows "mdat"."""
    content = bytearray(path.read_bytes())
    begin = content.find(b"mdat") + 4
    a, b = (begin + int((len(content) - begin) * share) for share in (start, stop))
    content[a:b] = b"\x55" * (b - a)
    path.write_bytes(bytes(content))
    return path


def ts_without(first: int, last: int) -> Callable[[Path], Path]:
    """A transport stream from which these packets of 188 bytes are lost."""

    def make(folder: Path) -> Path:
        path = clip(folder, "m.ts", options={"g": "10", "bf": "0"})
        content = bytearray(path.read_bytes())
        del content[188 * first : 188 * last]
        path.write_bytes(bytes(content))
        return path

    return make


def mp4_with_small_claim(folder: Path) -> Path:
    """The container says 16 x 16, the codec's own header says 640 x 480."""
    path = clip(folder, "sly.mp4", n=2, size=(640, 480))
    return patched(path, b"avc1\0\0\0\0", lambda content, at: content.__setitem__(
        slice(at + 28, at + 32), struct.pack(">HH", 16, 16)))  # fmt: skip


def shown(media: Media, indices: Sequence[int], times: Sequence[float] | None = None, by: int = 2) -> None:
    """The pictures are these frames of the clip, shown at these times."""
    assert media.kind == "video"
    got = [round((int(picture[-3, -3].mean()) - 20) / 6) for picture in media.frames]
    assert got == list(indices)
    for picture, index in zip(media.frames, indices, strict=True):
        assert abs(int(picture[-3, -3].mean()) - level(index)) <= by
    if times is not None:
        assert media.timestamps_s == pytest.approx(list(times), abs=0.002)


def is_whole(n: int = 30, rate: float = 10.0, note: str = "", by: int = 2) -> Callable[[Media], None]:
    def check(media: Media) -> None:
        shown(media, range(n), [i / rate for i in range(n)], by)
        assert media.source_fps == pytest.approx(rate, rel=0.01)
        assert media.duration_s == pytest.approx(n / rate, abs=0.06)
        assert note in " ".join(media.notes) if note else media.notes == ()

    return check


def red_at(y: int, x: int, height: int = 48, width: int = 64) -> Callable[[Media], None]:
    """Right size, and the red block in that corner only."""

    def check(media: Media) -> None:
        assert (media.height, media.width) == (height, width)
        for corner_y in (2, -3):
            for corner_x in (2, -3):
                red = media.frames[0, corner_y, corner_x]
                is_red = int(red[0]) > 200 and int(red[1]) < 60
                assert is_red == ((corner_y, corner_x) == (y, x))
        assert any("upright" in note for note in media.notes)

    return check


def shape_and_note(height: int, width: int, note: str) -> Callable[[Media], None]:
    def check(media: Media) -> None:
        assert (media.height, media.width) == (height, width)
        assert note in " ".join(media.notes)

    return check


def times_are(*times: float, note: str = "") -> Callable[[Media], None]:
    def check(media: Media) -> None:
        shown(media, range(len(times)), times)
        assert note in " ".join(media.notes)

    return check


def has_lost_the_tail(media: Media) -> None:
    shown(media, range(media.n_frames))
    assert 10 < media.n_frames < 30
    assert any("promised 30 frames and held" in note for note in media.notes)


def has_lost_the_middle(media: Media) -> None:
    """The ends are right and in their right places; the loss is told."""
    assert 15 < media.n_frames < 30
    indices = [round(time * 10) for time in media.timestamps_s]
    assert indices[:8] == list(range(8))
    assert indices[-8:] == list(range(22, 30))
    for at in (0, 7, -8, -1):
        assert abs(int(media.frames[at, -3, -3].mean()) - level(indices[at])) <= 3
    assert any("could not be decoded" in note for note in media.notes)


def times_unknown(media: Media) -> None:
    shown(media, range(6), [i / 24 for i in range(6)])
    assert media.source_fps is None
    assert media.duration_s is None
    assert any("24 a second are assumed" in note for note in media.notes)


def is_right_after(first: int, gap: int, note: str = "") -> Callable[[Media], None]:
    """Begins with frame `first`, jumps over `gap` frames, and is right from key frame 10 on."""

    def check(media: Media) -> None:
        indices = [first + round(time * 10) for time in media.timestamps_s]
        assert indices == [first, *range(first + 1 + gap, 30)]
        for picture, index in zip(media.frames, indices, strict=True):
            assert index < 10 or abs(int(picture[-3, -3].mean()) - level(index)) <= 2
        assert note in " ".join(media.notes)

    return check


def half_over_white(media: Media) -> None:
    assert abs(int(media.frames[0, -3, -3].mean()) - (255 + level(0)) // 2) <= 3
    assert "over white" in " ".join(media.notes)


QUICK = {"deadline": "realtime"}
X265_OPEN = {"x265-params": "open-gop=1:keyint=8:log-level=none"}
EVERY_FRAME_KEY = {"g": "1"}
FAST_START = {"movflags": "faststart"}
VFR = [0, 100, 700, 733, 2400, 2500]
MS = Fraction(1, 1000)

READ: dict[str, tuple[Callable[[Path], Path], Callable[[Media], None]]] = {
    "mp4-h264-b-frames": (lambda d: clip(d), is_whole()),
    "mp4-with-sound": (lambda d: clip(d, sound=True), is_whole()),
    "mp4-named-txt": (lambda d: clip(d).rename(d / "clip.txt"), is_whole()),
    "mov": (lambda d: clip(d, "clip.mov"), is_whole()),
    "mkv": (lambda d: clip(d, "clip.mkv"), is_whole()),
    "mkv-with-sound": (lambda d: clip(d, "clip.mkv", sound=True), is_whole()),
    "webm-vp9": (lambda d: clip(d, "clip.webm", codec="libvpx-vp9", options=QUICK), is_whole()),
    "webm-vp8": (lambda d: clip(d, "clip.webm", codec="libvpx", options=QUICK), is_whole(by=3)),
    "avi-mpeg4": (lambda d: clip(d, "clip.avi", codec="mpeg4"), is_whole(by=3)),
    "avi-h264-b-frames": (lambda d: clip(d, "clip.avi"), is_whole()),
    "mpegts": (lambda d: clip(d, "clip.ts"), is_whole()),
    "open-gop": (
        lambda d: clip(d, options={"x264-params": "open-gop=1:keyint=8:min-keyint=8:scenecut=0:bframes=3"}),
        is_whole(),
    ),
    "hevc-open-gop": (
        lambda d: clip(d, "h.mp4", codec="libx265", options=X265_OPEN),
        is_whole(by=3),
    ),
    "10-bit": (
        lambda d: clip(d, codec="libx265", pix_fmt="yuv420p10le", options={"x265-params": "log-level=none"}),
        is_whole(by=3),
    ),
    "grey-16-bit": (lambda d: clip(d, "g.mkv", codec="ffv1", pix_fmt="gray16le"), is_whole(by=3)),
    "rgb": (lambda d: clip(d, "r.mkv", codec="ffv1", pix_fmt="bgr0"), is_whole(by=0)),
    "alpha-half": (lambda d: clip(d, "a.mov", codec="png", pix_fmt="rgba", alpha=128, n=2), half_over_white),
    "alpha-full": (lambda d: clip(d, "a.mov", codec="png", pix_fmt="rgba", alpha=255), is_whole(by=0)),
    "mjpeg-full-range": (lambda d: clip(d, "m.avi", codec="mjpeg", pix_fmt="yuvj420p"), is_whole(by=3)),
    "colours-bt709": (coloured(1, "ITU709"), has_its_colour),
    "colours-bt601": (coloured(6, "ITU601"), has_its_colour),
    "odd-size": (
        lambda d: clip(d, "o.mkv", codec="ffv1", size=(65, 49), n=2),
        shape_and_note(49, 65, ""),
    ),
    "pixels-2-to-1": (lambda d: clip(d, n=2, aspect=Fraction(2, 1)), shape_and_note(48, 128, "not square")),
    "pixels-1-to-2": (lambda d: clip(d, n=2, aspect=Fraction(1, 2)), shape_and_note(96, 64, "not square")),
    "pixels-5-to-1": (lambda d: clip(d, n=2, aspect=Fraction(5)), shape_and_note(48, 64, "no sense")),
    "turned-90": (turned((0, 1, -1, 0)), red_at(2, -3, 64, 48)),
    "turned-180": (turned((-1, 0, 0, -1)), red_at(-3, -3)),
    "turned-270": (turned((0, -1, 1, 0)), red_at(-3, 2, 64, 48)),
    "mirrored": (turned((-1, 0, 0, 1)), red_at(2, -3)),
    "variable-rate-mp4": (
        lambda d: clip(d, n=6, ticks=VFR, tick=MS),
        times_are(0, 0.1, 0.7, 0.733, 2.4, 2.5),
    ),
    "variable-rate-mkv": (
        lambda d: clip(d, "v.mkv", n=6, ticks=VFR, tick=MS),
        times_are(0, 0.1, 0.7, 0.733, 2.4, 2.5),
    ),
    "starts-late-mkv": (
        lambda d: clip(d, "late.mkv", n=3, ticks=[5000, 5100, 5200], tick=MS),
        times_are(0, 0.1, 0.2),
    ),
    "starts-late-mp4": (lambda d: clip(d, n=3, ticks=[5000, 5100, 5200], tick=MS), times_are(0, 0.1, 0.2)),
    "starts-late-ts": (
        lambda d: clip(d, "late.ts", n=3, ticks=[450000, 459000, 468000], tick=Fraction(1, 90000)),
        times_are(0, 0.1, 0.2),
    ),
    "single-frame-mp4": (lambda d: clip(d, n=1), times_are(0)),
    "single-frame-webm": (lambda d: clip(d, "1.webm", codec="libvpx-vp9", n=1), times_are(0)),
    "single-frame-avi": (lambda d: clip(d, "1.avi", codec="mpeg4", n=1), times_are(0)),
    "duration-unknown": (
        lambda d: clip(d, "live.webm", codec="libvpx-vp9", n=6, container_options={"live": "1"}),
        times_are(0, 0.1, 0.2, 0.3, 0.4, 0.5),
    ),
    "zero-fps-avi": (avi_without_rate, times_unknown),
    "avi-promises-two-more": (
        lambda d: patched(clip(d, "p.avi", codec="mpeg4"), b"strh", lambda content, at: content.__setitem__(
            slice(at + 40, at + 44), struct.pack("<I", 32))),
        is_whole(note="promised 32 frames and held 30", by=3),
    ),
    "avi-main-header-lies": (avi_says(16, 9999), is_whole(by=3)),
    "mp4-header-says-ten-hours": (mp4_says_longer, times_are(0, 0.1, 0.2, 0.3, 0.4, 0.5)),
    "mp4-tail-missing": (
        lambda d: cut(clip(d, options=EVERY_FRAME_KEY, container_options=FAST_START), 0.8),
        has_lost_the_tail,
    ),
    "mkv-tail-missing": (
        lambda d: cut(clip(d, "t.mkv", options=EVERY_FRAME_KEY, rate=5), 0.6),
        lambda media: shown(media, range(media.n_frames)),
    ),
    "mp4-hole-in-the-middle": (
        lambda d: holed(clip(d, options={"g": "5", "bf": "0"}, container_options=FAST_START), 0.45, 0.55),
        has_lost_the_middle,
    ),
    "mpegts-packets-lost": (ts_without(8, 14), is_right_after(0, 2)),
    "mpegts-start-missing": (ts_without(3, 8), is_right_after(10, 0, "9 of 29 frames could not be decoded")),
    "sly-size-within-limits": (mp4_with_small_claim, lambda media: shown(media, range(2))),
}  # fmt: skip

SMALL = MediaLimits(max_video_pixels=100 * 100)
REFUSED: dict[str, tuple[Callable[[Path], Path], str, MediaLimits]] = {
    "sound-only": (sound_only, "song.mp4 has no picture track", MediaLimits()),
    "sound-with-cover": (sound_with_cover, "album.mp4 has no picture track", MediaLimits()),
    "index-missing": (lambda d: cut(clip(d, "c.mp4"), 0.5), "c.mp4 is damaged, incomplete", MediaLimits()),
    "nothing-decodes": (
        lambda d: holed(clip(d, "h.mp4", n=3, container_options=FAST_START), 0.0, 1.0),
        "none of its frames can be decoded",
        MediaLimits(),
    ),
    "mp4-first-box-only": (lambda d: cut(clip(d, "b.mp4"), 0.005), "is damaged", MediaLimits()),
    "mkv-header-only": (lambda d: cut(clip(d, "b.mkv"), 0.02), "is damaged", MediaLimits()),
    "avi-header-only": (lambda d: cut(clip(d, "b.avi", codec="mpeg4"), 0.01), "is damaged", MediaLimits()),
    "too-long": (
        lambda d: clip(d, "long.mp4", n=3, ticks=[0, 300_000, 700_000], tick=MS),
        "long.mp4 is longer than 600 s, the longest clip allowed",
        MediaLimits(),
    ),
    "too-many-frames": (
        lambda d: clip(d, n=30),
        "holds more than 24 frames",
        MediaLimits(max_duration_s=0.1),
    ),
    "too-many-pixels": (lambda d: clip(d, size=(128, 96), n=2), "is 128 x 96", SMALL),
    "sly-size": (mp4_with_small_claim, "sly.mp4 is", SMALL),
    "strip": (
        lambda d: clip(d, "s.mkv", codec="ffv1", size=(804, 4), n=2),
        "at most 200 times",
        MediaLimits(),
    ),
}


@pytest.mark.parametrize("row", READ)
def test_read(row: str, tmp_path: Path) -> None:
    make, check = READ[row]
    media = load_media(make(tmp_path), sampling=ALL)
    assert media.frames.dtype == np.uint8
    assert media.frames.flags.c_contiguous
    assert media.frames.shape == (media.n_frames, media.height, media.width, 3)
    assert len(media.timestamps_s) == media.n_frames
    assert media.timestamps_s[0] == 0.0
    check(media)


@pytest.mark.parametrize("row", REFUSED)
def test_refused(row: str, tmp_path: Path) -> None:
    make, says, limits = REFUSED[row]
    with pytest.raises(MediaError) as caught:
        load_media(make(tmp_path), limits=limits, sampling=ALL)
    sentence = str(caught.value)
    assert says in sentence
    assert str(tmp_path) not in sentence
    assert sentence.endswith(".")


@pytest.mark.parametrize("sampling", [FrameSampling(), FrameSampling(fps=None, num_frames=5)])
@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv"])
def test_decoding_stretches_equals_decoding_everything(
    name: str, sampling: FrameSampling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = clip(tmp_path, name, n=38, options={"x264-params": "keyint=9:open-gop=1:bframes=3:scenecut=0"})
    quick = load_media(path, sampling=sampling)
    monkeypatch.setattr("engines.media.video._HONEST_TIMES", ())
    assert load_media(path, sampling=sampling).digest == quick.digest


def test_only_what_is_needed_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = clip(tmp_path, n=38, options={"g": "2", "bf": "0"})
    fed: list[bool] = []
    decode = video.decode

    def counting(packet: av.Packet | None, *rest: Any) -> Any:
        fed.append(packet is not None)
        return decode(packet, *rest)

    monkeypatch.setattr(video, "decode", counting)
    media = load_media(path, sampling=FrameSampling(fps=None, num_frames=3))
    shown(media, [0, 18, 37])
    assert sum(fed) <= 12


def test_default_sampling_is_two_a_second(tmp_path: Path) -> None:
    shown(load_media(clip(tmp_path)), [0, 5, 10, 15, 20, 25], [0, 0.5, 1.0, 1.5, 2.0, 2.5])


def test_shorter_than_the_sampling_interval(tmp_path: Path) -> None:
    shown(load_media(clip(tmp_path, n=3)), [0], [0.0])


def test_same_content_in_other_wrapping_has_the_same_digest(tmp_path: Path) -> None:
    lossless: dict[str, Any] = {"codec": "ffv1", "pix_fmt": "bgr0", "n": 4}
    one = load_media(clip(tmp_path, "one.mkv", **lossless), sampling=ALL)
    two = load_media(clip(tmp_path, "two.avi", **lossless), sampling=ALL)
    fewer = load_media(tmp_path / "one.mkv", sampling=FrameSampling(fps=None, num_frames=3))
    assert one.digest == two.digest != fewer.digest


def test_frames_are_bounded_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.media.pixels.MAX_FRAMES_BYTES", 30 * 64 * 48 * 3 // 4)
    media = load_media(clip(tmp_path), sampling=ALL)
    assert media.frames.shape == (30, 24, 32, 3)
    assert any("scaled to 50% of their size" in note for note in media.notes)


def test_gradios_own_clips() -> None:
    gradio = pytest.importorskip("gradio")
    folder = Path(gradio.__file__).parent / "media_assets" / "videos"
    world = load_media(folder / "world.mp4")
    assert world.frames.shape == (16, 270, 480, 3)
    assert world.timestamps_s == pytest.approx(range(0, 31, 2))
    other = load_media(folder / "b.avi")
    assert other.frames.shape == (11, 270, 480, 3)
    assert other.duration_s == pytest.approx(5.033, abs=0.01)
    assert world.frames.std() > 10  # the earth, mostly black space
