// A kernel at every pair of clocks: energy map, Pareto curve, best pairs.

import { post } from "./api.js";
import { table } from "./cards.js";
import { COSTS, announce, byId, cells, colour, heads, joules, numbers, plain, seconds, show, unitFor, watts } from "./dom.js";
import { members, pick, submits } from "./forms.js";
import * as kernel from "./kernel.js";
import { draw, front, heatmap, load, named, stars } from "./plot.js";
import { OBJECTIVES, saved } from "./sweep.js";

let found = null;

function clocksRequest() {
  const given = members(byId("clocks-form"));
  if (!given.power_limit_watts) given.clocks = "grid";
  const model = byId("clocks-model").value;
  const asked = model === "physical" ? kernel.models() : { model };
  return { ...kernel.request(), gpu: kernel.gpu(), ...asked, ...given };
}

async function compute() {
  load().catch(() => {});
  found = await post("/dvfs", clocksRequest());
  byId("clocks-result").hidden = false;
  draw(byId("clocks-map"), map);
  draw(byId("clocks-pareto"), curve);
  showTables();
  announce(`${found.points.length} pairs of clocks computed`);
}

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
  if (memories.length === 1) return {
    title,
    data: [{
      type: "scatter", mode: "lines+markers", name: "Energy",
      x: points.map(across), y: points.map(energy), ...named(points.map(told)),
      line: { color: colour("bar") }, marker: { size: 7 },
    }, stars(pareto.map(across), pareto.map(energy))],
    layout: { xaxis, yaxis: { title: { text: `Energy, ${unit}` }, rangemode: "tozero" } },
  };
  const cores = [...new Set(points.map((point) => point.core_mhz))];
  const at = new Map(points.map((point) => [`${point.core_mhz} ${point.memory_mhz}`, point]));
  const rows = memories.sort((a, b) => a - b);
  const cells = rows.map((memory) => cores.map((core) => at.get(`${core} ${memory}`)));
  return {
    title,
    data: [
      { ...heatmap(cores.map(String), rows.map(String), cells, energy, told, unit), xgap: 1 },
      stars(pareto.map((point) => String(point.core_mhz)), pareto.map((point) => String(point.memory_mhz))),
    ],
    layout: {
      showlegend: false, height: Math.max(240, 150 + 40 * rows.length),
      xaxis: { ...xaxis, type: "category", nticks: 12 },
      yaxis: { type: "category", title: { text: "Memory clock, MHz" } },
    },
  };
}

const curve = () => ({
  title: "Energy against time of every pair of clocks, with the Pareto set",
  ...front(found.points, told, [
    ["Pairs of clocks", found.points.filter((point) => point.feasible), { color: colour("bar"), size: 7 }],
    ["Against the constraints", found.points.filter((point) => !point.feasible),
      { color: colour("control"), size: 7, symbol: "x-thin-open" }],
  ], { type: "log", nticks: 8 }),
});

const PAIR = numbers({ Core: (one) => `${plain(one.core_mhz, 4)} MHz`, Memory: (one) => `${plain(one.memory_mhz, 4)} MHz` });

const isPareto = (one) => (one.pareto ? "yes" : "");
const bestTable = (caption, pair, best) => table(caption, [
  ...heads({ Objective: (one) => OBJECTIVES[one.name] ?? one.name }), ...pair,
  ...numbers({ Energy: (one) => saved(one.energy_saved_percent), Time: (one) => saved(-one.time_penalty_percent) }),
], Object.entries(best).map(([name, one]) => ({ ...one, name })));

function showTables() {
  const pair = [...PAIR, ...numbers({ Limit: (one) => `${plain(one.power_limit_watts, 4)} W` })];
  const { reference, assumptions } = found;
  byId("clocks-note").textContent = `Power: ${found.model.family}, version ${found.model.version}. Voltage curve: ${assumptions.voltage_curve}. Time: ${assumptions.time_model}.`
    + (assumptions.one_memory_clock ? " Only the core clock of this GPU can be chosen." : "")
    + (assumptions.trip_counts_guessed ? " Trip counts are assumed." : "") + ` Proposal: ${found.proposal.why}.`;
  show(byId("clocks-best"), bestTable(`Against ${plain(reference.core_mhz, 4)} and ${plain(reference.memory_mhz, 4)} MHz: `
    + `${joules(reference.energy.joules)}, ${seconds(reference.time.seconds)}`, pair, found.best));
  show(byId("clocks-table"), table("By core and memory clock", [
    ...pair, ...numbers({ "Runs at": (one) => `${plain(one.runs_at_core_mhz, 4)} MHz` }), ...COSTS,
    ...cells({ "Bound by": "regime", Pareto: isPareto }),
  ], found.points, { chosen: (one) => one.pareto }));
}

async function scale() {
  const counters = members(byId("counted-form"));
  const [core, memory] = byId("counted-clocks").value.split("/").map((text) => Number(text.trim()) || null);
  if (core) counters.clocks = { core_mhz: core, memory_mhz: memory ?? null };
  showScaled(await post("/dvfs", { gpu: kernel.gpu(), counters, ...pick(members(byId("clocks-form")), "constraints") }));
}

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
    ...PAIR, ...numbers({ "Time ×": factor("time"), Interval: ends("time") }),
    ...numbers({ "Power ×": factor("power"), Interval: ends("power") }),
    ...numbers({ "Energy ×": factor("energy") }), ...cells({ Pareto: isPareto }),
  ], answer.points, { chosen: (one) => one.pareto }));
  announce(`${answer.points.length} pairs of clocks computed`);
}

export function start() {
  submits("clocks", compute);
  submits("counted", scale);
}
