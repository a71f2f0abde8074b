"""What aiortc's descriptions cannot say, put into an offer or answer as text, and read from the other side's text.

Sources: RFC 3611 section 5.1 (`a=rtcp-xr:rcvr-rtt=all`); RFC 4585 section 4.2 with libwebrtc's feedback type `rrtr`
(what Chromium turns its receiver reference times on by); RFC 8285 section 5 (`a=extmap`). aiortc puts none of them into
its own descriptions, and drops `rtcp-xr` from the other side's: so a target passes its offer through `with_extras` and
keeps the answer's text for `read_extras`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from analysis.capture_time import ABS_CAPTURE_TIME_URI

__all__ = ["MediaExtras", "offered", "read_extras", "with_extras"]

MAX_ID = 14  # of a header extension with one-byte headers
_EXTMAP = re.compile(r"a=extmap:(\d{1,5})(?:/\w+)? (\S+)")


@dataclass(frozen=True)
class MediaExtras:
    """What one side says of its audio beyond what aiortc knows.

    `reference_times`: receiver reference time reports (RRTR) are taken, and answered (DLRR). `header_extensions`: their
    URIs by identifier.
    """

    reference_times: bool = False
    header_extensions: dict[int, str] = field(default_factory=dict)

    @property
    def capture_time_id(self) -> int | None:
        """Identifier of abs-capture-time; None where it is not among them."""
        found = (n for n, uri in self.header_extensions.items() if uri == ABS_CAPTURE_TIME_URI and 0 < n < 256)
        return next(found, None)


def _audio(lines: list[str]) -> range:
    """The lines of the first audio section; none where there is no such section."""
    begin = next((i for i, line in enumerate(lines) if line.startswith("m=audio ")), len(lines))
    end = next((i for i in range(begin + 1, len(lines)) if lines[i].startswith("m=")), len(lines))
    return range(begin, end)


def read_extras(sdp: str) -> MediaExtras:
    """What the first audio section of a description says; nothing where there is none."""
    lines = sdp.splitlines()
    section = [lines[i].strip() for i in _audio(lines)]
    extensions = {int(m[1]): m[2] for line in section if (m := _EXTMAP.fullmatch(line))}
    xr = any(line.startswith("a=rtcp-xr:") and "rcvr-rtt=" in line for line in section)
    feedback = any(re.fullmatch(r"a=rtcp-fb:(\*|\d+) rrtr", line) for line in section)
    return MediaExtras(xr or feedback, extensions)


def offered(offer: str) -> MediaExtras:
    """What our own offer is to say besides: reference times, and capture times under an identifier that is free."""
    used = {int(m[1]) for line in offer.splitlines() if (m := _EXTMAP.fullmatch(line.strip()))}
    number = next((n for n in range(1, MAX_ID + 1) if n not in used), None)
    return MediaExtras(True, {} if number is None else {number: ABS_CAPTURE_TIME_URI})


def with_extras(sdp: str, extras: MediaExtras) -> str:
    """A description whose first audio section says these as well."""
    lines = sdp.splitlines()
    section = _audio(lines)
    if not section:
        return sdp
    known = read_extras(sdp)
    more = [f"a=extmap:{n} {uri}" for n, uri in extras.header_extensions.items() if n not in known.header_extensions]
    if extras.reference_times:
        more.append("a=rtcp-xr:rcvr-rtt=all")
        more += [f"a=rtcp-fb:{payload_type} rrtr" for payload_type in lines[section[0]].split()[3:]]
    lines[section[-1] + 1 : section[-1] + 1] = more
    return "\r\n".join(lines) + "\r\n"
