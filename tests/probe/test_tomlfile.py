"""TOML files for any reader: the error is of the kind that was asked for, and names the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from analysis.errors import BundleError
from probe.tomlfile import described, load_toml, shown


class Budget(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    p50: float
    p95: float = 0.0


def test_tables_come_out(tmp_path: Path) -> None:
    path = tmp_path / "budget.toml"
    path.write_text("[latency_ms]\np50 = 800\n")
    assert load_toml(path, BundleError) == {"latency_ms": {"p50": 800}}


def test_errors_are_of_the_kind_asked_for(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="No such file"):
        load_toml(tmp_path / "none.toml", BundleError)


def test_a_mistyped_key_is_told_before_the_one_that_is_missing() -> None:
    with pytest.raises(ValidationError) as caught:
        Budget.model_validate({"p500": 3})
    line = described(caught.value, expected={"p50": "a number"}, known=Budget.model_fields, nested={})
    assert line == "p500: unknown key, did you mean `p50`? (and 1 more)"


def test_values_are_shown_on_one_short_line() -> None:
    assert shown(True) == "true"
    assert shown("a\nb") == r"'a\nb'"
    assert len(shown("a" * 1000)) < 70
    assert shown(int("f" * 9000, 16)) == "a number of thousands of digits"
