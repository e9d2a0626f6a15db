// A kernel at every pair of clocks: energy map, Pareto curve, best pairs.

import { post } from "./api.js";
import { announce, asking, byId, colour, joules, plain, seconds, show, table, unitFor, watts } from "./dom.js";
import * as kernel from "./kernel.js";
import { HEAT, draw, energyAgainstTime, load } from "./plot.js";
import { OBJECTIVES, saved } from "./sweep.js";
import { whenOpened } from "./tabs.js";

let found = null;

const number = (id) => (byId(id).value.trim() ? Number(byId(id).value) : null);

function clocksRequest() {
  const limits = byId("clocks-limits").value.split(/[\s,;]+/).filter(Boolean).map(Number);
  const under = limits.length ? { power_limit_watts: limits } : { clocks: "grid" };
  const model = byId("clocks-model").value;
  const asked = model === "physical" ? kernel.models() : { model };
  return { ...kernel.request(), gpu: kernel.gpu(), ...asked, ...under, ...constrained() };
}

function constrained() {
  const constraints = {};
  if (number("clocks-slowdown") !== null) constraints.max_slowdown = 1 + number("clocks-slowdown") / 100;
  if (number("clocks-power") !== null) constraints.max_power_watts = number("clocks-power");
  if (number("clocks-deadline") !== null) constraints.deadline_seconds = number("clocks-deadline") / 1e3;
  return Object.keys(constraints).length ? { constraints } : {};
}

const compute = asking("clocks", async () => {
  load().catch(() => {});
  found = await post("/dvfs", clocksRequest());
  byId("clocks-result").hidden = false;
  draw(byId("clocks-map"), map);
  draw(byId("clocks-pareto"), curve);
  showTables();
  announce(`${found.points.length} pairs of clocks computed`);
});

const told = (point) => `${plain(point.runs_at_core_mhz, 4)} MHz core, ${plain(point.memory_mhz, 4)} MHz memory<br>`
  + `${joules(point.energy.joules)}, ${seconds(point.time.seconds)}, ${watts(point.power.watts)}`;

/** Energy over both clocks; over the core clock alone where the memory clock is one. */
function map() {
  const { points } = found;
  const memories = [...new Set(points.map((point) => point.memory_mhz))];
  const byLimit = new Set(points.map((point) => point.power_limit_watts)).size > 1;
  const across = (point) => (byLimit ? point.power_limit_watts : point.core_mhz);
  const [joule, unit] = unitFor(points.map((point) => point.energy.joules), "J");
  const energy = (point) => point.energy.joules / joule;
  const title = "Energy by core and memory clock; the table of all pairs says the same";
  const xaxis = { title: { text: byLimit ? "Power limit, W" : "Core clock, MHz" } };
  const pareto = points.filter((point) => point.pareto);
  const marks = {
    type: "scatter", mode: "markers", name: "Pareto set", hoverinfo: "skip",
    marker: { symbol: "star", size: 12, color: colour("accent"), line: { color: "#ffffff", width: 1.5 } },
  };
  if (memories.length === 1) return {
    title,
    data: [{
      type: "scatter", mode: "lines+markers", name: "Energy",
      x: points.map(across), y: points.map(energy),
      text: points.map(told), hovertemplate: "%{text}<extra></extra>",
      line: { color: colour("bar") }, marker: { size: 7 },
    }, { ...marks, x: pareto.map(across), y: pareto.map(energy) }],
    layout: { xaxis, yaxis: { title: { text: `Energy, ${unit}` }, rangemode: "tozero" } },
  };
  const cores = [...new Set(points.map((point) => point.core_mhz))];
  const at = new Map(points.map((point) => [`${point.core_mhz} ${point.memory_mhz}`, point]));
  const rows = memories.sort((a, b) => a - b);
  const cell = (memory, core) => at.get(`${core} ${memory}`);
  return {
    title,
    data: [{
      type: "heatmap", colorscale: HEAT, xgap: 1, ygap: 2, hoverongaps: false,
      x: cores.map(String), y: rows.map(String),
      z: rows.map((memory) => cores.map((core) => (cell(memory, core) ? energy(cell(memory, core)) : null))),
      text: rows.map((memory) => cores.map((core) => (cell(memory, core) ? told(cell(memory, core)) : ""))),
      hovertemplate: "%{text}<extra></extra>",
      colorbar: { title: { text: unit, side: "top" }, thickness: 14 },
    }, {
      ...marks, x: pareto.map((point) => String(point.core_mhz)), y: pareto.map((point) => String(point.memory_mhz)),
    }],
    layout: {
      showlegend: false, height: Math.max(240, 150 + 40 * rows.length),
      xaxis: { ...xaxis, type: "category", nticks: 12 },
      yaxis: { type: "category", title: { text: "Memory clock, MHz" } },
    },
  };
}

