// The pages. Each is made once for an address, and updated whenever the data changes.
import { address, data, withQuery } from "./app.js";
import { chart, sparkline } from "./charts.js";
import { bytes, clock, duration, el, moment, number, percent, significant, state, table, tile } from "./format.js";
import { bars, phases, timeline } from "./timeline.js";

export const RUN_PAGES = [["run", "Run"], ["rounds", "Rounds"], ["groups", "Groups"]];
const runOf = (id) => data.overview.runs.find((run) => run.run === id);
const entriesOf = (id) => [...(data.histories.get(id)?.values() ?? [])].sort((a, b) => a.number - b.number);
const runLink = (id, page = "") => `#/run/${encodeURIComponent(id)}${page}`;
const command = (text) => el("pre", { class: "small" }, el("code", {}, text));

function simple(fill) {
  const element = el("div");
  return { element, update: (where) => {
    // A table that the reader has scrolled or selected keeps its place.
    const scrolled = [...element.querySelectorAll(".scroll")].map((node) => node.scrollLeft);
    element.replaceChildren(...fill(where).filter((node) => node !== null));
    element.querySelectorAll(".scroll").forEach((node, i) => { node.scrollLeft = scrolled[i] ?? 0; });
  } };
}

const missing = (id) => [el("h1", {}, id), el("p", {}, "The coordinator does not have this run.")];

// Whether the newest checkpoint could not be written.
const checkpointFailed = (c) => Boolean(c?.failures) && c.failed_step > (c.saved_step ?? 0);

function checkpointText(c) {
  const saved = c.saved_step == null ? "no checkpoint is written" : `the newest checkpoint is of step ${number(c.saved_step)}`;
  const last = c.last_missing ? "; the last one is missing" : "";
  return saved + last + (c.failures ? `; failures: ${number(c.failures)}, the newest at step ${number(c.failed_step)}: ${c.error}` : "");
}

// ---- Overview

function alerts() {
  const list = [];
  for (const run of data.overview.runs) {
    if (["failed", "parked"].includes(run.state)) list.push(["bad", `${run.run} is ${run.state}: ${run.reason}`]);
    else if (run.reason && ["queued", "running", "finishing"].includes(run.state)) list.push(["warn", `${run.run}: ${run.reason}`]);
  }
  for (const run of data.overview.runs) {
    const live = !["done", "failed", "stopped"].includes(run.state);
    if (run.checkpoint?.last_missing) list.push(["bad", `${run.run}: ${checkpointText(run.checkpoint)}`]);
    else if (live && checkpointFailed(run.checkpoint)) list.push(["warn", `${run.run}: ${checkpointText(run.checkpoint)}`]);
    if (live) for (const warning of run.warnings ?? []) list.push(["warn", `${run.run}: ${warning}`]);
  }
  const { members, counters, coordinator } = data.overview;
  if (coordinator.exhausted) list.push(["bad", `coordinator: ${coordinator.exhausted}`]);
  if (members.aggregators_away) list.push(["bad", `${members.aggregators_away} of ${members.aggregators + members.aggregators_away} aggregators are away`]);
  if (members.workers_away) list.push(["warn", `${members.workers_away} workers have no connection`]);
  if (members.excluded) list.push(["warn", `${members.excluded} workers receive no new work`]);
  if (counters.certificate_seconds_left !== undefined && counters.certificate_seconds_left < 7 * 86400) list.push(["bad", `the coordinator's certificate ends in ${duration(counters.certificate_seconds_left)}`]);
  if (coordinator.insecure) list.push(["warn", "the coordinator runs without TLS: callers have no identity"]);
  return list.length ? el("ul", { class: "alerts", "aria-label": "Alerts" }, list.map(([kind, text]) => el("li", { class: kind }, text))) : null;
}

