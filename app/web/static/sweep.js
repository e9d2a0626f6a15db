// A kernel at many launch shapes: heat map, time against energy, best shapes, all of them.

import { post } from "./api.js";
import { table } from "./cards.js";
import {
  COSTS, action, announce, button, byId, cells, colour, dimensions, heads, joules, numbers, parseDimensions, percent, plain, say,
  seconds, show, unitFor, watts, words,
} from "./dom.js";
import { members, submits } from "./forms.js";
import { chosenGpus } from "./gpus.js";
import * as kernel from "./kernel.js";
import { draw, energyAgainstTime, front, heatmap, load, named, stars } from "./plot.js";

const MEASURES = {
  energy: ["Energy", "J", (point) => point.energy.joules],
  time: ["Time", "s", (point) => point.time.seconds],
  power: ["Power", "W", (point) => point.power.watts],
  edp: ["Energy x delay", "Js", (point) => point.edp_joule_seconds],
};
export const OBJECTIVES = {
  min_energy: "Least energy", min_edp: "Least energy x delay", min_ed2p: "Least energy x delay²",
  max_performance: "Fastest", min_power: "Least power",
};

let found = null;

const list = (text) => text.split(/\s*[,;]\s*|\s+/).filter(Boolean);

/** "TILE=8,16 UNROLL=1" as {TILE: [8, 16], UNROLL: [1]}. */
function macros(text) {
  return Object.fromEntries(text.split(/[\s;]+/).filter(Boolean).map((part) => {
    const [name, values] = part.split("=");
    if (!values) throw new Error(`${part}: a macro with its values is taken, TILE=8,16,32 say`);
    return [name, values.split(",").map((value) => (/^-?\d+$/.test(value) ? Number(value) : value))];
  }));
}

/** "ceil(n / TILE), 1" taken apart at the commas that stand in no parentheses. */
const formulas = (text) => text.split(/,(?![^(]*\))/).map((part) => part.trim()).filter(Boolean);

function sweepRequest() {
  const body = { ...kernel.request(), ...kernel.operating(), ...kernel.models(), ...members(byId("sweep-form")) };
  if (body.registers) delete body.registers_per_thread;
  const chosen = chosenGpus(byId("sweep-gpus"));
  if (chosen.length > 1) body.gpus = chosen;
  else body.gpu = chosen[0] ?? kernel.gpu();
  const blocks = list(byId("sweep-blocks").value);
  if (blocks.length) body.blocks = blocks.map(parseDimensions);
  const defines = macros(byId("sweep-defines").value);
  if (Object.keys(defines).length) {
    body.defines = defines;
    const [grid, block] = ["sweep-grid", "sweep-block"].map((id) => formulas(byId(id).value));
    if (grid.length) body.grid_formula = grid;
    if (block.length) body.block_formula = block;
  }
  return body;
}

async function sweep() {
  load().catch(() => {});
  found = await post("/sweep", sweepRequest());
  byId("sweep-result").hidden = false;
  const doubt = found.warnings.find((one) => ["block_size_in_code", "variants_not_compared"].includes(one.code));
  const [other] = found.points.length > 1 ? [] : found.left_out;
  say(byId("sweep-doubt"), doubt ? `${doubt.detail}.` : other ? `No other shape is shown to compute the same: ${other.reason}. `
    + "Try registers or macros of the source, or tick the box above." : "");
  showMap();
  showFront();
  showTables();
  announce(`${found.points.length} shapes computed`);
}

/** Columns and rows of the map: blocks, by whatever else was varied. What each is named, and the
 *  numbers that it is sorted by. */
