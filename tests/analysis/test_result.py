"""The result document: what is written was measured, what is read was written, and nothing else passes."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import analysis.result as result_module
from analysis.errors import UsageError
from analysis.result import (
    SCHEMA,
    Boundaries,
    Boundary,
    OutputDelay,
    Result,
    Source,
    Turn,
    exit_code,
    result_from_text,
    result_json_text,
)

BOUNDARIES = Boundaries(
    Boundary("speech_stop", "client-monotonic", "sent"),
    Boundary("audible_played", "client-monotonic", "modelled"),
    "chrome",
    OutputDelay(20.0, "assumed"),
)

# every field of the contract, with the values of its example
TURN: dict[str, Any] = {
    "call": 0,
    "index": 0,
    "language": "en",
    "segment": {"network": "wifi"},
    "outcome": "answered",
    "reason": None,
    "fault": None,
    "scheduled_s": 3.0,
    "start_slip_ms": 0.2,
    "speech_s": 3.0002,
    "speech_stop_s": 5.2041,
    "any_s": 6.0162,
    "audible_s": 6.0162,
    "content_s": 6.0162,
    "latency_ms": 812.1,
    "received_ms": 742.3,
    "uncertainty_ms": 4.294,
    "uncertainty_parts_ms": {"onset": 1.2, "playout_model": 4.0, "output": 1.0},
    "audibility": {
        "start_dbov": -60.0,
        "end_dbov": -60.0,
        "start_shift_ms": {"-10": -0.3, "+10": 0.4},
        "end_shift_ms": {"-10": 0.2, "+10": -0.5},
    },
    "stages_ms": {
        "packetization": 12.0,
        "remote_response": 690.2,
        "leading_silence": 47.6,
        "jitter_buffer": 42.3,
        "output": 20.0,
    },
    "variants_ms": {"fixed:150": 912.4},
    "network": {"rtt_ms": 1.1, "jitter_ms": 0.6, "lost": 0, "concealed_ms": 0.0},
    "turn_ms": None,
    "response_ms": None,
    "reported_ms": {"e2e_latency": 640.0},
    "yield_time_ms": None,
    "server_spans": [
        {
            "name": "llm_ttft",
            "start_s": 5.71,
            "duration_ms": 150.0,
            "clock": "agent-epoch",
            "mapping": "offset",
            "mapping_uncertainty_ms": 1.2,
        }
    ],
    "truth": {"received_ms": 742.2, "leading_silence_ms": 47.6},
    "flags": ["never_pauses"],
}
DOCUMENT: dict[str, Any] = {
    "schema": SCHEMA,
    "source": {"kind": "session", "path": "run", "target": "demo:", "calls": 1},
    "boundaries": {
        "start": {"name": "speech_stop", "clock": "client-monotonic", "evidence": "sent"},
        "end": {"name": "audible_played", "clock": "client-monotonic", "evidence": "modelled"},
        "policy": "chrome",
        "output": {"ms": 20.0, "evidence": "assumed"},
    },
    "turns": [TURN],
    "summary": {"scheduled": 1, "outcomes": {"answered": 1}},
}


def make(*turns: Turn) -> Result:
    return Result(Source("session", "run", "demo:", 1), BOUNDARIES, turns, {"scheduled": len(turns)})


def answered(**fields: Any) -> Turn:
    return Turn(call=0, index=0, outcome="answered", **({"latency_ms": 800.0} | fields))


def test_the_example_of_the_contract_survives_reading_and_writing_key_by_key() -> None:
    written = Result.from_json(DOCUMENT).to_json()
    assert written == DOCUMENT
    assert list(written["turns"][0]) == list(TURN)


def test_a_result_survives_its_text_and_the_text_is_the_same_each_time() -> None:
    result = make(answered(flags=("cold",), server_spans=({"name": "x"},), language="\u00e9s"))
    text = result_json_text(result)
    assert result_from_text(text.encode("utf-8")) == result
    assert result_json_text(result) == text
    assert "\u00e9s" in text


def test_milliseconds_keep_three_decimals_and_more_and_carry_no_float_noise() -> None:
    turn = answered(latency_ms=0.1 + 0.2, received_ms=742.123456789, speech_stop_s=5.123456789012, start_slip_ms=-1e-9)
    written = make(turn).to_json()["turns"][0]
    assert written["latency_ms"] == 0.3
    assert written["received_ms"] == 742.123457
    assert written["speech_stop_s"] == 5.123456789
    assert math.copysign(1.0, written["start_slip_ms"]) == 1.0  # no −0.0


def test_what_was_not_observed_is_null_and_a_stage_that_does_not_exist_is_absent() -> None:
    written = make(Turn(call=0, index=3, outcome="no_reply", stages_ms={"output": 20.0})).to_json()["turns"][0]
    assert written["latency_ms"] is None
    assert written["truth"] is None
    assert written["stages_ms"] == {"output": 20.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, np.float64("nan")])
@pytest.mark.parametrize("place", ["received_ms", "stages_ms", "server_spans", "summary"])
def test_nan_and_infinity_are_refused_wherever_they_are(bad: float, place: str) -> None:
    values: dict[str, Any] = {"received_ms": bad, "stages_ms": {"output": bad}, "server_spans": ({"start_s": bad},)}
    if place == "summary":
        result = replace(make(answered()), summary={"percentiles_ms": {"p50": {"value": bad}}})
    else:
        result = make(answered(**{place: values[place]}))
    with pytest.raises(ValueError, match=place):
        result_json_text(result)


def test_an_answered_turn_without_a_finite_latency_cannot_be_made() -> None:
    for latency_ms in (None, math.nan, math.inf):
        with pytest.raises(ValueError, match="latency_ms"):
            answered(latency_ms=latency_ms)


def test_numpy_scalars_become_json_numbers() -> None:
    written = json.loads(result_json_text(make(answered(network={"lost": np.int64(3), "rtt_ms": np.float32(1.5)}))))
    assert written["turns"][0]["network"] == {"lost": 3, "rtt_ms": 1.5}


def test_a_lone_surrogate_in_a_label_does_not_stop_the_file_from_being_written() -> None:
    assert b"?" in result_json_text(make(answered(language="\udcff"))).encode("utf-8")


def test_a_rig_adds_what_a_rig_has_and_nothing_else_does() -> None:
    rig = replace(
        make(answered(recorded_ms=790.0)),
        boundaries=replace(BOUNDARIES, at="recorded"),
        rig={"xruns": 0, "problems": []},
    )
    written = rig.to_json()
    assert written["boundaries"]["at"] == "recorded"
    assert written["turns"][0]["recorded_ms"] == 790.0
    assert Result.from_json(written) == rig
    plain = make(answered(recorded_ms=790.0)).to_json()
    assert "recorded_ms" not in plain["turns"][0]
    assert "at" not in plain["boundaries"]
    assert "rig" not in plain


def edited(path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(DOCUMENT)
    at: Any = document
    *parents, last = path.split("/")
    for key in parents:
        at = at[int(key) if isinstance(at, list) else key]
    if value is ...:
        del at[last]
    else:
        at[int(last) if isinstance(at, list) else last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema", "latency-probe/result/2"),
        ("schema", ...),
        ("source", ...),
        ("source/kind", "dream"),
        ("source/calls", -1),
        ("boundaries", []),
        ("boundaries/end/evidence", ...),
        ("boundaries/output/ms", "20"),
        ("turns", {}),
        ("turns/0", 7),
        ("turns/0/call", ...),
        ("turns/0/index", True),
        ("turns/0/outcome", "fine"),
        ("turns/0/fault", "network"),
        ("turns/0/latency_ms", None),
        ("turns/0/latency_ms", "812"),
        ("turns/0/latency_ms", math.nan),
        ("turns/0/latency_ms", 10**400),
        ("turns/0/stages_ms", {"output": None}),
        ("turns/0/call", 10**16),
        ("turns/0/network", {"lost": 10**400}),
        ("turns/0/truth", {"received_ms": -(10**400)}),
        ("turns/0/segment", {"network": 5}),
        ("turns/0/segment", ["network"]),
        ("turns/0/network", {"rtt_ms": math.inf}),
        ("turns/0/flags", "cold"),
        ("turns/0/flags", [1]),
        ("turns/0/server_spans", ["x"]),
        ("summary", ...),
        ("rig", 1),
    ],
)
def test_a_wrong_document_is_a_usage_error_of_one_line(path: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        Result.from_json(edited(path, value))
    line = caught.value.line()
    assert "\n" not in line
    assert len(line) < 300
    if path != "schema":
        assert path.split("/")[-1] in line or "turns[0]" in line


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "null", '"x"', '{"schema": NaN}', b"\xff\xfe\x00", "1e999"])
def test_text_that_is_no_result_is_a_usage_error_that_names_the_file(text: str | bytes) -> None:
    with pytest.raises(UsageError) as caught:
        result_from_text(text, name="run/result.json")
    assert caught.value.line().startswith("run/result.json: ")


def test_half_a_surrogate_pair_in_a_key_can_be_written() -> None:
    result = make(answered(segment={"a\ud800": "b\ud800"}))
    (turn,) = json.loads(result_json_text(result).encode())["turns"]
    assert turn["segment"] == {"a?": "b?"}


def test_keys_that_are_not_known_do_not_stop_an_older_reader() -> None:
    document = edited("turns/0/shoe_size", 44)
    assert Result.from_json(document).to_json() == DOCUMENT


def other(outcome: str, **fields: Any) -> Turn:
    return Turn(call=0, index=1, outcome=outcome, **fields)


@pytest.mark.parametrize(
    ("turns", "code"),
    [
        ([answered()], 0),
        ([other("no_reply")], 0),
        ([other("premature"), other("not_measurable")], 0),
        ([other("overlapped")], 0),
        ([other("not_measurable", reason="clipped")], 3),
        ([], 3),
        ([answered(), other("call_failed", fault="agent")], 4),
        ([answered(), other("media_lost", fault="probe")], 4),
        ([answered(), other("not_measurable", reason="disk_full")], 4),
    ],
)
def test_the_exit_code_is_the_contracts(turns: list[Turn], code: int) -> None:
    assert exit_code(make(*turns)) == code


def test_exports_exist() -> None:
    assert all(hasattr(result_module, name) for name in result_module.__all__)
