"""The virtual microphone: what it hands over and when, by a clock that is set and by real codecs."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.signal import correlate

from analysis.audibility import LevelTrack, first_audible
from analysis.codecs import CODECS, Codec, Decoder
from analysis.units import dbov
from probe.player import Background, EncodedUtterance, Player, encode_background, encode_utterance
from probe.utterances import Utterance, shipped

T = TypeVar("T")
MS = 1_000_000
START_NS = 50_000 * MS
OPUS = CODECS["opus"]
SETTINGS = ("silence", "noise:-65")


class ManualClock:
    """A clock that moves when the loop sleeps, and when a test says so."""

    def __init__(self) -> None:
        self.now_ns = START_NS

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return self.now_ns


class SkippingSelector(selectors.SelectSelector):
    """Moves the clock on by what it is asked to wait, and does not wait."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "the program waits for something that never comes"
        self._clock.now_ns += max(0, round(timeout * 1e9))
        return super().select(0)


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop in the clock's time."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(SkippingSelector(clock))
        self._manual = clock

    def time(self) -> float:
        return self._manual.now_ns / 1e9


def simulated(main: Callable[[ManualClock], Coroutine[Any, Any, T]]) -> T:
    """Run a program to its end in no time."""
    clock = ManualClock()
    with asyncio.Runner(loop_factory=lambda: ManualLoop(clock)) as runner:
        return runner.run(main(clock))


def a_background(count: int = 240) -> Background:
    return Background("noise:-65", tuple(b"n%d" % i for i in range(count)), -65.0)


DTX = Background("dtx", (), None)


def an_utterance(*packets: bytes) -> EncodedUtterance:
    return EncodedUtterance(shipped("en/1"), packets)


Handed = tuple[bytes, int, int]  # payload, pts, time of the hand-over


async def take(player: Player, clock: ManualClock, count: int) -> list[Handed]:
    handed = []
    for _ in range(count):
        packet = await player.recv()
        assert packet.pts is not None
        handed.append((bytes(packet), packet.pts, clock.now_ns))
    return handed


def nothing(frame: int, deadline_ns: int) -> None:
    pass