function overview() {
  const { coordinator, members, counters, runs } = data.overview;
  const refused = Object.entries(counters).filter(([name, count]) => name.startsWith("refused_") && count > 0);
  return [
    el("h1", {}, "Overview"),
    el("p", { class: "soft small" }, `coordinator ${coordinator.version}, running for ${duration(coordinator.uptime_seconds)}, start ${coordinator.starts} with this store`),
    alerts(),
    el("div", { class: "tiles" },
      tile(number(members.busy), "workers that train"), tile(number(members.idle), "idle workers"),
      tile(number(members.aggregators), "aggregators"), tile(number(runs.filter((r) => ["running", "finishing"].includes(r.state)).length), "active runs"),
      tile(number(counters.rounds_committed ?? 0), "committed rounds"), tile(number(counters.groups_failed ?? 0), "groups lost so far")),
    el("h2", {}, "Runs"),
    runs.length ? table([
      ["run", (r) => el("a", { href: runLink(r.run) }, r.run)],
      ["state", (r) => state(r.state)],
      ["progress", (r) => progress(r)],
      ["loss", (r) => significant(r.loss), true],
      ["loss over time", (r) => sparkline(entriesOf(r.run).filter((e) => e.commit).map((e) => e.commit.loss))],
      ["accuracy", (r) => (r.test ? number(r.test.accuracy, 4) : "–"), true],
      ["samples/s", (r) => number(r.samples_per_second), true],
      ["groups", (r) => `${r.groups_alive} of ${r.groups}`, true],
    ], [...runs].reverse()) : el("p", { class: "soft" }, "There is no run yet. Submit one with: cadre run FILE"),
    el("div", { class: "grid" },
      el("section", {}, el("h2", {}, "Newest events"), eventTable([...data.events.values()].slice(-6).reverse())),
      el("section", {}, el("h2", {}, "Refused messages"), refused.length
        ? table([["reason", ([name]) => name.slice(8).replaceAll("_", " ")], ["messages", ([, count]) => number(count), true]], refused)
        : el("p", { class: "soft" }, "No message was refused."))),
  ];
}

function progress(run) {
  if (!run.total_steps) return "–";
  const share = run.step / run.total_steps;
  const bar = el("i");
  bar.style.width = `${share * 100}%`;
  return el("span", {}, el("span", { class: "bar", "aria-hidden": "true" }, bar), el("span", { class: "small soft" }, `${number(share * 100)} %, step ${number(run.step)}`));
}

// ---- Run

const AXES = {
  step: { name: "step", of: (entry) => (entry.commit ?? entry.evaluation).step, format: (v) => number(v) },
  epoch: { name: "epoch", of: (entry) => entry.commit?.epoch ?? null, format: (v) => number(v, 2) },
  time: { name: "time (UTC)", of: (entry) => entry.time_ms / 1000, format: (v) => clock(v * 1000), time: true },
};

