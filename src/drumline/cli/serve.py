"""`drumline serve`: the REST service and its web page."""

from __future__ import annotations

import typer

from drumline.cli.service_options import ServiceFile, ServiceSettings


def register(app: typer.Typer) -> None:
    """Add the command `serve`."""
    app.command("serve")(serve)


def serve(file: ServiceFile = None, overrides: ServiceSettings = None) -> None:
    """Take jobs over HTTP, run them on this machine's devices, and show all of it in a web page.

    Ctrl-C ends the service, not its jobs: those that run go on, and the next service on the same data directory looks
    after them again.
    """
    from drumline.cli.screen import log_lines
    from drumline.config.service_file import load_service_config
    from drumline.service.serving import serve as answer

    config = load_service_config(file, overrides or ())
    with log_lines():
        running = answer(config, _tell)
    typer.echo(farewell(running))


def farewell(running: int) -> str:
    """What is said when the service has ended while so many jobs run."""
    if running == 0:
        return "the service has ended; no job was running"
    jobs, them = ("1 running job goes", "it") if running == 1 else (f"{running} running jobs go", "them")
    return f"the service has ended; {jobs} on, and the next service on this data directory looks after {them} again"


def _tell(address: str) -> None:
    typer.echo(f"drumline is at {address}; Ctrl-C ends it, running jobs go on")
