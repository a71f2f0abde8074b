"""What of a dump's texts is written down: those that statistics define, and none that lets somebody in."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from analysis.dumps import Dump, parse_dump, read_dump
from analysis.dumps.objects import w3c_objects
from analysis.dumps.texts import MAX_TEXT_CHARS, plain_id, plain_text
from analysis.errors import UsageError

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "dumps"
AT = 1_780_000_000_000.0
ODD: dict[str, Any] = {  # in a candidate
    "usernameFragment": "SECRET01",
    "credential": "SECRET02",
    "authToken": "SECRET03",
    "apiKey": "SECRET04",
    "key": "SECRET05",
    "sdp": "v=0\r\na=ice-pwd:SECRET06",
    "label": "SECRET07",
    "sessionId": "SECRET08",
    "networkId": "https://a.example/c?token=SECRET09",
    "networkType": "Bearer SECRET10",
    "url": "turn:SECRET11:SECRET12@turn.example:3478?transport=udp&k=SECRET13",
    "address": "a=ice-pwd:SECRET14",
    "foundation": {"credential": "SECRET15", "other": "SECRET16"},
    "tags": ["SECRET17"],
    "SECRET18 is no name": 1,
    "relatedAddress": "x\nSECRET19",
    "protocol": "SECRET20" * 26,
}
PLAIN: dict[str, Any] = {
    "port": 3478,
    "candidateType": "relay",
    "relayProtocol": "udp",
    "someCount": 7,
    "someFlag": True,
}


def dumps() -> dict[str, str]:
    """One candidate, in every form of a dump."""
    candidate = {**ODD, **PLAIN}
    report = {"id": "L1", "type": "local-candidate", "timestamp": AT, **candidate}
    series = {
        f"L1-{name}": {
            "statsType": "local-candidate",
            "startTime": AT,
            "endTime": AT + 1000,
            "values": json.dumps([AT, AT + 1000] if name == "timestamp" else [v] * 2),
        }
        for name, v in {**candidate, "timestamp": AT}.items()
    }
    return {
        "webrtc-internals": json.dumps({"PeerConnections": {"1-1": {"stats": series}}}),
        "rtcstats": json.dumps(["getStats", "PC_0", {"L1": report}, AT]),
        "getstats": json.dumps([report]),
    }


def everything(dump: Dump) -> list[Any]:
    return [s.stats for c in dump.peer_connections for s in c.snapshots]


@pytest.mark.parametrize("form", sorted(dumps()))
def test_no_odd_text_comes_through_and_that_is_said(form: str) -> None:
    dump = parse_dump(dumps()[form])
    assert dump is not None
    assert dump.format == form
    stats = everything(dump)
    assert "SECRET" not in json.dumps(stats)
    assert stats
    for (candidate,) in stats:
        assert candidate.items() >= PLAIN.items()
        assert candidate["url"] == "turn:turn.example:3478"
    warnings = [*dump.warnings, *(w for c in dump.peer_connections for w in c.warnings)]
    # names that speak of credentials are left out as ever; 12 others hold text that is not theirs to hold
    assert [w for w in warnings if w.startswith("12 fields hold text")], warnings


@pytest.mark.parametrize(
    "name",
    ["chromium156_internals.gz", "chromium156_rtcstats.gz", "before_m117.json", "legacy.json", "rtcstats_v3.txt"],
)
def test_nothing_that_browsers_write_is_odd(name: str) -> None:
    dump = read_dump(GOLDEN / name)
    said = [*dump.warnings, *(w for c in dump.peer_connections for w in c.warnings)]
    assert not [w for w in said if "text" in w]


def test_ids_stay_distinct_and_references_still_refer() -> None:
    ids = [
        "a b",
        "a_b",
        "x" * 500 + "1",
        "x" * 500 + "2",
        "Bearer abc",
        "CITAudio_111_minptime=10;useinbandfec=1",
        "{0-9}",
    ]
    plain = [plain_id(i) for i in ids]
    assert len(set(plain)) == len(ids)
    assert max(map(len, plain)) <= MAX_TEXT_CHARS
    assert plain[-2:] == ids[-2:]
    assert "abc" not in plain[4]
    for id_ in ids:
        one, other = w3c_objects([(id_, {"type": "codec"}), ("in", {"type": "inbound-rtp", "codecId": id_})])
        assert other["codecId"] == one["id"]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("kind", "audio", "audio"),
        ("decoderImplementation", "libvpx (fallback from: NVDEC)", "libvpx (fallback from: NVDEC)"),
        ("googExpandRate", "0.0125", "0.0125"),  # legacy dumps write numbers as text
        ("unknown", "-1", "-1"),
        ("unknown", "true", "true"),
        ("unknown", "word", None),
        ("unknown", "1" * 25, None),
        ("mimeType", "a" * MAX_TEXT_CHARS, "a" * MAX_TEXT_CHARS),
        ("mimeType", "a" * (MAX_TEXT_CHARS + 1), None),
    ],
)
def test_one_text(name: str, value: str, expected: str | None) -> None:
    assert plain_text(name, value) == expected


def test_the_label_of_a_data_channel_stays() -> None:
    left_out: set[str] = set()
    channel, track = w3c_objects(
        [("D1", {"type": "data-channel", "label": "chat"}), ("T1", {"type": "track", "label": "chat"})], left_out
    )
    assert channel["label"] == "chat"
    assert "label" not in track
    assert left_out == {"label"}


@pytest.mark.parametrize("length", [10, 14, 20])
def test_a_gzip_file_without_a_whole_byte_of_text_is_cut_off_and_not_empty(tmp_path: Path, length: int) -> None:
    path = tmp_path / "dump.gz"
    path.write_bytes((GOLDEN / "chromium156_internals.gz").read_bytes()[:length])
    with pytest.raises(UsageError, match="cut off"):
        read_dump(path)
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(UsageError, match="is empty"):
        read_dump(path)
