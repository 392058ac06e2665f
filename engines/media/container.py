"""Open a clip, and find out what it really holds.

Headers promise a frame count, a rate and a duration; packets and frames are the truth. `scan_packets` reads
timestamps without decoding; `scan_frames` decodes everything and keeps the times of what came out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import BinaryIO

import av
from av.container import InputContainer
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from .limits import ALLOWED, MediaError, MediaLimits, check_duration
from .sampling import rate_and_duration

# FFmpeg's errors, and what PyAV itself raises on broken input. `av.FFmpegError` is a mix-in to some checkers.
AV_ERRORS: tuple[type[Exception], ...] = (
    av.FFmpegError, OSError, EOFError, ValueError, TypeError, OverflowError, MemoryError, ZeroDivisionError,
    RuntimeError, NotImplementedError,
)  # fmt: skip

# Frames a second for which room is made: with max_duration_s it bounds the packets read from a lying file.
_MAX_FPS = 240
# What transformers' video processors assume too when a clip has no times.
ASSUMED_FPS = 24


@dataclass
class Scan:
    """What a clip holds.

    tick_s: length of one tick in seconds. times: (n,) ticks at which frames are shown, rising strictly.
    ordinals: (n,) after `scan_frames`, the place of each of these frames among all that the decoder puts out.
    keys, order: per packet in file order, whether it is a key frame, and its ticks (None = not said).
    last_ticks: how long the last frame is shown, 0 = not said. failures: packets that did not decode cleanly.
    promised: frames by the header, 0 = not said. promised_s, held_s: header's and real length in seconds.
    assumed: the times are made up, because the clip says none.
    """

    tick_s: Fraction
    times: list[int] = field(default_factory=list)
    ordinals: list[int] = field(default_factory=list)
    keys: list[bool] = field(default_factory=list)
    order: list[int | None] = field(default_factory=list)
    last_ticks: int = 0
    failures: int = 0
    promised: int = 0
    promised_s: float | None = None
    held_s: float = 0.0
    assumed: bool = False

    def seconds(self) -> list[float]:
        """(n,) seconds after the first frame."""
        return [float((time - self.times[0]) * self.tick_s) for time in self.times]

    def fps(self) -> float | None:
        """Mean frames a second; None = unknown."""
        return None if self.assumed else self._rate_and_duration()[0]

    def duration_s(self) -> float | None:
        """Until the last frame is no longer shown; None = unknown."""
        return None if self.assumed else self._rate_and_duration()[1]

    def _rate_and_duration(self) -> tuple[float | None, float | None]:
        last_frame_s = float(self.last_ticks * self.tick_s) if self.last_ticks > 0 else None
        return rate_and_duration(self.seconds(), last_frame_s)


def _refuse(*_: object) -> None:
    raise PermissionError("a clip may not open further files or addresses")


@contextmanager
def opened(
    file: BinaryIO, demuxer: str, name: str, limits: MediaLimits
) -> Iterator[tuple[InputContainer, VideoStream]]:
    """The container and its picture track, read through `file` alone by the one demuxer named."""
    file.seek(0)
    # max_pixels makes FFmpeg refuse a larger frame before it allocates one, also in the middle of the clip.
    options = {"max_pixels": str(limits.max_video_pixels)}
    with av.open(file, "r", format=demuxer, options=options, metadata_errors="ignore", io_open=_refuse) as container:
        # A cover picture inside an audio file is a video stream too.
        streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
        if not streams:
            raise MediaError(f"{name} has no picture track (sound only?): upload {ALLOWED}.")
        stream = streams[0]
        if stream.codec_context is None:
            raise MediaError(f"{name} uses a video codec that is not known here: save it as MP4 with H.264.")
        stream.codec_context.options = options
        stream.thread_type = "AUTO"
        yield container, stream


def _read(container: InputContainer, *streams: VideoStream) -> Iterator[av.Packet]:
    """Packets that hold data; ends where the file can no longer be read."""
    packets = container.demux(*streams)
    while True:
        try:
            packet = next(packets, None)
        except AV_ERRORS:
            return
        if packet is None:
            return
        if packet.size:
            yield packet


def picture_packets(container: InputContainer, stream: VideoStream) -> Iterator[av.Packet]:
    """Packets of the picture track in file order; the same ones on every pass."""
    return _read(container, stream)


def scan_packets(container: InputContainer, stream: VideoStream, name: str, limits: MediaLimits) -> Scan:
    """Times by the packets; nothing is decoded."""
    scan = Scan(stream.time_base or Fraction(0), promised=stream.frames)
    if container.format.name.startswith("mov"):
        # An edit list may rightly show fewer frames than the file counts; the index is already cut to it.
        scan.promised = len(stream.index_entries)
    elif container.format.name.startswith("matroska") and container.duration is not None:
        scan.promised_s = container.duration / av.time_base
    shown: dict[int, int] = {}
    for packet in _read(container):
        if packet.pts is not None and packet.time_base:
            # Sound counts here: it may go on after the last picture.
            scan.held_s = max(scan.held_s, float((packet.pts + (packet.duration or 0)) * packet.time_base))
        if packet.stream_index != stream.index:
            continue
        scan.failures += packet.is_corrupt
        scan.keys.append(packet.is_keyframe)
        scan.order.append(packet.pts)
        check_count(name, len(scan.keys), limits)
        if packet.pts is not None and not packet.is_discard:
            shown[packet.pts] = packet.duration or 0
    scan.times = sorted(shown)
    if scan.times:
        scan.last_ticks = shown[scan.times[-1]]
        check_duration(name, scan.duration_s() or scan.seconds()[-1], limits.max_duration_s)
    return scan


def avi_says_no_rate(head: bytes) -> bool:
    """Whether the picture track of an AVI has no rate; FFmpeg then makes one up without saying so."""
    at = head.find(b"strh")
    if at < 0 or head[at + 8 : at + 12] != b"vids":
        return False
    return 0 in struct.unpack_from("<2I", head.ljust(at + 36, b"\0"), at + 28)  # scale, rate


def check_count(name: str, count: int, limits: MediaLimits) -> None:
    most = int(limits.max_duration_s * _MAX_FPS)
    if count > most:
        raise MediaError(f"{name} holds more than {most} frames, the most allowed: cut it and upload it again.")


def decode(packet: av.Packet | None, stream: VideoStream, scan: Scan) -> Sequence[VideoFrame]:
    """Frames that come out for a packet (None: those still inside); a damaged packet gives none."""
    try:
        return stream.codec_context.decode(packet)
    except AV_ERRORS:
        scan.failures += 1
        return []


def all_frames(container: InputContainer, stream: VideoStream, scan: Scan) -> Iterator[VideoFrame]:
    """Every frame that decodes, in the order shown."""
    # One thread: with several, what a damaged frame shows depends on which thread was quicker.
    stream.codec_context.thread_count = 1
    for packet in picture_packets(container, stream):
        yield from decode(packet, stream, scan)
    yield from decode(None, stream, scan)


def scan_frames(container: InputContainer, stream: VideoStream, packets: Scan, name: str, limits: MediaLimits) -> Scan:
    """Times by the frames that do come out; their pixels are dropped at once."""
    scan = Scan(
        packets.tick_s,
        failures=packets.failures,
        last_ticks=packets.last_ticks,
        promised=packets.promised,
        promised_s=packets.promised_s,
        held_s=packets.held_s,
    )
    times: list[int | None] = []
    for frame in all_frames(container, stream, scan):
        times.append(frame.pts)
        check_count(name, len(times), limits)
    known = sorted({time for time in times if time is not None})
    if len(known) == len(times):
        # AVI numbers its packets in decoding order: the set of times is right, which frame has which is not.
        scan.times, scan.ordinals = known, list(range(len(times)))
    else:
        for ordinal, time in enumerate(times):
            if time is not None and (not scan.times or time > scan.times[-1]):
                scan.times.append(time)
                scan.ordinals.append(ordinal)
    if packets.assumed or 2 * len(scan.times) < len(times) or (len(times) > 1 and scan.tick_s <= 0):
        scan.assumed, scan.tick_s, scan.last_ticks = True, Fraction(1, ASSUMED_FPS), 0
        scan.times = scan.ordinals = list(range(len(times)))
    if scan.times:
        check_duration(name, scan.duration_s() or scan.seconds()[-1], limits.max_duration_s)
    return scan
