// Server-sent events by fetch: unlike EventSource it tells why it was refused, and can rest while nobody looks.
import { BASE, login, problemOf } from "./api.js";
import { pauseAfter, report } from "./link.js";

/** Takes the text of a stream piece by piece; gives its events as {id, event, data}. */
export class Events {
  #rest = "";
  #event = { data: [], name: "message", id: undefined };

  add(text) {
    this.#rest += text;
    const lines = this.#rest.split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop();
    return lines.map((line) => this.#line(line)).filter(Boolean);
  }

  #line(line) {
    const event = this.#event;
    if (line === "") {
      this.#event = { data: [], name: "message", id: undefined };
      return event.data.length || event.name !== "message"
        ? { id: event.id, event: event.name, data: event.data.join("\n") }
        : null;
    }
    if (line.startsWith(":")) return null;
    const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
    if (field === "data") event.data.push(value);
    else if (field === "event") event.name = value;
    else if (field === "id" && !value.includes("\0")) event.id = value;
    return null;
  }
}

const SILENCE_S = 60; // The service sends a comment more often than this; a longer silence is a dead connection.

/**
 * Follows a stream from its beginning until its `end` event: batch(events) for what came together, state(name) with
 * connecting, live, waiting, paused, ended or refused (and its Problem). What was lost on the way is asked for again
 * by Last-Event-ID, so nothing is missed and nothing comes twice. Gives a function that stops it.
 */
export function follow(path, batch, state) {
  const source = {};
  let lastId = null;
  let failures = 0;
  let abort = null;
  let timer = null;
  let over = false;

  function tell(name, problem = null) {
    report(source, name === "ended" || name === "refused" ? null : name);
    state(name, problem);
  }

  async function read(signal, alive) {
    const headers = { Accept: "text/event-stream" };
    if (lastId !== null) headers["Last-Event-ID"] = lastId;
    const response = await fetch(new URL(path, BASE), {
      headers,
      signal,
      cache: "no-store",
      credentials: "same-origin",
    });
    if (!response.ok) {
      const problem = await problemOf(response);
      if (response.status === 401) login.dispatchEvent(new Event("needed"));
      if (response.status < 500 && response.status !== 429) {
        over = true;
        tell("refused", problem);
      }
      throw problem;
    }
    tell("live");
    const events = new Events();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      alive();
      const found = events.add(value);
      if (!found.length) continue;
      failures = 0;
      for (const event of found) if (event.id !== undefined) lastId = event.id;
      const end = found.findIndex((event) => event.event === "end");
      const news = end < 0 ? found : found.slice(0, end);
      if (news.length) batch(news);
      if (end >= 0) {
        over = true;
        tell("ended");
        return;
      }
    }
  }

  async function connect() {
    if (over) return;
    clearTimeout(timer);
    const mine = new AbortController();
    abort = mine;
    let watchdog = null;
    const alive = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => mine.abort(), SILENCE_S * 1000);
    };
    alive();
    tell(failures ? "waiting" : "connecting");
    try {
      await read(mine.signal, alive);
    } catch {
      // Lost or refused: either way it is tried again below, unless it is over.
    }
    clearTimeout(watchdog);
    abort = null;
    if (over) return;
    if (document.hidden) {
      tell("paused");
      return;
    }
    failures += 1;
    tell("waiting");
    timer = setTimeout(connect, pauseAfter(failures) * 1000);
  }

  // A browser opens six connections to one server over HTTP/1.1: tabs that nobody sees must not hold them.
  function seen() {
    if (document.hidden) {
      clearTimeout(timer);
      if (abort) abort.abort();
      else if (!over) tell("paused");
    } else if (!abort) {
      failures = 0;
      connect();
    }
  }

  document.addEventListener("visibilitychange", seen);
  connect();
  return () => {
    over = true;
    clearTimeout(timer);
    if (abort) abort.abort();
    document.removeEventListener("visibilitychange", seen);
    report(source, null);
  };
}
