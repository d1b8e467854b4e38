"""Kills services with SIGKILL again and again while jobs run, and looks whether every promise was kept.

    python tests/chaos/service_kills.py --kills 50 --jobs 20 --seed 0
    python tests/chaos/service_kills.py --kills 50 --services 2 --postgresql
    python tests/chaos/service_kills.py --kills 50 --http

The jobs' commands are simulated; keepers, supervisor, scheduler and store are real. With --http each service is a whole
`drumline serve`, and jobs are asked for and cancelled by clients with keys, who ask again under the same idempotency
key where no answer came; else they are put into the store. One job runs until the last kill, so that each kill finds
some. The same seed gives the same jobs
and the same pauses between kills; how the processes are scheduled meanwhile is chance. Prints a line a kill and the
verdict, ends 0 where nothing was broken; the folder is kept where something was.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from drumline.jobs.adoption import end_marked, mark_of, marked  # noqa: E402
from drumline.jobs.records import ACTIVE_STATES, END_STATES, Job, Resources, Work  # noqa: E402
from drumline.jobs.states import Asked, handle  # noqa: E402
from drumline.jobs.store import JobFilter, Store, open_store  # noqa: E402
from drumline.rundir import read_lines  # noqa: E402
from tests.chaos.service_callers import Callers, NoAnswer, free_ports, is_ready, write_settings  # noqa: E402
from tests.chaos.service_victim import NODE, ready_file, settings_of  # noqa: E402

SLOTS = 4
END_LIMIT_S = 180.0
"""Within which all jobs end once nobody is killed any more; far more than it takes, on a busy machine too."""
EXPECTED = {"quick": "succeeded", "failing": "failed", "bad": "failed", "long": "cancelled"}
"""How a job of each kind ends, however often services are killed."""
START_LIMIT_S = 120.0
LOOK_S = 0.1


class Broken(Exception):
    """A promise that was not kept."""


def main(arguments: list[str]) -> int:
    """Run the program; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--services", type=int, default=1)
    parser.add_argument("--postgresql", action="store_true")
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="service-kills-"))
    with ExitStack() as stack:
        url = f"sqlite:///{folder / 'store.sqlite3'}"
        if given.postgresql:
            from tests.postgresql_server import postgresql_server

            url = stack.enter_context(postgresql_server()).make_database()
        kills = ServiceKills(folder, url, given.services, random.Random(given.seed), is_http=given.http)
        try:
            report = kills.run(given.jobs, given.kills)
        except (Broken, NoAnswer) as broken:
            print(f"BROKEN: {broken}\nsee {folder}")
            return 1
        finally:
            kills.close()
    print(report)
    shutil.rmtree(folder)
    return 0


ANCHOR = Resources(devices=1, preemptible=False)
"""What the job asks for that runs until the last kill."""


def draw_job(number: int, num_kills: int, chance: random.Random) -> Job:
    """A job of some kind and size, the longer the more kills there are to come."""
    does = chance.choices(["quick", "failing", "bad", "long"], [16, 1, 1, 2])[0] if number else "long"
    settings = {"does": does, "steps": chance.randint(3, 10 + 3 * num_kills), "pace_s": 0.1}
    devices = chance.choice([1, 1, 1, 2, 3])
    resources = Resources(devices=devices, priority=chance.choice([0, 0, 0, 5]))
    if chance.random() < 0.3:
        resources = Resources(min_devices=1, max_devices=3)
    if number == 0:
        resources = ANCHOR
    now = time.time()
    work = Work("train", settings, export=chance.random() < 0.5)
    owner = chance.choice(["ann", "bob"])
    return Job(f"job-{number:02}", owner, work, resources, now, node=NODE, queued_since=now)


