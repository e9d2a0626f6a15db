// A kernel at many launch shapes: heat map, time against energy, best shapes, all of them.

import { post } from "./api.js";
import { announce, asking, byId, colour, dimensions, el, joules, parseDimensions, percent, plain, say, seconds, show, table, unitFor, watts } from "./dom.js";
import { chosenGpus } from "./gpus.js";
import * as kernel from "./kernel.js";
import { HEAT, draw, energyAgainstTime, load } from "./plot.js";
import { whenOpened } from "./tabs.js";

const MEASURES = {
  energy: ["Energy", "J", (point) => point.energy.joules],
  time: ["Time", "s", (point) => point.time.seconds],
  power: ["Power", "W", (point) => point.power.watts],
  edp: ["Energy x delay", "Js", (point) => point.edp_joule_seconds],
};
const OBJECTIVES = {
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
  const body = kernel.request();
  const chosen = chosenGpus(byId("sweep-gpus"));
  if (chosen.length > 1) body.gpus = chosen;
  else body.gpu = chosen[0] ?? kernel.gpu();
  Object.assign(body, kernel.operating(), kernel.models());
  const blocks = list(byId("sweep-blocks").value);
  if (blocks.length) body.blocks = blocks.map(parseDimensions);
  const defines = macros(byId("sweep-defines").value);
  if (Object.keys(defines).length) {
    body.defines = defines;
    const [grid, block] = ["sweep-grid", "sweep-block"].map((id) => formulas(byId(id).value));
    if (grid.length) body.grid_formula = grid;
    if (block.length) body.block_formula = block;
  }
  if (byId("sweep-unproven").checked) body.include_unproven = true;
  const registers = list(byId("sweep-registers").value).map(Number);
  if (registers.length) {
    body.registers = registers;
    delete body.registers_per_thread;
  }
  return body;
}

const sweep = asking("sweep", async () => {
  load().catch(() => {});
  found = await post("/sweep", sweepRequest());
  byId("sweep-result").hidden = false;
  const doubt = found.warnings.find((one) => ["block_size_in_code", "variants_not_compared"].includes(one.code));
  say(byId("sweep-doubt"), doubt ? `${doubt.detail}.` : "");
  showMap();
  showFront();
  showTables();
  announce(`${found.points.length} shapes computed`);
});

/** Columns and rows of the map: blocks, by whatever else was varied. What each is named, and the
 *  numbers that it is sorted by. */
