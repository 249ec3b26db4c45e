// Two pictures of our own: the timeline of rounds, and paired bars of predicted and measured times.
import { clock, duration, svg } from "./format.js";

const PHASES = [
  ["train", "var(--s0)", "M0 0"],
  ["stage", "var(--s1)", "M0 8 L8 0"],
  ["wait", "var(--s4)", "M0 4 L8 4"],
  ["pull", "var(--s2)", "M4 0 L4 8"],
];

function patterns() {
  return svg("defs", {}, PHASES.map(([name, fill, path]) =>
    svg("pattern", { id: `phase-${name}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" },
      svg("rect", { width: 8, height: 8, fill }), svg("path", { d: path, stroke: "var(--card)", "stroke-width": 2 }))));
}

// Begin and end of each phase of a participant, in milliseconds.
export function phases(commit, times) {
  const arrival = commit.opened_ms + times.arrival_seconds * 1000;
  const staged = arrival - times.stage_seconds * 1000;
  const decided = arrival + times.wait_seconds * 1000;
  return [
    ["train", staged - times.train_seconds * 1000, staged],
    ["stage", staged, arrival],
    ["wait", arrival, decided],
    ["pull", decided, decided + times.pull_seconds * 1000],
  ];
}

// `entries`: commits of the history, by number. `choose(number)`: called for a commit.
export function timeline(entries, chosen, choose) {
  const shown = entries.filter((entry) => entry.commit?.participants.length);
  const width = 1180, left = 76, lane = 34, top = 34;
  if (!shown.length) return svg("svg", { viewBox: `0 0 ${width} 40` }, svg("text", { x: 4, y: 24 }, "There is no round yet."));
  const groups = [...new Set(shown.flatMap((entry) => entry.commit.participants.map((p) => p.group)))].sort((a, b) => a - b);
  const begin = Math.min(...shown.map((entry) => entry.commit.opened_ms));
  const end = Math.max(...shown.map((entry) => entry.time_ms));
  const scale = (ms) => left + ((Math.min(Math.max(ms, begin), end) - begin) / Math.max(1, end - begin)) * (width - left - 16);
  const height = top + groups.length * lane + 30;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Timeline of the newest rounds; the table below has the same values" }, patterns());
  groups.forEach((group, row) => {
    const y = top + row * lane;
    picture.append(svg("text", { x: 4, y: y + 18 }, `group ${group}`));
    for (const entry of shown) {
      const times = entry.commit.participants.find((p) => p.group === group);
      if (!times) {
        picture.append(svg("text", { x: scale(entry.time_ms) - 4, y: y + 18, "text-anchor": "end", class: "soft" }, "not included"));
        continue;
      }
      for (const [name, from, to] of phases(entry.commit, times)) {
        const x = scale(from), size = scale(to) - x;
        if (size <= 0.2) continue;
        const train = name === "train";
        picture.append(svg("rect", { x, y: y + (train ? 4 : 9), width: Math.max(size, 1), height: train ? 20 : 10, fill: train ? "var(--s0)" : `url(#phase-${name})`, opacity: train ? 0.55 : 1 },
          svg("title", {}, `round ${entry.commit.version}, group ${group}: ${name} ${duration((to - from) / 1000)}`)));
      }
    }
  });
  let labelled = -100;
  for (const entry of shown) {
    const x = scale(entry.time_ms);
    const is = entry.number === chosen;
    const tick = svg("g", { class: "tick", tabindex: 0, role: "button", "aria-label": `version ${entry.commit.version}` },
      svg("line", { x1: x, x2: x, y1: top - 8, y2: height - 22, stroke: is ? "var(--accent)" : "var(--soft)", "stroke-width": is ? 3 : 1 }));
    if (x - labelled > 46 || is) {
      tick.append(svg("text", { x, y: top - 14, "text-anchor": "middle" }, `v${entry.commit.version}`));
      labelled = x;
    }
    tick.addEventListener("click", () => choose(entry.number));
    tick.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(entry.number); });
    picture.append(tick);
  }
  picture.append(svg("text", { x: left, y: height - 6, class: "soft" }, clock(begin)),
    svg("text", { x: width - 16, y: height - 6, "text-anchor": "end", class: "soft" }, clock(end)));
  PHASES.forEach(([name], i) => {
    const x = left + 150 + i * 110;
    picture.append(svg("rect", { x, y: height - 16, width: 22, height: 11, fill: name === "train" ? "var(--s0)" : `url(#phase-${name})`, opacity: name === "train" ? 0.55 : 1 }),
      svg("text", { x: x + 28, y: height - 6 }, name));
  });
  return picture;
}

// Pairs of bars: [[name, predicted, measured]], in seconds.
export function bars(pairs) {
  const width = 460, left = 92, row = 40;
  const most = Math.max(...pairs.flatMap(([, a, b]) => [a ?? 0, b ?? 0]), 1e-9);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${pairs.length * row + 18}`, role: "img", "aria-label": "Predicted and measured times; the table has the same values" }, patterns());
  pairs.forEach(([name, ...values], i) => {
    picture.append(svg("text", { x: 0, y: i * row + 22 }, name));
    values.forEach((value, j) => {
      if (value === null) return;
      const size = (value / most) * (width - left - 76);
      picture.append(
        svg("rect", { x: left, y: i * row + 4 + j * 15, width: Math.max(size, 1), height: 12, fill: j === 0 ? "url(#phase-wait)" : "var(--s0)" }),
        svg("text", { x: left + size + 6, y: i * row + 14 + j * 15 }, duration(value)));
    });
  });
  const y = pairs.length * row + 14;
  picture.append(svg("rect", { x: left, y: y - 9, width: 18, height: 9, fill: "url(#phase-wait)" }), svg("text", { x: left + 24, y }, "predicted"),
    svg("rect", { x: left + 110, y: y - 9, width: 18, height: 9, fill: "var(--s0)" }), svg("text", { x: left + 134, y }, "measured"));
  return picture;
}