function axes(points) {
  const several = (of) => new Set(points.map(of)).size > 1;
  const gpus = [(point) => point.gpu, (point) => found.models.findIndex((one) => one.gpu === point.gpu)];
  const registers = [(point) => `${registersOf(point)}`, (point) => point.registers_per_thread ?? 0];
  const also = [gpus, registers].filter(([name]) => several(name));
  const rest = also.length ? also : [registers];
  const axis = (title, parts) => [title,
    (point) => parts.map(([name]) => name(point)).join(", "), (point) => parts.map(([, number]) => number(point))];
  if (points[0].defines) {
    const [first, ...others] = Object.keys(points[0].defines);
    const rank = (name) => {
      const values = [...new Set(points.map((point) => point.defines[name]))];
      return (point) => (typeof point.defines[name] === "number" ? point.defines[name] : values.indexOf(point.defines[name]));
    };
    const macros = others.map((name) => [(point) => `${name}=${point.defines[name]}`, rank(name)]);
    return {
      x: axis(first, [[(point) => `${point.defines[first]}`, rank(first)]]),
      y: macros.length ? axis("", [...macros, ...also]) : axis("Registers", rest),
    };
  }
  if (several((point) => point.block[1]) && !also.length) return {
    x: ["Threads along x", (point) => `${point.block[0]}`, (point) => [point.block[0]]],
    y: ["Threads along y", (point) => dimensions(point.block.slice(1)), (point) => point.block.slice(1)],
  };
  const title = also.length === 2 ? "GPU, registers" : rest[0] === gpus ? "" : "Registers";
  return { x: ["Block", (point) => dimensions(point.block), (point) => point.block], y: axis(title, rest) };
}

/** The names along an axis, each once, in the order of the numbers behind them. */
function inOrder(points, [, name, numbers]) {
  const known = new Map(points.map((point) => [name(point), numbers(point)]));
  return [...known.keys()].sort((one, other) => {
    const [left, right] = [known.get(one), known.get(other)];
    const at = left.findIndex((value, place) => value !== right[place]);
    return at < 0 ? 0 : left[at] - right[at];
  });
}

/** Ends of a scale that differences below the model's resolution cannot fill: ten of them at least. */
function scale(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const least = low * found.resolution_percent / 10;
  return high - low >= least ? [low, high] : [(low + high - least) / 2, (low + high + least) / 2];
}

const told = (point) => `${macrosOf(point) && `${macrosOf(point)}<br>`}${dimensions(point.grid)} blocks of ${dimensions(point.block)}<br>`
  + `${joules(point.energy.joules)}, ${seconds(point.time.seconds)}, ${watts(point.power.watts)}<br>`
  + `${point.occupancy === undefined ? "as launched" : `occupancy ${percent(point.occupancy)}`}${point.spills ? "<br>would spill" : ""}`
  + `${point.unproven ? "<br>not shown to compute the same" : ""}`;

function showMap() {
  const { points } = found;
  const { x, y } = axes(points);
  const left = found.left_out.length;
  byId("sweep-note").textContent = `${points.length} shapes; stars are the Pareto set of time and energy`
    + (points.some((point) => point.spills) ? "; with fewer registers than it needs a kernel spills, "
      + "which is not predicted." : ".")
    + (left ? ` ${left} more are left out: they are not shown to compute the same.` : "")
    + ` The model does not tell apart what differs by less than ${plain(found.resolution_percent)} %.`;
  draw(byId("sweep-map"), () => {
    const [title, base, of] = MEASURES[byId("sweep-measure").value];
    const [factor, unit] = unitFor(points.map(of), base);
    const [columns, rows] = [inOrder(points, x), inOrder(points, y)];
    const [low, high] = scale(points.map((point) => of(point) / factor));
    const cells = rows.map(() => columns.map(() => null));
    for (const point of points) cells[rows.indexOf(y[1](point))][columns.indexOf(x[1](point))] = point;
    const pareto = points.filter((point) => point.pareto);
    return {
      title: `${title} by launch shape; the table of all shapes says the same`,
      data: [
        { ...heatmap(columns, rows, cells, (point) => of(point) / factor, told, unit), xgap: 2, zmin: low, zmax: high },
        stars(pareto.map(x[1]), pareto.map(y[1]), 13),
      ],
      layout: {
        showlegend: false, height: Math.max(220, 130 + 34 * rows.length),
        xaxis: { type: "category", categoryarray: columns, title: { text: x[0] } },
        yaxis: { type: "category", categoryarray: rows, title: { text: y[0] } },
      },
    };
  });
}

