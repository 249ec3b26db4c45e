// Elements and texts. All values of the cluster enter the page as text nodes, never as markup.

export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";
export function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children.flat());
  return node;
}

export const number = (value, digits = 0) =>
  value === null || value === undefined || !Number.isFinite(value)
    ? "–"
    : value.toLocaleString("en-US", { maximumFractionDigits: digits, minimumFractionDigits: digits });

export function significant(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1000) return number(value);
  return String(Number(value.toPrecision(4)));
}

export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    ++unit;
  }
  return `${number(value, unit > 0 && value < 100 ? 1 : 0)} ${units[unit]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 0.001) return `${number(seconds * 1e6)} µs`;
  if (seconds < 1) return `${number(seconds * 1000, seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 60) return `${number(seconds, seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${number(hours / 24, 1)} days`;
}

export const percent = (share) => (Number.isFinite(share) ? `${number(share * 100, 1)} %` : "–");
export const clock = (ms) => new Date(ms).toISOString().slice(11, 19);
export const moment = (ms) => new Date(ms).toISOString().replace("T", " ").slice(0, 19);

const STATES = {
  good: ["running", "training", "done", "at_boundary", "connected", "busy", "idle_worker"],
  warn: ["queued", "waiting", "preparing", "finishing", "solo", "cordoned"],
  bad: ["failed", "parked", "lost", "quarantined", "away"],
};
// A state as a word with a mark, so that it does not depend on its colour.
export function state(name) {
  const kind = Object.keys(STATES).find((key) => STATES[key].includes(name)) ?? "off";
  return el("span", { class: `state ${kind}` }, name.replaceAll("_", " "));
}

// A table; a column is [heading, cell of a row, whether it is a number].
export function table(columns, rows, options = {}) {
  const head = el("tr", {}, columns.map(([name, , n]) => el("th", { scope: "col", class: n && "n" }, name)));
  const body = rows.map((row) =>
    el("tr", { class: options.chosen?.(row) && "chosen" },
      columns.map(([, cell, n]) => el("td", { class: n && "n" }, cell(row) ?? ""))));
  const caption = options.caption ? el("caption", { class: "soft small" }, options.caption) : null;
  return el("div", { class: "scroll" }, el("table", {}, caption, el("thead", {}, head), el("tbody", {}, body)));
}

export const tile = (value, name) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, name));