function run({ run: id }) {
  const element = el("div");
  const top = el("div");
  const charts = {
    loss: chart("Training loss", "mean since the version before"), accuracy: chart("Test accuracy", null, (v) => number(v, 4)),
    speed: chart("Throughput", "samples/s"), rate: chart("Learning rate", null),
    bytes: chart("Bytes between groups", "per round", bytes), duration: chart("Duration of a round", null, duration),
    participants: chart("Participants of a round", "groups", (v) => number(v)),
  };
  // Charts that only some runs have, by name; each is made when the first version has its values.
  const more = new Map();
  const note = el("p", { class: "soft small" });
  const grid = el("div", { class: "grid" }, Object.values(charts));
  element.append(top, grid, note);
  const another = (name, ...form) => {
    if (!more.has(name)) {
      more.set(name, chart(...form));
      grid.append(more.get(name));
    }
    return more.get(name);
  };
  const update = () => {
    const r = runOf(id);
    if (!r) return top.replaceChildren(...missing(id));
    const { query } = address();
    const axis = AXES[query.get("x")] ? query.get("x") : "step";
    top.replaceChildren(
      el("h1", {}, r.name || r.run),
      el("p", {}, state(r.state), r.reason ? ` ${r.reason}` : ""),
      el("p", { class: "soft small" }, `${r.run}, version ${number(r.version)}, digest `, el("span", { class: "mono" }, r.digest || "–"), ", lineage ", el("span", { class: "mono" }, r.lineage)),
      el("div", { class: "tiles four" },
        tile(`${number(r.step)} / ${number(r.total_steps)}`, "steps"), tile(r.test ? number(r.test.accuracy, 4) : "–", "test accuracy"),
        tile(significant(r.loss), "training loss"), tile(number(r.samples_per_second), "samples/s"),
        ...tokenTiles(r), ...means(r.metrics).map(([name, mean]) => tile(significant(mean), name)),
        tile(["done", "failed", "stopped"].includes(r.state) ? duration(r.seconds) : duration(r.eta_seconds), ["done", "failed", "stopped"].includes(r.state) ? "training time" : "until the end"),
        tile(bytes(r.bytes_across_groups), "sent between groups"),
        tile(r.traffic_factor ? `${number(r.traffic_factor, 1)} ×` : "–", "less than synchronous"), tile(r.discrepancy ? significant(r.discrepancy.smoothed) : "–", "discrepancy of the groups")),
      r.discrepancy?.recommendation ? el("p", { class: "small" }, `Discrepancy: ${r.discrepancy.recommendation}.`) : null,
      r.checkpoint ? el("p", { class: "small" }, `Checkpoints: ${checkpointText(r.checkpoint)}.`) : null,
      (r.warnings ?? []).length ? el("ul", { class: "alerts", "aria-label": "Warnings" }, r.warnings.map((text) => el("li", { class: "warn" }, text))) : null,
      el("div", { class: "switch", role: "group", "aria-label": "Horizontal axis" }, Object.keys(AXES).map((name) => el("a", { href: withQuery({ x: name === "step" ? null : name }), "aria-current": name === axis ? "true" : null }, AXES[name].name))));
    draw(r, AXES[axis]);
  };
  const draw = (r, axis) => {
    const entries = entriesOf(id);
    const commits = entries.filter((e) => e.commit);
    const x = (list) => ({ ...axis, values: list.map(axis.of) });
    const groups = [...new Set(commits.flatMap((e) => e.commit.participants.map((p) => p.group)))].sort((a, b) => a - b);
    const each = (f) => commits.map((e, i) => f(e, commits[i - 1]));
    const since = (f, scale = 1) => each((e, before) => (before && e.number - before.number < 3 ? f(e, before) * scale : null));
    charts.loss.update(x(commits), [
      { name: "mean", values: each((e) => e.commit.loss), width: 2.4 },
      ...(groups.length <= 8 ? groups : []).map((g) => ({ name: `group ${g}`, values: each((e) => e.commit.participants.find((p) => p.group === g)?.loss ?? null) }))]);
    const evaluations = entries.filter((e) => e.evaluation);
    // An evaluation has no epoch of its own: that of the commit with its step.
    const epochs = new Map(commits.map((e) => [e.commit.step, e.commit.epoch]));
    const at = axis === AXES.epoch ? evaluations.map((e) => epochs.get(e.evaluation.step) ?? null) : evaluations.map(axis.of);
    charts.accuracy.update({ ...axis, values: at }, [{ name: "accuracy", values: evaluations.map((e) => e.evaluation.accuracy), width: 2.4 }]);
    charts.speed.update(x(commits), [{ name: "all groups", values: since((e, b) => (e.commit.samples - b.commit.samples) / Math.max(1e-3, (e.time_ms - b.time_ms) / 1000)) }]);
    charts.rate.update(x(commits), [{ name: "rate", values: each((e) => e.commit.rate) }]);
    drawMore(commits, x(commits), each, since);
    charts.bytes.update(x(commits), [{ name: "bytes", values: since((e, b) => e.commit.bytes_across_groups - b.commit.bytes_across_groups) }]);
    charts.duration.update(x(commits), [{ name: "round", values: each((e) => (e.commit.opened_ms ? (e.time_ms - e.commit.opened_ms) / 1000 : null)) }, { name: "averaging", values: each((e) => (e.commit.closed_ms ? (e.time_ms - e.commit.closed_ms) / 1000 : null)) }]);
    charts.participants.update(x(commits), [{ name: "participants", values: each((e) => e.commit.participants.length || null) }, { name: "groups", values: each((e) => e.commit.groups) }]);
    note.textContent = `${number(commits.length)} versions and ${number(evaluations.length)} evaluations. Of old versions, fewer are kept the older they are.`;
  };
  const drawMore = (commits, x, each, since) => {
    const tokens = (e) => e.commit.metrics?.tokens ?? 0;
    if (commits.some(tokens)) {
      another("tokens", "Throughput of tokens", "tokens/s").update(x, [{ name: "all groups", values: since((e, b) => (tokens(e) - tokens(b)) / Math.max(1e-3, (e.time_ms - b.time_ms) / 1000)) }]);
      another("perplexity", "Perplexity", "by the training loss").update(x, [{ name: "mean", values: each((e) => (tokens(e) && Number.isFinite(e.commit.loss) ? Math.exp(e.commit.loss) : null)), width: 2.4 }]);
    }
    const names = new Set(commits.flatMap((e) => means(e.commit.metrics).map(([name]) => name)));
    for (const name of [...names].sort()) {
      another(`metric ${name}`, name, "mean since the version before").update(x, [{ name, values: each((e) => e.commit.metrics?.mean[name] ?? null), width: 2.4 }]);
    }
  };
  const all = () => [...Object.values(charts), ...more.values()];
  return { element, update, resize: () => all().forEach((c) => c.resize()), redraw: () => all().forEach((c) => c.redraw()) };
}

