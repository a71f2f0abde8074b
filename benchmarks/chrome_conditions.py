"""A condition's name and a seed in, the RTP packets of one call and the moment at which each leaves out.

Speech is the shipped synthetic replies, talkspurts with pauses of 0.3 to 4 s as a voice agent makes them. Opus goes
through libopus as in a call; with DTX, frames of two bytes and less are sent the first time only, as Chrome's own
sender does it. Sources: RFC 3550 (RTP), RFC 7587 (Opus), RFC 3551 (G.711); Gilbert and Elliott's two-state loss.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
import soundfile as sf
from numpy.typing import NDArray
from scipy.signal import resample_poly

from analysis.codecs import CODECS
from analysis.errors import UsageError
from analysis.rtp import RtpPacket, serialize_rtp

__all__ = [
    "CONDITIONS",
    "NOISE_PAYLOAD_TYPE",
    "OPUS_PAYLOAD_TYPE",
    "PCMU_PAYLOAD_TYPE",
    "Condition",
    "Outgoing",
    "outgoing",
]

REPLIES = Path(__file__).resolve().parent.parent / "probe" / "data" / "replies"
LANGUAGES = ("en", "de", "es", "fr")
OPUS_PAYLOAD_TYPE = 96  # as aiortc numbers it
PCMU_PAYLOAD_TYPE = 0
NOISE_PAYLOAD_TYPE = 13  # RFC 3389
NOISE_FRAMES = 10  # from one packet of comfort noise to the next, as a gateway sends them
DTX_BYTES = 2
OPUS_VOIP, OPUS_SET_BITRATE, OPUS_SET_DTX = 2048, 4002, 4016
FIRST_SPEECH_S = 0.5
ONE_BYTE_EXTENSIONS = 0xBEDE  # RFC 8285
MID_0 = bytes((0x10, ord("0"), 0, 0))  # RFC 8843, with the identifier that aiortc gives it
NS_PER_MS = 1_000_000
SHORT_PAUSE_S, LONG_PAUSE_S = 0.3, 4.0

Float = NDArray[np.float64]
Kind = Literal["steady", "jittery", "lossy"]
Delay = Callable[[Float, np.random.Generator], Float]
Loss = Callable[[int, np.random.Generator], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One packet: `at_ns` from the start of the call, `data` as plain RTP."""

    at_ns: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Condition:
    """What is sent and what becomes of it.

    `delay_ms` of the packets' nominal times (s), `loss` of their number; `in_order` holds back what would overtake.
    `sound`: `speech` with its silence sent, `gaps` where the pauses are not sent, `noise` without a pause.
    `comfort_noise` of gaps (dB below full scale): packets of RFC 3389 in them.
    """

    kind: Kind
    delay_ms: Delay | None = None
    loss: Loss | None = None
    in_order: bool = True
    codec: str = "opus"
    ptime_ms: int = 20
    sound: Literal["speech", "gaps", "noise"] = "speech"
    pause_s: tuple[float, float] = (SHORT_PAUSE_S, LONG_PAUSE_S)
    dtx: bool = False
    drift_ppm: float = 0.0
    ssrc_changes: bool = False
    restarts: bool = False
    noise_dbov: float | None = None
    comfort_noise: int | None = None


def _uniform(high_ms: float) -> Delay:
    return lambda t, rng: rng.uniform(0, high_ms, len(t))


def _normal(mean_ms: float, sd_ms: float) -> Delay:
    return lambda t, rng: np.maximum(0.0, rng.normal(mean_ms, sd_ms, len(t)))


def _spikes(t: Float, rng: np.random.Generator) -> Float:
    """Every 5 s a stall of 100 to 220 ms; what was held back leaves at its end."""
    delay = np.zeros(len(t))
    for begin in np.arange(3.0, t[-1] + 5, 5.0):
        end = begin + rng.uniform(0.1, 0.22)
        held = (t >= begin) & (t < end)
        delay[held] = 1000 * (end - t[held])
    return delay


