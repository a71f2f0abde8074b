"""The sender's clocks by its reports: planted drifts are found within their intervals, planted steps are set apart."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from analysis.errors import NotMeasurable
from analysis.rtcp import ntp_from_unix_ns
from analysis.sender_clock import SentAt, arrival_drift, sender_clock

RATE_HZ = 48_000
UNIX_NS = 1_900_000_000_000_000_000
STEP_OF_RTP_PPM = 0.2  # of a minute of reports that are exact to the tick of 1/48000 s


def ntp(second: float) -> int:
    return ntp_from_unix_ns(UNIX_NS + round(second * 1e9))


def sent(
    seconds: np.ndarray,
    *,
    ppm: float = 0.0,
    scatter_s: float = 0.0,
    rtp0: int = 0x10000000,
    seed: int = 0,
    rate_hz: int = RATE_HZ,
) -> list[SentAt]:
    """Reports at these seconds of the sender's NTP clock; its media clock runs `ppm` fast."""
    noise = np.random.default_rng(seed).normal(0, scatter_s, len(seconds)) if scatter_s else np.zeros(len(seconds))
    return [
        SentAt(round(s * 1e9), ntp(s), (rtp0 + round((s * (1 + ppm * 1e-6) + n) * rate_hz)) & 0xFFFFFFFF)
        for s, n in zip(seconds, noise, strict=True)
    ]


MINUTE = np.arange(60.0)


class TestSlope:
    @pytest.mark.parametrize("ppm", [-300.0, 0.0, 300.0])
    @pytest.mark.parametrize("rate_hz", [8_000, 48_000])
    def test_a_planted_drift_is_found_within_its_interval(self, ppm: float, rate_hz: int) -> None:
        found = sender_clock(sent(MINUTE, ppm=ppm, rate_hz=rate_hz), rate_hz)
        assert found.slope_ppm.low <= ppm <= found.slope_ppm.high
        # the tick of the timestamp is all that it is uncertain by
        assert found.slope_ppm.high - found.slope_ppm.low < 2 * STEP_OF_RTP_PPM * 48_000 / rate_hz
        assert (found.n, found.left_out) == (60, 0)

    @pytest.mark.parametrize("ppm", [-300.0, 300.0])
    def test_the_interval_holds_the_truth_as_often_as_it_says(self, ppm: float) -> None:
        held = 0
        for seed in range(200):
            s = sender_clock(sent(MINUTE, ppm=ppm, scatter_s=0.001, seed=seed), RATE_HZ).slope_ppm
            held += s.low <= ppm <= s.high
            assert s.high - s.low < 60
        assert held >= 180  # 190 expected, standard deviation 3

    def test_scatter_widens_it(self) -> None:
        exact = sender_clock(sent(MINUTE, ppm=40), RATE_HZ).slope_ppm
        loose = sender_clock(sent(MINUTE, ppm=40, scatter_s=0.002), RATE_HZ)
        assert loose.slope_ppm.high - loose.slope_ppm.low > 20 * (exact.high - exact.low)
        assert loose.residual_s == pytest.approx(0.002, rel=0.3)


