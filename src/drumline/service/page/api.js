// Requests to the service. Every failure is a Problem that says what to do.

/** The page's own address, below which the API lies; the service may stand behind any prefix. */
export const BASE = new URL(".", document.baseURI);

export class Problem extends Error {
  constructor({ status = 0, code = "unreachable", title, detail, fix = "", errors = [], retryAfter = null }) {
    super(detail || title || "The request failed");
    this.status = status;
    this.code = code;
    this.fix = fix;
    this.errors = Array.isArray(errors) ? errors : [];
    this.retryAfter = retryAfter;
  }
}

/** What went wrong of anything that was thrown. */
export function asProblem(error) {
  if (error instanceof Problem) return error;
  return new Problem({
    detail: "The service does not answer.",
    fix: "Check that it runs and that this machine reaches it; the page tries again by itself.",
  });
}

/** The problem that a response tells of. */
export async function problemOf(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    body = {}; // something in between has answered, in words of its own
  }
  const retry = Number(response.headers.get("Retry-After"));
  return new Problem({
    detail: `The service answered ${response.status}.`,
    ...body,
    status: response.status,
    retryAfter: Number.isFinite(retry) && retry > 0 ? retry : null,
  });
}

/** Whom the page tells that a login is needed. */
export const login = new EventTarget();

/** Sends one request and gives the JSON that comes back (null for none). Throws Problem. */
export async function ask(path, { method = "GET", body, headers = {}, signal } = {}) {
  const changes = method !== "GET";
  let response;
  try {
    response = await fetch(new URL(path, BASE), {
      method,
      signal,
      cache: "no-store",
      credentials: "same-origin",
      headers: {
        Accept: "application/json",
        // A form on another site cannot set a header: this one tells the service that the page itself asks.
        ...(changes ? { "X-Drumline": "1" } : {}),
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        ...headers,
      },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw asProblem(error);
  }
  if (!response.ok) {
    const problem = await problemOf(response);
    if (response.status === 401 && path !== "session") login.dispatchEvent(new Event("needed"));
    throw problem;
  }
  if (response.status === 204) return null;
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

/** path?a=1&b=2&b=3, without what is empty. */
export function withQuery(path, values) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") query.append(name, each);
    }
  }
  return query.size ? `${path}?${query}` : path;
}

export const jobPath = (id, rest = "") => `jobs/${encodeURIComponent(id)}${rest}`;

/** A random key by which a repeated POST is known; crypto.randomUUID exists on secure origins only. */
export function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
