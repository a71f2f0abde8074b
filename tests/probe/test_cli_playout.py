"""The `playout` command: the document of the contract, the text for a person, and what it says of bad input."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from analysis.call import ASSUMED_OUTPUT
from analysis.pcap import Direction, Endpoints, pcap_header
from analysis.rtcp import (
    ReportBlock,
    SenderInfo,
    compound,
    middle_ntp,
    ntp_from_unix_ns,
    serialize_receiver_report,
)
from analysis.rtp import RtpPacket, serialize_rtp
from benchmarks.chrome_reference_files import GOLDEN, Row, browser_series
from probe.cli import main

START_NS = 1_800_000_000_000_000_000
A, B = ("192.0.2.1", 5004), ("192.0.2.2", 5006)
ENTRY = {
    "ssrc",
    "codec",
    "payload_type",
    "source",
    "destination",
    "direction",
    "start_s",
    "inbound_rtp",
    "series",
    "warnings",
}


def playout(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["playout", *map(str, arguments)])
    printed = capsys.readouterr()
    return int(left.value.code or 0), printed.out, printed.err


def document(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code, out, _ = playout(capsys, *arguments, "--json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    return found


def capture(path: Path, *streams: tuple[int, int, int]) -> Path:
    """A capture of G.711 streams of one second: (SSRC, payload type, ms after the first)."""
    own = Endpoints(Direction.RECEIVED, A, B)
    records = [
        (START_NS + (after_ms + 20 * i) * 1_000_000, RtpPacket(pt, i, 160 * i, ssrc, b"\xff" * 160))
        for ssrc, pt, after_ms in streams
        for i in range(50)
    ]
    records.sort(key=lambda record: record[0])
    path.write_bytes(pcap_header() + b"".join(own.record(t, serialize_rtp(p)) for t, p in records))
    return path


def test_the_document(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = capture(tmp_path / "two.pcap", (0x12345678, 0, 0), (9, 8, 300))
    found = document(capsys, path, "--policy", "fixed:60")
    assert set(found) == {"schema", "policy", "duration_s", "streams", "warnings"}
    assert found["schema"] == "latency-probe/playout/1"
    assert found["policy"] == "fixed:60"
    assert found["duration_s"] == pytest.approx(1.28)
    assert [(s["ssrc"], s["codec"], s["payload_type"]) for s in found["streams"]] == [
        (0x12345678, "pcmu", 0),
        (9, "pcma", 8),
    ]
    for stream in found["streams"]:
        assert set(stream) >= ENTRY
        assert stream["direction"] == "received"
        said = stream["inbound_rtp"]
        assert said["packetsReceived"] == 50
        assert said["packetsLost"] == 0
        assert said["jitter"] == 0
        assert said["jitterBufferEmittedCount"] == 8000
        assert said["jitterBufferDelay"] == said["jitterBufferTargetDelay"] == pytest.approx(8000 * 0.06)
        assert {tuple(p)[:4] for p in stream["series"]} == {
            ("t_s", "jitter_buffer_delay_ms", "target_delay_ms", "concealed_ms")
        }
        # from the stream's own first packet, every 200 ms; the last packet is played 1.04 s after it
        assert [p["t_s"] for p in stream["series"]] == [0.2, 0.4, 0.6, 0.8, 1.0, 1.2]
        assert {p["jitter_buffer_delay_ms"] for p in stream["series"]} == {60.0}
    assert [s["start_s"] for s in found["streams"]] == [0.0, 0.3]


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.pcap")))
def test_the_mean_is_that_of_a_browser(capsys: pytest.CaptureFixture[str], name: str) -> None:
    (stream,) = document(capsys, GOLDEN / f"{name}.pcap")["streams"]
    said, browser = stream["inbound_rtp"], browser_series(GOLDEN / f"{name}.stats.json")
    theirs = Row.at(browser, browser["t"][browser["t"] <= said["lastPacketReceivedTimestamp"] / 1000][-1])
    # as in tests/analysis/test_chrome_reference.py; that poll of the browser came at most 200 ms before the end
    assert 1000 * said["jitterBufferDelay"] / said["jitterBufferEmittedCount"] == pytest.approx(
        theirs.delay, abs=max(2.0, 0.04 * theirs.delay)
    )
    assert stream["warnings"] == ["payload type 96: assumed Opus, since its packets last as long as they should"]


def test_one_block_for_a_person(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = capture(tmp_path / "one.pcap", (0x12345678, 0, 0))
    code, out, err = playout(capsys, path, "--policy", "fixed:60")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "ssrc 0x12345678 (305419896)  pcmu, payload type 0  192.0.2.1:5004 → 192.0.2.2:5006, received",
        "  packets    50 in 1.0 s, 0 lost (0.0 %)",
        "  jitter     0.0 ms at the end (mean 0.0, highest 0.0)",
        "  fixed:60   jitter buffer 60.0 ms in the mean, target 60.0 ms",
        "             concealed 0.0 ms, inserted 0.0 ms, removed 0.0 ms, 0 packets discarded",
    ]


@pytest.mark.parametrize("ssrc", ["9", "0x9", "0X00000009"])
def test_one_stream_of_several(capsys: pytest.CaptureFixture[str], tmp_path: Path, ssrc: str) -> None:
    path = capture(tmp_path / "two.pcap", (0x12345678, 0, 0), (9, 8, 300))
    (stream,) = document(capsys, path, "--ssrc", ssrc, "--policy", "none")["streams"]
    assert stream["ssrc"] == 9
    assert stream["start_s"] == 0.0


def test_a_stream_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = capture(tmp_path / "two.pcap", (0x12345678, 0, 0), (9, 8, 300))
    code, out, err = playout(capsys, path, "--ssrc", "10")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "0x12345678 (50 packets), 0x00000009 (50 packets)" in err


def test_a_codec_that_nothing_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = capture(tmp_path / "one.pcap", (7, 96, 0))
    code, out, err = playout(capsys, path, "--policy", "none")
    assert (code, out, len(err.splitlines())) == (3, "", 1)
    assert "payload type 96" in err
    assert "--payload-type" in err
    (stream,) = document(capsys, path, "--policy", "none", "--payload-type", "96=PCMU")["streams"]
    assert (stream["codec"], stream["warnings"]) == ("pcmu", [])
    both = capture(tmp_path / "two.pcap", (7, 96, 0), (9, 8, 300))
    found = document(capsys, both, "--policy", "none")
    assert [s["ssrc"] for s in found["streams"]] == [9]
    assert found["warnings"] == ["ssrc 0x00000007: codec not known (payload type 96)"]


def test_a_session_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    capture(tmp_path / "packets.pcap", (7, 96, 0))
    event = {"t_ns": 1, "type": "media_negotiated", "payload_types": {"96": "pcmu"}}
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n")
    (stream,) = document(capsys, tmp_path, "--policy", "none")["streams"]
    assert (stream["codec"], stream["warnings"]) == ("pcmu", [])


def test_a_capture_that_was_cut_off_is_used_as_far_as_it_goes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = capture(tmp_path / "one.pcap", (7, 0, 0))
    path.write_bytes(path.read_bytes()[:-10])
    code, out, err = playout(capsys, path, "--policy", "none", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["streams"][0]["inbound_rtp"]["packetsReceived"] == 49
    assert "cut off" in found["warnings"][0]
    assert "cut off" in err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["absent.pcap"], 2, "absent.pcap"),
        (["text"], 2, "not a capture"),
        (["empty"], 2, "is empty"),
        (["folder"], 2, "neither packets.pcap nor manifest.json"),
        (["silent.pcap"], 3, "no RTP"),
        (["silent.pcap", "--policy", "magic"], 2, "fixed:MS"),
        (["silent.pcap", "--ssrc", "0x100000000"], 2, "--ssrc"),
        (["silent.pcap", "--ssrc", "voice"], 2, "--ssrc"),
        (["silent.pcap", "--payload-type", "128=opus"], 2, "--payload-type"),
        (["silent.pcap", "--payload-type", "96=amr"], 2, "opus, pcmu, pcma, g722"),
        (["silent.pcap", "--payload-type", "opus"], 2, "PT=CODEC"),
        ([], 2, "CAPTURE"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    (tmp_path / "text").write_text("no packets here\n")
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "silent.pcap").write_bytes(pcap_header())
    monkeypatch.chdir(tmp_path)
    got, out, err = playout(capsys, *arguments)
    assert (got, out, len(err.splitlines())) == (code, "", 1)
    assert err.startswith("latency-probe: ")
    assert said in err


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = playout(capsys, "--help")
    assert code == 0
    assert "Example: latency-probe playout" in out


def test_a_page_of_plots_for_each_stream_beside_the_document(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, page = capture(tmp_path / "two.pcap", (0x12345678, 0, 0), (9, 8, 300)), tmp_path / "two.html"
    code, out, _ = playout(capsys, path, "-o", page, "--policy", "fixed:60", "--json")
    assert code == 0
    assert len(json.loads(out)["streams"]) == 2
    html = page.read_text()
    for kind in ("playout", "arrival", "loss", "delay"):
        assert html.count(f'data-kind="{kind}"') == 2
    assert "<h2>Stream 0x12345678</h2>" in html
    assert "jitterBufferEmittedCount" in html
    assert "fixed:60" in html
    assert "no user latency" in html
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids))
    assert not re.search(r'(?:src|href)="(?!#)|url\((?!#)|<script|https?://', html)
    assert playout(capsys, path, "-o", tmp_path / "again.html", "--policy", "fixed:60")[1].endswith("again.html\n")
    assert (tmp_path / "again.html").read_text().replace("again.html", "two.html") == html


def test_a_page_of_a_stream_that_is_not_played_has_its_packets_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, page = capture(tmp_path / "one.pcap", (5, 96, 0)), tmp_path / "one.html"
    # 160 bytes of mu-law are no Opus packets of 160 ticks
    code, _, _ = playout(capsys, path, "-o", page, "--payload-type", "96=opus")
    assert code == 0
    html = page.read_text()
    assert 'data-kind="arrival"' in html
    assert 'data-kind="loss"' in html
    assert "not played" in html
    assert "too late" not in html.partition("How this was worked out")[0]


def test_a_page_that_cannot_be_written_is_said_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = capture(tmp_path / "one.pcap", (5, 0, 0))
    code, _, err = playout(capsys, path, "-o", tmp_path / "no" / "page.html")
    assert code == 2
    assert "cannot be written" in err


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "arguments",
    [
        ("x.pcap", "--stats", "x.pcap"),
        ("x.pcap", "-o", "x.pcap"),
        ("x.pcap", "-o", "link"),
        ("x.pcap", "--stats", "call/../x.pcap"),
        ("link", "--stats", "x.pcap"),
        ("x.pcap", "--stats", "hard"),
        ("x.pcap", "-o", "page", "--stats", "page"),
        ("x.pcap", "-o", "page", "--stats", "dangling"),
        ("call", "--stats", "call/packets.pcap"),
        ("call", "--stats", "call/stats.jsonl"),
        ("call/packets.pcap", "-o", "call/manifest.json"),
        ("x.pcap", "-o", "call/events.jsonl"),
        ("x.pcap", "-o", "call/recording.flac"),
        ("x.pcap", "-o", "call/utterances/00.flac"),
        ("x.pcap", "-o", "run.json"),
        ("call", "-o", "clip"),
    ],
)
def test_nothing_that_was_recorded_is_written_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    capture(tmp_path / "x.pcap", (7, 0, 0))
    (tmp_path / "link").symlink_to(tmp_path / "x.pcap")
    (tmp_path / "hard").hardlink_to(tmp_path / "x.pcap")
    (tmp_path / "dangling").symlink_to(tmp_path / "page")
    (tmp_path / "run.json").write_text("{}")
    call = tmp_path / "call"
    (call / "utterances").mkdir(parents=True)
    capture(call / "packets.pcap", (7, 0, 0))
    for name in ("manifest.json", "utterances/00.flac"):
        (call / name).write_text("{}")
    (tmp_path / "clip").symlink_to(call / "utterances" / "00.flac")
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    code, out, err = playout(capsys, *arguments, "--policy", "none")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert arguments[-2] in err
    assert contents(tmp_path) == before


def test_outputs_beside_what_was_recorded_are_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = capture(tmp_path / "packets.pcap", (7, 0, 0))
    page, lines = tmp_path / "page.html", tmp_path / "stats.jsonl"  # no bundle: its own name is nobody's
    for _ in range(2):
        assert playout(capsys, path, "-o", page, "--stats", lines, "--policy", "none")[0] == 0
    assert page.stat().st_size > 0
    assert playout(capsys, path, "-o", "/dev/null", "--stats", "/dev/null", "--policy", "none")[0] == 0


@pytest.mark.parametrize("option", ["-o", "--stats"])
def test_a_place_that_cannot_be_written_is_said_before_the_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str
) -> None:
    for place in (tmp_path, tmp_path / "no" / "file"):
        code, _, err = playout(capsys, tmp_path / "absent.pcap", option, place)
        assert code == 2
        assert "cannot be written" in err
        assert option in err


def test_imported_statistics_have_no_packets(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    clock = {"monotonic_ns": 0, "wall_ns": START_NS}
    manifest = {"schema": "latency-probe/bundle/1", "source": {"kind": "import"}, "clock": clock, "turns": []}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    code, _, err = playout(capsys, tmp_path)
    assert code == 3
    assert "use `latency-probe report`" in err


class TestReportsAndSnapshots:
    def with_reports(self, path: Path) -> Path:
        """Ten seconds of G.711 with a sender report each second: its media run 200 ppm fast against its clock."""
        own = Endpoints(Direction.RECEIVED, A, B)
        records = []
        for i in range(500):
            time_ns = START_NS + 20 * i * 1_000_000
            records.append(own.record(time_ns, serialize_rtp(RtpPacket(0, i, 160 * i, 7, b"\xff" * 160))))
            if i % 50 == 0:
                sender = SenderInfo(ntp_from_unix_ns(time_ns), round(160 * i * (1 + 200e-6)), i, 160 * i)
                report = compound(serialize_receiver_report(7, [], sender), 7, "sender")
                records.append(own.record(time_ns, report))
        path.write_bytes(pcap_header() + b"".join(records))
        return path

    def test_the_senders_clock_of_a_bare_capture(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        path = self.with_reports(tmp_path / "x.pcap")
        (stream,) = document(capsys, path, "--policy", "none")["streams"]
        slope = stream["sender_clock"]["slope_ppm"]
        assert slope["low"] <= 200 <= slope["high"]
        # stamps are whole ticks of 125 us over 9 s
        assert slope["value"] == pytest.approx(200, abs=15)
        assert stream["remote_outbound_rtp"]["packetsSent"] == 450
        assert "roundTripTime" not in stream["remote_outbound_rtp"]
        assert "remote_inbound_rtp" not in stream
        code, out, _ = playout(capsys, path, "--policy", "none")
        assert code == 0
        assert "ppm against its own clock" in out

    def test_snapshots_as_getstats_would_say_them(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        path, lines = self.with_reports(tmp_path / "x.pcap"), tmp_path / "x.jsonl"
        (stream,) = document(capsys, path, "--policy", "fixed:60", "--stats", lines, "--stats-interval", "0.5")[
            "streams"
        ]
        snapshots = [json.loads(line) for line in lines.read_text().splitlines()]
        steps = {b["t_ns"] - a["t_ns"] for a, b in pairwise(snapshots)}
        assert steps == {500_000_000}
        counts = [s["packetsReceived"] for each in snapshots for s in each["stats"] if s["type"] == "inbound-rtp"]
        assert counts[:3] == [26, 51, 76]
        (last,) = [s for s in snapshots[-1]["stats"] if s["type"] == "inbound-rtp"]
        said = stream["inbound_rtp"]
        assert {name: last[name] for name in ("packetsReceived", "jitterBufferEmittedCount", "concealedSamples")} == {
            name: said[name] for name in ("packetsReceived", "jitterBufferEmittedCount", "concealedSamples")
        }
        assert last["jitterBufferDelay"] == pytest.approx(said["jitterBufferDelay"])
        playout_ids = {s["id"] for s in snapshots[-1]["stats"] if s["type"] == "media-playout"}
        assert playout_ids == {last["playoutId"]}

    def call_of_two(self, path: Path) -> Path:
        """Two seconds each way; we report each second, and the other end answers our report 80 ms later."""
        there, back = Endpoints(Direction.SENT, A, B), Endpoints(Direction.RECEIVED, B, A)
        records: list[tuple[int, bytes]] = []
        for i in range(100):
            time_ns = START_NS + 20 * i * 1_000_000
            records.append((time_ns, there.record(time_ns, serialize_rtp(RtpPacket(0, i, 160 * i, 7, b"\xff" * 160)))))
            later_ns = time_ns + 5_000_000
            packet = RtpPacket(0, i, 160 * i, 77, b"\xff" * 160, padding=4)
            records.append((later_ns, back.record(later_ns, serialize_rtp(packet))))
            if i % 50 == 10:
                sender = SenderInfo(ntp_from_unix_ns(time_ns), 160 * i, i, 160 * i)
                ours = compound(serialize_receiver_report(7, [], sender), 7, "us")
                records.append((time_ns + 1, there.record(time_ns + 1, ours)))
                block = ReportBlock(7, 0, 3, i, 16, middle_ntp(sender.ntp), 65536 // 50)  # held for 20 ms
                theirs = compound(serialize_receiver_report(77, [block], sender), 77, "them")
                answered_ns = time_ns + 100_000_001
                records.append((answered_ns, back.record(answered_ns, theirs)))
        path.write_bytes(pcap_header() + b"".join(data for _, data in sorted(records)))
        return path

    def test_what_was_sent_and_what_the_other_end_said_of_it(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        path, lines = self.call_of_two(tmp_path / "x.pcap"), tmp_path / "x.jsonl"
        sent, received = document(capsys, path, "--policy", "fixed:60", "--stats", lines)["streams"]
        own = sent["outbound_rtp"]
        assert {name: own[name] for name in ("packetsSent", "bytesSent", "headerBytesSent")} == {
            "packetsSent": 100,
            "bytesSent": 16_000,
            "headerBytesSent": 1200,
        }
        assert sent["inbound_rtp"]["packetsReceived"] == 100  # by a receiver at this point
        assert "outbound_rtp" not in received
        assert received["inbound_rtp"]["headerBytesReceived"] == 1600
        remote = sent["remote_inbound_rtp"]
        assert (remote["localId"], own["remoteId"]) == (own["id"], remote["id"])
        assert remote["roundTripTime"] == pytest.approx(0.080, abs=1 / 65536)
        remote = received["remote_outbound_rtp"]
        assert (remote["localId"], received["inbound_rtp"]["remoteId"]) == (received["inbound_rtp"]["id"], remote["id"])
        snapshots = [json.loads(line) for line in lines.read_text().splitlines()]
        by_line = [{fields["id"]: fields for fields in each["stats"]} for each in snapshots]
        for objects, snapshot in zip(by_line, snapshots, strict=True):
            assert len(objects) == len(snapshot["stats"])
            for fields in objects.values():  # none of the references leads nowhere
                assert all(
                    fields[name] in objects
                    for name in ("codecId", "remoteId", "localId", "playoutId")
                    if name in fields
                )
        # the first answer came 300 ms after the first packet, the second one a second later
        trips = [objects.get("remote-inbound-rtp-7", {}).get("roundTripTimeMeasurements") for objects in by_line]
        assert trips[:8] == [None, 1, 1, 1, 1, 1, 2, 2]
        assert [objects["outbound-rtp-7"]["packetsSent"] for objects in by_line[:3]] == [11, 21, 31]
        last = by_line[-1]
        for kind, stream in (("remote_inbound_rtp", sent), ("remote_outbound_rtp", received)):
            said = last[stream[kind]["id"]]
            assert {name: said[name] for name in stream[kind]} == stream[kind]

    def test_the_output_delay_is_assumed_or_given(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        path = capture(tmp_path / "one.pcap", (7, 0, 0))
        for arguments, ms, evidence in (((), ASSUMED_OUTPUT.ms, "assumed"), (("--output-delay", "35"), 35.0, "given")):
            (stream,) = document(capsys, path, "--policy", "fixed:60", *arguments)["streams"]
            assert stream["output"] == {"ms": ms, "evidence": evidence}
            device = stream["media_playout"]
            assert device["totalPlayoutDelay"] == pytest.approx(device["totalSamplesCount"] * ms / 1000)
        (stream,) = document(capsys, path, "--policy", "none")["streams"]
        assert "output" not in stream
        assert "totalPlayoutDelay" not in stream["media_playout"]

    @pytest.mark.parametrize(
        "arguments",
        [
            *(
                ("--stats", "{}/x.jsonl", "--stats-interval", each)
                for each in ("0.001", "0", "-1", "nan", "inf", "1e300")
            ),
            ("--stats-interval", "0.5"),
            ("--policy", "none", "--output-delay", "20"),
            ("--stats", "{}/no/x.jsonl"),
            ("--output-delay", "-1"),
        ],
    )
    def test_options_that_cannot_be(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...]
    ) -> None:
        path = capture(tmp_path / "one.pcap", (7, 0, 0))
        code, out, err = playout(capsys, path, *(a.format(tmp_path) for a in arguments))
        assert (code, out) == (2, "")
        assert "Traceback" not in err
        assert len(err.strip().splitlines()) == 1
        assert next(a for a in reversed(arguments) if a.startswith("--")) in err
        assert sorted(tmp_path.iterdir()) == [path]