function axes(points) {
  const several = (of) => new Set(points.map(of)).size > 1;
  const gpuName = (point) => point.gpu;
  const registers = (point) => `${registersOf(point)}`;
  const count = (point) => point.registers_per_thread ?? 0;
  const place = (point) => found.models.findIndex((one) => one.gpu === point.gpu);
  if (points[0].defines) {
    const [first, ...others] = Object.keys(points[0].defines);
    const rank = (name) => {
      const values = [...new Set(points.map((point) => point.defines[name]))];
      return (point) => (typeof point.defines[name] === "number" ? point.defines[name] : values.indexOf(point.defines[name]));
    };
    const ranks = others.map(rank);
    const rest = [several(gpuName) && gpuName, several(registers) && registers].filter(Boolean);
    return {
      x: [first, (point) => `${point.defines[first]}`, (point) => [rank(first)(point)]],
      y: [others.length ? "" : "Registers", (point) => [
        ...others.map((name) => `${name}=${point.defines[name]}`), ...rest.map((of) => of(point)),
      ].join(", ") || registers(point), (point) => [...ranks.map((of) => of(point)), place(point), count(point)]],
    };
  }
  const isPlane = several((point) => point.block[1]) && !several(gpuName) && !several(registers);
  if (isPlane) return {
    x: ["Threads along x", (point) => `${point.block[0]}`, (point) => [point.block[0]]],
    y: ["Threads along y", (point) => dimensions(point.block.slice(1)), (point) => point.block.slice(1)],
  };
  const parts = [several(gpuName) && gpuName, several(registers) && registers].filter(Boolean);
  const y = parts.length ? (point) => parts.map((of) => of(point)).join(", ") : registers;
  const name = parts.length === 2 ? "GPU, registers" : parts[0] === gpuName ? "" : "Registers";
  return {
    x: ["Block", (point) => dimensions(point.block), (point) => point.block],
    y: [name, y, (point) => [place(point), count(point)]],
  };
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
  + `occupancy ${percent(point.occupancy)}${point.spills ? "<br>would spill" : ""}`
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
    const texts = rows.map(() => columns.map(() => ""));
    for (const point of points) {
      const [row, column] = [rows.indexOf(y[1](point)), columns.indexOf(x[1](point))];
      cells[row][column] = of(point) / factor;
      texts[row][column] = told(point);
    }
    const stars = points.filter((point) => point.pareto);
    return {
      title: `${title} by launch shape; the table of all shapes says the same`,
      data: [
        {
          type: "heatmap", x: columns, y: rows, z: cells, text: texts, colorscale: HEAT, xgap: 2, ygap: 2,
          zmin: low, zmax: high,
          hovertemplate: "%{text}<extra></extra>", hoverongaps: false,
          colorbar: { title: { text: unit, side: "top" }, thickness: 14 },
        },
        {
          type: "scatter", mode: "markers", hoverinfo: "skip",
          x: stars.map(x[1]), y: stars.map(y[1]),
          marker: { symbol: "star", size: 13, color: colour("accent"), line: { color: "#ffffff", width: 1.5 } },
        },
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
  const { points, pareto, reference } = found;
  const { at, axes: titled } = energyAgainstTime(points);
  const isIt = (one) => (point) => ["gpu", "grid", "block", "registers_per_thread"]
    .every((name) => `${point[name]}` === `${one[name]}`) && macrosOf(point) === macrosOf(one);
  const front = pareto.map((one) => points.find(isIt(one))).filter(Boolean);
  const range = (values) => {
    const [low, high] = scale(values);
    return [low - (high - low) / 12, high + (high - low) / 12];
  };
  draw(byId("sweep-front"), () => {
    const all = at([...points, reference]);
    return {
      title: "Time and energy of every shape; the table of all shapes says the same",
      data: [
        { mode: "markers", name: "shapes", ...at(points), text: points.map(told),
          hovertemplate: "%{text}<extra></extra>", marker: { size: 8, color: colour("muted") } },
        { mode: "lines+markers", name: "Pareto set", ...at(front), hoverinfo: "skip",
          line: { color: colour("accent"), shape: "hv", width: 1.5 },
          marker: { symbol: "star", size: 13, color: colour("accent") } },
        { mode: "markers", name: "as launched", ...at([reference]), hoverinfo: "skip",
          marker: { symbol: "circle-open", size: 17, color: colour("text"), line: { width: 2 } } },
      ],
      layout: titled({ range: range(all.x) }, { range: range(all.y) }),
    };
  });
}

const macrosOf = (one) => Object.entries(one.defines ?? {}).map(([name, value]) => `${name}=${value}`).join(", ");
const shapeOf = (one) => [macrosOf(one), one.grid.length && `${dimensions(one.grid)} x ${dimensions(one.block)}`]
  .filter(Boolean).join(": ");
const saved = (value) => (value >= 0 ? `${plain(value)} % less` : `${plain(-value)} % more`);
const gain = (one, value) => (one.no_difference ? "no difference" : saved(value));
const registersOf = (one) => one.registers_per_thread ?? "own";

function showTables() {
  const best = Object.entries(found.best).map(([name, one]) => ({ name: OBJECTIVES[name] ?? name, ...one }));
  const common = [
    { title: "Grid x block", head: true, of: (one) => (one.no_difference ? "no better one" : shapeOf(one)) },
    { title: "Registers", num: true, of: registersOf },
    { title: "GPU", of: (one) => one.gpu },
  ];
  show(byId("sweep-best"), table(`Against ${shapeOf(found.reference)} on ${found.reference.gpu}: `
    + `${joules(found.reference.energy.joules)}, ${seconds(found.reference.time.seconds)}`, [
    { title: "Objective", head: true, of: (one) => one.name },
    ...common.map((column) => ({ ...column, head: false })),
    { title: "Energy", num: true, of: (one) => gain(one, one.energy_saved_percent) },
    { title: "Time", num: true, of: (one) => gain(one, one.time_saved_percent) },
    { title: "Action", hidden: true, of: (one) => (one.no_difference ? "" : el("button", { type: "button", class: "plain small", onclick: () => use(one) },
      "Use", el("span", { class: "visually-hidden" }, ` ${shapeOf(one)}`))) },
  ], best));
  show(byId("sweep-table"), table("In the order of GPUs, blocks and registers", [
    ...common,
    { title: "Energy", num: true, of: (one) => joules(one.energy.joules) },
    { title: "Time", num: true, of: (one) => seconds(one.time.seconds) },
    { title: "Power", num: true, of: (one) => watts(one.power.watts) },
    { title: "Occupancy", num: true, of: (one) => percent(one.occupancy) },
    { title: "Limited by", of: (one) => one.limiter },
    { title: "Pareto", of: (one) => (one.pareto ? "yes" : "") },
    { title: "Shown the same", of: (one) => (one.unproven ? "no" : "yes") },
  ], found.points, { chosen: (one) => one.pareto }));
  byId("sweep-infeasible-box").hidden = !found.infeasible.length;
  byId("sweep-infeasible-title").textContent = `${found.infeasible.length} shapes cannot be launched`;
  show(byId("sweep-infeasible"), table("And why", [
    ...common, { title: "Reason", class: "wrap", of: (one) => one.reason }], found.infeasible));
  byId("sweep-left-out-box").hidden = !found.left_out.length;
  byId("sweep-left-out-title").textContent = `${found.left_out.length} shapes are left out: not shown to compute the same`;
  show(byId("sweep-left-out"), table("And why", [
    ...common, { title: "Reason", class: "wrap", of: (one) => one.reason }], found.left_out));
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
  byId("sweep-form").addEventListener("submit", sweep);
  byId("sweep-measure").addEventListener("change", () => found && showMap());
  whenOpened("sweep", () => dispatchEvent(new Event("resize")));
}

export { OBJECTIVES, saved };
