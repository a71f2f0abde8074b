"""A result and its summary in, the report's plain words out: numbers as text, what they mean and what they do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.counting import counted
from analysis.drawing import plain
from analysis.result import (
    ANSWERED,
    CALL_FAILED,
    FLAG_NO_REPLY_EXPECTED,
    FLAG_WARM_UP,
    MEDIA_LOST,
    NO_REPLY,
    NOT_MEASURABLE,
    OVERLAPPED,
    PREMATURE,
    Result,
)
from analysis.series import CONCEALED

__all__ = [
    "LABEL_CHARS",
    "MISSING",
    "apart",
    "cautions",
    "counts",
    "evidence",
    "interval",
    "methods",
    "ms_text",
    "percent_text",
    "sentences",
    "value_text",
    "words",
]

LABEL_CHARS = 60
MISSING = "–"
LEAST_FOR_P95 = 20  # of fewer samples the P95 by nearest rank is the largest

RECORDED_START = "The last audible sample of the caller's words, as it lies in the recording."
START_TEXTS = {
    "sent": (
        "The last audible sample of the scripted utterance passes the virtual microphone of the probe. Capture before "
        "that point (microphone, driver, echo canceller) is not in the figure."
    ),
    "received": "The last audible sample of the caller's words, as the probe received it. Its way there is not in it.",
}
RECORDED_END = "The first audible sample of the reply's speech, as it lies in the recording."
END_TEXTS = {
    "modelled": "The first audible sample of the reply's speech that is played leaves the loudspeaker, as modelled.",
    "received": "The packet with the first audible sample of the reply's speech arrives.",
}
SPEECH = "Fillers count as speech; clicks, earcons and concealment do not."
AT_TEXTS = {
    "device": "The device's own ear: the acoustic paths between loudspeaker, device and microphone are taken out.",
    "recorded": "The recording microphone: no acoustic path is taken out.",
}
AUDIBLE = (
    "A 5 ms RMS window (1 ms hop) is at or above θ, and so are at least 24 of the 30 windows from it on. θ = max(F + "
    "10 dB, −60 dBov), F being the 10th percentile of the 20 ms frames in the 2 s before. Run backwards, the same rule "
    "finds the end of the caller's words."
)
RANKING = (
    "Percentiles by nearest rank over pooled turns. A turn without a reply, or one that the agent lost, ranks slower "
    "than all. Premature and overlapped turns stand outside as rates; turns that could not be measured, and faults of "
    "the probe, stand outside with the best and the worst percentile had they counted."
)
CAUTIONS = (
    "remote_response is the network both ways and the agent together. Half of a round trip is not a one-way delay.",
    "Percentiles of stages do not add up to the percentile of the whole: slow stages fall on different turns.",
    "The 95 % intervals speak of chance in this sample. The systematic uncertainty stands apart, turn by turn.",
    "The run speaks for its own network, place, hour and script (see the conditions), and for no other.",
    "A premature reply is not a fast reply: it stands outside the percentiles, so that cutting in is not rewarded.",
)


def ms_text(value: object, decimals: int = 1) -> str:
    """A number of milliseconds (or anything else that counts) for a table; a dash where there is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return MISSING if value is None else plain(value, LABEL_CHARS)
    if abs(value) >= 1e9:
        return f"{value:.3g}"
    return f"{round(value, decimals) + 0.0:,.{decimals}f}".replace("-", "\u2212")


def percent_text(value: float | None) -> str:
    """A share from 0 to 1 as per cent; a dash where there is none."""
    if value is None:
        return MISSING
    return f"{100 * value:.1f} %" if 0 < value < 1 else f"{100 * value:.0f} %"


def words(name: str) -> str:
    """A name of the contract as words."""
    return plain(name, LABEL_CHARS).replace("_", " ")


def interval(entry: Mapping[str, Any]) -> str:
    """The 95 % interval of a percentile, open ends said as such."""
    low, high, n = entry["low"], entry["high"], entry["n"]
    if n == 0:
        return "no turn to rank"
    if low is None and high is None:
        return "95 % interval: too few turns to bound"
    if high is None:
        return f"95 % interval: from {ms_text(low, 0)} ms; too few turns, or too few replies, to bound the upper end"
    if low is None:
        return f"95 % interval: up to {ms_text(high, 0)} ms; too few turns to bound the lower end"
    return f"95 % interval: {ms_text(low, 0)} to {ms_text(high, 0)} ms"


def value_text(entry: Mapping[str, Any], decimals: int = 0) -> str:
    """The value of a percentile, which may be that there was no reply."""
    if entry["value"] is None:
        return "no reply" if entry.get("no_reply") else MISSING
    return f"{ms_text(entry['value'], decimals)} ms"


def sentences(result: Result, summary: Mapping[str, Any]) -> list[str]:
    """What the headline means, in plain words."""
    p50, p95 = summary["percentiles_ms"]["p50"], summary["percentiles_ms"]["p95"]
    n = p50["n"]
    if n == 0:
        return ["No turn could be ranked, so there is no latency to report. The outcomes below say what happened."]
    ranked = "The one turn that was ranked" if n == 1 else f"Of the {counted(n, 'turn')} that were ranked"
    if p50["value"] is None:
        if n == 1:
            return [f"{ranked} was never answered."]
        return [f"{ranked}, half or more were never answered: there is no typical wait to report."]
    heard = "in the caller's ear" if result.boundaries.end.name == "audible_played" else "heard"
    if n == 1:
        return [
            f"{ranked} had the first audible speech of its reply {heard} {value_text(p50)} after the caller's last "
            "word. One turn says nothing about the next."
        ]
    text = f"{ranked}, half had the first audible speech of the reply {heard} within {value_text(p50)} of the caller's "
    if p95["value"] is None:
        return [f"{text}last word. At least one in twenty was never answered, so there is no P95 to wait for."]
    if n < LEAST_FOR_P95:
        said = [
            f"{text}last word, and all within {value_text(p95)}.",
            f"With n = {n:,} the P95 is no more than the slowest turn seen: an indication, not a figure to rely on.",
        ]
    else:
        said = [f"{text}last word, and 95 of 100 within {value_text(p95)}."]
        if p95["thin"]:
            said.append(
                f"With n = {n:,} the P95 rests on the few slowest turns seen: a rough figure (200 make it firm)."
            )
    meets = summary["meets_slow"]
    if meets["turns_per_call"] > 1:
        said.append(
            f"A call of {meets['turns_per_call']} turns has a chance of {100 * meets['p95']:.0f} % to meet at least "
            f"one turn slower than the P95, and of {100 * meets['p99']:.0f} % to meet one slower than the P99."
        )
    return said


