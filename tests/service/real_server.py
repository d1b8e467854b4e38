"""A service behind a real uvicorn, in a thread of the test; nobody starts its jobs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from drumline.config.service import ServiceConfig
from drumline.service.app import create_app
from drumline.service.opening import open_service
from drumline.service.serving import listening, settings
from drumline.service.state import Service


@contextmanager
def served(config: ServiceConfig) -> Iterator[tuple[str, Service]]:
    """Its address, and what it works with."""
    service = open_service(config, supervise=False)
    app = create_app(service.config, opener=lambda _: service)
    with listening("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, **settings(config)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="server")
        thread.start()
        try:
            limit = time.monotonic() + 30.0
            while not server.started:
                assert time.monotonic() < limit and thread.is_alive(), "the server did not start"
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}{config.prefix}", service
        finally:
            service.end_streams()
            server.should_exit = True
            thread.join(30.0)
            assert not thread.is_alive(), "the server did not end"
