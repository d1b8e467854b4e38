"""Server-sent events, however the bytes are cut."""

from __future__ import annotations

import pytest

from drumline.service.event_stream import Event, EventReader

STREAM = (
    b": drumline\n\n"
    b'event: line\ndata: "step 1: caf\xc3\xa9 \xe2\x80\xa8 x"\nid: 12:7\n\n'
    b": still here\n\n"
    b'event: record\r\ndata: {"step": 2,\r\ndata:  "loss": null}\r\nid: 40:7\r\n\r\n'
    b"event: end\ndata: {}\nid: 40:7\n\n"
)
EVENTS = [
    Event("line", "step 1: café \u2028 x", "12:7"),
    Event("record", {"step": 2, "loss": None}, "40:7"),
    Event("end", {}, "40:7"),
]


@pytest.mark.parametrize("size", [1, 2, 7, 64, len(STREAM)])
def test_events_are_the_same_however_they_come(size: int) -> None:
    reader = EventReader()
    chunks = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    assert [event for chunk in chunks for event in reader.feed(chunk)] == EVENTS
    assert reader.last_id == "40:7"


def test_a_new_connection_forgets_half_an_event_and_goes_on_after_the_last_whole_one() -> None:
    reader = EventReader()
    assert [event.id for event in reader.feed(b'data: "a"\nid: 3\n\ndata: "b"\nid: 9\n')] == ["3"]
    reader.begin()
    assert reader.last_id == "3"
    assert list(reader.feed(b'data: "b"\nid: 6\n\n')) == [Event("message", "b", "6")]


def test_the_place_is_that_of_the_event_that_was_taken() -> None:
    reader = EventReader()
    events = reader.feed(b'data: "a"\nid: 3\n\ndata: "b"\nid: 6\n\n')
    next(events)
    assert reader.last_id == "3"


@pytest.mark.parametrize("sent", [b"data: {\n\n", b'data: "\xff"\n\n'])
def test_what_is_no_json_is_an_error(sent: bytes) -> None:
    with pytest.raises(ValueError):
        list(EventReader().feed(sent))
