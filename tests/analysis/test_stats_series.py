"""Series from W3C snapshots: growth of counters, restarts, gaps, and files that come from anywhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.drawing import house_style
from analysis.errors import BundleError
from analysis.stats_figures import draw_statistics
from analysis.stats_series import StatsSeries, Trace, read_stats, stats_series

GOLDEN = Path(__file__).parent.parent / "golden" / "chrome"
SECOND = 1_000_000_000


def inbound(**fields: Any) -> dict[str, Any]:
    return {"type": "inbound-rtp", "id": "IN1", "kind": "audio", "ssrc": 7, **fields}


def series(*snapshots: list[dict[str, Any]], step_ns: int = SECOND) -> StatsSeries:
    return stats_series((i * step_ns, stats) for i, stats in enumerate(snapshots))


def browser(name: str) -> StatsSeries:
    """What Chromium said in a golden run, each of its polls as a snapshot."""
    polls = json.loads((GOLDEN / f"{name}.stats.json").read_text())
    polls.sort(key=lambda stats: stats["timestamp"])
    return stats_series((round(stats["timestamp"] * 1e6), [stats]) for stats in polls)


def test_values_over_a_window_are_growth_over_growth() -> None:
    found = series(
        [inbound(jitterBufferDelay=0.0, jitterBufferEmittedCount=0, jitterBufferTargetDelay=0.0, packetsReceived=0)],
        [
            inbound(
                jitterBufferDelay=1440.0,
                jitterBufferEmittedCount=48000,
                jitterBufferTargetDelay=960.0,
                packetsReceived=50,
            )
        ],
        [
            inbound(
                jitterBufferDelay=6240.0,
                jitterBufferEmittedCount=96000,
                jitterBufferTargetDelay=4800.0,
                packetsReceived=99,
            )
        ],
    ).inbound[0]
    assert found.jitter_buffer_delay_ms[1:] == pytest.approx([30.0, 100.0])
    assert found.target_delay_ms[1:] == pytest.approx([20.0, 80.0])
    assert found.received[1:] == pytest.approx([50, 49])
    assert np.isnan(found.jitter_buffer_delay_ms[0])
    assert found.name == "ssrc 0x00000007"


def test_concealment_in_milliseconds_is_told_by_the_source_or_by_its_codec_and_silence_is_a_part_of_it() -> None:
    def at(concealed: int, silent: int, **more: Any) -> dict[str, Any]:
        return inbound(concealedSamples=concealed, silentConcealedSamples=silent, codecId="C", **more)

    told = series(
        [at(0, 0, totalSamplesReceived=0, totalSamplesDuration=0.0)],
        [at(4800, 960, totalSamplesReceived=48000, totalSamplesDuration=1.0)],
    )
    assert told.inbound[0].concealed_ms[1] == pytest.approx(100)
    assert told.inbound[0].silent_ms[1] == pytest.approx(20)
    g722 = {"type": "codec", "id": "C", "mimeType": "audio/G722", "clockRate": 8000}
    by_codec = series([at(0, 0), g722], [at(1600, 0), g722])
    assert by_codec.inbound[0].concealed_ms[1] == pytest.approx(100)
    assert np.isnan(series([at(0, 0)], [at(1600, 0)]).inbound[0].concealed_ms).all()


def test_a_counter_that_goes_backwards_is_a_restart_and_never_negative() -> None:
    counts = [100, 150, 3, 53]
    found = series(*[[inbound(packetsReceived=n, packetsLost=0, concealedSamples=n)] for n in counts]).inbound[0]
    assert found.restarts == 1
    assert np.isnan(found.received[2])
    assert found.received[[1, 3]] == pytest.approx([50, 50])


def test_losses_that_are_taken_back_are_no_restart_and_not_negative() -> None:
    lost = [0, 5, 3, 4]
    found = series(*[[inbound(packetsReceived=50 * i, packetsLost=n)] for i, n in enumerate(lost)]).inbound[0]
    assert found.restarts == 0
    assert found.lost[1:] == pytest.approx([5, 0, 1])


def test_a_missing_value_or_snapshot_is_a_gap() -> None:
    rows = [inbound(packetsReceived=50 * i, jitter=0.002) for i in range(6)]
    del rows[3]["jitter"], rows[3]["packetsReceived"]
    found = series(*[[row] for row in rows]).inbound[0]
    assert np.flatnonzero(np.isnan(found.jitter_ms)).tolist() == [3]
    assert np.flatnonzero(np.isnan(found.received)).tolist() == [0, 3, 4]
    times = [0, 1, 2, 30, 31]
    late = stats_series((t * SECOND, [inbound(packetsReceived=50 * t)]) for t in times).inbound[0]
    assert np.isnan(late.received[3])
    assert late.received[4] == pytest.approx(50)


def test_the_same_words_again_are_no_new_sample() -> None:
    trips = [
        {"type": "remote-inbound-rtp", "id": "R", "kind": "audio", "timestamp": t, "roundTripTime": 0.04}
        for t in (1, 1, 2)
    ]
    (trace,) = series(*[[each] for each in trips]).round_trips
    assert len(trace.t_s) == 2
    assert trace.value_ms == pytest.approx([40, 40])


def test_round_trips_are_those_of_the_path_in_use() -> None:
    def pair(key: str, ms: float) -> dict[str, Any]:
        return {"type": "candidate-pair", "id": key, "currentRoundTripTime": ms / 1000}

    transport = {"type": "transport", "id": "T", "selectedCandidatePairId": "B"}
    (trace,) = series(*[[pair("A", 5), pair("B", 50), transport]] * 3).round_trips
    assert trace.value_ms == pytest.approx([50] * 3)
    assert trace.name == "by STUN"


def test_video_is_left_out() -> None:
    assert not series(*[[inbound(kind="video", packetsReceived=n)] for n in range(3)]).plottable


@pytest.mark.parametrize(("name", "delay_ms"), [("clean", 29.8), ("spikes", 154.3), ("uniform40", 60.9)])
def test_of_a_real_browser_the_mean_of_the_windows_is_its_own_mean(name: str, delay_ms: float) -> None:
    found = browser(name)
    delay = found.inbound[0].jitter_buffer_delay_ms
    # windows are equally long, but for those in which little was played
    assert np.nanmean(delay) == pytest.approx(delay_ms, rel=0.03)
    assert np.nanmean(found.playout_delays[0].value_ms) == pytest.approx(30, abs=15)
    assert found.warnings == ()


def test_of_a_real_browser_everything_is_drawn() -> None:
    with house_style():
        drawn = draw_statistics(browser("bursty_loss"), "0")
    assert [each.kind for each in drawn] == [
        "reported-delay",
        "reported-network",
        "reported-loss",
        "reported-distribution",
    ]
    assert all("n = " in each.caption for each in drawn)
    last = [each for each in json.loads((GOLDEN / "bursty_loss.stats.json").read_text()) if "packetsLost" in each][-1]
    # what was lost before the first poll is in no window
    said = re.search(r"([\d,]+) packets received, (\d+) lost", drawn[2].caption)
    assert said is not None
    assert 0 <= last["packetsLost"] - int(said[2]) <= 4
    assert 0 <= last["packetsReceived"] - int(said[1].replace(",", "")) <= 60


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b'{"t_ns": 5}',
        b'{"t_ns": "5", "stats": []}',
        b'{"t_ns": true, "stats": []}',
        b'{"t_ns": 1e300, "stats": []}',
        b'{"t_ns": 99999999999999999999999999, "stats": []}',
        b'{"t_ns": 5, "stats": {}}',
        b"[" * 100_000,
        b"9" * 10_000,
        b"\xff\xfe\x00",
        b"null",
    ],
)
def test_a_broken_line_is_left_out_and_said(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "stats.jsonl"
    good = [json.dumps({"t_ns": i * SECOND, "stats": [inbound(packetsReceived=50 * i)]}).encode() for i in range(3)]
    path.write_bytes(b"\n".join([good[0], line, b"", good[1], good[2]]))
    warnings: list[str] = []
    found = stats_series(read_stats(path, warnings), warnings=warnings)
    assert found.snapshots == 3
    assert found.warnings == ("stats.jsonl: 1 line left out: cut off, or no snapshot",)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300, 10**400, -(10**30), "12", None, [], {}, True])
def test_what_is_no_sensible_number_is_not_there(value: Any) -> None:
    rows = [[inbound(packetsReceived=50 * i, jitter=value, jitterBufferDelay=value)] for i in range(3)]
    found = series(*rows).inbound[0]
    assert np.isnan(found.jitter_ms).all()
    assert np.isnan(found.jitter_buffer_delay_ms).all()
    assert found.received[1:] == pytest.approx([50, 50])


def test_snapshots_that_step_back_in_time_are_left_out_and_said() -> None:
    found = stats_series((t * SECOND, [inbound(packetsReceived=50)]) for t in (0, 1, 1, 0, 2))
    assert found.snapshots == 3
    assert found.warnings == ("1 snapshot left out: earlier than the one before",)


def test_a_flood_of_objects_is_bounded_and_said() -> None:
    flood = [inbound(id=f"IN{i}", packetsReceived=1) for i in range(500)]
    found = series(flood, flood)
    assert len(found.inbound) == 200
    assert any("left out" in text for text in found.warnings)


def test_a_file_that_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be read"):
        stats_series(read_stats(tmp_path / "stats.jsonl", []))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(["id", "kind", "ssrc", "timestamp", "codecId", "jitter", "packetsReceived", "packetsLost"])
OBJECTS = st.dictionaries(NAMES | st.sampled_from(["jitterBufferDelay", "jitterBufferEmittedCount"]), VALUES)
TYPES = st.sampled_from(["inbound-rtp", "codec", "transport", "candidate-pair", "media-playout", "remote-inbound-rtp"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 50), TYPES, OBJECTS), max_size=12))
def test_anything_that_claims_to_be_statistics_is_survived(rows: list[tuple[int, str, dict[str, Any]]]) -> None:
    found = stats_series((t * SECOND, [{**stats, "type": kind}]) for t, kind, stats in rows)
    for stream in found.inbound:
        for values in (stream.received, stream.lost, stream.jitter_buffer_delay_ms, stream.concealed_ms):
            assert not (values < 0).any()


def test_hostile_values_draw() -> None:
    rows = [[inbound(packetsReceived=9e14 * (i % 2), jitter=9e14, jitterBufferEmittedCount=i)] for i in range(30)]
    with house_style():
        assert draw_statistics(series(*rows), "0")


def test_round_trips_by_one_source_have_one_colour_on_all_connections() -> None:
    def colours(*kinds: str) -> dict[str, str]:
        time = np.arange(5.0)
        traces = tuple(Trace(f"by {kind}", time, np.full(5, 40.0)) for kind in kinds)
        with house_style():
            (drawn,) = draw_statistics(StatsSeries(5, (0.0, 4.0), (), round_trips=traces), "0")
        found = re.findall(r"stroke: var\(--(\w+),#\w+\); stroke-width: 1.4", drawn.svg)
        return dict(zip(kinds, dict.fromkeys(found), strict=True))

    assert colours("RTCP", "STUN")["STUN"] == colours("STUN")["STUN"]
    assert len(set(colours("RTCP", "STUN").values())) == 2
