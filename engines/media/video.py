"""Clips: when the frames are really shown, then the pixels of those that are picked.

Two passes, so that memory holds the picked frames only. The first reads packets and decodes nothing. The
second decodes only the stretches that lead up to a picked frame. Where that does not work (a damaged clip, a
container without presentation times), everything is decoded once to see what really comes out, and the
picking is done again over that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from .container import (
    ASSUMED_FPS,
    AV_ERRORS,
    Scan,
    all_frames,
    avi_says_no_rate,
    decode,
    opened,
    picture_packets,
    scan_frames,
    scan_packets,
)
from .limits import FrameSampling, MediaError, MediaLimits
from .pixels import Canvas
from .record import Media, media_of
from .sampling import pick
from .sniff import HEAD_BYTES

# Containers whose packets carry the presentation time of the frame that they hold.
_HONEST_TIMES = ("mov", "matroska")


def read_video(file: BinaryIO, demuxer: str, name: str, limits: MediaLimits, sampling: FrameSampling) -> Media:
    """Decode a clip; `demuxer` is FFmpeg's name of the one container format that may be tried."""
    try:
        return _read(file, demuxer, name, limits, sampling)
    except MediaError:
        raise
    except AV_ERRORS as error:
        raise _undecodable(name) from error


def _read(file: BinaryIO, demuxer: str, name: str, limits: MediaLimits, sampling: FrameSampling) -> Media:
    with opened(file, demuxer, name, limits) as (container, stream):
        scan = packets = scan_packets(container, stream, name, limits)
        canvas = Canvas(name, limits, stream)
    file.seek(0)
    packets.assumed = demuxer == "avi" and avi_says_no_rate(file.read(HEAD_BYTES))
    chosen: list[int] = []
    notes: list[str] = []
    pictures: list[np.ndarray] = []
    if demuxer in _HONEST_TIMES and packets.times and None not in packets.order and packets.tick_s > 0:
        chosen, notes = pick(packets.seconds(), packets.duration_s(), sampling, limits)
        canvas.plan(len(chosen))
        with opened(file, demuxer, name, limits) as (container, stream):
            pictures = _decode_stretches(container, stream, packets, chosen, canvas)
    if not pictures or len(pictures) < len(chosen):
        with opened(file, demuxer, name, limits) as (container, stream):
            scan = scan_frames(container, stream, packets, name, limits)
        if not scan.times:
            raise _undecodable(name)
        chosen, notes = pick(scan.seconds(), scan.duration_s(), sampling, limits)
        canvas.plan(len(chosen))
        with opened(file, demuxer, name, limits) as (container, stream):
            pictures = _decode_ordinals(container, stream, scan, chosen, canvas)
        if len(pictures) < len(chosen):
            raise _undecodable(name)
    seconds = scan.seconds()
    times = tuple(seconds[i] for i in chosen)
    notes = canvas.notes + _findings(packets, scan) + notes
    return media_of("video", name, np.stack(pictures), times, scan.duration_s(), scan.fps(), notes)


def _findings(packets: Scan, scan: Scan) -> list[str]:
    """What was wrong with the file, in sentences."""
    notes: list[str] = []
    held = len(packets.keys)
    if packets.promised > held:
        notes.append(f"The container promised {packets.promised} frames and held {held}.")
    elif packets.promised_s is not None and packets.promised_s > max(packets.held_s + 1.0, 1.1 * packets.held_s):
        notes.append(f"The container promised {packets.promised_s:.1f} s and held {packets.held_s:.1f} s.")
    lost = len(packets.times) - len(scan.times)
    if lost > 0:
        notes.append(
            f"{lost} of {len(packets.times)} frames could not be decoded and are left out; frames near them"
            " may show wrong pixels."
        )
    elif scan.failures:
        notes.append("Parts of the file are damaged; frames near them may show wrong pixels.")
    if scan.assumed:
        notes.append(f"The clip does not say when its frames are shown; {ASSUMED_FPS} a second are assumed.")
    return notes


def _undecodable(name: str) -> MediaError:
    return MediaError(
        f"{name} is damaged, incomplete or in a codec that is not known here, so that none of its frames can"
        " be decoded: save it again, best as MP4 with H.264."
    )


def _decode_stretches(
    container: InputContainer, stream: VideoStream, scan: Scan, chosen: list[int], canvas: Canvas
) -> list[np.ndarray]:
    """The chosen pictures, decoding from the key frame before each up to it.

    Fewer than chosen when the file does not behave: the caller then decodes everything.
    """
    wanted = {scan.times[i] for i in chosen}
    stretches = _stretches(scan, wanted)
    found: dict[int, np.ndarray] = {}
    anchored = False  # has this stretch shown a key frame, as its packets claim

    def take(frames: Sequence[VideoFrame]) -> None:
        nonlocal anchored
        for frame in frames:
            anchored = anchored or frame.key_frame
            if anchored and frame.pts is not None and frame.pts in wanted and frame.pts not in found:
                found[frame.pts] = canvas.picture(frame)
                scan.failures += frame.is_corrupt

    for i, packet in enumerate(picture_packets(container, stream)):
        if not stretches:
            break
        if i < stretches[0].start:
            continue
        take(decode(packet, stream, scan))
        if i + 1 >= stretches[0].stop:
            take(decode(None, stream, scan))
            stream.codec_context.flush_buffers()
            stretches.pop(0)
            anchored = False
    return [found[time] for time in sorted(found)]


def _stretches(scan: Scan, wanted: set[int]) -> list[range]:
    """Ranges of packets, in file order and apart from each other, that have to be decoded for `wanted`."""
    ranges: list[range] = []
    key = previous_key = 0
    for i, (is_key, time) in enumerate(zip(scan.keys, scan.order, strict=True)):
        if is_key:
            previous_key, key = key, i
        if time in wanted:
            key_time = scan.order[key]
            # A frame shown before its key frame leans on the stretch before that one as well (open GOP).
            leads = time is not None and key_time is not None and time < key_time
            # Two packets more: the second field of an interlaced frame may come in its own packet.
            stretch = range(previous_key if leads else key, min(i + 3, len(scan.keys)))
            if ranges and stretch.start < ranges[-1].stop:
                ranges[-1] = range(min(ranges[-1].start, stretch.start), max(ranges[-1].stop, stretch.stop))
            else:
                ranges.append(stretch)
    return ranges


def _decode_ordinals(
    container: InputContainer, stream: VideoStream, scan: Scan, chosen: list[int], canvas: Canvas
) -> list[np.ndarray]:
    """The chosen pictures by their place in the order shown, decoding everything up to the last one."""
    wanted = {scan.ordinals[i] for i in chosen}
    pictures: list[np.ndarray] = []
    second_look = Scan(scan.tick_s)  # failures were counted when the frames were scanned
    for ordinal, frame in enumerate(all_frames(container, stream, second_look)):
        if ordinal in wanted:
            pictures.append(canvas.picture(frame))
            if len(pictures) == len(wanted):
                break
    return pictures
