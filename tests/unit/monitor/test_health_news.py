"""News of health are told once, and only of what has changed during the run."""

from __future__ import annotations

from typing import Any

from drumline.hardware.health import Finding, Verdict
from drumline.hardware.xids import Xid
from drumline.monitor.health_news import HealthNews
from drumline.monitor.health_watch import Health


def verdict(uuid: str, *codes: str, status: Any = "fail") -> Verdict:
    findings = tuple(Finding(code, status, f"it has {code}", "", "") for code in codes)
    return Verdict(uuid, status if codes else "ok", findings)


def health(*verdicts: Verdict, xids: tuple[Xid, ...] = ()) -> Health:
    return Health({each.uuid: each for each in verdicts}, xids)


def xid(uuid: str | None, code: int = 79, time: float = 5.0) -> Xid:
    return Xid(uuid, None, code, time, "", "event")


def told(news: HealthNews, found: Health, *parents: str) -> list[tuple[str, Any]]:
    return [(event["event"], event["gpu"]) for event in news.of(found, parents)]


def test_a_gpu_that_was_sick_from_the_start_has_not_turned() -> None:
    news = HealthNews(["a", "b"])
    assert told(news, health(verdict("a", "rows_failed"), verdict("b"))) == []
    assert told(news, health(verdict("a", "rows_failed"), verdict("b", "lost"))) == [("gpu_sick", "b")]
    assert told(news, health(verdict("a", "rows_failed"), verdict("b", "lost"))) == []


def test_another_reason_is_told_again() -> None:
    news = HealthNews(["a"])
    assert told(news, health(verdict("a", "rows_failed"))) == []
    [event] = news.of(health(verdict("a", "rows_failed", "ecc_uncorrected")))
    assert (event["event"], event["message"]) == ("gpu_sick", "it has rows_failed; it has ecc_uncorrected")


def test_a_warning_is_no_sickness() -> None:
    news = HealthNews(["a"])
    news.of(health(verdict("a")))
    assert told(news, health(verdict("a", "rows_pending", status="warn"))) == []


def test_a_look_that_found_nothing_is_not_the_first_one() -> None:
    """The driver did not answer at first."""
    news = HealthNews(["a"])
    assert told(news, Health()) == []
    assert told(news, health(verdict("a", "lost"))) == []
    assert told(news, Health()) == []
    assert told(news, health(verdict("a", "lost"))) == []


def test_one_that_has_an_xid_at_the_first_look_has_turned_sick() -> None:
    """The listener began with the run."""
    news = HealthNews(["a"])
    found = health(verdict("a", "xid_79"), xids=(xid("a"),))
    assert told(news, found) == [("xid", "a"), ("gpu_sick", "a")]


def test_xids_are_told_once_and_only_of_the_run_s_gpus() -> None:
    news = HealthNews(["a", "MIG-1"])
    first = (xid("a"), xid("other"), xid("parent"), xid(None))
    assert told(news, health(xids=first), "parent") == [("xid", "a"), ("xid", "parent"), ("xid", None)]
    assert told(news, health(xids=(*first, xid("a", time=6.0))), "parent") == [("xid", "a")]
    [event] = news.of(health(xids=(xid("a", 31, 7.0),)))
    assert (event["code"], event["status"]) == (31, "ok")


def test_gpus_of_others_are_none_of_its_business() -> None:
    news = HealthNews(["a"])
    news.of(health(verdict("a"), verdict("b")))
    assert told(news, health(verdict("a"), verdict("b", "lost"))) == []