def counts(summary: Mapping[str, Any]) -> str:
    """How many of the scheduled turns ended how."""
    seen = summary["outcomes"]
    failed = seen.get(CALL_FAILED, 0) + seen.get(MEDIA_LOST, 0)
    parts = [f"{seen.get(PREMATURE, 0):,} premature", f"{seen.get(NO_REPLY, 0):,} no reply", f"{failed:,} failed"]
    parts += [f"{seen[name]:,} {words(name)}" for name in (OVERLAPPED, NOT_MEASURABLE) if seen.get(name)]
    return f"{seen.get(ANSWERED, 0):,} of {counted(summary['scheduled'], 'turn')} answered, {', '.join(parts)}"


def evidence(result: Result) -> list[str]:
    """What each end of the interval rests on."""
    ends = result.boundaries
    lines = [f"{plain(end.name)} {plain(end.evidence)}" for end in (ends.start, ends.end)]
    if ends.policy is not None:
        lines.append(f"playout policy {plain(ends.policy)}")
    if ends.output is not None:
        lines.append(f"output delay {ms_text(ends.output.ms)} ms, {plain(ends.output.evidence)}")
    elif ends.policy is not None:
        lines.append("no output delay in the figure")
    return lines


def apart(summary: Mapping[str, Any]) -> list[str]:
    """What stands outside the percentiles, in words."""
    lines = []
    for key, what in (("first_after_idle", "The first turn after idle"), ("cold", "Cold turns")):
        if key in summary:
            block = summary[key]
            value = "no reply" if block.get("no_reply") else f"{ms_text(block['p50'])} ms"
            lines.append(f"{what}, reported apart: n = {block['n']}, P50 {value}.")
    for key, what in ((FLAG_WARM_UP, "warm-up"), (FLAG_NO_REPLY_EXPECTED, "asked for silence")):
        if summary[key]:
            lines.append(f"{counted(summary[key], 'turn')} ({what}) in no percentile and no rate.")
    return lines


def methods(result: Result) -> list[tuple[str, str]]:
    """How the figures came about, as pairs of a heading and its text."""
    ends = result.boundaries
    clock = plain(ends.start.clock)
    if clock == plain(ends.end.clock):
        clocks = f"Both boundaries lie on one clock ({clock}), so no offset between clocks is in the figure. "
    else:
        clocks = f"The start lies on {clock}, the end on {plain(ends.end.clock)}, with the offset as stated. "
    clocks += "What an agent reports stays on its own clock unless an offset was measured, which is then shown."
    rows = [
        (f"Start: {plain(ends.start.name)}", START_TEXTS.get(ends.start.evidence, RECORDED_START)),
        (f"End: {plain(ends.end.name)}", f"{END_TEXTS.get(ends.end.evidence, RECORDED_END)} {SPEECH}"),
        ("Clocks", clocks),
        ("Audible", f"{AUDIBLE}{_thresholds(result)}"),
    ]
    if ends.policy is not None:
        text = f"Modelled from the arrival of the packets, with the policy {plain(ends.policy)}."
        if ends.output is not None:
            text += f" After it {ms_text(ends.output.ms)} ms of output delay, {plain(ends.output.evidence)}."
        rows += [("Playout", text), ("Concealed", CONCEALED)]
    if ends.at is not None:
        rows.append(("Heard at", AT_TEXTS.get(ends.at, plain(ends.at))))
    return [*rows, ("Ranking", RANKING)]


def _thresholds(result: Result) -> str:
    """The thresholds that were in use, from the least to the largest."""
    found = []
    for key, where in (("start_dbov", "at the end of the caller's words"), ("end_dbov", "at the reply")):
        values = [value for turn in result.turns if isinstance(value := (turn.audibility or {}).get(key), (int, float))]
        if values:
            low, high = ms_text(min(values)), ms_text(max(values))
            found.append(f"{low} dBov {where}" if low == high else f"{low} to {high} dBov {where}")
    return f" In this run θ was {' and '.join(found)}." if found else ""


def cautions(result: Result, summary: Mapping[str, Any]) -> list[str]:
    """What the figures do not say."""
    ends = result.boundaries
    lines = list(CAUTIONS)
    if summary["percentiles_ms"]["p50"]["interval"] == "order-statistic":
        lines.append(
            "The intervals take turns as independent. Turns of one call often are not; then they are too narrow."
        )
    if ends.end.evidence == "modelled":
        lines.append(
            "The playout is modelled from the packets, not heard. A browser that asks for lost packets again, or is "
            "sent redundant ones, would have concealed less."
        )
    if ends.output is not None and ends.output.evidence == "assumed":
        lines.append("The output delay is assumed. A Bluetooth headset can add 100 ms and more.")
    if summary["outcomes"].get(NOT_MEASURABLE):
        lines.append("Turns that could not be measured may have been fast or slow: see best and worst.")
    return lines