const means = (metrics) => Object.entries(metrics?.mean ?? {});

function tokenTiles(r) {
  if (!r.tokens_per_second) return [];
  return [
    tile(number(r.tokens_per_second), "tokens/s"), tile(significant(r.perplexity), "perplexity"),
    tile(significant(r.test_perplexity), "test perplexity"), tile(significant(r.rate || null), "learning rate"),
  ];
}

// ---- Rounds

function rounds({ run: id }) {
  const r = runOf(id);
  if (!r) return missing(id);
  const { query } = address();
  const commits = entriesOf(id).filter((e) => e.commit);
  const count = Number(query.get("n")) || 12;
  const shown = commits.slice(-count);
  const chosen = Number(query.get("round")) || shown.at(-1)?.number;
  const entry = commits.find((e) => e.number === chosen);
  const times = (name) => (e) => duration(Math.max(0, ...e.commit.participants.map((p) => p[`${name}_seconds`])));
  return [
    el("h1", {}, "Rounds of ", r.name || r.run),
    el("p", { class: "soft small" }, "One lane for each group. A line is a committed version; select one for its record."),
    el("div", { class: "switch", role: "group", "aria-label": "Number of rounds" }, [12, 30, 100].map((n) => el("a", { href: withQuery({ n: n === 12 ? null : n }), "aria-current": n === count ? "true" : null }, `${n} rounds`))),
    el("section", { class: "card scroll" }, timeline(shown, chosen, (n) => { location.hash = withQuery({ round: n }); })),
    entry ? record(entry) : null,
    el("h2", {}, "Newest rounds"),
    table([
      ["version", (e) => el("a", { href: withQuery({ round: e.number }) }, number(e.commit.version)), true], ["committed (UTC)", (e) => clock(e.time_ms)], ["step", (e) => number(e.commit.step), true],
      ["loss", (e) => significant(e.commit.loss), true], ["participants", (e) => `${e.commit.participants.length || "?"} of ${e.commit.groups}`, true],
      ["round", (e) => duration((e.time_ms - e.commit.opened_ms) / 1000), true], ["averaging", (e) => duration((e.time_ms - e.commit.closed_ms) / 1000), true],
      ["longest stage", times("stage"), true], ["longest wait", times("wait"), true], ["longest pull", times("pull"), true],
    ], [...shown].reverse(), { chosen: (e) => e.number === chosen }),
  ];
}

function record(entry) {
  const { commit } = entry;
  return el("section", { class: "card" },
    el("h3", {}, `Version ${commit.version}`),
    el("p", { class: "small" }, `step ${number(commit.step)}, epoch ${number(commit.epoch, 2)}, ${number(commit.samples)} samples so far, loss ${significant(commit.loss)}, committed ${moment(entry.time_ms)} UTC, digest `, el("span", { class: "mono" }, commit.digest || "–")),
    table([
      ["group", (p) => number(p.group), true], ["generation", (p) => number(p.generation), true], ["samples", (p) => number(p.samples), true], ["loss", (p) => significant(p.loss), true],
      ["arrived after", (p) => duration(p.arrival_seconds), true], ...["train", "stage", "wait", "pull"].map((name, i) => [name, (p) => { const [, from, to] = phases(commit, p)[i]; return duration((to - from) / 1000); }, true]),
    ], commit.participants));
}