def _wifi(t: Float, rng: np.random.Generator) -> Float:
    """A few ms of contention, and stalls of 20 to 150 ms about 0.6 a second (scans, retries), then a burst."""
    delay = rng.exponential(2.0, len(t))
    begin = 0.0
    while begin < t[-1]:
        begin += rng.exponential(1.6)
        end = begin + min(0.15, 0.02 + rng.exponential(0.04))
        held = (t >= begin) & (t < end)
        delay[held] += 1000 * (end - t[held])
    return delay


def _lte(t: Float, rng: np.random.Generator) -> Float:
    """The base delay steps to another level every 4 to 8 s (handover, scheduling), with 0 to 10 ms on top."""
    delay = rng.uniform(0, 10, len(t))
    begin, level = 0.0, 0.0
    while begin < t[-1]:
        end = begin + rng.uniform(4, 8)
        delay[(t >= begin) & (t < end)] += level
        begin, level = end, float(rng.choice([0, 20, 45, 80, 120]))
    return delay


def _ramp(t: Float, rng: np.random.Generator) -> Float:
    """Up by 200 ms within 8 s and down again within 8 s, from 4 s on."""
    place = (t - 4.0) % 20
    return np.where(t < 4, 0.0, 200 * np.clip(np.minimum(place / 8, (16 - place) / 8), 0, 1))


def _step(t: Float, rng: np.random.Generator) -> Float:
    return np.where((t >= 10) & (t < 20), 120.0, 0.0)


def _random_loss(share: float) -> Loss:
    return lambda count, rng: rng.random(count) < share


def _bursts(probability: float, fewest: int, most: int) -> Loss:
    def lost(count: int, rng: np.random.Generator) -> NDArray[np.bool_]:
        mask = np.zeros(count, dtype=np.bool_)
        for begin in np.flatnonzero(rng.random(count) < probability):
            mask[begin : begin + rng.integers(fewest, most + 1)] = True
        return mask

    return lost


def _gilbert_elliott(to_bad: float, to_good: float, lost_in_bad: float) -> Loss:
    def lost(count: int, rng: np.random.Generator) -> NDArray[np.bool_]:
        mask, bad = np.zeros(count, dtype=np.bool_), False
        for i, (change, drop) in enumerate(rng.random((count, 2))):
            bad = (change >= to_good) if bad else (change < to_bad)
            mask[i] = bad and drop < lost_in_bad
        return mask

    return lost


CONDITIONS: dict[str, Condition] = {
    "clean": Condition("steady"),
    "uniform40": Condition("jittery", _uniform(40)),
    "uniform40_reorder": Condition("jittery", _uniform(40), in_order=False),
    "uniform100": Condition("jittery", _uniform(100)),
    "gauss_reorder": Condition("jittery", _normal(40, 20), in_order=False),
    "spikes": Condition("jittery", _spikes),
    "loss2": Condition("lossy", loss=_random_loss(0.02)),
    "loss5": Condition("lossy", loss=_random_loss(0.05)),
    "bursty_loss": Condition("lossy", loss=_bursts(0.017, 2, 4)),
    "gilbert_elliott": Condition("lossy", loss=_gilbert_elliott(0.02, 0.3, 0.8)),
    "jitter_loss": Condition("lossy", _uniform(60), _bursts(0.017, 2, 4)),
    "wifi": Condition("jittery", _wifi),
    "lte_steps": Condition("jittery", _lte),
    "step120": Condition("jittery", _step),
    "ramp": Condition("jittery", _ramp),
    "drift_plus300": Condition("steady", drift_ppm=300),
    "drift_minus300": Condition("steady", drift_ppm=-300),
    "dtx": Condition("steady", dtx=True),
    "dtx_uniform40": Condition("jittery", _uniform(40), dtx=True),
    "ssrc_change": Condition("steady", ssrc_changes=True),
    "restart": Condition("lossy", restarts=True),
    "pauses_4s": Condition("steady", sound="gaps", pause_s=(3.9, 4.1)),
    "agent_gaps": Condition("steady", sound="gaps"),
    "agent_gaps_uniform40": Condition("jittery", _uniform(40), sound="gaps"),
    "ptime10": Condition("jittery", _uniform(40), ptime_ms=10),
    "ptime60": Condition("jittery", _uniform(40), ptime_ms=60),
    "g711": Condition("jittery", _uniform(40), codec="pcmu"),
    "g711_cn": Condition("steady", codec="pcmu", sound="gaps", comfort_noise=60),
    "g711_cn_uniform40": Condition("jittery", _uniform(40), codec="pcmu", sound="gaps", comfort_noise=60),
    "g711_cn_loss5": Condition("lossy", loss=_random_loss(0.05), codec="pcmu", sound="gaps", comfort_noise=60),
    "noise": Condition("jittery", _uniform(40), sound="noise"),
    "speech_in_noise": Condition("jittery", _wifi, noise_dbov=-50.0),
}


