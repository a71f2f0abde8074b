"""Seed and condition in, a recorded call out: two channels, the references that were used and the truth of each turn.

A call is a pure function of (seed, condition, number): greeting, some ten turns of every kind, and whatever the
condition does to levels, noise, codecs, rooms, bleed, clocks and edges. `benchmarks.recordings_conditions` names them.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.units import from_dbov
from benchmarks import recordings_sounds as sounds
from benchmarks.recordings_conditions import Condition
from benchmarks.recordings_path import (
    StretchMap,
    bleed_filter,
    coded,
    drifted,
    filtered,
    fractional_delay,
    room,
    stretched,
)
from benchmarks.recordings_truth import Channels, SoundEvent, TurnPlan, TurnTruth, turn_truth
from probe.utterances import RATE_HZ, reply_count, shipped_languages, shipped_names

__all__ = ["TIMEOUT_S", "TURNS", "Call", "build"]

TURNS = 10
TIMEOUT_S = 10.0  # the scenario's default: what is silent for longer is no reply
LEAD_S, TAIL_S = 2.5, 2.6
YIELD_FADE_S = 0.008
COMMA_S = 0.12
OVER = ("overlap", "barge_in")  # kinds that begin while the agent still speaks
BEFORE_REPLY = ("click", "pop", "breath", "earcon", "music")

Sound = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One recorded call. `audio` is float32, shape (frames, 2), of full scale 1.0; `references` are at 48 kHz, by name.

    `decoys` names references that are given but were not said. `replies` are the agent's clips (48 kHz), for those who
    are to know them. `drawn` says what the condition drew. `maps` are those of stretched sounds, by turn and channel.
    """

    condition: str
    seed: int
    number: int
    rate_hz: int
    audio: Sound
    caller_channel: int
    references: Mapping[str, Sound]
    decoys: tuple[str, ...]
    replies: Mapping[str, Sound]
    turns: tuple[TurnTruth, ...]
    drawn: Mapping[str, Any]
    maps: Mapping[tuple[int, str], StretchMap]

    @property
    def agent_channel(self) -> int:
        """The channel that is not the caller's."""
        return 1 - self.caller_channel

    @property
    def duration_s(self) -> float:
        """Length of the recording."""
        return len(self.audio) / self.rate_hz

    def document(self) -> dict[str, Any]:
        """The truth as JSON."""
        return {
            "condition": self.condition,
            "seed": self.seed,
            "call": self.number,
            "rate_hz": self.rate_hz,
            "caller_channel": self.caller_channel,
            "agent_channel": self.agent_channel,
            "references": sorted(self.references),
            "decoys": list(self.decoys),
            "timeout_s": TIMEOUT_S,
            "drawn": dict(self.drawn),
            "turns": [turn.document() for turn in self.turns],
        }


def build(seed: int, condition: Condition, number: int, *, turns: int = TURNS, rate_hz: int | None = None) -> Call:
    """Make call `number` of a condition: the same for the same arguments.

    Parameters
    ----------
    seed, number : int
        Not negative.
    condition : Condition
    turns : int
    rate_hz : int, optional
        Instead of one of the condition's rates.

    Returns
    -------
    Call
    """
    key = (zlib.crc32(condition.name.encode()), number)
    rng = np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy=seed, spawn_key=key)))
    rate = int(rng.choice(condition.rates_hz))
    scene = _Scene(condition, rng, rate if rate_hz is None else rate_hz)
    scene.lay_out(turns)
    return scene.record(seed, number)