// ---- Groups

function groups({ run: id }) {
  const r = runOf(id);
  if (!r) return missing(id);
  const live = new Map(data.overview.groups.filter((g) => g.run === id).map((g) => [g.group, g]));
  const detailed = (data.groups.get(id) ?? []).filter((g) => live.has(g.group));
  const list = detailed.length ? detailed : [...live.values()];
  return [el("h1", {}, "Groups of ", r.name || r.run), list.length ? null : el("p", { class: "soft" }, "The run has no groups now."), ...list.map((g) => group(id, { ...g, ...pick(live.get(g.group), ["state", "step", "loss", "version", "generation"]) }))];
}

const pick = (object, keys) => Object.fromEntries(keys.map((key) => [key, object[key]]));

function group(id, g) {
  const mesh = Object.entries(g.mesh).map(([axis, size]) => `${axis}=${size}`).join(", ");
  const parts = ["step", "compute", "moves", "collectives", "update", "exposed"];
  const pairs = g.predicted || g.measured ? parts.map((name) => [name, g.predicted?.[name] ?? null, g.measured?.[name] ?? null]) : null;
  const slowest = Math.max(...g.members.map((m) => m.step_seconds ?? 0));
  return el("section", {},
    el("h2", {}, `Group ${g.group} `, state(g.state)),
    el("p", { class: "small" }, `generation ${g.generation}, mesh ${mesh || "–"}, step ${number(g.step)}, version ${number(g.version)}, ${number(g.samples_per_second)} samples/s${means(g.metrics).map(([name, mean]) => `, ${name} ${significant(mean)}`).join("")}`, g.reason ? `; before: ${g.reason}` : ""),
    el("div", { class: "grid" },
      el("div", { class: "card" }, el("h3", {}, "Members"), table([
        ["rank", (m) => number(m.rank), true], ["worker", (m) => m.name], ["step", (m) => duration(m.step_seconds || null), true],
        ["waiting", (m) => (m.step_seconds ? percent(m.wait_seconds / m.step_seconds) : "–"), true],
        // The others wait for the rank that waits least.
        ["", (m) => (slowest && Math.max(...g.members.map((o) => o.wait_seconds)) - m.wait_seconds > 0.1 * slowest ? "others wait for it" : "")],
      ], g.members), memory(g)),
      pairs ? el("div", { class: "card" }, el("h3", {}, "A step, predicted and measured"), bars(pairs),
        el("p", { class: "small" }, g.prediction_blame || ""),
        el("details", {}, el("summary", {}, "Table"), table([["part", ([n]) => n], ["predicted", ([, p]) => duration(p), true], ["measured", ([, , m]) => duration(m), true]], pairs))) : null),
    g.plan?.layers?.length ? el("details", {}, el("summary", {}, `Plan of ${g.plan.layers.length} layers`), table([["layer", (l) => l.layer], ["split", (l) => l.split.map((s) => `${s.index} along ${s.axes.join(", ")}`).join("; ") || "whole"]], g.plan.layers)) : null,
    el("details", {}, el("summary", {}, "Commands"), command(`cadre trace ${id} --group ${g.group}\ncadre describe ${id}`)));
}

function memory(g) {
  const used = g.members.filter((m) => m.memory);
  if (!used.length) return null;
  const kinds = ["weights", "gradients", "optimizer", "activations", "buffers", "exchange"];
  // Programs only report the memory of their parameters and of their exchange.
  const known = (field, kind) => used.filter((m) => m[field] && (m.planned_memory || m[field][kind] > 0));
  const most = (field, kind) => (known(field, kind).length ? Math.max(...known(field, kind).map((m) => m[field][kind])) : null);
  return el("details", { open: true }, el("summary", {}, "Memory of the largest rank"), table([["use", (k) => k], ["planned", (k) => bytes(most("planned_memory", k)), true], ["used", (k) => bytes(most("memory", k)), true]], kinds));
}

// ---- Members