class TestRobust:
    def test_a_wrap_of_the_timestamp_and_of_the_ntp_seconds(self) -> None:
        wraps = sent(MINUTE, ppm=100, rtp0=(1 << 32) - 30 * RATE_HZ)
        assert any(a.rtp_timestamp > b.rtp_timestamp for a, b in pairwise(wraps))
        era = [SentAt(r.arrival_ns, (r.ntp - ntp(30)) % (1 << 64), r.rtp_timestamp) for r in wraps]
        for reports in (wraps, era):
            found = sender_clock(reports, RATE_HZ)
            assert found.n == 60
            assert found.slope_ppm.value == pytest.approx(100, abs=STEP_OF_RTP_PPM)

    def test_reordered_and_repeated_reports(self) -> None:
        plain = sent(MINUTE, ppm=-150)
        mixed = [plain[i] for i in (1, 0, 2, 5, 3, 4, 4, 5, 2)] + plain[6:] + plain[::7]
        found, wanted = sender_clock(mixed, RATE_HZ), sender_clock(plain, RATE_HZ)
        assert found.n == 60
        assert found.slope_ppm.value == pytest.approx(wanted.slope_ppm.value, abs=0.01)

    @pytest.mark.parametrize("step_s", [-3600.0, -0.05, 0.05, 3600.0])
    def test_a_step_of_the_wall_clock_is_no_drift(self, step_s: float) -> None:
        plain = sent(MINUTE, ppm=300)
        shift = round(step_s * (1 << 32))
        stepped = plain[:20] + [SentAt(r.arrival_ns, r.ntp + shift, r.rtp_timestamp) for r in plain[20:]]
        found = sender_clock(stepped, RATE_HZ)
        assert (found.n, found.left_out) == (40, 20)
        assert found.slope_ppm.low <= 300 <= found.slope_ppm.high

    def test_a_report_that_is_overtaken_across_a_step_goes_to_its_own_side(self) -> None:
        plain = sent(MINUTE, ppm=10)
        after = [SentAt(r.arrival_ns, r.ntp + (60 << 32), r.rtp_timestamp) for r in plain[30:]]
        found = sender_clock([*plain[:29], after[0], plain[29], *after[1:]], RATE_HZ)
        assert (found.n, found.left_out) == (30, 30)

    def test_timestamps_that_begin_anew(self) -> None:
        plain = sent(MINUTE, ppm=-40)
        anew = [SentAt(r.arrival_ns, r.ntp, (r.rtp_timestamp + 0x55555555) & 0xFFFFFFFF) for r in plain[:25]]
        found = sender_clock(anew + plain[25:], RATE_HZ)
        assert (found.n, found.left_out) == (35, 25)
        assert found.slope_ppm.value == pytest.approx(-40, abs=1)

    def test_one_report_that_is_off_is_left_out(self) -> None:
        plain = sent(MINUTE, ppm=10)
        odd = SentAt(plain[30].arrival_ns, plain[30].ntp, (plain[30].rtp_timestamp + 20_000) & 0xFFFFFFFF)
        found = sender_clock([*plain[:30], odd, *plain[31:]], RATE_HZ)
        assert (found.n, found.left_out) == (59, 1)
        assert found.slope_ppm.value == pytest.approx(10, abs=STEP_OF_RTP_PPM)

    def test_pauses_between_reports(self) -> None:
        found = sender_clock(sent(np.cumsum([1.0, 1, 1, 30, 1, 1, 1, 5, 1, 1]), ppm=300), RATE_HZ)
        assert found.slope_ppm.value == pytest.approx(300, abs=1)


@pytest.mark.parametrize(
    "reports",
    [
        [],
        sent(np.arange(4.0)),  # too few
        sent(np.arange(0, 3, 0.2)),  # too short
        sent(np.zeros(50)),  # one report, fifty times
        [SentAt(i, (i * 7919 << 40) & (1 << 64) - 1, i * 104_729_000 & 0xFFFFFFFF) for i in range(50)],  # nonsense
    ],
)
def test_too_little_is_refused(reports: list[SentAt]) -> None:
    with pytest.raises(NotMeasurable) as refused:
        sender_clock(reports, RATE_HZ)
    assert refused.value.reason == "too_few_sender_reports"


class TestMapping:
    def test_there_and_back(self) -> None:
        plain = sent(MINUTE, ppm=250, rtp0=(1 << 32) - 30 * RATE_HZ)
        clock = sender_clock(plain, RATE_HZ)
        for report in plain:
            ticks = (clock.rtp_at(report.ntp) - report.rtp_timestamp + (1 << 31)) % (1 << 32) - (1 << 31)
            assert abs(ticks) <= 1
            assert abs(clock.ntp_at(report.rtp_timestamp) - report.ntp) / (1 << 32) < 2 / RATE_HZ

    def test_between_and_beyond_the_reports(self) -> None:
        clock = sender_clock(sent(MINUTE, rtp0=0), RATE_HZ)
        assert clock.rtp_at(ntp(12.5)) == 600_000
        assert clock.rtp_at(ntp(-1.0)) == (1 << 32) - 48_000
        assert clock.ntp_at(48_000 * 100) == pytest.approx(ntp(100.0), abs=(1 << 32) / RATE_HZ)


