"""An operation and the packets taken for it in, the audio to be played and its sources out.

Source: libwebrtc, modules/audio_coding/neteq (neteq_impl, merge, time stretch).
"""

from __future__ import annotations

import numpy as np

from analysis.neteq.buffer import append, cut, discard_before, place, repeat, take_over
from analysis.neteq.compiled import compiled
from analysis.neteq.counters import book_concealed
from analysis.neteq.decision import (
    ACCELERATE,
    MERGE,
    MODE_CNG,
    MODE_EXPAND,
    MODE_MERGE,
    MODE_NORMAL,
    MODE_STRETCH_FAILED,
    MODE_STRETCHED,
    NORMAL,
    PREEMPTIVE_EXPAND,
)
from analysis.neteq.expand import (
    conceal_period,
    concealment_gain,
    end_concealment,
    fill_resumed,
    has_faded,
    next_lag,
)
from analysis.neteq.signal import best_merge_lag, fade_in, fill, level_gain, merge_gain, pitch
from analysis.neteq.state import NONE, Audio, Pieces, Record

__all__ = ["expand", "play"]

MIN_CORRELATION = 14746 / 16384
MERGE_FADE = 60  # times m
FULL_SCALE = np.float32(32768.0)


@compiled
def expand(s: Record, audio: Audio) -> None:
    while s.future - s.overlap < s.step:
        count = next_lag(s, audio[s.filled - 256 * s.m : s.filled])
        at = append(s, audio, count)
        conceal_period(s, audio[at : at + count])
        book_concealed(s, count, has_faded(s) or s.last_dtx, s.mode != MODE_EXPAND)
        s.mode = MODE_EXPAND
    s.noise_energy = -1.0
    if s.generated_since < 0:
        s.generated_since = s.ticks


@compiled
def play(s: Record, operation: int, packets: Record, pcm: Audio, audio: Audio, pieces: Pieces) -> None:
    """Decode what was taken into the sync buffer and join, cut or repeat as `operation` says."""
    dtx = False
    if s.taken:
        first, last = packets[s.decoded[0]], packets[s.decoded[s.taken - 1]]
        dtx = last.dtx
        # comfort noise does not move the end: its length is counted as generated noise instead
        s.end = first.position if dtx else last.position + last.samples
        s.frame_samples = last.samples
        s.last_dtx = dtx
        discard_before(s, packets, last.position, NONE)
        if dtx:
            s.generated_since = s.ticks
    if operation == MERGE:
        _merge(s, packets, pcm, audio, pieces)
    else:
        _decode(s, packets, pcm, audio, pieces, operation == NORMAL and s.mode == MODE_EXPAND)
        if operation == NORMAL:
            _finish_normal(s, dtx)
            return
        _stretch(s, audio, pieces, operation)
    end_concealment(s)
    if dtx:
        s.mode = MODE_CNG


@compiled
def _sound(packets: Record, index: int, pcm: Audio) -> Audio:
    """The decoded sound of a packet."""
    at = packets[index].pcm_at
    return pcm[at : at + packets[index].samples]


@compiled
def _decode(s: Record, packets: Record, pcm: Audio, audio: Audio, pieces: Pieces, resumed: bool) -> None:
    for i in range(s.taken):
        index = s.decoded[i]
        sound = _sound(packets, index, pcm)
        count = len(sound)
        at = append(s, audio, count)
        into = audio[at : at + count]
        for k in range(count):
            into[k] = sound[k] * FULL_SCALE
        if resumed and i == 0:
            fade_in(into, max(concealment_gain(s), level_gain(into, s.m, s.floor_energy)), s.m)
        place(s, pieces, packets[index].position, count)


@compiled
def _finish_normal(s: Record, dtx: bool) -> None:
    samples = s.taken_samples
    if samples and s.mode == MODE_EXPAND:
        end_concealment(s)
    if dtx or (s.mode == MODE_CNG and samples == 0):
        s.mode = MODE_CNG
    elif samples:
        s.mode = MODE_NORMAL
    if samples:
        s.played = True


@compiled
def _merge(s: Record, packets: Record, pcm: Audio, audio: Audio, pieces: Pieces) -> None:
    old, needed, m, samples = s.future, 202 * s.m, s.m, s.taken_samples
    expanded = np.empty(needed, np.float32)
    held = min(old, needed)
    fill(expanded[:held], audio[s.filled - old :])
    fill_resumed(s, expanded[held:])
    decoded = np.empty(samples, np.float32)
    at = 0
    for i in range(s.taken):
        sound = _sound(packets, s.decoded[i], pcm)
        for k in range(len(sound)):
            decoded[at + k] = sound[k] * FULL_SCALE
        at += len(sound)
    lag = best_merge_lag(decoded, expanded, m, old, s.max_lag)
    fade_in(decoded, max(concealment_gain(s), merge_gain(decoded, expanded, m)), m)
    fade = max(1, min(MERGE_FADE * m, needed - lag, samples))
    if old < lag + fade:  # the concealment goes on under the fade
        at = append(s, audio, lag + fade - old)
        fill(audio[at : s.filled], expanded[old:])
    take_over(s, audio, pieces, decoded, lag, packets[s.decoded[0]].position, fade)
    book_concealed(s, lag - old, s.last_dtx, False)
    s.mode = MODE_MERGE


@compiled
def _stretch(s: Record, audio: Audio, pieces: Pieces, operation: int) -> None:
    m = s.m
    length = max(240 * m, s.taken_samples)
    middle = 120 * m
    # of what the search looks at, so much has been played and must stay as it was
    played = max(0, length - s.future)
    s.mode = MODE_STRETCH_FAILED
    if operation == PREEMPTIVE_EXPAND and played >= length - s.overlap:
        return
    period, correlation, active = pitch(audio[s.filled - length : s.filled], m, s.floor_energy)
    good = not active or correlation > MIN_CORRELATION
    if operation == ACCELERATE:
        if not good:
            return
        cut(s, audio, pieces, length - middle, period)
        if s.played:
            s.removed += period
    else:
        if active and (not good or played > middle):
            return
        if not active:
            period = min(period, length - played)
        repeat(s, audio, pieces, length - max(played, middle), period)
        if s.played:
            s.inserted += period
    s.mode = MODE_STRETCHED
    s.noise_energy = -1.0
