from __future__ import annotations

import torch.distributed as dist

from drumline.parallel.heartbeats import Beat, Frame, Heard, Heartbeats

BEAT = Beat(3, 2, "after update 2", 1.5, "writing", stack=(Frame("a.py", 1, "f"),), line=Frame("a.py", 1, "f"), pid=7)


def test_a_beat_as_text_and_back() -> None:
    full = Beat(1, threads={"loader": (Frame("b.py", 2, "g"),)}, pending=("gloo:all_reduce",))
    for beat in (BEAT, full, Beat()):
        back = Beat.from_json(beat.to_json())
        assert (back.stack, back.line, back.threads) == (beat.stack, beat.line, beat.threads)
        assert (back.count, back.place, back.idle_s, back.busy) == (beat.count, beat.place, beat.idle_s, beat.busy)


def test_silence_is_counted_by_who_listens() -> None:
    store = dist.HashStore()
    first, second = Heartbeats(store, 0, 2), Heartbeats(store, 1, 2)
    first.listen(1.0)
    assert first.heard == [None, None]
    second.post(BEAT)
    first.listen(1.0)
    assert first.heard == [None, Heard(Beat.from_json(BEAT.to_json()), 0.0)]
    first.listen(1.0)
    first.listen(0.5)
    assert first.heard[1] is not None and first.heard[1].silent_s == 1.5
    second.post(Beat(4))
    first.listen(1.0)
    assert first.heard[1] == Heard(Beat.from_json(Beat(4).to_json()), 0.0)


def test_the_first_alarm_counts() -> None:
    store = dist.HashStore()
    first, second = Heartbeats(store, 0, 2), Heartbeats(store, 1, 2)
    assert first.alarm() is None and first.published() is None
    second.raise_alarm(1)
    first.raise_alarm(0)
    assert (first.alarm(), second.alarm()) == (1, 1)
    second.testify(BEAT)
    assert [beat and beat.step for beat in first.testimonies()] == [None, 2]
    second.publish("it hangs", "mend it")
    assert first.published() == ("it hangs", "mend it")
