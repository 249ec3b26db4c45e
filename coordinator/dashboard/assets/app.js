// The state of the page: what the coordinator has sent, and the address. One stream of events keeps it
// up to date; after an interruption it is read again from the interface, so that nothing is missing.
import { el } from "./format.js";
import { PAGES, RUN_PAGES } from "./pages.js";

export const data = {
  overview: null,
  // Run -> number -> entry.
  histories: new Map(),
  // Number -> event.
  events: new Map(),
  members: null,
  groups: new Map(),
};
const MAX_EVENTS = 2000;
const main = document.getElementById("main");
const link = document.getElementById("link");
let page = null;
let queued = false;
let changed = 0;

async function get(path) {
  const response = await fetch(path, { headers: { Accept: "application/json" } });
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

export function address() {
  const [path, query = ""] = location.hash.replace(/^#/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  const run = parts[0] === "run" ? parts[1] : null;
  return { name: run ? parts[2] ?? "run" : parts[0] ?? "overview", run, query: new URLSearchParams(query) };
}

// The address with other values of its query.
export function withQuery(changes) {
  const { query } = address();
  for (const [key, value] of Object.entries(changes)) value === null ? query.delete(key) : query.set(key, value);
  const text = query.toString();
  return `${location.hash.split("?")[0] || "#/"}${text ? `?${text}` : ""}`;
}

// ---- Data

function merge(run, entries) {
  if (!data.histories.has(run)) data.histories.set(run, new Map());
  const known = data.histories.get(run);
  for (const entry of entries) known.set(entry.number, entry);
}

const loading = new Map();
// Reads the entries after the newest known one, page by page, and the two before it, which the ranks may
// have completed since.
export function loadHistory(run) {
  if (!loading.has(run)) {
    loading.set(run, (async () => {
      let after = Math.max(0, Math.max(0, ...(data.histories.get(run)?.keys() ?? [])) - 2);
      for (;;) {
        const reply = await get(`/api/v1/runs/${encodeURIComponent(run)}/history?after=${after}`);
        merge(run, reply.entries);
        if (!reply.entries.length || reply.entries.at(-1).number >= reply.newest) break;
        after = reply.entries.at(-1).number;
      }
      render();
    })().finally(() => loading.delete(run)));
  }
  return loading.get(run);
}

async function loadEvents() {
  const after = Math.max(0, ...data.events.keys());
  const reply = await get(`/api/v1/events?after=${after}`);
  // A coordinator with a new store counts from one again.
  if (reply.newest < after) {
    data.events.clear();
    return loadEvents();
  }
  addEvents(reply.events);
}

function addEvents(events) {
  for (const event of events) data.events.set(event.number, event);
  for (const number of data.events.keys()) {
    if (data.events.size <= MAX_EVENTS) break;
    data.events.delete(number);
  }
}

// What the present page needs beyond the stream.
async function refresh() {
  const { name, run } = address();
  try {
    if (name === "members") data.members = await get("/api/v1/members");
    if (name === "groups") data.groups.set(run, (await get(`/api/v1/runs/${encodeURIComponent(run)}/groups`)).groups);
    render();
  } catch { /* the stream reports a coordinator that is away */ }
}

function connected(is, text) {
  link.className = is ? "" : "bad";
  link.textContent = text;
}

async function catchUp() {
  data.overview = await get("/api/v1/overview");
  const { run } = address();
  const runs = new Set([...data.histories.keys(), ...(run ? [run] : []), ...data.overview.runs.slice(-20).map((r) => r.run)]);
  const present = new Set(data.overview.runs.map((r) => r.run));
  await Promise.all([loadEvents(), ...[...runs].filter((name) => present.has(name)).map(loadHistory)]);
  await refresh();
  connected(true, "live");
  render();
}

function connect() {
  const stream = new EventSource("/api/v1/stream");
  stream.addEventListener("open", () => catchUp().catch(() => connected(false, "the coordinator does not answer")));
  stream.addEventListener("overview", (message) => { data.overview = JSON.parse(message.data); connected(true, "live"); render(); });
  stream.addEventListener("history", (message) => {
    const { run, entries } = JSON.parse(message.data);
    const known = data.histories.get(run);
    const newest = known ? Math.max(0, ...known.keys()) : 0;
    merge(run, entries);
    // An event was missed while the stream was interrupted.
    if (entries.length && entries[0].number > newest + 1) loadHistory(run).catch(() => {});
    render();
  });
  stream.addEventListener("events", (message) => {
    addEvents(JSON.parse(message.data).events);
    // What the page reads beyond the stream may have changed. The interface repeats answers for 0.4 s.
    clearTimeout(changed);
    changed = setTimeout(refresh, 500);
    render();
  });
  stream.addEventListener("error", () => {
    connected(false, "disconnected: the values below are old; connecting again");
    // Browsers do not try again after an answer that is not a stream.
    if (stream.readyState === EventSource.CLOSED) setTimeout(connect, 500);
  });
}

// ---- Rendering

function tabs({ name, run }) {
  const target = run ?? data.overview?.runs.at(-1)?.run;
  const entries = [["overview", "Overview", "#/"]];
  if (target) for (const [key, title] of RUN_PAGES) entries.push([key, title, `#/run/${encodeURIComponent(target)}${key === "run" ? "" : `/${key}`}`]);
  entries.push(["members", "Members", "#/members"], ["events", "Events", "#/events"], ["about", "About", "#/about"]);
  document.getElementById("tabs").replaceChildren(...entries.map(([key, title, href]) => el("a", { href, "aria-current": key === name ? "page" : null }, title)));
}

function draw() {
  queued = false;
  const where = address();
  const key = `${where.name}/${where.run ?? ""}`;
  const make = PAGES[where.name] ?? PAGES.overview;
  tabs(where);
  if (data.overview === null) {
    main.replaceChildren(el("p", { class: "soft" }, "Reading the state of the cluster …"));
    return;
  }
  if (page?.key !== key) {
    page = { key, view: make(where) };
    main.replaceChildren(page.view.element);
    document.title = `${where.run ?? where.name} · Cadre`;
  }
  page.view.update(where);
}

export function render() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(draw);
}

window.addEventListener("hashchange", () => {
  const { run } = address();
  if (run) loadHistory(run).catch(() => {});
  render();
  refresh();
});
let sized = 0;
window.addEventListener("resize", () => { clearTimeout(sized); sized = setTimeout(() => page?.view.resize?.(), 100); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page?.view.redraw?.());
setInterval(refresh, 2000);
connect();
render();