def impaired(path: str, seconds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Delays (s) on top of the least one, as they come of a path."""
    n, step_s = len(seconds), float(seconds[1] - seconds[0])
    if path == "one-sided":
        return rng.exponential(0.01, n)
    if path == "bursts":  # a link that stands for up to 0.3 s, some every 5 s
        delays = rng.exponential(0.003, n)
        for begin_s in rng.uniform(0, seconds[-1], 4):
            end_s = begin_s + rng.uniform(0.05, 0.3)
            delays += np.where((seconds >= begin_s) & (seconds < end_s), end_s - seconds, 0)
        return delays
    if path == "on and off":  # congested half of the time, some 4 s on end
        changes = rng.random(n) < step_s / 4
        congested = (np.cumsum(changes) + rng.integers(2)) % 2
        return rng.exponential(0.002, n) + congested * rng.uniform(0.01, 0.03, n)
    standing_s = float(path.split()[2])
    keep = np.exp(-step_s / standing_s)
    level = rng.normal()
    levels = np.empty(n)
    for k, kick in enumerate(rng.normal(0, np.sqrt(1 - keep**2), n)):
        level = levels[k] = keep * level + kick
    return 0.01 * levels**2


class TestArrivals:
    @staticmethod
    def stamps(ppm: float, count: int = 60, seed: int = 0, delay_s: float = 0.05) -> list[tuple[int, int]]:
        """A sender whose NTP clock runs `ppm` fast against ours; delays of 50 ms and a one-sided 10 ms on top."""
        delays = delay_s + np.random.default_rng(seed).exponential(0.01, count)
        return [(round((s + d) * 1e9), ntp(s * (1 + ppm * 1e-6))) for s, d in zip(range(count), delays, strict=True)]

    @pytest.mark.parametrize("ppm", [-300.0, 300.0])
    def test_a_planted_drift_is_found_within_its_interval(self, ppm: float) -> None:
        found = [arrival_drift(self.stamps(ppm, seed=seed)).drift_ppm for seed in range(100)]
        assert sum(s.low <= ppm <= s.high for s in found) >= 93
        # the least of 5 delays scatters by some 2 ms, over a minute
        assert np.median([s.high - s.low for s in found]) < 250

    @pytest.mark.parametrize("every_s", [1.0, 0.02])
    @pytest.mark.parametrize("path", ["one-sided", "bursts", "queue of 2 s", "queue of 10 s", "on and off"])
    def test_the_interval_holds_the_truth_in_short_calls(self, path: str, every_s: float) -> None:
        held = []
        for seed in range(80):
            rng = np.random.default_rng(seed)
            seconds = np.arange(0.0, 20.0, every_s)
            delays = 0.03 + impaired(path, seconds, rng)
            ppm = float(rng.choice([-100.0, 0.0]))
            stamps = [(round((s + d) * 1e9), ntp(s * (1 + ppm * 1e-6))) for s, d in zip(seconds, delays, strict=True)]
            drift = arrival_drift(stamps).drift_ppm
            held.append(drift.low <= ppm <= drift.high)
        assert sum(held) >= 0.93 * len(held)

    def test_the_offset_is_a_bound_from_above_that_the_delay_is_in(self) -> None:
        for delay_s in (0.0, 0.2):
            bound_ns = arrival_drift(self.stamps(0.0, 300, delay_s=delay_s)).offset_bound_ns
            # clocks that differ by UNIX_NS exactly; the least of the delays cannot be told from that
            assert 0 <= bound_ns + UNIX_NS - delay_s * 1e9 < 2e6

    def test_a_step_of_the_senders_clock_is_refused(self) -> None:
        plain = self.stamps(0.0)
        with pytest.raises(NotMeasurable) as refused:
            arrival_drift(plain[:30] + [(a, n + (5 << 32)) for a, n in plain[30:]])
        assert refused.value.reason == "sender_clock_stepped"

    @pytest.mark.parametrize(
        "stamps", [[], stamps(0.0, 17), [(0, 0)] * 50, [(k * 10**8, ntp(k / 10)) for k in range(90)]]
    )
    def test_too_little_is_refused(self, stamps: list[tuple[int, int]]) -> None:
        with pytest.raises(NotMeasurable) as refused:
            arrival_drift(stamps)
        assert refused.value.reason == "too_few_stamps"

    @pytest.mark.parametrize("step_s", [-5.0, -0.3, 0.3, 5.0])
    @pytest.mark.parametrize("at", [3, 6, 15, 30, 45, 54, 57])
    def test_a_step_anywhere_is_refused_or_in_the_interval(self, step_s: float, at: int) -> None:
        plain = self.stamps(0.0)
        stepped = plain[:at] + [(a, n + round(step_s * (1 << 32))) for a, n in plain[at:]]
        if 10 < at < 50:
            with pytest.raises(NotMeasurable, match="stepped"):
                arrival_drift(stepped)
        else:  # so near to an end, a step may look like a stall
            try:
                drift = arrival_drift(stepped).drift_ppm
            except NotMeasurable:
                return
            assert drift.low <= 0 <= drift.high

    @pytest.mark.parametrize("from_s", [0.0, 7.0, 30.0, 54.0])
    def test_a_stall_is_no_step(self, from_s: float) -> None:
        seconds = np.arange(0.0, 60.0, 0.02)
        stalled = (seconds >= from_s) & (seconds < from_s + 6)
        arrivals = np.where(stalled, np.maximum(seconds + 5.5, from_s + 6), seconds) + 0.03
        drift = arrival_drift([(round(a * 1e9), ntp(s)) for a, s in zip(arrivals, seconds, strict=True)]).drift_ppm
        assert drift.low <= 0 <= drift.high

    def test_the_order_does_not_matter(self) -> None:
        plain = self.stamps(50.0)
        assert arrival_drift(plain[::-1] + plain) == arrival_drift(plain)
