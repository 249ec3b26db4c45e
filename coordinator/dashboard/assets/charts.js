// Time series with uPlot, each with a table of the same values. A series has a colour, a dash pattern
// and, where there are few points, a mark, so that none of them depends on colour.
import { el, significant, table } from "./format.js";

const DASHES = [[], [8, 4], [2, 3], [12, 3, 2, 3], [5, 5], [1, 4]];
const MAX_ROWS = 500;
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// `series`: [{name, values, width?}], with null where there is none. `x`: {name, values, time?}.
// Returns an element with update(x, series).
export function chart(title, unit, format = significant) {
  const plot = el("div", { class: "plot", role: "img", "aria-label": `${title}; the table below has the values` });
  const rows = el("div");
  const details = el("details", {}, el("summary", {}, "Table"), rows);
  const card = el("section", { class: "card" }, el("h3", {}, title, unit ? el("span", { class: "soft" }, ` (${unit})`) : null), plot, details);
  let drawn = null;
  let signature = "";
  let data = null;

  const fill = () => {
    if (!details.open || data === null) return;
    const { x, series } = data;
    const order = x.values.map((_, i) => i).filter((i) => series.some((s) => s.values[i] !== null)).reverse();
    const columns = [[x.name, (i) => x.format(x.values[i]), true]];
    for (const s of series) columns.push([s.name, (i) => (s.values[i] === null ? "" : format(s.values[i])), true]);
    rows.replaceChildren(table(columns, order.slice(0, MAX_ROWS)));
  };
  details.addEventListener("toggle", fill);

  const options = (x, series) => ({
    width: Math.max(240, plot.clientWidth || 300),
    height: 210,
    cursor: { sync: { key: "cadre" } },
    legend: { live: true, markers: { fill: (u, i) => u.series[i].stroke?.(u, i) ?? "transparent" } },
    scales: { x: { time: Boolean(x.time) } },
    axes: [
      { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") }, values: x.time ? undefined : (_, v) => v.map(x.format) },
      { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") }, size: 62, values: (_, v) => v.map(format) },
    ],
    series: [
      { label: x.name, value: (_, v) => (v === null ? "–" : x.format(v)) },
      ...series.map((s, i) => ({
        label: s.name,
        stroke: color(`--s${i % 6}`),
        dash: DASHES[i % DASHES.length],
        width: s.width ?? 1.6,
        spanGaps: true,
        points: { show: s.values.filter((v) => v !== null).length <= 40, size: 5 + (i % 3) * 2 },
        value: (_, v) => (v === null ? "–" : format(v)),
      })),
    ],
  });

  card.update = (x, series) => {
    data = { x, series };
    const columns = [x.values, ...series.map((s) => s.values)];
    const next = JSON.stringify([x.name, series.map((s) => s.name), series.map((s) => s.values.filter((v) => v !== null).length <= 40)]);
    if (drawn === null || next !== signature) {
      drawn?.destroy();
      drawn = new window.uPlot(options(x, series), columns, plot);
      signature = next;
    } else {
      drawn.setData(columns);
    }
    fill();
  };
  card.resize = () => drawn?.setSize({ width: Math.max(240, plot.clientWidth), height: 210 });
  card.redraw = () => { signature = ""; if (data) card.update(data.x, data.series); };
  return card;
}

// A small line without axes, for a row of a table.
export function sparkline(values) {
  const known = values.filter((v) => Number.isFinite(v)).slice(-60);
  const ns = "http://www.w3.org/2000/svg";
  const image = document.createElementNS(ns, "svg");
  image.setAttribute("viewBox", "0 0 120 26");
  image.setAttribute("width", "120");
  image.setAttribute("role", "img");
  image.setAttribute("aria-label", known.length ? `from ${significant(known[0])} to ${significant(known.at(-1))}` : "no values");
  if (known.length > 1) {
    const low = Math.min(...known);
    const size = Math.max(...known) - low || 1;
    const line = document.createElementNS(ns, "polyline");
    line.setAttribute("points", known.map((v, i) => `${(i / (known.length - 1)) * 118 + 1},${24 - ((v - low) / size) * 22}`).join(" "));
    line.setAttribute("fill", "none");
    line.setAttribute("stroke", "var(--s0)");
    line.setAttribute("stroke-width", "1.6");
    image.append(line);
  }
  return image;
}