@lru_cache(maxsize=8)
def _clips(rate_hz: int) -> tuple[NDArray[np.float32], ...]:
    clips = []
    for language in LANGUAGES:
        for path in sorted((REPLIES / language).glob("*.flac")):
            pcm, clip_hz = sf.read(path, dtype="float32")
            clips.append(_decimated(pcm, clip_hz // rate_hz))
    return tuple(clips)


def _decimated(pcm: NDArray[np.float32], factor: int) -> NDArray[np.float32]:
    if factor == 1:
        return pcm
    return np.asarray(resample_poly(pcm, 1, factor), dtype=np.float32)


def _sound(
    condition: Condition, rate_hz: int, seconds: float, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """The sound of a call, and which of its samples are speech (all, where it never pauses)."""
    count = int(seconds * rate_hz)
    pcm = np.zeros(count, dtype=np.float32)
    if condition.sound == "noise":
        return (0.05 * rng.standard_normal(count)).astype(np.float32), np.ones(count, dtype=np.bool_)
    speech = np.zeros(count, dtype=np.bool_)
    clips = _clips(rate_hz)
    at = int(FIRST_SPEECH_S * rate_hz)
    while at < count:
        clip = clips[int(rng.integers(len(clips)))][: int(rng.uniform(0.6, 4.0) * rate_hz)][: count - at]
        pcm[at : at + len(clip)] = clip
        speech[at : at + len(clip)] = True
        at += len(clip) + int(rng.uniform(*condition.pause_s) * rate_hz)
    if condition.noise_dbov is not None:
        pcm += (10 ** (condition.noise_dbov / 20) * rng.standard_normal(count)).astype(np.float32)
    return pcm, speech


def _payloads(condition: Condition, pcm: NDArray[np.float32]) -> list[bytes]:
    if condition.dtx:
        return _dtx_payloads(pcm)
    codec = CODECS[condition.codec]
    size = codec.rate_hz * condition.ptime_ms // 1000
    context: Any = av.CodecContext.create(codec.libav_name, "w")
    context.sample_rate, context.format, context.layout = codec.rate_hz, "s16", "mono"
    context.time_base = Fraction(1, codec.rate_hz)
    if codec.name == "opus":
        context.bit_rate = 32_000
        context.options = {"application": "voip", "frame_duration": str(condition.ptime_ms)}
    payloads = []
    for at in range(0, len(pcm) - size + 1, size):
        samples = np.clip(np.rint(pcm[at : at + size] * 32768), -32768, 32767).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(samples[None, :], format="s16", layout="mono")
        frame.sample_rate, frame.pts = codec.rate_hz, at
        payloads.append(b"".join(bytes(packet) for packet in context.encode(frame)))
    return payloads


def _dtx_payloads(pcm: NDArray[np.float32]) -> list[bytes]:
    """20 ms packets of libopus with DTX, which libav does not offer."""
    name = ctypes.util.find_library("opus")
    if name is None:
        raise UsageError("libopus is absent", next_step="install the Debian package libopus0, or leave out dtx")
    opus = ctypes.CDLL(name)
    opus.opus_encoder_create.restype = ctypes.c_void_p
    encoder = ctypes.c_void_p(opus.opus_encoder_create(48_000, 1, OPUS_VOIP, None))
    for request, value in ((OPUS_SET_BITRATE, 32_000), (OPUS_SET_DTX, 1)):
        opus.opus_encoder_ctl(encoder, request, value)
    samples = np.clip(np.rint(pcm * 32768), -32768, 32767).astype(np.int16)
    out = ctypes.create_string_buffer(1500)
    payloads = []
    for at in range(0, len(samples) - 960 + 1, 960):
        frame = np.ascontiguousarray(samples[at : at + 960])
        count = opus.opus_encode(encoder, frame.ctypes.data_as(ctypes.c_void_p), 960, out, len(out))
        payloads.append(out.raw[:count])
    opus.opus_encoder_destroy(encoder)
    return payloads


def _sent(condition: Condition, payloads: list[bytes], speech: NDArray[np.bool_], size: int) -> NDArray[np.bool_]:
    """Which frames are sent at all: without DTX and gaps every one."""
    count = len(payloads)
    sent: NDArray[np.bool_] = np.ones(count, dtype=np.bool_)
    if condition.sound == "gaps":
        sent = np.asarray(speech[: count * size].reshape(count, size).any(axis=1), dtype=np.bool_)
    if condition.dtx:
        small = np.array([len(p) <= DTX_BYTES for p in payloads])
        sent[1:] &= ~(small[1:] & small[:-1])
    return sent


def _noise_frames(speech: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Frames that are packets of comfort noise: the first of a pause and every tenth after it; `speech` by frame."""
    number = np.arange(len(speech))
    last = np.maximum.accumulate(np.where(speech, number, -1))
    return np.asarray((last >= 0) & ~speech & ((number - last - 1) % NOISE_FRAMES == 0), dtype=np.bool_)


def outgoing(condition: Condition, seconds: float, seed: int, ssrc: int) -> list[Outgoing]:
    """All packets of a call in the order in which they leave.

    Parameters
    ----------
    condition : Condition
    seconds : float
        Length of the sound.
    seed : int
        The same seed gives the same packets, whatever else was asked for before.
    ssrc : int
        The second SSRC of a change is this + 1.
    """
    sound_rng, path_rng = (np.random.default_rng([seed, n]) for n in range(2))
    codec = CODECS[condition.codec]
    pcm, speech = _sound(condition, codec.rate_hz, seconds, sound_rng)
    payloads = _payloads(condition, pcm)
    size = codec.rate_hz * condition.ptime_ms // 1000
    mask = _sent(condition, payloads, speech, size)
    noise = np.zeros(len(mask), dtype=np.bool_) if condition.comfort_noise is None else _noise_frames(mask)
    for frame in np.flatnonzero(noise).tolist():
        payloads[frame] = bytes((condition.comfort_noise or 0,))
    sent = np.flatnonzero(mask | noise)
    # a clock that runs fast gets through a frame in less time
    nominal_s = sent * condition.ptime_ms / 1000 * (1 - condition.drift_ppm * 1e-6)
    at_ms = nominal_s * 1000
    if condition.delay_ms is not None:
        at_ms = at_ms + condition.delay_ms(nominal_s, path_rng)
    lost = np.zeros(len(sent), dtype=np.bool_) if condition.loss is None else condition.loss(len(sent), path_rng)
    if condition.in_order:
        at_ms = np.maximum.accumulate(at_ms)
    packets = []
    sequence, timestamp = 1000 + seed % 1000, 90_000 + seed
    payload_type = OPUS_PAYLOAD_TYPE if codec.name == "opus" else PCMU_PAYLOAD_TYPE
    ticks = codec.ticks(size)
    for number, (frame, time_ms, is_lost) in enumerate(zip(sent.tolist(), at_ms.tolist(), lost.tolist(), strict=True)):
        source = ssrc
        if condition.ssrc_changes and number >= len(sent) // 2:
            source = ssrc + 1
        if condition.restarts and number == len(sent) // 2:
            sequence -= 50
        packet = RtpPacket(
            NOISE_PAYLOAD_TYPE if noise[frame] else payload_type,
            sequence & 0xFFFF,
            (timestamp + frame * ticks) & 0xFFFFFFFF,
            source,
            payloads[frame],
        )
        if condition.ssrc_changes:  # a browser takes an SSRC that was not announced by its MID only
            packet = replace(packet, extension_profile=ONE_BYTE_EXTENSIONS, extension=MID_0)
        sequence += 1
        if not is_lost:
            packets.append(Outgoing(round(time_ms * NS_PER_MS), serialize_rtp(packet)))
    packets.sort(key=lambda p: p.at_ns)
    return packets
