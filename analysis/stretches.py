"""An agent's channel in, its stretches of sound out: when each begins and ends, what it is, and where speech begins.

A stretch is a run of the audibility rule, cut by 200 ms of silence. Within it, pieces that 30 ms of silence part are
looked at one by one until one is speech: a breath, a click, a tone or music before it does not move its beginning.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from analysis.audibility import MARGIN_DB, RUN_NEEDED, WINDOW_MS, LevelTrack, Run, audible_runs, first_audible
from analysis.content import BREATH, CLICK, MUSIC, NOISE, SPEECH, TONE, figures, goes_on_as_speech, kind_of, spoken_at
from analysis.echo import EchoFreeTrack
from analysis.errors import NotMeasurable
from analysis.onset import find_end, find_start
from analysis.transfer import Boundary
from analysis.units import dbov, from_dbov, samples_to_ms

__all__ = ["CONTENT_MS", "Stretch", "find_stretches"]

CONTENT_MS = 400.0  # sustained speech; what is shorter is a filler or a backchannel
PAUSE_MS = 30  # parts pieces
LOOK_MS = 300
STEP_MS = 500  # inside what goes on without being speech
NEAR_GAP_MS, FAR_GAP_MS = 40, 130  # unvoiced sound nearer to speech is part of it; farther it is not; between, flagged
PART_GAP_MS = 100  # and so far as it is not much softer than the speech
PART_DB, LEVEL_MS = -16.0, 1000  # beside the loud parts of its first second
CLICK_GAP_MS, CLICK_DB = 60, -24.0
# A click that still rings when speech begins: as long, falling by so much, and overtaken in a few ms
LEAST_RINGING_MS, RINGING_MS, RINGING_PEAK_MS, RINGING_DB = 30, 250, 40, 6.0
JUMP_MS, JUMP_DB = 8, 12.0
# Bounds of an onset inside other sound: where a voice was detected; where the level rises out of steady noise
INSIDE_MS, LEVEL_RISE_MS = 300.0, 80.0
UNVOICED_MS = 700.0
LONG_RUN_MS, PART_STEP_MS = 1500, 4
STEADY_MS, STEADY_DB = 200, 7.0  # pink noise, in 20 ms frames, from its 15th to its 85th percentile: 5 dB
FRAME_MS = 20
MIN_DBOV = -60.0  # of the rule
AUDIBLE_FLOOR_DBOV = -62.0  # a floor that is heard may be music
MAX_LOOKS = 240
ECHO_SHARE = 0.1
OVER_FLAG = {MUSIC: "music_before_speech", TONE: "music_before_speech", NOISE: "noise_before_speech"}


@dataclass(frozen=True, slots=True)
class Stretch:
    """One stretch of sound. Samples are counted from the tape's first.

    Attributes
    ----------
    first, last : int
        Where the rule on the noisy signal has it begin and end: for its place among others, not for figures.
    start, end : Boundary or None
        First audible sample of anything, last audible sample; None where noise hides it (`reasons` says why).
    kind : str
        `speech` where it holds any, else what it is (`analysis.content`).
    speech_first : int or None
        As `first`, of speech.
    speech : Boundary or None
        First audible sample of speech: the same as `start` where nothing comes before it.
    before : tuple of str
        What comes before speech.
    flags : tuple of str
        `sound_before_speech` (it may belong to the speech, or not), `noise_before_speech`, `music_before_speech`,
        `echo` (the caller's echo sounds over its start).
    reasons : tuple of (str, str)
        By boundary (`start`, `speech`, `end`), why it is not to be had.
    """

    rate_hz: int
    first: int
    last: int
    start: Boundary | None
    end: Boundary | None
    kind: str
    speech_first: int | None
    speech: Boundary | None
    before: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    reasons: tuple[tuple[str, str], ...] = ()

    @property
    def start_sample(self) -> int:
        """Its first audible sample, as well as it is known."""
        return self.first if self.start is None else self.start.sample

    @property
    def end_sample(self) -> int:
        """Its last audible sample, as well as it is known."""
        return self.last if self.end is None else self.end.sample

    @property
    def speech_sample(self) -> int | None:
        """The first audible sample of speech, as well as it is known; None where there is none."""
        return self.speech_first if self.speech is None else self.speech.sample

    @property
    def speech_ms(self) -> float:
        """From the first audible sample of speech to the last of the stretch; 0 where there is none."""
        begin = self.speech_sample
        return 0.0 if begin is None else samples_to_ms(self.end_sample - begin, self.rate_hz)

    @property
    def content(self) -> bool:
        """Whether its speech is sustained (400 ms or more)."""
        return self.speech_ms >= CONTENT_MS


@dataclass(frozen=True, slots=True)
class _Piece:
    """Sound between two pauses, as hops: `stop` is the one after its last window begins."""

    start: int
    stop: int
    kind: str
    tonal: bool = False

    @property
    def ms(self) -> int:
        return self.stop - self.start + WINDOW_MS


@dataclass(frozen=True, slots=True)
class _Speech:
    """Where speech was found in a run: its piece, what came before, and `at` where it begins inside other sound.

    `doubt_ms`: how far its start would move if what came right before were counted the other way.
    """

    piece: _Piece
    before: tuple[_Piece, ...]
    at: int | None = None
    doubt_ms: int = 0


def find_stretches(track: LevelTrack, found: Iterable[Run] | None = None) -> list[Stretch]:
    """All stretches of sound of an agent's channel, in order; what is left of the caller's echo is none.

    Parameters
    ----------
    track : LevelTrack
        Of the whole channel; `analysis.echo.without_echo` gives one without the caller's echo.
    found : iterable of Run, optional
        Its audible runs, where they are at hand.
    """
    runs = [part for run in (audible_runs(track) if found is None else found) for part in _parts(track, run)]
    stretches: list[Stretch] = []
    for i, run in enumerate(runs):
        if isinstance(track, EchoFreeTrack) and track.is_residue(run.start, run.end + 1):
            continue
        after = runs[i - 1].end + 1 if i else 0
        stop = runs[i + 1].start if i + 1 < len(runs) else track.n
        stretches.append(_Run(track, run, after, stop).stretch())
    return stretches


def _parts(track: LevelTrack, run: Run) -> Iterator[Run]:
    """A run without the steady noise in it: an agent's comfort noise that comes back where it was silent before.

    Such noise stands out of the floor before it, not of the one after it.
    """
    first, last = track.hop_of_sample(run.start), track.hop_of_sample(run.end)
    if last - first < LONG_RUN_MS:
        yield run
        return
    hops = np.arange(first, last + 1, PART_STEP_MS)
    hops = hops[track.mean_square[hops] >= from_dbov(run.threshold_dbov if run.floor_dbov is None else MIN_DBOV) ** 2]
    hops = hops[track.clears_floor(hops)]
    hops = np.concatenate(([first], hops[track.clears_floor(hops, after=True)], [last]))
    part, low = run, first
    for i in np.flatnonzero(np.diff(hops) > STEADY_MS + 2 * FRAME_MS).tolist():
        gap = int(hops[i]) + FRAME_MS, int(hops[i + 1]) - FRAME_MS
        if not i or gap[0] < low or not _steady(track, *gap):
            continue
        end = track.sample_of_hop(int(hops[i]))
        if end > part.start:
            yield replace(part, end=end)
        found = track.scan(int(hops[i + 1]), last + 1, None)
        if found is None:
            return
        low, theta, floor = found
        part = Run(track.boundary(low, theta), run.end, theta, floor)
    yield part


def _steady(track: LevelTrack, first_hop: int, stop_hop: int) -> bool:
    """Whether the level stays the same, in 20 ms frames, and no tone is held: noise."""
    levels = track.mean_square[first_hop:stop_hop]
    levels = levels[: len(levels) // FRAME_MS * FRAME_MS].reshape(-1, FRAME_MS).mean(axis=1)
    if not len(levels):
        return False
    # a few frames of it may hold the last of a word
    low, high = np.quantile(10 * np.log10(levels + 1e-12), (0.15, 0.85))
    if high - low > STEADY_DB:
        return False
    begin, end = track.sample_of_hop(first_hop), track.sample_of_hop(min(stop_hop, first_hop + LOOK_MS))
    heard = figures(track.samples(begin, end), track.rate_hz)
    return not (heard.held or (heard.tonal and not heard.unvoiced))


class _Run:
    """One run of the rule, and the room that it has between its neighbours."""

    def __init__(self, track: LevelTrack, run: Run, after: int, stop: int) -> None:
        self.track, self.run, self.after, self.stop = track, run, after, stop
        self.first_hop = max(0, track.hop_of_sample(run.start) - WINDOW_MS)
        self.last_hop = track.hop_of_sample(run.end)
        self.least = from_dbov(run.threshold_dbov) ** 2
        self.looks = 0
        self.reasons: list[tuple[str, str]] = []

    def stretch(self) -> Stretch:
        track, run = self.track, self.run
        found = self._speech()
        begin = found.piece if isinstance(found, _Speech) else found[0]
        start = self._try("start", run.start, self.after, run.end + 1)
        end: Boundary | None = None
        try:
            end = find_end(track, run.end, after=run.start, stop=self.stop)
        except NotMeasurable as exc:
            self.reasons.append(("end", exc.reason))
        if not isinstance(found, _Speech):
            kind = max(found, key=lambda piece: piece.ms).kind
            echo = self._echo(run.start)
            return Stretch(track.rate_hz, run.start, run.end, start, end, kind, None, None, (), echo, self._why())
        flags: list[str] = []
        speech, first = start, run.start
        if found.at is not None:
            speech, first = self._inside(found, start)
            flags.append(OVER_FLAG.get(found.piece.kind, "noise_before_speech"))
        elif found.before:
            first = self._sample(begin.start)
            speech = self._try("speech", first, self._sample(found.before[-1].stop) + 1, run.end + 1)
        kinds = tuple(dict.fromkeys(piece.kind for piece in found.before))
        if speech is not None and found.doubt_ms:
            flags.append("sound_before_speech")
            speech = _widened(speech, found.doubt_ms)
        if OVER_FLAG[MUSIC] not in flags and self._over_music(first):
            flags.append(OVER_FLAG[MUSIC])
        flags += self._echo(first)
        return Stretch(
            track.rate_hz, run.start, run.end, start, end, SPEECH, first, speech, kinds, tuple(flags), self._why()
        )

    def _why(self) -> tuple[tuple[str, str], ...]:
        return tuple(self.reasons)

    def _try(self, name: str, at: int, after: int, stop: int) -> Boundary | None:
        try:
            return find_start(self.track, at, after=after, stop=stop)
        except NotMeasurable as exc:
            self.reasons.append((name, exc.reason))
            return None

    def _sample(self, hop: int) -> int:
        return self.track.sample_of_hop(hop)

    def _echo(self, sample: int) -> tuple[str, ...]:
        if not isinstance(self.track, EchoFreeTrack):
            return ()
        reach = self.track.rate_hz // 20
        share = self.track.explained(max(0, sample - reach), min(self.track.n, sample + reach))
        return ("echo",) if share >= ECHO_SHARE else ()

    def _over_music(self, first: int) -> bool:
        """Whether the floor that speech rises out of is tones or chords."""
        if self.run.floor_dbov is None or self.run.floor_dbov < AUDIBLE_FLOOR_DBOV:
            return False
        look = LOOK_MS * self.track.rate_hz // 1000
        # right before, and further back: the speech may have been found late
        for stop in (first, first - 3 * look):
            if stop >= look and figures(self.track.samples(stop - look, stop), self.track.rate_hz).held:
                return True
        return False

    def _pieces(self) -> Iterator[tuple[int, int]]:
        """Hops of the pieces, read as they are needed: a run may be minutes long."""
        start = last = None
        for at in range(self.first_hop, self.last_hop + 1, 2000):
            block = self.track.mean_square[at : min(at + 2000, self.last_hop + 1)]
            above = np.flatnonzero(block >= self.least) + at
            if not len(above):
                continue
            breaks = np.flatnonzero(np.diff(above) > PAUSE_MS)
            begins = above[np.concatenate(([0], breaks + 1))].tolist()
            ends = above[np.concatenate((breaks, [len(above) - 1]))].tolist()
            for begin, end in zip(begins, ends, strict=True):
                if start is None or last is None:
                    start = begin
                elif begin - last > PAUSE_MS:
                    yield start, last + 1
                    start = begin
                elif last - start >= 2000:
                    # it goes on: what is known of it is enough to begin with
                    yield start, self.last_hop + 1
                    return
                last = end
        if start is not None and last is not None:
            yield start, last + 1

    def _speech(self) -> _Speech | list[_Piece]:
        """Where speech begins; all pieces where there is none."""
        seen: list[_Piece] = []
        for start, stop in self._pieces():
            if stop - start < RUN_NEEDED and seen:
                seen.append(_Piece(start, stop, CLICK))
                continue
            piece = self._judged(start, stop)
            if piece.kind == SPEECH and not self._goes_on(self._sample(start)):
                piece = replace(piece, kind=MUSIC)
            if piece.kind == SPEECH:
                return self._with_its_beginning(piece, seen)
            at = self._speech_inside(piece)
            if at is not None:
                return _Speech(piece, tuple(seen), at)
            seen.append(piece)
            if self.looks > MAX_LOOKS:
                break
        return seen or [_Piece(self.first_hop, self.last_hop, CLICK)]

    def _judged(self, start: int, stop: int) -> _Piece:
        self.looks += 1
        begin, end = self._sample(start), self._sample(min(stop, start + LOOK_MS)) + self.track.sample_of_hop(WINDOW_MS)
        kind = kind_of(self.track.samples, begin, min(end, self.track.n), self.track.rate_hz)
        if kind == BREATH and stop - start > 2 * LOOK_MS:
            kind = NOISE
        tonal = kind == CLICK and figures(self.track.samples(begin, end), self.track.rate_hz).tonal
        return _Piece(start, stop, kind, tonal)

    def _speech_inside(self, piece: _Piece) -> int | None:
        """The sample about which speech begins inside a piece that began as something else."""
        rate_hz = self.track.rate_hz
        for hop in range(piece.start + LOOK_MS, piece.stop - LOOK_MS // 2, STEP_MS // 2):
            self.looks += 1
            if self.looks > MAX_LOOKS:
                return None
            begin, end = self._sample(hop), self._sample(min(piece.stop, hop + LOOK_MS))
            heard = figures(self.track.samples(begin, end), rate_hz)
            sparse = self.looks % 2 == 0 and not heard.unvoiced and not heard.tonal
            if heard.speech or sparse:
                at = spoken_at(self.track.samples, begin, end, rate_hz)
                if at is not None and self._goes_on(at):
                    return at
        return None

    def _goes_on(self, start: int) -> bool:
        self.looks += 4  # it takes as long
        return goes_on_as_speech(self.track.samples, start, self.run.end + 1, self.track.rate_hz)

    def _with_its_beginning(self, piece: _Piece, seen: list[_Piece]) -> _Speech:
        """Unvoiced sound right before speech is its first consonant."""
        first, begin, doubt_ms = len(seen), piece.start, 0
        while first:
            before = seen[first - 1]
            gap = begin - before.stop - WINDOW_MS + 1
            if before.tonal or before.kind not in (BREATH, CLICK) or gap > FAR_GAP_MS:
                break
            if gap > NEAR_GAP_MS:
                doubt_ms = begin - before.start + PAUSE_MS
            if not self._belongs(before, gap, piece):
                break
            first, begin = first - 1, before.start
        doubt_ms = doubt_ms or self._burst_ms(begin)
        return _Speech(_Piece(begin, piece.stop, SPEECH), tuple(seen[:first]), doubt_ms=doubt_ms)

    def _belongs(self, piece: _Piece, gap: int, speech: _Piece) -> bool:
        if piece.kind == CLICK:
            return gap <= CLICK_GAP_MS or (gap <= PART_GAP_MS and self._below_db(piece, speech) >= CLICK_DB)
        return gap <= NEAR_GAP_MS or (gap <= PART_GAP_MS and self._below_db(piece, speech) >= PART_DB)

    def _burst_ms(self, start: int) -> int:
        """Length of a click that still rings, as in a room, when a voice sets in; 0 where there is none."""
        levels = self.track.mean_square[start : min(start + RINGING_MS, self.last_hop + 1)]
        if len(levels) < LEAST_RINGING_MS + JUMP_MS:
            return 0
        jumps = np.flatnonzero(levels[JUMP_MS:] >= levels[:-JUMP_MS] * 10 ** (JUMP_DB / 10))
        jumps = jumps[jumps >= LEAST_RINGING_MS]
        if not len(jumps):
            return 0
        head = levels[: int(jumps[0])]
        peak = int(np.argmax(head))
        above = head[head >= self.least]  # it may have died away before
        if peak > RINGING_PEAK_MS or above[-WINDOW_MS:].mean() > head[peak] * 10 ** (-RINGING_DB / 10):
            return 0
        begin, end = self._sample(start), self._sample(start + len(head))
        return len(head) + JUMP_MS if figures(self.track.samples(begin, end), self.track.rate_hz).unvoiced else 0

    def _below_db(self, piece: _Piece, speech: _Piece) -> float:
        """Level of a piece over that of the loud parts of the speech after it (negative: softer)."""
        one = self.track.mean_square[piece.start : piece.stop]
        other = self.track.mean_square[speech.start : min(self.last_hop + 1, speech.start + LEVEL_MS)]
        loud = float(np.quantile(other, 0.9))
        return 10 * math.log10(max(float(one.mean()), 1e-12) / max(loud, 1e-12))

    def _inside(self, found: _Speech, start: Boundary | None) -> tuple[Boundary, int]:
        """Speech that begins inside other sound: where the level rises out of it, or where a voice was detected."""
        assert found.at is not None
        track, at = self.track, found.at
        hop = track.hop_of_sample(at)
        steady = track.mean_square[max(found.piece.start, hop - LOOK_MS) : max(found.piece.start + 1, hop - WINDOW_MS)]
        level_dbov = dbov(math.sqrt(float(np.median(steady))))
        theta = max(self.run.threshold_dbov, level_dbov + MARGIN_DB)
        reach = LOOK_MS * track.rate_hz // 2000
        rise = first_audible(track, start=max(self.run.start, at - reach), stop=at + reach, threshold_dbov=theta)
        late_ms = samples_to_ms(at - self.run.start, track.rate_hz)
        steadily = rise is not None and _steady(
            track, found.piece.start + FRAME_MS, track.hop_of_sample(rise.sample) - FRAME_MS
        )
        if not steadily and start is not None and found.piece.kind in (BREATH, NOISE) and late_ms <= UNVOICED_MS:
            # most likely it began without a voice
            return _widened(start, late_ms), self.run.start
        place = at if rise is None else rise.sample
        bound = INSIDE_MS if rise is None or found.piece.kind in (MUSIC, TONE) else LEVEL_RISE_MS
        if bound == INSIDE_MS and late_ms <= UNVOICED_MS:
            # so near its beginning, all of it may be speech
            bound = max(bound, late_ms)
        shifts = {"-10": None, "+10": None}
        parts = {"detection": bound}
        return Boundary(place, track.rate_hz, bound, parts, theta, level_dbov, shifts, "level", ("soft_onset",)), place


def _widened(boundary: Boundary, doubt_ms: float) -> Boundary:
    """The boundary with what it is uncertain by if it is another piece's."""
    parts = {**boundary.parts_ms, "kind": float(doubt_ms)}
    return replace(boundary, parts_ms=parts, uncertainty_ms=math.hypot(*parts.values()))
