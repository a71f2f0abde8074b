"""The agent's configuration: from files and queries, round trips, and one line for each mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.errors import UsageError
from probe.agent.config import (
    AgentConfig,
    Bursts,
    InReply,
    agent_config_from_document,
    agent_config_from_query,
    load_agent_config,
)


def test_default_agent_is_the_one_described() -> None:
    config = AgentConfig()
    assert (config.seed, config.endpoint_silence_ms, config.think_ms) == (1, 300, (200, 900))
    assert (config.leading_silence_ms, config.stream, config.reply_level_dbov) == ((0, 400), "pauses", -20)
    assert config.impairment.in_order
    assert config.impairment.loss.random == 0


def test_query_sets_nested_keys_ranges_lists_and_nothing() -> None:
    config = agent_config_from_query(
        {
            "endpoint_silence_ms": "700",
            "think_ms": "500",
            "leading_silence_ms": "10, 20",
            "no_reply_turns": "1,3",
            "barge_in": "false",
            "ptime_ms": "40",
            "comfort_noise_dbov": "-50",
            "impairment.loss.random": "0.02",
            "impairment.loss.bursts.probability": "0.01",
            "impairment.loss.bursts.length": "2,8",
            "impairment.delay.trace.ms": "0,5,10",
            "impairment.ssrc_change_at.in_reply": "2",
        }
    )
    assert config.endpoint_silence_ms == 700
    assert config.think_ms == (500, 500)
    assert config.leading_silence_ms == (10, 20)
    assert config.no_reply_turns == (1, 3)
    assert not config.barge_in
    assert config.ptime_ms == 40
    assert config.impairment.loss.bursts == Bursts(probability=0.01, length=(2, 8))
    assert config.impairment.delay.trace is not None
    assert config.impairment.delay.trace.ms == (0, 5, 10)
    assert config.impairment.ssrc_change_at == InReply(in_reply=2)
    later = agent_config_from_query({"impairment.ssrc_change_at": "100,200", "comfort_noise_dbov": "none"}, config)
    assert later.impairment.ssrc_change_at == (100, 200)
    assert later.comfort_noise_dbov is None
    assert later.endpoint_silence_ms == 700


def test_file_and_json_give_the_same_configuration(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(
        'seed = 7\nstream = "continuous"\nthink_ms = [100, 200]\n'
        "[impairment]\nin_order = false\nssrc_change_at = [50]\n"
        "[impairment.delay]\nuniform = { high_ms = 40 }\n"
        "[impairment.loss]\ngilbert_elliott = { p = 0.01, r = 0.3 }\n"
    )
    config = load_agent_config(path)
    assert config.impairment.delay.uniform is not None
    assert config.impairment.delay.uniform.high_ms == 40
    assert AgentConfig.model_validate(json.loads(config.model_dump_json())) == config
    assert AgentConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"endpoint_silense_ms": "1"}, "unknown key endpoint_silense_ms; did you mean endpoint_silence_ms?"),
        ({"impairment.los.random": "1"}, "unknown key impairment.los; did you mean impairment.loss?"),
        ({"impairment.loss.rndom": "1"}, "did you mean impairment.loss.random?"),
        ({"random": "1"}, "did you mean impairment.loss.random?"),
        ({"impairment.ssrc_change_at.inreply": "2"}, "did you mean impairment.ssrc_change_at.in_reply?"),
        ({"zzz": "1"}, "unknown key zzz; docs/demo-agent.md lists every option"),
        ({"endpoint_silence_ms": "x"}, "endpoint_silence_ms: Input should be a valid number"),
        ({"impairment.loss.random": "2"}, "impairment.loss.random: Input should be less than or equal to 1, got '2'"),
        ({"impairment.loss.random": "nan"}, "finite number"),
        ({"think_ms": "900,200"}, "think_ms: the first number must not be greater than the second"),
        ({"impairment.delay.uniform.low_ms": "3"}, "impairment.delay.uniform.high_ms: Field required"),
        ({"impairment.delay.uniform": "5"}, "expected the keys low_ms, high_ms, got '5'"),
        ({"stream": "foo"}, "stream: Input should be 'pauses' or 'continuous', got 'foo'"),
        ({"ptime_ms": "30"}, "ptime_ms: Input should be 10, 20, 40 or 60, got 30"),
        ({"impairment.dtx": "true", "stream": "continuous"}, 'impairment.dtx: needs stream = "pauses"'),
        ({"language": "xx"}, "language: no sound for 'xx'; expected one of "),
    ],
)
def test_mistake_is_one_line_with_the_key_and_what_was_expected(options: dict[str, str], expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        agent_config_from_query(options)
    line = caught.value.line()
    assert expected in line
    assert "\n" not in line
    assert "pydantic" not in line


@pytest.mark.parametrize(
    ("text", "expected"), [("seed = ", "not TOML"), ("sed = 1", "did you mean seed?"), (None, "cannot be read")]
)
def test_file_that_cannot_be_used_is_named(tmp_path: Path, text: str | None, expected: str) -> None:
    path = tmp_path / "agent.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=r"agent\.toml") as caught:
        load_agent_config(path)
    assert expected in caught.value.line()


def test_a_scenario_may_have_a_language_that_the_agent_does_not_speak() -> None:
    assert agent_config_from_document({"language": "tlh"}, "config").language == "tlh"
