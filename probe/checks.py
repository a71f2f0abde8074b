"""ICE's own connectivity and consent checks, as they pass the sockets, into counts and round trips by candidate pair.

Sources: RFC 8489 sections 5 and 6.1 (STUN messages), RFC 7675 (consent checks, some every 5 s); W3C webrtc-stats
RTCIceCandidatePairStats. A request that had to be repeated is counted once and times nothing (Karn): its answer may be
to either copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.rtcp_statistics import RoundTrip

__all__ = ["CheckLog", "PairChecks", "SelectedPairs"]

REQUEST, RESPONSE = b"\x00\x01", b"\x01\x01"  # of the method Binding
COOKIE = b"\x21\x12\xa4\x42"
MAX_PAIRS = 64  # anyone may send a request
MAX_PENDING = 256


@dataclass(slots=True)
class PairChecks:
    """Checks of one candidate pair since the tap was set; answers are to both kinds of requests."""

    requests_sent: int = 0
    consent_requests_sent: int = 0
    responses_received: int = 0
    requests_received: int = 0
    responses_sent: int = 0
    round_trips: int = 0
    total_ns: int = 0
    last_ns: int | None = None


class SelectedPairs(dict[int, Any]):
    """The pair in use by ICE component, as ICE keeps it; counts how often that of component 1 changes.

    A first pair counts, and so does the loss of the last.
    """

    def __init__(self, before: Mapping[int, Any]) -> None:
        super().__init__(before)
        self.changes = int(1 in before)

    def __setitem__(self, component: int, pair: Any) -> None:
        self.changes += component == 1 and self.get(1) is not pair
        super().__setitem__(component, pair)

    def clear(self) -> None:
        """No pair is in use any more."""
        self.changes += 1 in self
        super().clear()


class CheckLog:
    """Counts and times one connection's checks. A pair is named by its local end and its remote address."""

    def __init__(self) -> None:
        self.pairs: dict[tuple[Hashable, Hashable], PairChecks] = {}
        self._pending: dict[bytes, tuple[PairChecks, int | None]] = {}
        self._new: deque[RoundTrip] = deque(maxlen=MAX_PENDING)

    def sent(
        self,
        time_ns: int,
        local: Hashable,
        remote: Hashable,
        transaction: bytes,
        *,
        request: bool,
        consent: bool = False,
    ) -> None:
        """A request or a response leaves at `time_ns` (monotonic); `consent`: on a pair that is in use already."""
        pair = self._pair(local, remote)
        if pair is None:
            return
        if not request:
            pair.responses_sent += 1
            return
        repeated = transaction in self._pending
        pair.consent_requests_sent += consent and not repeated
        pair.requests_sent += not consent and not repeated
        self._pending[transaction] = pair, None if repeated else time_ns
        while len(self._pending) > MAX_PENDING:
            del self._pending[next(iter(self._pending))]

    def answers(self, data: bytes) -> bool:
        """Whether a datagram answers a request of ours: then, and only then, its arrival is worth a time stamp."""
        return data[:2] == RESPONSE and data[4:8] == COOKIE and data[8:20] in self._pending

    def answered(self, time_ns: int, data: bytes) -> None:
        """The response arrived at `time_ns` (monotonic)."""
        pair, sent_ns = self._pending.pop(data[8:20])
        pair.responses_received += 1
        if sent_ns is not None and time_ns > sent_ns:
            pair.last_ns = time_ns - sent_ns
            pair.total_ns += pair.last_ns
            pair.round_trips += 1
            self._new.append(RoundTrip(time_ns, pair.last_ns, "stun"))

    def received(self, local: Hashable, remote: Hashable, data: bytes) -> None:
        """A datagram that answers nothing came in; a request is counted."""
        if data[:2] == REQUEST and data[4:8] == COOKIE:
            pair = self._pair(local, remote)
            if pair is not None:
                pair.requests_received += 1

    def take_round_trips(self) -> list[RoundTrip]:
        """Those since this was asked last."""
        new = list(self._new)
        self._new.clear()
        return new

    def _pair(self, local: Hashable, remote: Hashable) -> PairChecks | None:
        pair = self.pairs.get((local, remote))
        if pair is None and len(self.pairs) < MAX_PAIRS:
            pair = self.pairs[local, remote] = PairChecks()
        return pair
