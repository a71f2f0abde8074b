"""Series from packets: what each array must hold, from streams in which the answer was planted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.codecs import CODECS
from analysis.network import RoundTrip, arrivals
from analysis.playout import play
from analysis.rtp import RtpPacket
from analysis.series import CallSeries, audibly_concealed_ms, call_series
from analysis.streams import Timed, build_streams, packet_trace

MS = 1_000_000
PCMU = {0: CODECS["pcmu"]}


def packet(number: int, at_ms: float, *, ssrc: int = 1, timestamp: int | None = None) -> Timed:
    """Packet `number` of a stream of G.711 in packets of 20 ms, arriving at `at_ms`."""
    ticks = 160 * number if timestamp is None else timestamp
    return Timed(round(at_ms * MS), RtpPacket(0, number & 0xFFFF, ticks, ssrc, b"\xff" * 160))


def make(received: list[Timed], policy: str = "fixed:40", **fields: Any) -> CallSeries:
    received = sorted(received, key=lambda timed: timed.time_ns)
    streams = build_streams(received, PCMU)
    played = [play(packet_trace(s, np.zeros(int(s.samples.sum()), dtype=np.float32)), policy) for s in streams]
    heard = list(zip(streams, played, strict=True))
    return call_series(0, 0, arrivals(streams), policy, heard=heard, received=received, **fields)


def test_time_between_packets_is_that_of_arrival_and_the_packet_time_that_of_the_sound() -> None:
    series = make([packet(i, 20 * i + (5 if i % 2 else 0)) for i in range(10)])
    assert series.interarrival_ms == pytest.approx([25, 15] * 4 + [25])
    assert series.interarrival_s == pytest.approx(series.arrival_s[1:])
    assert series.packet_ms == 20.0


def test_a_pause_of_the_sender_is_no_time_between_packets_but_a_loss_is() -> None:
    paused = make(
        [packet(i, 20 * i + (2000 if i > 4 else 0), timestamp=160 * i + (16000 if i > 4 else 0)) for i in range(9)]
    )
    assert np.isnan(paused.interarrival_ms).sum() == 1
    assert np.nanmax(paused.interarrival_ms) == pytest.approx(20)
    lossy = make([packet(i, 20 * i) for i in range(20) if i not in (7, 8, 9, 10, 11)])
    assert np.nanmax(lossy.interarrival_ms) == pytest.approx(120)
    assert lossy.longest_loss == 5
    assert len(lossy.lost_s) == 5


def test_duplicates_reordered_and_late_packets_are_told_with_their_times() -> None:
    received = [packet(i, 20 * i) for i in range(50) if i not in (20, 30)]
    received += [packet(20, 431), packet(30, 900), packet(40, 805)]  # overtaken by 21; 300 ms late; a second time
    series = make(received)
    assert series.reordered_s == pytest.approx([0.431, 0.9])
    assert series.duplicate_s == pytest.approx([0.805])
    assert series.late_s == pytest.approx([0.9])


def test_the_wait_and_the_delay_with_which_sound_leaves_are_those_of_the_policy() -> None:
    # the first of the talkspurt is the fastest but for packet 5, which is 10 ms faster
    series = make([packet(i, 100 + 20 * i - (10 if i == 5 else 0)) for i in range(10)], "fixed:40")
    assert series.wait_ms == pytest.approx([40] * 5 + [50] + [40] * 4)
    assert np.nanmax(series.played_ms) == pytest.approx(50)
    assert np.nanmin(series.played_ms) == pytest.approx(50)
    assert series.played_s[0] == pytest.approx(0.140)


def test_no_line_from_one_stream_or_talkspurt_to_the_next() -> None:
    one = [packet(i, 20 * i) for i in range(10)]
    other = [packet(i, 3000 + 20 * i, ssrc=2) for i in range(10)]
    later = [packet(i, 20 * i + 5000, timestamp=160 * i + 40000) for i in range(10, 20)]
    series = make([*one, *other, *later])
    known = np.isfinite(series.played_ms)
    joined = known[1:] & known[:-1]
    assert np.diff(series.played_s)[joined].max() < 0.021  # within a piece, or from one to the next
    assert (~known).sum() == 3


def test_chrome_has_its_windows_and_round_trips_their_times() -> None:
    trips = [RoundTrip(500 * MS, 42 * MS)]
    series = make([packet(i, 20 * i) for i in range(100)], "chrome", round_trips=trips)
    assert len(series.removed_ms) == len(series.inserted_ms) == len(series.playout_s)
    assert series.rtt_s == pytest.approx([0.5])
    assert series.rtt_ms == pytest.approx([42.0])
    assert len(series.late_s if series.late_s is not None else []) == 0


def test_without_streams_nothing_is_said_of_single_packets() -> None:
    streams = build_streams([packet(i, 20 * i) for i in range(10)], PCMU)
    series = call_series(3, 0, arrivals(streams), "none")
    assert series.duplicate_s is series.reordered_s is series.late_s is None
    assert series.packet_ms is series.longest_loss is None
    assert (series.title, series.span_s) == ("call 3", (0.0, 0.18))


def test_a_call_without_packets_is_empty_and_times_before_zero_stay() -> None:
    assert make([]).span_s == (0.0, 0.0)
    series = call_series(0, 5 * 10**9, arrivals(build_streams([packet(i, 20 * i) for i in range(9)], PCMU)), "none")
    assert series.span_s == pytest.approx((-5.0, -4.84))


def tone(streams: list[Any]) -> list[Any]:
    """Each stream with the sound of a tone, which NetEQ conceals as speech, played by `chrome`."""
    sounds = [np.sin(np.arange(int(s.samples.sum())) * 0.5).astype(np.float32) * 0.3 for s in streams]
    return [play(packet_trace(s, sound), "chrome") for s, sound in zip(streams, sounds, strict=True)]


def audible_ms(received: list[Timed]) -> float:
    streams = build_streams(received, PCMU)
    return sum(float(audibly_concealed_ms(*each).sum()) for each in zip(streams, tone(streams), strict=True))


def test_an_outage_is_concealed_audibly_however_long_and_silent() -> None:
    # packets 100 to 174 come all at once, 1.5 s late: numbers and timestamps go on as if nothing had been
    received = [packet(i, max(20 * i, 3500 if 100 <= i < 175 else 0)) for i in range(300)]
    streams = build_streams(received, PCMU)
    (played,) = tone(streams)
    silent_ms = sum(point.silent_concealed_ms for point in played.series)
    assert silent_ms > 500  # expand has gone silent long before the packets come
    # the buffer covers at most some packets of it; the rest has to be made up
    assert 1400 < audible_ms(received) <= 1500
    assert audible_ms(received) == pytest.approx(sum(point.concealed_ms for point in played.series))


@pytest.mark.parametrize("pause_ms", [80, 300, 2000])
def test_a_pause_of_the_sender_is_not_concealed_audibly(pause_ms: int) -> None:
    def with_pauses(i: int) -> Timed:
        before = i // 40 * pause_ms
        return packet(i, 20 * i + before, timestamp=160 * i + 8 * before)

    received = [with_pauses(i) for i in range(400)]
    (played,) = tone(build_streams(received, PCMU))
    if pause_ms > 100:
        assert sum(point.concealed_ms for point in played.series) > 8 * pause_ms  # there is something to be left out
    assert audible_ms(received) == 0
    # a loss in a talkspurt still counts, as it would without the pauses
    lossy = [timed for i, timed in enumerate(received) if i not in (210, 211, 212)]
    assert audible_ms(lossy) == pytest.approx(60, abs=25)  # NetEQ makes up for what it stretches around a loss


def test_what_was_lost_at_the_end_of_a_talkspurt_counts_beside_the_pause() -> None:
    received = [packet(i, 20 * i + i // 40 * 1000, timestamp=160 * i + i // 40 * 8000) for i in range(120)]
    lossy = [timed for i, timed in enumerate(received) if i not in (77, 78, 79)]
    assert audible_ms(lossy) == pytest.approx(60, abs=25)


@pytest.mark.parametrize("policy", ["none", "fixed:40"])
def test_policies_that_make_up_nothing_in_a_pause_keep_all_of_it(policy: str) -> None:
    received = [
        packet(i, 20 * i + i // 40 * 1000, timestamp=160 * i + i // 40 * 8000) for i in range(120) if i not in (50, 51)
    ]
    assert make(received, policy).concealed_ms.sum() == pytest.approx(40)


def test_packets_without_sound_are_counted_apart_and_their_duplicates_are_duplicates() -> None:
    sound = [packet(i, 20 * i) for i in range(20)]
    noise = [Timed(round(20 * i * MS), RtpPacket(13, i, 160 * i, 1, b"\x40")) for i in (20, 21, 21)]
    other = [packet(i, 20 * i, ssrc=9) for i in range(3)]
    streams = build_streams([*sound, *noise], PCMU)
    received = [*sound, *noise, *other]
    series = call_series(0, 0, arrivals(streams), "none", heard=[(s, None) for s in streams], received=received)
    assert series.soundless == 2
    assert series.duplicate_s == pytest.approx([0.42])
