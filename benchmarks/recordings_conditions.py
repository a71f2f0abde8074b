"""The conditions under which calls are generated, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.recordings_path import ROOMS_ARE_THERE

__all__ = ["CONDITIONS", "RATES_HZ", "Condition", "available"]

RATES_HZ = (8000, 16000, 24000, 44100, 48000)
WEIGHTS: Mapping[str, float] = {
    "reply": 0.48,
    "filler": 0.08,
    "backchannel": 0.06,
    "cut_in": 0.08,
    "no_reply": 0.05,
    "overlap": 0.04,
    "barge_in": 0.04,
    "idle_prompt": 0.04,
    "click": 0.03,
    "pop": 0.03,
    "breath": 0.03,
    "earcon": 0.02,
    "music": 0.02,
}

Span = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What may happen to a call; spans are drawn from once a call, `None` means never.

    Levels are those of active speech (dBov); SNR is that level over the noise of the channel. `comfort_noise_dbov` is
    the agent's own and belongs to the truth. `bleed_db` is the energy of the caller's echo on the agent's channel,
    `stretch` how many pitch lags a stretched sound is given at most (on which `channels`).
    """

    name: str
    about: str
    rates_hz: tuple[int, ...] = RATES_HZ
    level_dbov: Span = (-26.0, -18.0)
    snr_db: Span | None = (60.0, 60.0)
    comfort_noise_dbov: Span | None = None
    codecs: tuple[tuple[str, int], ...] = ()
    rooms: bool = False
    bleed_db: Span | None = None
    drift_ppm: Span | None = None
    stretch: int = 0
    stretch_caller: bool = False
    stretch_agent: bool = False
    edges: tuple[str, ...] = ()
    pauses: float = 0.0
    repeats: bool = False
    known_reply: bool = False
    fractional: bool = True
    weights: Mapping[str, float] = field(default_factory=lambda: WEIGHTS)


TELEPHONE = (("pcmu", 64000), ("pcma", 64000))
OPUS_LOW = (("opus", 12000), ("opus", 16000))
OPUS = (("opus", 24000), ("opus", 32000), ("opus", 48000), ("opus", 64000))
# a room's tail would still sound when the reply begins
IN_ROOMS = {kind: weight for kind, weight in WEIGHTS.items() if kind not in ("pop", "breath", "earcon", "music")}
SOUNDS = {"reply": 1, "filler": 3, "click": 2, "pop": 2, "breath": 2, "earcon": 2, "music": 2}
TALK = {"reply": 2, "cut_in": 3, "backchannel": 2, "overlap": 1.5, "barge_in": 1.5, "no_reply": 0.7, "idle_prompt": 0.7}

_ALL = (
    Condition(name="clean", about="SNR 60 dB"),
    Condition(name="digital", about="digital silence between the words", snr_db=None),
    Condition(name="levels", about="-10 to -45 dBov, floor 50 dB below", level_dbov=(-45, -10), snr_db=(50, 50)),
    Condition(name="snr_45", about="SNR 45 to 50 dB", snr_db=(45, 50)),
    Condition(name="snr_35", about="SNR 35 to 40 dB", snr_db=(35, 40)),
    Condition(name="snr_25", about="SNR 25 to 30 dB", snr_db=(25, 30)),
    Condition(name="snr_15", about="SNR 15 to 20 dB", snr_db=(15, 20)),
    Condition(
        name="comfort_noise", about="the agent's own, -65 to -50 dBov", snr_db=(60, 60), comfort_noise_dbov=(-65, -50)
    ),
    Condition(name="opus_low", about="Opus 12, 16 kb/s", rates_hz=(16000, 48000), codecs=OPUS_LOW),
    Condition(name="opus", about="Opus 24 to 64 kb/s", rates_hz=(16000, 48000), codecs=OPUS),
    Condition(name="g711", about="G.711, SNR 40 dB", rates_hz=(8000,), snr_db=(40, 40), codecs=TELEPHONE),
    Condition(
        name="room",
        about="both in rooms, RT60 0.2 to 0.7 s, SNR 45 dB",
        rates_hz=(16000, 48000),
        snr_db=(45, 45),
        rooms=True,
        weights=IN_ROOMS,
    ),
    Condition(name="bleed", about="caller on the agent's channel, -40 to -20 dB", snr_db=(50, 60), bleed_db=(-40, -20)),
    Condition(name="drift", about="clocks apart by up to 200 ppm", snr_db=(50, 60), drift_ppm=(-200, 200)),
    Condition(name="stretched_agent", about="replies time-stretched by pitch lags", stretch=4, stretch_agent=True),
    Condition(name="stretched_caller", about="the caller time-stretched by pitch lags", stretch=4, stretch_caller=True),
    Condition(name="pauses", about="pauses of 0.4 to 1.2 s inside utterances", pauses=0.7),
    Condition(name="repeats", about="utterances said several times", repeats=True),
    Condition(name="sounds", about="fillers, clicks, breaths, tones, music before replies", weights=SOUNDS),
    Condition(name="talk", about="cut-ins, backchannels, overlaps, barge-ins, no replies", weights=TALK),
    Condition(name="soft", about="soft onsets and ends", edges=("soft",)),
    Condition(name="hard", about="edges cut within loud speech", edges=("hard",)),
    Condition(
        name="known_reply", about="the agent's clips are given too, SNR 25 to 45 dB", snr_db=(25, 45), known_reply=True
    ),
    Condition(
        name="telephone",
        about="G.711, bleed -35 to -25 dB, comfort noise, drift, some pauses, SNR 40 to 45 dB",
        rates_hz=(8000,),
        snr_db=(40, 45),
        comfort_noise_dbov=(-65, -58),
        codecs=TELEPHONE,
        bleed_db=(-35, -25),
        drift_ppm=(-50, 50),
        pauses=0.2,
    ),
    Condition(
        name="planted",
        about="hard cuts at whole samples over digital silence",
        rates_hz=(48000,),
        snr_db=None,
        edges=("hard",),
        fractional=False,
        weights={"reply": 1},
    ),
)

CONDITIONS = {condition.name: condition for condition in _ALL}


def available() -> tuple[str, ...]:
    """Names of the conditions that can be made here: rooms need pyroomacoustics."""
    return tuple(name for name, condition in CONDITIONS.items() if ROOMS_ARE_THERE or not condition.rooms)