class TestSchedule:
    @pytest.mark.parametrize("ptime_ms", [10, 20, 40, 60])
    def test_one_packet_at_each_deadline(self, ptime_ms: int) -> None:
        async def main(clock: ManualClock) -> None:
            player = Player(OPUS, ptime_ms, a_background(), clock)
            assert not player.started.is_set()
            handed = await take(player, clock, 20)
            assert player.started.is_set()
            # T_0 is the end of the first frame: its sound begins when the sender first asks
            assert player.deadline0_ns == START_NS + ptime_ms * MS
            for i, (payload, pts, at_ns) in enumerate(handed):
                assert payload == b"n%d" % i
                assert pts == 48 * ptime_ms * i
                assert at_ns == pytest.approx(player.deadline_ns(i), abs=1_000)  # the loop counts in float seconds
            assert player.frame == 20

        simulated(main)

    @pytest.mark.parametrize("name", list(CODECS))
    def test_pts_count_in_the_clock_of_rtp(self, name: str) -> None:
        async def main(clock: ManualClock) -> None:
            codec = CODECS[name]
            player = Player(codec, 20, a_background(), clock)
            packets = [await player.recv() for _ in range(3)]
            assert [p.pts for p in packets] == [0, codec.clock_rate_hz // 50, 2 * codec.clock_rate_hz // 50]
            assert {p.time_base for p in packets} == {Fraction(1, codec.clock_rate_hz)}

        simulated(main)

    def test_a_late_hand_over_is_never_carried_on(self) -> None:
        async def main(clock: ManualClock) -> None:
            player = Player(OPUS, 20, a_background(), clock)
            await take(player, clock, 5)
            clock.now_ns += 73 * MS  # the program is held up
            late = await take(player, clock, 10)
            deadlines = [player.deadline_ns(i) for i in range(5, 15)]
            lateness = [at_ns - due_ns for (_, _, at_ns), due_ns in zip(late, deadlines, strict=True)]
            # three are overdue and go at once, the fourth and all that follow are on time again
            assert [round(ns / MS) for ns in lateness] == [53, 33, 13, 0, 0, 0, 0, 0, 0, 0]
            assert [pts for _, pts, _ in late] == [960 * i for i in range(5, 15)]

        simulated(main)

    def test_the_sender_asking_late_moves_nothing(self) -> None:
        async def main(clock: ManualClock) -> None:
            player = Player(OPUS, 20, a_background(), clock)
            for i in range(50):
                ((_, _, at_ns),) = await take(player, clock, 1)
                assert at_ns == pytest.approx(player.deadline_ns(i), abs=1_000)
                clock.now_ns += 7 * MS + i * 1000  # its own work

        simulated(main)

    def test_the_background_goes_round_by_the_frame(self) -> None:
        async def main(clock: ManualClock) -> None:
            player = Player(OPUS, 20, a_background(7), clock)
            handed = await take(player, clock, 20)
            assert [payload for payload, _, _ in handed] == [b"n%d" % (i % 7) for i in range(20)]

        simulated(main)


class TestSpeaking:
    def test_an_utterance_takes_the_place_of_the_background(self) -> None:
        async def main(clock: ManualClock) -> None:
            player = Player(OPUS, 20, a_background(), clock)
            begun: list[tuple[int, int]] = []
            await take(player, clock, 3)
            player.say(an_utterance(b"u0", b"u1", b"u2"), clock.now_ns, lambda *args: begun.append(args))
            handed = await take(player, clock, 6)
            first = begun[0][0]
            payloads = {3 + i: payload for i, (payload, _, _) in enumerate(handed)}
            assert [payloads[first + i] for i in range(3)] == [b"u0", b"u1", b"u2"]
            assert payloads[first + 3] == b"n%d" % (first + 3)  # the background has gone on meanwhile
            assert begun == [(first, player.deadline_ns(first))]
            assert [pts for _, pts, _ in handed] == [960 * i for i in range(3, 9)]

        simulated(main)

    @pytest.mark.parametrize("wait_us", [0, 1, 5_000, 19_999, 20_000, 20_001, 170_000])
    def test_its_first_sample_is_captured_at_or_after_the_time_and_within_a_frame(self, wait_us: int) -> None:
        async def main(clock: ManualClock) -> None:
            player = Player(OPUS, 20, a_background(), clock)
            await take(player, clock, 3)
            begun: list[int] = []
            due_ns = player.deadline_ns(2) + wait_us * 1000
            player.say(an_utterance(b"u0"), due_ns, lambda _, deadline_ns: begun.append(deadline_ns))
            await take(player, clock, 15)
            captured_ns = begun[0] - player.frame_ns
            assert 0 <= captured_ns - due_ns < player.frame_ns

        simulated(main)

    def test_one_after_the_other_without_a_gap(self) -> None:
        async def main(clock: ManualClock) -> None:
            player = Player(OPUS, 20, a_background(), clock)
            await take(player, clock, 1)
            player.say(an_utterance(b"a0", b"a1"), 0, lambda *_: player.say(an_utterance(b"b0"), 0, nothing))
            handed = await take(player, clock, 4)
            assert [payload for payload, _, _ in handed] == [b"a0", b"a1", b"b0", b"n4"]

        simulated(main)


class TestDtx:
    def test_nothing_is_sent_between_utterances_and_the_clock_goes_on(self) -> None:
        async def main(clock: ManualClock) -> None:
            player = Player(OPUS, 20, DTX, clock)
            assert player.first_ticks is None
            for first in (10, 50):
                due_ns = START_NS + first * 20 * MS
                player.say(an_utterance(b"u0", b"u1"), due_ns, nothing)
                handed = await take(player, clock, 2)
                assert [(payload, pts) for payload, pts, _ in handed] == [
                    (b"u0", 960 * first),
                    (b"u1", 960 * (first + 1)),
                ]
                assert handed[0][2] == pytest.approx(player.deadline_ns(first), abs=1_000)
            # media time 0 is that of the first frame, which was not sent
            assert player.first_ticks == 960 * 10

        simulated(main)


def decoded(codec: Codec, packets: tuple[bytes, ...], decoder: Decoder | None = None) -> NDArray[np.float32]:
    decoder = decoder or Decoder(codec)
    parts = [decoder.decode(packet) for packet in packets]
    assert all(part is not None for part in parts)
    return np.concatenate([part for part in parts if part is not None])


class TestEncoding:
    @pytest.mark.parametrize("name", list(CODECS))
    @pytest.mark.parametrize("asked_dbov", [-70.0, -65.0, -50.0, -30.0])
    @pytest.mark.parametrize("ptime_ms", [20, 60])
    def test_the_background_has_the_level_that_was_asked_for(self, name: str, asked_dbov: float, ptime_ms: int) -> None:
        codec = CODECS[name]
        background = encode_background(f"noise:{asked_dbov:g}", codec, ptime_ms)
        decoder = Decoder(codec)
        for _ in range(2):  # the second time round as the first
            sound = decoded(codec, background.packets, decoder)
            assert dbov(float(np.sqrt(np.mean(sound.astype(np.float64) ** 2)))) == pytest.approx(asked_dbov, abs=0.3)

    @pytest.mark.parametrize("ptime_ms", [10, 20, 40, 60])
    @pytest.mark.parametrize("setting", SETTINGS)
    def test_the_loop_is_a_whole_number_of_frames(self, setting: str, ptime_ms: int) -> None:
        background = encode_background(setting, OPUS, ptime_ms)
        assert background.name == setting
        assert len(background.packets) * ptime_ms == 4800
        assert encode_background("dtx", OPUS, ptime_ms).packets == ()

    @pytest.mark.parametrize("name", list(CODECS))
    def test_silence_is_not_audible(self, name: str) -> None:
        # A-law has no zero, and G.722 wanders by some 20 of 32768
        codec = CODECS[name]
        sound = decoded(codec, encode_background("silence", codec, 20).packets)
        assert dbov(float(np.sqrt(np.mean(sound.astype(np.float64) ** 2)))) < -66.0
        assert first_audible(LevelTrack(sound, codec.rate_hz)) is None

    def test_noise_is_the_same_every_time(self) -> None:
        for setting in SETTINGS:
            assert encode_background(setting, OPUS, 20) == encode_background(setting, OPUS, 20)

    @pytest.mark.parametrize("name", list(CODECS))
    @pytest.mark.parametrize("ptime_ms", [10, 20, 40, 60])
    @pytest.mark.parametrize("setting", SETTINGS)
    def test_the_first_packet_holds_the_first_sample(self, name: str, ptime_ms: int, setting: str) -> None:
        """Sample n of the clip is sample n + look-ahead of what the agent decodes, counted from the first packet."""
        codec = CODECS[name]
        background = encode_background(setting, codec, ptime_ms)
        utterance = shipped("en/1")
        spoken = encode_utterance(utterance, codec, ptime_ms, background)
        decoder = Decoder(codec)
        before = background.packets or encode_background("silence", codec, ptime_ms).packets
        decoded(codec, before[: 600 // ptime_ms], decoder)
        heard = decoded(codec, spoken.packets, decoder).astype(np.float64)
        sound = utterance.samples[:: 48_000 // codec.rate_hz].astype(np.float64)  # aliases matter little here
        match = correlate(heard, sound, method="fft")
        delay = int(np.argmax(match)) - (len(sound) - 1)
        # Opus's filters are not linear phase where a voice has its power: 3 samples are 0.06 ms
        assert delay == pytest.approx(codec.lookahead_samples, abs=4)
        # and the end of the sound has been flushed out of the encoder
        assert len(heard) >= len(sound) + codec.lookahead_samples

    @pytest.mark.parametrize("setting", SETTINGS)
    def test_switching_from_background_to_utterance_is_not_heard(self, setting: str) -> None:
        # two encoders meet in one decoder; a click there would be the first thing the agent hears
        background = encode_background(setting, OPUS, 20)
        utterance = with_silence_before(shipped("en/1"), 400)
        spoken = encode_utterance(utterance, OPUS, 20, background)
        for first in (0, 7, 100):
            rotated = background.packets[first:] + background.packets[:first]
            sound = decoded(OPUS, rotated[:150] + spoken.packets)
            begin = 150 * 960
            found = first_audible(LevelTrack(sound, 48_000), start=begin - 960)
            assert found is not None
            # Opus spreads an onset by up to a window of 5 ms before it
            onset = begin + utterance.start_sample + OPUS.lookahead_samples
            assert -300 <= found.sample - onset <= 100


def with_silence_before(utterance: Utterance, ms: int) -> Utterance:
    shift = 48 * ms
    return Utterance(
        name=utterance.name,
        language=utterance.language,
        text=utterance.text,
        samples=np.concatenate((np.zeros(shift, dtype=np.float32), utterance.samples)),
        start_sample=utterance.start_sample + shift,
        end_sample=utterance.end_sample + shift,
        start_threshold_dbov=utterance.start_threshold_dbov,
        end_threshold_dbov=utterance.end_threshold_dbov,
        end_shift_ms=utterance.end_shift_ms,
    )