@dataclass
class ServiceKills:
    """Services on one store and one data directory, and what is known of their jobs."""

    folder: Path
    url: str
    num_services: int
    chance: random.Random
    is_http: bool = False
    store: Store = field(init=False)
    services: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ended: dict[str, Job] = field(default_factory=dict)
    """Jobs as they were first seen to have ended."""
    adopted: int = 0
    """Attempts that went on while their service was killed."""
    missed: int = 0
    """Kills that found no attempt."""
    callers: Callers | None = None
    ports: dict[int, int] = field(default_factory=dict)
    """Process of a service -> where it answers."""

    def __post_init__(self) -> None:
        self.store = open_store(self.url)
        if self.is_http:
            write_settings(self.folder, self.url, SLOTS)
            self.callers = Callers(self.store, free_ports(self.num_services))

    def run(self, num_jobs: int, num_kills: int) -> str:
        """Disturb so many jobs so often, then let them end; a report. Raises Broken."""
        began = time.monotonic()
        jobs = [draw_job(number, num_kills, self.chance) for number in range(num_jobs)]
        for _ in range(self.num_services):
            self._start()
        late = sorted(self.chance.sample(range(1, num_jobs), num_jobs // 3), reverse=True)
        for number, job in enumerate(jobs):
            if number not in late:
                self._add(job)
            elif self.chance.random() < 0.7:  # it comes while others run, and stops them
                jobs[number] = replace(job, resources=Resources(devices=SLOTS - 1, priority=10))
        self._until_one_runs()
        for number in range(num_kills):
            self._wait_a_while()
            self._cancel_one()
            if late and self.chance.random() < 0.5:
                self._add(jobs[late.pop()])
                time.sleep(self.chance.uniform(0.0, 0.05))  # with HTTP the kill comes before, at, or after the answer
            self._kill(number)
        for number in late:
            self._add(jobs[number])
        jobs = self._all_that_there_should_be(jobs)
        self._wait_for_all(jobs)
        self._check_all(jobs)
        attempts = sum(job.attempt for job in self.ended.values())
        counts = Counter(job.state for job in self.ended.values())
        again = "" if self.callers is None else f", {self.callers.unanswered} requests were sent again"
        return (
            f"KEPT: {num_kills} kills of {self.num_services} service(s), {num_jobs} jobs in {attempts} attempts "
            f"({', '.join(f'{number} {state}' for state, number in sorted(counts.items()))}), {self.adopted} times an "
            f"attempt went on without its service, {self.missed} kills found none{again}; "
            f"{time.monotonic() - began:.0f} s"
        )

    def close(self) -> None:
        """End the services and what is left of their jobs."""
        for service in self.services:
            service.kill()
            service.wait()
        if self.callers is not None:
            self.callers.close()
        for job in self._jobs():
            end_marked(mark_of(job.id, job.attempt))
        self.store.close()

    def _start(self) -> None:
        words = [str(self.folder), self.url, str(SLOTS)]
        taken = [self.ports[service.pid] for service in self.services if service.pid in self.ports]
        port = next((each for each in self.callers.ports if each not in taken), 0) if self.callers is not None else 0
        if self.callers is not None:
            words = [str(self.folder / "service.yaml"), str(port)]
        command = [sys.executable, str(Path(__file__).with_name("service_victim.py")), *words]
        with (self.folder / "services.log").open("ab") as log:
            self.services.append(subprocess.Popen(command, stdout=log, stderr=log))
        self.ports[self.services[-1].pid] = port

    def _is_ready(self, service: subprocess.Popen[bytes]) -> bool:
        if self.is_http:
            return is_ready(self.ports[service.pid])
        return ready_file(self.folder, service.pid).exists()

    def _add(self, job: Job) -> None:
        if self.callers is None:
            self.store.jobs.add(job)
        else:
            self.callers.ask_for(job)

    def _until_one_runs(self) -> None:
        limit = time.monotonic() + START_LIMIT_S
        while not any(job.state == "running" and job.resources == ANCHOR for job in self._jobs()):
            self._look_for(LOOK_S)
            if time.monotonic() > limit:
                raise Broken("no job runs")

    def _all_that_there_should_be(self, jobs: list[Job]) -> list[Job]:
        """As the store has them; with HTTP each is there once, under the id that who asked for it was told."""
        if self.callers is None:
            return jobs
        self.callers.wait_for_answers()
        for job in jobs:
            self.callers.submit(job)  # once more: it is told the same id
        there = {job.id: job for job in self._jobs()}
        if len(there) != len(jobs) or set(there) != set(self.callers.ids.values()):
            raise Broken(f"{len(jobs)} jobs were asked for, and these are there: {sorted(there)}")
        return list(there.values())

    def _jobs(self) -> tuple[Job, ...]:
        return self.store.jobs.find(JobFilter(), limit=200).items

    def _wait_a_while(self) -> None:
        """Until some moment of a service's start, or, more often, of its work."""
        if self.chance.random() < 0.2:
            self._look_for(self.chance.uniform(0.0, 1.0))
            return
        limit = time.monotonic() + START_LIMIT_S
        while not all(self._is_ready(service) for service in self.services):
            self._look_for(LOOK_S)
            if time.monotonic() > limit:
                raise Broken("a service does not start")
        self._look_for(self.chance.uniform(0.0, 2.5))

    def _look_for(self, seconds: float) -> None:
        limit = time.monotonic() + seconds
        while True:
            self._look()
            if time.monotonic() >= limit:
                return
            time.sleep(LOOK_S)

    def _look(self) -> None:
        """End states never change, no device is held twice, and nobody beats whom nobody started."""
        for job in self._jobs():
            first = self.ended.get(job.id)
            if first is not None and (job.state, job.reason, job.ended, job.attempt) != (
                first.state,
                first.reason,
                first.ended,
                first.attempt,
            ):
                raise Broken(f"{job.id} had ended ({first.state}), and is {job.state} now")
            if first is None and job.has_ended:
                self.ended[job.id] = job
        violations = self.folder / "violations"
        if violations.exists():
            raise Broken(violations.read_text())
        for service in self.services:
            if service.poll() is not None:
                raise Broken(f"a service ended by itself: {service.returncode}; see services.log")

    def _kill(self, number: int) -> None:
        running = [job for job in self._jobs() if job.state in ACTIVE_STATES]
        living = sum(bool(marked(mark_of(job.id, job.attempt))) for job in running)
        self.adopted += living
        self.missed += not living
        victim = self.services.pop(self.chance.randrange(len(self.services)))
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        states = Counter(job.state for job in self._jobs())
        print(f"kill {number + 1}: {dict(sorted(states.items()))}, {living} attempts go on", flush=True)
        self._start()

    def _cancel_one(self) -> None:
        """Cancel one of those that would run for ever, so that others get its devices."""
        long = [job for job in self._jobs() if job.resources != ANCHOR and self._runs_until_cancelled(job)]
        if long and self.chance.random() < 0.3:
            self._cancel(long[0])

    @staticmethod
    def _runs_until_cancelled(job: Job) -> bool:
        return settings_of(job)["does"] == "long" and job.state == "running"

    def _cancel(self, job: Job) -> None:
        if self.callers is not None:
            self.callers.cancel(job)
            return
        self.store.jobs.update(job.id, lambda found: handle(found, Asked("cancel", time.time(), "the test")).job)

    def _wait_for_all(self, jobs: list[Job]) -> None:
        limit = time.monotonic() + END_LIMIT_S
        while len(self.ended) < len(jobs):
            self._look_for(0.5)
            for job in self._jobs():
                if self._runs_until_cancelled(job):
                    self._cancel(job)
            if time.monotonic() > limit:
                waiting = [(job.id, job.state, job.reason, job.message) for job in self._jobs() if not job.has_ended]
                raise Broken(f"not ended within {END_LIMIT_S:g} s: {waiting}")

    def _check_all(self, jobs: list[Job]) -> None:
        """Every job ended as its kind does, each attempt began once, and no line of its log is missing."""
        for job in jobs:
            found = self.store.jobs.get(job.id)
            if found is None:
                raise Broken(f"{job.id} is lost")
            does = settings_of(job)["does"]
            if found.state not in END_STATES or (found.state != EXPECTED[does]):
                raise Broken(f"{job.id} ({does}): {found.state}, {found.reason}: {found.message}")
            if self.callers is not None and self.callers.state_of(found) != found.state:
                raise Broken(f"{job.id} is told to be {self.callers.state_of(found)}, and is {found.state}")
            self._check_files(found)
        if "Traceback" in (log := (self.folder / "services.log").read_text()):
            raise Broken(f"a service met what it did not expect:\n{log}")
        if leases := self.store.leases.all(NODE):
            raise Broken(f"leases are left: {leases}")

    def _check_files(self, job: Job) -> None:
        folder = self.folder / "jobs" / job.id
        begun = Counter(record["begun"] for record in read_lines(folder / "ledger.jsonl") if "begun" in record)
        if twice := [attempt for attempt, times in begun.items() if times > 1]:
            raise Broken(f"{job.id}: attempts {twice} began twice")
        if left := marked(mark_of(job.id, job.attempt)):
            raise Broken(f"{job.id} has ended, and left processes: {left}")
        if job.state != "succeeded":
            return
        steps = [record["step"] for record in read_lines(folder / "run/metrics.jsonl")]
        log = (folder / "command.log").read_text().splitlines()
        wanted = list(range(1, settings_of(job)["steps"] + 1))
        if steps != wanted or [line for line in log if line.startswith("step")] != [f"step {step}" for step in wanted]:
            raise Broken(f"{job.id}: steps {json.dumps(steps)}, and its log is {log}")
        if job.work.export and not (folder / "model").is_dir():
            raise Broken(f"{job.id} wrote no model")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