class _Scene:
    """A call while it is being made: sounds by the sample at which they lie, before the path."""

    def __init__(self, condition: Condition, rng: np.random.Generator, rate_hz: int) -> None:
        self.condition, self.rng, self.rate_hz = condition, rng, rate_hz
        self.caller: list[tuple[int, Sound]] = []
        self.agent: list[tuple[int, Sound]] = []
        self.plans: list[TurnPlan] = []
        self.references: dict[str, Sound] = {}
        self.replies: dict[str, Sound] = {}
        self.maps: dict[tuple[int, str], StretchMap] = {}
        self.names = [str(name) for name in rng.permutation(shipped_names())]
        self.caller_dbov, self.agent_dbov = (float(rng.uniform(*condition.level_dbov)) for _ in range(2))
        self.cursor = self._samples(LEAD_S)
        self.drawn: dict[str, Any] = {"caller_dbov": self.caller_dbov, "agent_dbov": self.agent_dbov}

    def _samples(self, seconds: float) -> int:
        return round(seconds * self.rate_hz)

    def _between(self, low_s: float, high_s: float) -> int:
        return self._samples(self.rng.uniform(low_s, high_s))

    def lay_out(self, turns: int) -> None:
        """Place greeting and turns one after the other."""
        if self.rng.random() < 0.6:
            language = str(self.rng.choice(shipped_languages()))
            self._say(sounds.agent_sound("greeting", language, self.rate_hz), self.cursor, "greeting")
            self.cursor = self._end() + self._between(0.7, 1.5)
        kinds = self._kinds(turns)
        for index, kind in enumerate(kinds):
            self._turn(index, kind, kinds[index + 1] if index + 1 < turns else "")

    def _kinds(self, turns: int) -> list[str]:
        weights = np.array(list(self.condition.weights.values()))
        kinds = [str(k) for k in self.rng.choice(list(self.condition.weights), size=turns, p=weights / weights.sum())]
        for i, kind in enumerate(kinds):
            # somebody must be speaking who can be spoken over, and only once for a reply
            if kind in OVER and (i == 0 or kinds[i - 1] in ("no_reply", "idle_prompt", "cut_in", *OVER)):
                kinds[i] = "reply"
        return kinds

    def _turn(self, index: int, kind: str, following: str) -> None:
        name, sound, edits = self._utterance(index)
        self.references[name] = sound
        placed = self._on_caller(index, name, sound, edits)
        start = self.cursor
        plan = TurnPlan(kind, name, SoundEvent("utterance", start, start + len(placed)), edits=edits)
        if kind == "barge_in":
            plan.interrupted = self._yield(start, len(placed))
        self.caller.append((start, placed))
        self.plans.append(plan)
        # edges of silence are shorter than this
        end = start + len(placed) - self._samples(sounds.TAIL_MS / 1000)
        self._agent(index, plan, start, end, following in OVER)
        self.cursor = max(self._end(), start + len(placed)) + self._between(0.7, 1.8)
        if kind == "no_reply":
            self.cursor = end + self._samples(TIMEOUT_S) + self._between(0.5, 1.0)
            if self.rng.random() < 0.3:
                self._say(self._reply(prompt=True), self.cursor, "idle_prompt", plan)
                self.cursor = self._end() + self._between(0.8, 1.5)
        if following in OVER:
            before = self._end() - self.agent[-1][0]
            into = self._between(0.4, 0.8)
            self.cursor = self._end() - into if following == "overlap" else self.agent[-1][0] + before // 2 - into

    def _utterance(self, index: int) -> tuple[str, Sound, tuple[str, ...]]:
        """A reference's name, its sound at 48 kHz, and what was done to it."""
        condition, rng = self.condition, self.rng
        if condition.repeats and index and rng.random() < 0.5:
            said = self.plans[int(rng.integers(index))]
            return said.reference, self.references[said.reference], said.edits
        name = self.names[index % len(self.names)]
        sound, edits = sounds.utterance_sound(name), []
        if condition.edges:
            edge = str(rng.choice(condition.edges))
            edits.append(edge)
            if edge == "hard":
                sound = sounds.hard_cut(sound, RATE_HZ)
            else:
                sound = sounds.soft_edges(sound, RATE_HZ, rng.uniform(20, 120), rng.uniform(60, 250))
        if rng.random() < condition.pauses:
            edits.append("pause")
            sound = sounds.with_pause(sound, RATE_HZ, rng.uniform(0.4, 1.2))
        if edits or index >= len(self.names):
            name = f"{name}+{'+'.join(edits)}.{index}"
        return name, sound, tuple(edits)

    def _on_caller(self, index: int, name: str, sound: Sound, edits: Sequence[str]) -> Sound:
        shipped = None if edits or "+" in name else name
        placed = sounds.resampled(sound, shipped, self.rate_hz)
        if self.condition.stretch_caller:
            placed, self.maps[index, "caller"] = self._stretched(placed)
        if self.condition.fractional:
            placed = fractional_delay(placed, float(self.rng.random()))
        return sounds.levelled(placed, self.rate_hz, self.caller_dbov)

    def _stretched(self, sound: Sound) -> tuple[Sound, StretchMap]:
        steps, longer = int(self.rng.integers(0, self.condition.stretch + 1)), bool(self.rng.random() < 0.5)
        return stretched(sound, self.rate_hz, self.rng, steps=steps, longer=longer)

    def _agent(self, index: int, plan: TurnPlan, start: int, end: int, long: bool) -> None:
        """What the agent does about an utterance that begins and ends at these samples."""
        kind, rng = plan.kind, self.rng
        if kind == "no_reply":
            return
        at = end + self._between(*((0.12, 0.4) if rng.random() < 0.15 else (0.3, 2.2)))
        if kind == "cut_in":
            at = end - self._samples(rng.uniform(0.15, min(0.8, (end - start) / self.rate_hz - 0.25)))
        if kind == "backchannel":
            language = str(rng.choice(shipped_languages()))
            sound = sounds.agent_sound("filler", language, self.rate_hz)
            room_left = end - start - len(sound) - self._samples(0.5)
            if room_left > 0:
                self._say(sound, start + self._samples(0.15) + int(rng.random() * room_left), "backchannel", plan)
        if kind == "filler":
            language = str(rng.choice(shipped_languages()))
            self._say(sounds.agent_sound("filler", language, self.rate_hz), at, "filler", plan)
            at = self._end() + self._between(0.25, 0.8)
        if kind in BEFORE_REPLY:
            sound = getattr(sounds, kind)(rng, self.rate_hz)
            below_db = rng.uniform(18, 26) if kind == "breath" else rng.uniform(0, 8)
            self._place(sound, at, kind, plan, self.agent_dbov - below_db)
            at = self._end() + (self._between(0.06, 0.25) if kind != "music" else self._between(0.3, 0.8))
        reply = self._reply(long=long)
        if self.condition.stretch_agent:
            reply, self.maps[index, "agent"] = self._stretched(reply)
        self._say(self._edged(reply), at, "reply", plan)
        if kind == "idle_prompt":
            self._say(self._reply(prompt=True), self._end() + self._between(2.5, 4.0), "idle_prompt", plan)

    def _reply(self, *, prompt: bool = False, long: bool = False) -> Sound:
        """A reply's clip; a long one is two of a language with the pause of a comma between them, about 3 s."""
        language = str(self.rng.choice(shipped_languages()))
        first = int(self.rng.integers(reply_count(language))) + 1
        names = [f"{language}/{number}" for number in ((1, 2) if long else (first,))]
        if not prompt:
            self.replies.update({name: sounds.agent_sound("reply", name, RATE_HZ) for name in names})
        comma = np.zeros(self._samples(COMMA_S), dtype=np.float32)
        parts = [part for name in names for part in (comma, sounds.agent_sound("reply", name, self.rate_hz))]
        return np.concatenate(parts[1:])

    def _edged(self, reply: Sound) -> Sound:
        if not self.condition.edges:
            return reply
        if self.rng.choice(self.condition.edges) == "hard":
            return sounds.hard_cut(reply, self.rate_hz)
        return sounds.soft_edges(reply, self.rate_hz, self.rng.uniform(20, 120), self.rng.uniform(60, 250))

    def _say(self, sound: Sound, at: int, what: str, plan: TurnPlan | None = None) -> None:
        self._place(sound, at, what, plan, self.agent_dbov)

    def _place(self, sound: Sound, at: int, what: str, plan: TurnPlan | None, level_dbov: float) -> None:
        if what == "click":
            sound = sound * np.float32(from_dbov(level_dbov) / np.abs(sound).max())
        else:
            sound = sounds.levelled(sound, self.rate_hz, level_dbov)
        self.agent.append((at, sound))
        if plan is not None:
            plan.events.append(SoundEvent(what, at, at + len(sound)))

    def _end(self) -> int:
        at, sound = self.agent[-1] if self.agent else (0, np.zeros(0, dtype=np.float32))
        return at + len(sound)

    def _yield(self, start: int, length: int) -> SoundEvent:
        """Have the agent fall silent 0.25 to 0.9 s into an interruption, well before it ends."""
        at, sound = self.agent.pop()
        longest = min(0.9, length / self.rate_hz - 0.45)
        stop = min(start + self._samples(self.rng.uniform(0.25, longest)), at + len(sound))
        sound = sound[: stop - at].copy()
        fade = self._samples(YIELD_FADE_S)
        sound[-fade:] *= np.linspace(1.0, 0.0, fade, dtype=np.float32)
        self.agent.append((at, sound))
        event = SoundEvent("reply", at, stop)
        events = self.plans[-1].events
        events[-1] = event
        return event

    def record(self, seed: int, number: int) -> Call:
        """Send both channels through the condition's path and find what is true of what comes out."""
        condition, rng = self.condition, self.rng
        last = max((at + len(sound) for at, sound in (*self.caller, *self.agent)), default=0)
        frames = max(last, self.cursor) + self._samples(TAIL_S)
        caller, agent = _mixed(self.caller, frames), _mixed(self.agent, frames)
        if condition.comfort_noise_dbov is not None:
            agent += self._comfort_noise(frames)
        direct: Sound | None = None
        if condition.rooms:
            place = room(self.rate_hz, int(rng.integers(36)))
            self.drawn["rt60_s"] = place.rt60_s
            direct, caller = filtered(caller, place.direct), filtered(caller, place.whole)
            agent = filtered(agent, place.whole)
        bleed = None
        if condition.bleed_db is not None:
            self.drawn["bleed_db"] = level_db = float(rng.uniform(*condition.bleed_db))
            bleed = filtered(caller, bleed_filter(rng, self.rate_hz, level_db))
        ppm = 0.0 if condition.drift_ppm is None else float(rng.uniform(*condition.drift_ppm))
        self.drawn["drift_ppm"] = ppm
        snr_db = None if condition.snr_db is None else float(rng.uniform(*condition.snr_db))
        self.drawn["snr_db"] = snr_db
        codec = condition.codecs[int(rng.integers(len(condition.codecs)))] if condition.codecs else None
        self.drawn["codec"] = None if codec is None else list(codec)
        caller_clean, caller = self._path(caller, None, self.caller_dbov, snr_db, codec, ppm)
        agent_clean, agent = self._path(agent, bleed, self.agent_dbov, snr_db, codec, ppm)
        if direct is not None:
            caller_clean = drifted(direct, ppm)
        channels = Channels(caller_clean, caller, agent_clean, agent, self.rate_hz)
        truths = tuple(
            turn_truth(channels, index, _moved(plan, ppm), content_is_told=not condition.rooms)
            for index, plan in enumerate(self.plans)
        )
        caller_channel = int(rng.random() < 0.3)
        pair = (caller, agent) if caller_channel == 0 else (agent, caller)
        decoys = tuple(name for name in self.names[len(self.plans) : len(self.plans) + 2])
        references = {**self.references, **{name: sounds.utterance_sound(name) for name in decoys}}
        return Call(
            condition=condition.name,
            seed=seed,
            number=number,
            rate_hz=self.rate_hz,
            audio=np.stack(pair, axis=1),
            caller_channel=caller_channel,
            references=references,
            decoys=decoys,
            replies=self.replies,
            turns=truths,
            drawn=self.drawn,
            maps=self.maps,
        )

    def _comfort_noise(self, frames: int) -> Sound:
        """The agent's own: all the time, or only where it does not speak."""
        assert self.condition.comfort_noise_dbov is not None
        level_dbov = float(self.rng.uniform(*self.condition.comfort_noise_dbov))
        under_speech = bool(self.rng.random() < 0.5)
        self.drawn.update(comfort_noise_dbov=level_dbov, comfort_noise_under_speech=under_speech)
        colour = str(self.rng.choice(["white", "pink"]))
        sound = sounds.noise(self.rng, frames, colour) * np.float32(from_dbov(level_dbov))
        if not under_speech:
            for at, speech in self.agent:
                sound[at : at + len(speech)] = 0.0
        return sound

    def _path(
        self,
        sound: Sound,
        bleed: Sound | None,
        level_dbov: float,
        snr_db: float | None,
        codec: tuple[str, int] | None,
        ppm: float,
    ) -> tuple[Sound, Sound]:
        """A channel without and with what is not its own, as both lie in the recording.

        Noise and bleed reach a G.711 line before its codec, as on a telephone; with Opus they are the recorder's.
        """
        extra = bleed
        if snr_db is not None:
            colour = str(self.rng.choice(["white", "pink"]))
            added = sounds.noise(self.rng, len(sound), colour) * np.float32(from_dbov(level_dbov - snr_db))
            extra = added if extra is None else extra + added
        clean, recorded = sound, sound
        if codec is not None:
            clean = coded(sound, self.rate_hz, *codec)
            recorded = clean
            if codec[0] != "opus" and extra is not None:
                recorded, extra = coded(sound + extra, self.rate_hz, *codec), None
        if extra is not None:
            recorded = recorded + extra
        return np.clip(drifted(clean, ppm), -1, 1), np.clip(drifted(recorded, ppm), -1, 1)


def _mixed(placed: Sequence[tuple[int, Sound]], frames: int) -> Sound:
    out = np.zeros(frames, dtype=np.float32)
    for at, sound in placed:
        out[at : at + len(sound)] += sound
    return out


def _moved(plan: TurnPlan, ppm: float) -> TurnPlan:
    """The plan on the recorder's clock."""

    def moved(event: SoundEvent) -> SoundEvent:
        scale = 1 + ppm * 1e-6
        return SoundEvent(event.what, round(event.start * scale), round(event.stop * scale))

    return TurnPlan(
        plan.kind,
        plan.reference,
        moved(plan.utterance),
        [moved(event) for event in plan.events],
        None if plan.interrupted is None else moved(plan.interrupted),
        plan.edits,
    )
