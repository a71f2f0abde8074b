"""ICE's checks as they pass a socket: what is counted, and which of them time a round trip."""

from __future__ import annotations

from aioice.stun import Class, Message, Method

from analysis.rtcp_statistics import RoundTrip
from probe.checks import MAX_PAIRS, MAX_PENDING, CheckLog, PairChecks, SelectedPairs

LOCAL, REMOTE = "socket", ("127.0.0.1", 5000)
MS = 1_000_000


def message(kind: Class, number: int) -> bytes:
    return bytes(Message(Method.BINDING, kind, transaction_id=number.to_bytes(12, "big")))


def transaction(number: int) -> bytes:
    return number.to_bytes(12, "big")


def test_requests_and_their_answers() -> None:
    log = CheckLog()
    for number, rtt_ms in ((1, 20), (2, 30)):
        log.sent(number * 1000 * MS, LOCAL, REMOTE, transaction(number), request=True)
        answer = message(Class.RESPONSE, number)
        assert log.answers(answer)
        log.answered((number * 1000 + rtt_ms) * MS, answer)
        assert not log.answers(answer)  # a second copy answers nothing
    assert log.pairs == {(LOCAL, REMOTE): PairChecks(2, 0, 2, 0, 0, 2, 50 * MS, 30 * MS)}
    assert log.take_round_trips() == [RoundTrip(1020 * MS, 20 * MS, "stun"), RoundTrip(2030 * MS, 30 * MS, "stun")]
    assert log.take_round_trips() == []


def test_a_request_that_was_repeated_times_nothing() -> None:
    log = CheckLog()
    log.sent(0, LOCAL, REMOTE, transaction(1), request=True)
    log.sent(500 * MS, LOCAL, REMOTE, transaction(1), request=True)
    log.answered(510 * MS, message(Class.RESPONSE, 1))
    assert log.pairs == {(LOCAL, REMOTE): PairChecks(requests_sent=1, responses_received=1)}
    assert log.take_round_trips() == []


def test_consent_checks_stand_apart() -> None:
    log = CheckLog()
    log.sent(0, LOCAL, REMOTE, transaction(1), request=True)
    log.answered(10 * MS, message(Class.RESPONSE, 1))
    for number in (2, 3, 3):  # the last one repeated
        log.sent(number * 5000 * MS, LOCAL, REMOTE, transaction(number), request=True, consent=True)
    log.answered(10_020 * MS, message(Class.RESPONSE, 2))
    assert log.pairs == {
        (LOCAL, REMOTE): PairChecks(
            requests_sent=1,
            consent_requests_sent=2,
            responses_received=2,
            round_trips=2,
            total_ns=30 * MS,
            last_ns=20 * MS,
        )
    }


def test_changes_of_the_pair_in_use() -> None:
    one, other = object(), object()
    pairs = SelectedPairs({})
    assert pairs.changes == 0
    for pair, changes in ((one, 1), (one, 1), (other, 2), (one, 3)):
        pairs[1] = pair
        assert (pairs[1], pairs.changes) == (pair, changes)
    pairs[2] = other  # another component's
    assert pairs.changes == 3
    pairs.clear()
    assert pairs.changes == 4
    pairs.clear()
    assert pairs.changes == 4
    assert SelectedPairs({1: one}).changes == 1


def test_their_requests_and_our_answers() -> None:
    log = CheckLog()
    log.received(LOCAL, REMOTE, message(Class.REQUEST, 9))
    log.sent(0, LOCAL, REMOTE, transaction(9), request=False)
    assert log.pairs == {(LOCAL, REMOTE): PairChecks(requests_received=1, responses_sent=1)}


def test_what_answers_nothing() -> None:
    log = CheckLog()
    log.sent(0, LOCAL, REMOTE, transaction(1), request=True)
    others = [
        message(Class.RESPONSE, 2),  # nobody asked
        message(Class.ERROR, 1),
        message(Class.REQUEST, 1),
        message(Class.RESPONSE, 1)[:19],
        b"\x01\x01" + bytes(18),  # without the cookie
        b"",
    ]
    for data in others:
        assert not log.answers(data)


def test_strangers_are_not_kept_for_ever() -> None:
    log = CheckLog()
    for port in range(1000):
        log.received(LOCAL, ("127.0.0.1", port), message(Class.REQUEST, port))
    assert len(log.pairs) == MAX_PAIRS
    fresh = CheckLog()
    for number in range(MAX_PENDING + 10):
        fresh.sent(0, LOCAL, REMOTE, transaction(number), request=True)
    assert not fresh.answers(message(Class.RESPONSE, 9))
    assert fresh.answers(message(Class.RESPONSE, 10))
