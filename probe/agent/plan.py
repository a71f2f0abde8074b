"""Seed, call and number of a turn into what the agent does about it, and that into sound at a codec's rate.

Sound is the shipped clips of `probe.utterances`, cut to what is audible in them, at one active level.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from analysis.audiofile import resample
from analysis.codecs import Codec
from analysis.units import from_dbov
from probe.agent.config import AgentConfig
from probe.agent.draws import Draws, Purpose
from probe.utterances import RATE_HZ, Utterance, filler_clip, greeting_clip, reply_clip, reply_count, shipped_languages

__all__ = ["GREETING", "Kind", "Rendered", "ReplyPlan", "plan_greeting", "plan_reply", "render", "spoken_language"]

Kind = Literal["greeting", "reply", "cut_in", "no_reply", "backchannel"]

GREETING = -1  # the greeting's index; replies count the caller's utterances from 0
TAIL_MS = 80  # silence after each sound: the encoder's look-ahead and the decoder's memory end in it
ACTIVE_DB = 20.0  # frames within this of the loudest are active speech
FRAME_MS = 20
BACKCHANNEL_MS = 300
FADE_MS = 5
FALLBACK_LANGUAGE = "en"  # for a caller whose language the agent does not speak


@dataclass(frozen=True, slots=True)
class ReplyPlan:
    """What the agent does about one utterance of the caller's.

    `clip` is the reply's number; `filler_gap_ms` is None where there is no filler; `cut_in` and `backchannel_after_ms`
    (None: none) count from the beginning of the utterance, `think_ms` from the moment at which the agent took it as
    ended.
    """

    call: int
    index: int
    language: str
    clip: int
    think_ms: float
    leading_silence_ms: float
    filler_gap_ms: float | None = None
    no_reply: bool = False
    cut_in: bool = False
    backchannel_after_ms: float | None = None


@dataclass(frozen=True)
class Rendered:
    """A sound at a codec's rate. Samples from its first: `speech_start` to `speech_stop` (exclusive) is speech, filler
    included; `content_start` is where the content begins after a filler. `gate` is False where there is silence.
    """

    pcm: NDArray[np.float32]
    gate: NDArray[np.bool_]
    speech_start: int
    speech_stop: int
    content_start: int | None


def spoken_language(language: str) -> str:
    """The language that the agent answers in: the one asked for, without its region if need be, else English."""
    known = shipped_languages()
    base = language.partition("-")[0]
    return language if language in known else base if base in known else FALLBACK_LANGUAGE


def plan_greeting(config: AgentConfig, call: int) -> ReplyPlan:
    """The greeting: no think time, no leading silence, no filler."""
    return ReplyPlan(call, GREETING, spoken_language(config.language), 0, 0.0, 0.0)


def plan_reply(config: AgentConfig, call: int, index: int) -> ReplyPlan:
    """What the agent does about utterance `index`: a pure function, in whatever order it is asked."""
    draws = Draws(config.seed, call)
    language = spoken_language(config.language)
    no_reply = index in config.no_reply_turns or draws.happens(Purpose.NO_REPLY, index, config.no_reply_probability)
    cut_in = index in config.cut_in_turns or draws.happens(Purpose.CUT_IN, index, config.cut_in_probability)
    silent = no_reply or config.never_speaks
    filler = draws.happens(Purpose.FILLER, index, config.filler_probability)
    backchannel = draws.happens(Purpose.BACKCHANNEL, index, config.backchannel_probability)
    return ReplyPlan(
        call=call,
        index=index,
        language=language,
        clip=draws.whole(Purpose.CLIP, index, 1, reply_count(language)),
        think_ms=draws.between(Purpose.THINK, index, *config.think_ms),
        leading_silence_ms=draws.between(Purpose.LEADING_SILENCE, index, *config.leading_silence_ms),
        filler_gap_ms=draws.between(Purpose.FILLER_GAP, index, *config.filler_gap_ms) if filler else None,
        no_reply=silent,
        cut_in=cut_in and not silent,
        backchannel_after_ms=(
            draws.between(Purpose.BACKCHANNEL_AFTER, index, *config.backchannel_after_ms)
            if backchannel and not cut_in and not config.never_speaks
            else None
        ),
    )


def render(config: AgentConfig, plan: ReplyPlan, kind: Kind, codec: Codec) -> Rendered:
    """The sound of a greeting, a reply, a cut-in (a reply that begins at once) or a backchannel.

    Returns
    -------
    Rendered
        Leading silence to the sample, speech, and a tail of silence; no comfort noise yet.
    """
    rate_hz, level = codec.rate_hz, config.reply_level_dbov
    silence = np.zeros(round(plan.leading_silence_ms * rate_hz / 1000), dtype=np.float32)
    content_start: int | None = None
    if kind == "greeting":
        speech = _greeting(plan.language, rate_hz, level)
    elif kind == "backchannel":
        speech, silence = _backchannel(plan.language, rate_hz, level), silence[:0]
    elif kind == "cut_in":
        speech, silence = _reply(plan.language, plan.clip, rate_hz, level), silence[:0]
    else:
        speech = _reply(plan.language, plan.clip, rate_hz, level)
        if plan.filler_gap_ms is not None:
            filler = _backchannel(plan.language, rate_hz, level)
            gap = np.zeros(round(plan.filler_gap_ms * rate_hz / 1000), dtype=np.float32)
            content_start = len(silence) + len(filler) + len(gap)
            speech = np.concatenate((filler, gap, speech))
    tail = np.zeros(TAIL_MS * rate_hz // 1000, dtype=np.float32)
    pcm = np.concatenate((silence, speech, tail))
    gate = np.zeros(len(pcm), dtype=bool)
    gate[len(silence) : len(silence) + len(speech)] = True
    if content_start is not None and plan.filler_gap_ms is not None:
        gate[content_start - round(plan.filler_gap_ms * rate_hz / 1000) : content_start] = False
    return Rendered(pcm, gate, len(silence), len(silence) + len(speech), content_start)


@lru_cache(maxsize=64)
def _reply(language: str, number: int, rate_hz: int, level_dbov: float) -> NDArray[np.float32]:
    return _levelled(reply_clip(language, number), rate_hz, level_dbov)


@lru_cache(maxsize=64)
def _greeting(language: str, rate_hz: int, level_dbov: float) -> NDArray[np.float32]:
    return _levelled(greeting_clip(language), rate_hz, level_dbov)


@lru_cache(maxsize=64)
def _backchannel(language: str, rate_hz: int, level_dbov: float) -> NDArray[np.float32]:
    """The filler, cut short where need be: a sound under 350 ms."""
    sound = _levelled(filler_clip(language), rate_hz, level_dbov)[: BACKCHANNEL_MS * rate_hz // 1000]
    fade = min(FADE_MS * rate_hz // 1000, len(sound))
    sound[len(sound) - fade :] *= np.linspace(1.0, 0.0, fade, dtype=np.float32)
    return sound


def _levelled(clip: Utterance, rate_hz: int, level_dbov: float) -> NDArray[np.float32]:
    """What is audible of a clip, at a rate, its active frames at a level."""
    sound = resample(clip.samples[clip.start_sample : clip.end_sample + 1], RATE_HZ, rate_hz)
    size = FRAME_MS * rate_hz // 1000
    frames = np.square(sound[: len(sound) // size * size].astype(np.float64)).reshape(-1, size).mean(axis=1)
    active = frames[frames >= frames.max() * 10 ** (-ACTIVE_DB / 10)]
    gain = from_dbov(level_dbov) / float(np.sqrt(active.mean()))
    # a level that the clip's peaks do not allow is limited rather than wrapped
    return np.asarray(np.clip(sound * np.float32(gain), -1.0, 1.0), dtype=np.float32)
