// The page: which view is shown for which address, who is logged in, and the theme.
import { asProblem, ask, login } from "./api.js";
import { redraw } from "./charts.js";
import { announce, el, mark, put } from "./dom.js";
import { problemBox } from "./parts.js";
import * as compare from "./view_compare.js";
import * as costs from "./view_costs.js";
import * as history from "./view_history.js";
import * as job from "./view_job.js";
import * as jobs from "./view_jobs.js";
import * as entry from "./view_login.js";
import * as machine from "./view_machine.js";
import * as create from "./view_new.js";

const NAV = [
  ["", "Machine", machine],
  ["jobs", "Jobs", jobs],
  ["new", "New", create],
  ["history", "History", history],
  ["costs", "Costs", costs],
];
const main = document.getElementById("main");
let leave = null;
let session = null;

/** The view of an address: #/jobs/<id>?state=running -> {view, parts, query}. */
function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decodePart);
  const found = NAV.find(([name]) => name === (parts[0] ?? ""));
  let view = found ? found[2] : machine;
  if (parts[0] === "jobs" && parts.length > 1) view = job;
  if (parts[0] === "compare") view = compare;
  return { view, name: found ? found[0] : parts[0], parts: parts.slice(1), query: new URLSearchParams(query) };
}

function decodePart(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function open() {
  if (leave) leave();
  leave = null;
  const { view, name, parts, query } = place();
  const shown = session === null ? entry : view;
  main.replaceChildren();
  leave = shown.open(main, { parts, query, session, enter: start }) ?? null;
  for (const link of document.querySelectorAll("#nav a")) {
    const here = link.dataset.name === name || (name === "compare" && link.dataset.name === "history");
    mark(link, "aria-current", here ? "page" : null);
  }
  const title = main.querySelector("h1");
  document.title = title ? `${title.textContent} · drumline` : "drumline";
}

/** Another address: the view's heading gets the focus, as a new page would. */
function moved() {
  if (location.hash === "#main") return; // the skip link
  open();
  main.querySelector("h1")?.focus({ preventScroll: true });
  scrollTo(0, 0);
}

function drawNav() {
  const links = NAV.map(([name, label]) => el("a", { href: `#/${name}`, data: { name } }, label));
  document.getElementById("nav").replaceChildren(...(session ? links : []));
  const who = document.getElementById("who");
  who.replaceChildren();
  if (!session) return;
  if (session.by === "cookie") {
    who.append(
      el("span", { class: "owner", title: `Role: ${session.role}` }, session.owner),
      el("button", { type: "button", class: "quiet", id: "logout", on: { click: logout } }, "Log out"),
    );
  } else who.append(el("span", { class: "owner", title: "Without a key, on this machine" }, session.owner));
}

async function logout() {
  try {
    await ask("session", { method: "DELETE" });
  } catch (error) {
    if (asProblem(error).status !== 401) {
      announce(asProblem(error).message);
      return;
    }
  }
  session = null;
  announce("Logged out");
  drawNav();
  open();
  main.querySelector("input")?.focus();
}

/** Asks who one is, and shows the view, or the login. */
async function start() {
  try {
    session = await ask("session");
  } catch (error) {
    const problem = asProblem(error);
    session = null;
    if (problem.status !== 401) {
      const box = problemBox();
      const again = el("button", { type: "button", class: "main", on: { click: start } }, "Try again");
      main.replaceChildren(el("h1", { tabindex: "-1" }, "No answer"), box.box, again);
      box.say(problem);
      setTimeout(() => again.isConnected && start(), 3000);
      return;
    }
  }
  drawNav();
  open();
}

const THEMES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };

function drawTheme() {
  const chosen = document.documentElement.dataset.theme ?? "auto";
  const button = document.getElementById("theme");
  put(button, { auto: "◐", light: "○", dark: "●" }[chosen]);
  mark(button, "aria-label", THEMES[chosen]);
  mark(button, "title", THEMES[chosen]);
}

function nextTheme() {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(document.documentElement.dataset.theme ?? "auto") + 1) % names.length];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("drumline-theme", next);
  } catch {
    // Storage is forbidden: the choice lasts as long as the page.
  }
  drawTheme();
  announce(THEMES[next]);
  redraw();
}

document.getElementById("theme").addEventListener("click", nextTheme);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address stays the view's
  main.focus();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("hashchange", moved);
login.addEventListener("needed", () => {
  if (session === null) return;
  session = null;
  drawNav();
  open();
  announce("Please log in");
});
drawTheme();
main.replaceChildren();
start();