/** Every shape by time and energy, and the Pareto set as a line. */
function showFront() {
  const { points, reference } = found;
  const { at } = energyAgainstTime(points);
  const all = at([...points, reference]);
  const [x, y] = [all.x, all.y].map((values) => {
    const [low, high] = scale(values);
    return { range: [low - (high - low) / 12, high + (high - low) / 12] };
  });
  draw(byId("sweep-front"), () => ({
    title: "Time and energy of every shape; the table of all shapes says the same",
    ...front(points, told, [
      ["shapes", points, { size: 8, color: colour("muted") }],
      ["as launched", [reference], { symbol: "circle-open", size: 17, color: colour("text"), line: { width: 2 } }],
    ], x, y),
  }));
}

const macrosOf = (one) => Object.entries(one.defines ?? {}).map(([name, value]) => `${name}=${value}`).join(", ");
const shapeOf = (one) => [macrosOf(one), one.grid.length && `${dimensions(one.grid)} x ${dimensions(one.block)}`]
  .filter(Boolean).join(": ");
export const saved = (value) => (value >= 0 ? `${plain(value)} % less` : `${plain(-value)} % more`);
const gain = (one, value) => (one.no_difference ? "no difference" : saved(value));
const registersOf = (one) => one.registers_per_thread ?? "own";

function showTables() {
  const best = Object.entries(found.best).map(([name, one]) => ({ name: OBJECTIVES[name] ?? name, ...one }));
  const common = [
    ...heads({ "Grid x block": (one) => (one.no_difference ? "no better one" : shapeOf(one)) }),
    ...numbers({ Registers: registersOf }), ...cells({ GPU: "gpu" }),
  ];
  show(byId("sweep-best"), table(`Against ${shapeOf(found.reference)} on ${found.reference.gpu}: `
    + `${joules(found.reference.energy.joules)}, ${seconds(found.reference.time.seconds)}`, [
    ...heads({ Objective: "name" }), ...common.map((column) => ({ ...column, head: false })),
    ...numbers({ Energy: (one) => gain(one, one.energy_saved_percent), Time: (one) => gain(one, one.time_saved_percent) }),
    action((one) => (one.no_difference ? "" : button("Use", () => use(one), shapeOf(one)))),
  ], best));
  show(byId("sweep-table"), table("In the order of GPUs, blocks and registers", [
    ...common, ...COSTS, ...numbers({ Occupancy: (one) => percent(one.occupancy) }),
    ...cells({ "Limited by": "limiter", Pareto: (one) => (one.pareto ? "yes" : ""), "Shown the same": (one) => (one.unproven ? "no" : "yes") }),
  ], found.points, { chosen: (one) => one.pareto }));
  const without = (name, rows, why) => {
    byId(`${name}-box`).hidden = !rows.length;
    byId(`${name}-title`).textContent = `${rows.length} shapes ${why}`;
    show(byId(name), table("And why", [...common, ...words({ Reason: "reason" })], rows));
  };
  without("sweep-infeasible", found.infeasible, "cannot be launched");
  without("sweep-left-out", found.left_out, "are left out: not shown to compute the same");
}

/** Put a shape into the form. */
function use(one) {
  byId("grid").value = dimensions(one.grid);
  byId("block").value = dimensions(one.block);
  byId("gpu").value = one.gpu;
  if (one.registers_per_thread !== null) byId("registers_per_thread").value = one.registers_per_thread;
  const macro = macrosOf(one);
  announce(`The form has ${shapeOf(one)} now.${macro && ` Set ${macro} in the source too.`}`);
}

export function start() {
  submits("sweep", sweep);
  byId("sweep-measure").addEventListener("change", () => found && showMap());
}