function members() {
  if (!data.members) return [el("h1", {}, "Members"), el("p", { class: "soft" }, "Reading …")];
  const { workers, aggregators } = data.members;
  const what = (m) => state(!m.connected ? "away" : m.standing?.quarantined ? "quarantined" : m.cordoned ? "cordoned" : m.place?.run ? "busy" : "idle_worker");
  return [
    el("h1", {}, "Members"),
    el("h2", {}, `Workers (${number(workers.length)})`),
    table([
      ["worker", (m) => m.name], ["host", (m) => m.host], ["device", (m) => m.device], ["state", what],
      ["rank", (m) => (m.place?.run ? el("a", { href: runLink(m.place.run, "/groups") }, `group ${m.place.group}, rank ${m.place.rank}`) : "")],
      ["last message", (m) => `${duration(m.heartbeat_age_seconds)} ago`, true], ["steps", (m) => number(m.counters.steps ?? 0), true],
      ["failures", (m) => (m.standing?.failures ? `${m.standing.failures}: ${m.standing.reason}` : "")],
    ], workers.slice(0, 1000)),
    el("h2", {}, `Aggregators (${number(aggregators.length)})`),
    table([
      ["aggregator", (a) => a.member.name], ["host", (a) => a.member.host], ["state", (a) => state(a.member.connected ? "connected" : "away")],
      ["shards", (a) => number(a.shards.length), true], ["free disk", (a) => bytes(a.free_bytes), true], ["reserved", (a) => bytes(a.reserved_bytes), true],
      ["last message", (a) => `${duration(a.member.heartbeat_age_seconds)} ago`, true],
    ], aggregators),
    el("h2", {}, "Commands"), command("cadre cordon WORKER\ncadre drain WORKER"),
  ];
}

// ---- Events, about

function eventTable(list) {
  if (!list.length) return el("p", { class: "soft" }, "There is no event.");
  return table([["time (UTC)", (e) => el("span", { class: "mono" }, moment(e.time_ms))], ["kind", (e) => e.kind.replaceAll("_", " ")], ["event", (e) => e.text], ["run", (e) => (e.run ? el("a", { href: runLink(e.run) }, e.run) : "")]], list);
}

function events() {
  const { query } = address();
  const kind = query.get("kind");
  const all = [...data.events.values()].sort((a, b) => b.number - a.number);
  const kinds = [...new Set(all.map((e) => e.kind))].sort();
  const shown = all.filter((e) => !kind || e.kind === kind).slice(0, 500);
  return [
    el("h1", {}, "Events"),
    el("div", { class: "switch", role: "group", "aria-label": "Kind of event" },
      el("a", { href: withQuery({ kind: null }), "aria-current": kind ? null : "true" }, "all"),
      kinds.map((name) => el("a", { href: withQuery({ kind: name }), "aria-current": name === kind ? "true" : null }, name.replaceAll("_", " ")))),
    eventTable(shown),
  ];
}

function about() {
  const { coordinator } = data.overview;
  const id = data.overview.runs.at(-1)?.run ?? "RUN";
  const paths = ["/api/v1/overview", "/api/v1/members", `/api/v1/runs/${encodeURIComponent(id)}/history`, `/api/v1/runs/${encodeURIComponent(id)}/groups`, "/api/v1/events", "/api/v1/stream"];
  return [
    el("h1", {}, "About"),
    table([["", ([name]) => name], ["", ([, value]) => value]], [
      ["version of the coordinator", coordinator.version], ["protocol", number(coordinator.protocol)], ["running for", duration(coordinator.uptime_seconds)],
      ["starts with this store", number(coordinator.starts)], ["TLS", coordinator.insecure ? "off (--insecure)" : "on"]]),
    el("h2", {}, "Interface"),
    el("p", {}, "This page only reads. The same data as JSON, with the keys of ", el("code", {}, "cadre -o json"), ":"),
    el("ul", {}, paths.map((path) => el("li", {}, el("a", { href: path, class: "mono" }, path)))),
    el("h2", {}, "Licences"), el("p", {}, "Charts: uPlot 1.6.32, MIT licence."),
  ];
}

export const PAGES = { overview: () => simple(overview), run, rounds: () => simple(rounds), groups: () => simple(groups), members: () => simple(members), events: () => simple(events), about: () => simple(about) };