function curve() {
  const chosen = found.points.filter((point) => point.pareto).sort((a, b) => a.time.seconds - b.time.seconds);
  const { at, axes } = energyAgainstTime(found.points);
  const line = (points) => ({ ...at(points), text: points.map(told), hovertemplate: "%{text}<extra></extra>" });
  const isFeasible = (point) => point.feasible;
  const others = found.points.filter((point) => !isFeasible(point));
  return {
    title: "Energy against time of every pair of clocks, with the Pareto set",
    data: [
      { ...line(found.points.filter(isFeasible)), mode: "markers", name: "Pairs of clocks",
        marker: { color: colour("bar"), size: 7 } },
      ...(others.length ? [{ ...line(others), mode: "markers", name: "Against the constraints",
        marker: { color: colour("control"), size: 7, symbol: "x-thin-open" } }] : []),
      { ...line(chosen), mode: "lines+markers", name: "Pareto set",
        line: { color: colour("bar-up"), width: 2 },
        marker: { color: colour("bar-up"), size: 9, symbol: "star" } },
    ],
    layout: axes({ type: "log", nticks: 8 }),
  };
}

const PAIR = [
  { title: "Core", num: true, of: (one) => `${plain(one.core_mhz, 4)} MHz` },
  { title: "Memory", num: true, of: (one) => `${plain(one.memory_mhz, 4)} MHz` },
];

const bestTable = (caption, pair, best) => table(caption, [
  { title: "Objective", head: true, of: ([name]) => OBJECTIVES[name] ?? name },
  ...pair.map((column) => ({ ...column, of: ([, one]) => column.of(one) })),
  { title: "Energy", num: true, of: ([, one]) => saved(one.energy_saved_percent) },
  { title: "Time", num: true, of: ([, one]) => saved(-one.time_penalty_percent) },
], Object.entries(best));

function showTables() {
  const pair = [...PAIR, { title: "Limit", num: true, of: (one) => `${plain(one.power_limit_watts, 4)} W` }];
  const { reference, assumptions } = found;
  byId("clocks-note").textContent = `Power: ${found.model.family}, version ${found.model.version}. Voltage curve: ${assumptions.voltage_curve}. Time: ${assumptions.time_model}.`
    + (assumptions.one_memory_clock ? " Only the core clock of this GPU can be chosen." : "")
    + (assumptions.trip_counts_guessed ? " Trip counts are assumed." : "") + ` Proposal: ${found.proposal.why}.`;
  show(byId("clocks-best"), bestTable(`Against ${plain(reference.core_mhz, 4)} and ${plain(reference.memory_mhz, 4)} MHz: `
    + `${joules(reference.energy.joules)}, ${seconds(reference.time.seconds)}`, pair, found.best));
  show(byId("clocks-table"), table("By core and memory clock", [
    ...pair,
    { title: "Runs at", num: true, of: (one) => `${plain(one.runs_at_core_mhz, 4)} MHz` },
    { title: "Energy", num: true, of: (one) => joules(one.energy.joules) },
    { title: "Time", num: true, of: (one) => seconds(one.time.seconds) },
    { title: "Power", num: true, of: (one) => watts(one.power.watts) },
    { title: "Bound by", of: (one) => one.regime ?? "" },
    { title: "Pareto", of: (one) => (one.pareto ? "yes" : "") },
  ], found.points, { chosen: (one) => one.pareto }));
}

const scale = asking("counted", async () => {
  const counters = { profile: byId("counted-profile").value };
  if (byId("counted-kernel").value.trim()) counters.kernel = byId("counted-kernel").value.trim();
  const [core, memory] = byId("counted-clocks").value.split("/").map((text) => Number(text.trim()) || null);
  if (core) counters.clocks = { core_mhz: core, memory_mhz: memory ?? null };
  if (number("counted-time") !== null) counters.time_seconds = number("counted-time") / 1e3;
  if (number("counted-power") !== null) counters.power_watts = number("counted-power");
  showScaled(await post("/dvfs", { gpu: kernel.gpu(), counters, ...constrained() }));
});

function showScaled(answer) {
  byId("counted-result").hidden = false;
  const at = answer.reference;
  byId("counted-note").textContent = `${answer.kernel ?? "The kernel"} against ${plain(at.core_mhz, 4)} and `
    + `${plain(at.memory_mhz, 4)} MHz, by ${answer.model.campaign}. ${answer.proposal ? `Proposal: ${answer.proposal.why}. ` : ""}`
    + answer.warnings.map((each) => `${each.detail}.`).join(" ");
  const factor = (name) => (one) => (one.scale[name] === null ? "" : `${plain(one.scale[name])}`);
  const ends = (name) => (one) => (one.scale[name] === null ? ""
    : `${plain(one.scale[`${name}_low`])} to ${plain(one.scale[`${name}_high`])}`);
  show(byId("counted-best"), bestTable("Best clocks", PAIR, answer.best));
  show(byId("counted-table"), table("By core and memory clock", [
    ...PAIR,
    { title: "Time ×", num: true, of: factor("time") }, { title: "Interval", num: true, of: ends("time") },
    { title: "Power ×", num: true, of: factor("power") }, { title: "Interval", num: true, of: ends("power") },
    { title: "Energy ×", num: true, of: factor("energy") },
    { title: "Pareto", of: (one) => (one.pareto ? "yes" : "") },
  ], answer.points, { chosen: (one) => one.pareto }));
  announce(`${answer.points.length} pairs of clocks computed`);
}

export function start() {
  byId("clocks-form").addEventListener("submit", compute);
  byId("counted-form").addEventListener("submit", scale);
  whenOpened("clocks", () => dispatchEvent(new Event("resize")));
}
