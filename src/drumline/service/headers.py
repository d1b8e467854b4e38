"""Headers that keep a browser from doing with our answers what they are not meant for."""

from __future__ import annotations

from starlette.responses import Response

ANSWER_POLICY = "default-src 'none'; frame-ancestors 'none'"
"""Of answers of the API, which are no pages; the web page sets its own."""

SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": ANSWER_POLICY,
    "Cache-Control": "no-store",
}


def add_security_headers(answer: Response) -> None:
    """Set those that the answer has not set itself."""
    for name, value in SECURITY_HEADERS.items():
        answer.headers.setdefault(name, value)
