// A search in a tuning space, step by step: what is predicted, what was measured, what comes next.
// The service keeps nothing of it. All of it lies here, and in the tab's session storage.

import { post } from "./api.js";
import { card, table } from "./cards.js";
import {
  action, amount, announce, between, button, byId, cells, colour, el, names, numbers, parseDimensions, percent, quantity, show,
  unitFor, words,
} from "./dom.js";
import { members, submits, takesFiles, telling } from "./forms.js";
import * as kernel from "./kernel.js";
import { axisOf, brushed, parallel, scaleOf } from "./parallel.js";
import { diagonal, draw } from "./plot.js";
import { shown } from "./predict.js";
import { csv, saves, savesOfSvg } from "./save.js";
import { whenOpened } from "./tabs.js";

const KEPT = "wattcast.tune";
const VALUES = ["predicted", "expected", "low", "high", "measured"];
const FIELDS = ["space", "size", "divisors", "objective", "most", "gain", "limit"];
/** Predicted by one call; fewer where the service takes too long for so many. */
const AT_ONCE = { cuda: 8, ptx: 16 };
/** Calls between two that tell what is expected, which takes longer. */
const LOOKED = 4;
/** Most calls for one proposal: each may bring others that were not predicted. */
const LOOKS = 3;
/** Points that are drawn one by one. */
const FEW = 2000;
const [LISTED, CELLS, WHOLE] = [200, 60, 40];
const OBJECTIVES = {
  time: ["Time", "s", (one) => one.seconds], energy: ["Energy", "J", (one) => one.joules],
  edp: ["Energy x delay", "Js", (one) => (one.seconds && one.joules ? one.seconds * one.joules : null)],
};
const UNITS = { s: 1, ms: 1e-3, us: 1e-6, "µs": 1e-6, ns: 1e-9, J: 1, mJ: 1e-3, uJ: 1e-6, "µJ": 1e-6 };

/** {problem, rows, measured, fields}: what is asked about, forecasts, measurements, the form. */
let state = null;
/** The latest answer that had columns. */
let found = null;
let running = null;
/** Proposals that have a line to type in. */
let listed = [];
let ranges = [];

const field = (name) => byId(`tune-${name}`);
const named = (configuration) => Object.entries(configuration).map(([name, value]) => `${name}=${value}`).join(", ");
const format = (value) => quantity(value, found.unit);
const CONFIGURATION = names({ Configuration: (one) => named(one.configuration) });

function problemOf() {
  const { launch: { grid, block, ...launch }, ...body } = kernel.request();
  Object.assign(body, { gpu: kernel.gpu(), launch, space: field("space").value }, kernel.operating(), kernel.models());
  if (field("size").value.trim()) body.problem_size = parseDimensions(field("size").value);
  const divisors = field("divisors").value.split(";").map((axis) => axis.split(",").map((name) => name.trim()).filter(Boolean));
  if (divisors.flat().length) body.grid_divisors = divisors;
  return body;
}

const aim = () => members(field("form"));

let last = Promise.resolve();

/** One call after the other: `more` beside what is kept. What it predicts is kept. */
function ask(more, signal) {
  last = last.catch(() => {}).then(() => asked(more, signal));
  return last;
}

async function asked(more, signal) {
  const own = state;
  const answer = await post("/tunings", { ...own.problem, ...aim(), predicted: own.rows, measured: own.measured, ...more }, { signal });
  if (own !== state) throw new DOMException("another search was begun", "AbortError");
  state.rows.push(...answer.forecasts);
  state.measured = answer.measurements;
  if (answer.columns) found = answer;
  keep();
  return answer;
}

function keep() {
  state.fields = FIELDS.map((name) => field(name).value);
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(state));
  } catch {
    sessionStorage.removeItem(KEPT);
    field("busy").textContent = "too large to outlast a reload of the page";
  }
}

async function begin() {
  const problem = problemOf();
  if (JSON.stringify(problem) !== JSON.stringify(state?.problem)) {
    state = { problem, rows: [], measured: state?.measured ?? [] };
    ranges = [];
  }
  await run();
}

/** Predict until enough is known, the limit is reached or somebody stops it. */
async function run() {
  running = new AbortController();
  field("stop").hidden = field("progress").hidden = false;
  field("on").hidden = true;
  let [count, calls] = [AT_ONCE[state.problem.cuda ? "cuda" : "ptx"], 0];
  try {
    let answer = null;
    while (!answer || !isDone(answer)) {
      try {
        const left = Math.max(0, Number(field("limit").value) - state.rows.length);
        const outlook = calls % LOOKED === 0;
        answer = await ask({ predictions: Math.min(count, left), outlook }, running.signal);
      } catch (error) {
        if (error.slug !== "time-limit" || count === 1) throw error;
        count = Math.floor(count / 2);
        continue;
      }
      calls += 1;
      showProgress(answer);
      if (answer.columns) showFigures();
    }
    await refresh();
    announce("The space is predicted.");
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    if (state?.rows.length) await taking(() => refresh({ predictions: 0 }));
  } finally {
    running = null;
    field("stop").hidden = true;
    field("progress").hidden = true;
    if (found) showAll();
    showButtons();
  }
}

const isDone = (answer) => answer.enough || state.rows.length >= Number(field("limit").value);

/** Ask again about what is kept, until all that is proposed has been predicted, or nearly so. */
async function refresh(more = {}) {
  await ask({ predictions: 0, ...more });
  for (let look = 0; look < LOOKS && more.predictions !== 0; look += 1) {
    const predictions = found.next.filter((one) => one.emulated).length;
    if (!predictions) break;
    await ask({ predictions });
  }
  showAll();
}

function showProgress(answer) {
  const most = Math.min(answer.configurations, Number(field("limit").value));
  field("progress").max = most;
  field("progress").value = state.rows.length;
  field("busy").textContent = `${state.rows.length} of ${answer.configurations} predicted`;
}

function showButtons() {
  field("clear").hidden = !state;
  field("on").hidden = !state?.rows.length || running !== null || Boolean(found && isDone(found));
}

/** Not the tables: somebody may be typing there. */
function showFigures() {
  field("result").hidden = false;
  const { problem } = state;
  field("about").textContent = `${problem.kernel ?? (problem.cuda ? "CUDA source" : "PTX")} on ${found.gpu}. `
    + "The search is kept in this tab until it is closed, with its code; the service keeps nothing of it.";
  showNumbers();
  showScatter();
  showParallel();
  showButtons();
}

function showAll() {
  showFigures();
  showNext();
  showMeasured();
  showTables();
}

function showNumbers() {
  const { best, next } = found;
  const middle = (values) => values.slice().sort((a, b) => a - b)[Math.floor(values.length / 2)];
  show(field("numbers"),
    card("tune-count", "Predicted", `${found.predicted} of ${found.configurations}`, el("p", { class: "hint" },
      `${found.refused} refused; ${found.waiting ? `the other ${found.waiting} are told from these` : "none is left"}`)),
    card("tune-runs", "Measured", `${found.measured}`, el("p", { class: "hint" }, `${found.failed} failed`)),
    best ? card("tune-least", `Best ${OBJECTIVES[found.objective][0].toLowerCase()}`, format(middle(best.measured)),
      el("p", { class: "hint wrap" }, named(best.configuration))) : null,
    next.length ? card("tune-hope", "Next is expected at", format(next[0].expected),
      el("p", { class: "hint" }, `${between(next[0], format)}, 90 %`)) : null);
  field("advice").textContent = found.finished ? "One more measurement is not expected to gain enough: stop here."
    : "Measure these, the most promising first, and enter what you found: 31.2 µs, 4.8 mJ; bare numbers are seconds and joules.";
}

function showNext() {
  const input = (one, name, title) => el("input", {
    class: "count", name, "aria-label": `${title} of ${named(one.configuration)}`, placeholder: title, autocomplete: "off",
  });
  listed = found.next;
  show(field("next"), found.next.length ? table("The most promising first", [
    ...CONFIGURATION,
    ...numbers({
      Expected: (one) => `${format(one.expected)}${one.emulated ? " (not predicted)" : ""}`, "90 % interval": (one) => between(one, format),
      "Expected gain": (one) => (found.measured ? percent(one.gain, 2) : "–"),
    }),
    ...cells({
      Time: (one) => input(one, "seconds", "Time"), Energy: (one) => input(one, "joules", "Energy"),
      Failed: (one) => el("input", { type: "checkbox", name: "failed", "aria-label": `${named(one.configuration)} failed` }),
    }),
  ], found.next) : el("p", { class: "hint" }, "Nothing is left to measure."));
}

/** "31.2 µs" as seconds. */
function parsed(text, base) {
  const [, number, unit] = /^([\d.]+(?:e[+-]?\d+)?)\s*([a-zµ]*)$/i.exec(text.trim()) ?? [];
  const factor = unit ? (unit.endsWith(base) ? UNITS[unit] : undefined) : 1;
  if (!(Number(number) * factor > 0)) throw new Error(`${text}: a quantity in ${base} is taken, 31.2 µ${base} say`);
  return Number(number) * factor;
}

async function take() {
  const rows = [...field("next").querySelectorAll("tbody tr")].flatMap((line, at) => {
    const [seconds, joules] = ["seconds", "joules"].map((name) => line.querySelector(`[name=${name}]`).value.trim());
    const failed = line.querySelector("[name=failed]").checked;
    if (failed) return [{ configuration: listed[at].configuration, failed }];
    if (!seconds && !joules) return [];
    return [{ configuration: listed[at].configuration, ...(seconds && { seconds: parsed(seconds, "s") }), ...(joules && { joules: parsed(joules, "J") }) }];
  });
  if (!rows.length) throw new Error("Enter a time, an energy or a failure first.");
  await refresh({ measured: [...state.measured, ...rows] });
  announce(`${rows.length} taken in. ${field("advice").textContent}`);
}

const taking = (act) => telling("tune-measured", act);

/** The measurements as a T4 results file of Kernel Tuner (predictor/tuning_files.py, t4_text). */
function t4() {
  const results = state.measured.map((one) => {
    const measurements = [["time", one.seconds, "s"], ["energy", one.joules, "J"]]
      .filter(([, value]) => value !== null).map(([name, value, unit]) => ({ name, value, unit }));
    return {
      configuration: one.configuration, objectives: measurements.map(({ name }) => name), times: {},
      invalidity: one.failed ? "runtime" : "correct", correctness: one.failed ? 0 : 1, measurements,
    };
  });
  return `${JSON.stringify({ schema_version: "1.0.0", results }, null, 1)}\n`;
}

function showMeasured() {
  field("measured-panel").hidden = !state.measured.length;
  const told = (title, name, unit) => ({
    ...amount(title, (one) => one[name], null, unit),
    of: (one) => (one.failed ? "failed" : one[name] === null ? "" : quantity(one[name], unit)),
  });
  show(field("measured"), table("In the order they were taken in", [
    ...CONFIGURATION, told("Time", "seconds", "s"), told("Energy", "joules", "J"),
    action((one) => button("Remove", () => taking(() => refresh({ measured: state.measured.filter((each) => each !== one) })), named(one.configuration))),
  ], state.measured));
  show(field("export"), saves(() => "Results for Kernel Tuner", { JSON: t4 }));
  const [title, base, value] = OBJECTIVES[found.objective];
  const most = aim().most_seconds ?? Infinity;
  const runs = state.measured.map((one, at) => ({ at: at + 1, name: named(one.configuration), value: one.failed || one.seconds > most ? null : value(one) })).filter((one) => one.value);
  field("best").hidden = !runs.length;
  if (!runs.length) return;
  const [factor, unit] = unitFor(runs.map((one) => one.value), base);
  let least = Infinity;
  const best = runs.map((one) => (least = Math.min(least, one.value)) / factor);
  draw(field("best"), () => ({
    title: "Best so far by measurement; the table of measurements says the same",
    data: [
      { type: "scatter", mode: "lines", name: "best so far", x: runs.map((one) => one.at), y: best, line: { shape: "hv", color: colour("accent"), width: 2 } },
      { type: "scatter", mode: "markers", name: "measured", x: runs.map((one) => one.at), y: runs.map((one) => one.value / factor),
        text: runs.map((one) => one.name), marker: { symbol: "diamond", size: 9, color: colour("bar-up") } },
    ],
    layout: { height: 300, xaxis: { title: { text: "Measurement" }, rangemode: "tozero", dtick: runs.length < 12 ? 1 : undefined }, yaxis: { title: { text: `${title}, ${unit}` } } },
  }));
}

const configurationAt = (row) => Object.fromEntries(Object.entries(found.columns.parameters).map(([name, values]) => [name, values[row]]));
const rowsOf = (test) => found.columns.status.flatMap((status, row) => (test(status, row) ? [row] : []));

/** Numbers of the rows that are proposed. */
function proposed() {
  const wanted = new Set(found.next.map((one) => named(one.configuration)));
  found.proposed ??= rowsOf((status, row) => ["predicted", "emulated"].includes(status) && wanted.has(named(configurationAt(row))));
  return found.proposed;
}

/** Many points as few: one for each cell of a grid, with how many it stands for. */
function merged(rows, x, y) {
  const [xs, ys] = [x, y].map((of) => {
    const logs = rows.map((row) => Math.log(of[row]));
    const low = logs.reduce((a, b) => Math.min(a, b), Infinity);
    const width = logs.reduce((a, b) => Math.max(a, b), -Infinity) - low || 1;
    return logs.map((log) => Math.round((log - low) / width * CELLS));
  });
  const cells = new Map();
  rows.forEach((row, at) => {
    const key = xs[at] * (CELLS + 1) + ys[at];
    if (cells.has(key)) cells.get(key).count += 1;
    else cells.set(key, { row, count: 1 });
  });
  return [...cells.values()];
}

function showScatter() {
  const { predicted, expected, measured, status } = found.columns;
  const next = proposed();
  const isNext = new Set(next);
  const known = rowsOf((_, row) => predicted[row] !== null);
  const [runs, failed] = ["measured", "failed"].map((kind) => known.filter((row) => status[row] === kind));
  const rest = known.filter((row) => ["predicted", "emulated"].includes(status[row]) && !isNext.has(row));
  if (!known.length) return;
  const [factor, unit] = unitFor(known.map((row) => predicted[row]), found.unit);
  const [title] = OBJECTIVES[found.objective];
  const cells = rest.length > FEW ? merged(rest, predicted, expected) : rest.map((row) => ({ row, count: 1 }));
  field("scatter-note").textContent = "Upwards: measured, or expected by what was measured so far. On the line both are the same."
    + (cells.length < rest.length ? ` ${rest.length} configurations without a measurement are put together in ${cells.length} points.` : "");
  const trace = (name, rows, y, marker, texts = rows.map((row) => named(configurationAt(row)))) => ({
    type: "scatter", mode: "markers", name, x: rows.map((row) => predicted[row] / factor), y: rows.map((row) => y[row] / factor),
    text: texts, hovertemplate: "%{text}<br>predicted %{x}, here %{y}<extra></extra>", marker,
  });
  const ends = [known.reduce((a, row) => Math.min(a, predicted[row]), Infinity) / factor, known.reduce((a, row) => Math.max(a, predicted[row]), 0) / factor];
  draw(field("scatter"), () => ({
    title: `Predicted against measured or expected ${title.toLowerCase()}; the table of configurations says the same`,
    data: [
      diagonal(ends),
      trace("predicted only", cells.map((one) => one.row), expected, { symbol: "circle-open", size: cells.map((one) => 5 + Math.min(9, 2 * Math.log2(one.count))), color: colour("bar") },
        cells.map((one) => named(configurationAt(one.row)) + (one.count > 1 ? ` and ${one.count - 1} more` : ""))),
      ...(failed.length ? [trace("failed", failed, expected, { symbol: "x", size: 9, color: colour("bad") })] : []),
      trace("measured", runs.filter((row) => measured[row] !== null), measured, { symbol: "diamond", size: 10, color: colour("bar-up"), line: { color: colour("panel"), width: 1 } }),
      trace("next", next, expected, { symbol: "star", size: 14, color: colour("accent"), line: { color: colour("text"), width: 1 } }),
    ],
    layout: { height: 460, xaxis: { type: "log", title: { text: `Predicted, ${unit}` } }, yaxis: { type: "log", title: { text: `Measured or expected, ${unit}` } } },
  }));
}

function showParallel() {
  const { parameters, expected, measured } = found.columns;
  const value = expected.map((one, row) => measured[row] ?? one);
  const varied = Object.entries(parameters).filter(([, values]) => new Set(values).size > 1);
  const axes = [...varied.map(([name, values]) => axisOf(name, values)), scaleOf(OBJECTIVES[found.objective][0], value, format)];
  const known = rowsOf((status, row) => value[row] !== null);
  if (!known.length) return;
  const rows = known.filter((row) => axes.every(({ at }, axis) => !ranges[axis] || (at[row] >= ranges[axis][0] && at[row] <= ranges[axis][1])));
  const kept = new Set(rows);
  const [runs, next] = [rows.filter((row) => measured[row] !== null), proposed().filter((row) => kept.has(row))];
  const best = runs.reduce((least, row) => (least === null || value[row] < value[least] ? row : least), null);
  const marked = [...runs.slice(0, WHOLE).map((row) => ({ row, kind: "measured" })), ...next.map((row) => ({ row, kind: "next" })),
    ...(best === null ? [] : [{ row: best, kind: "best" }])];
  const title = "Parameters of the configurations and what is expected of them";
  const box = field("parallel");
  const figure = parallel(axes, rows, { value, marked, ranges, width: box.clientWidth, title });
  const choose = (axis, range) => {
    const [low, high] = ranges[axis] ?? [];
    ranges[axis] = range && low === range[0] && high === range[1] ? undefined : range;
    showParallel();
  };
  brushed(figure, axes, choose);
  show(box, figure);
  show(field("parallel-saves"), savesOfSvg(figure, title, () => [["Configuration", `${axes.at(-1).name}, ${found.unit}`], ...rows.map((row) => [named(configurationAt(row)), value[row]])]));
  field("kept").textContent = `${rows.length} of ${found.configurations} configurations are shown.`;
  const focused = document.activeElement?.id;
  show(field("filters"), axes.map((axis, at) => el("label", {}, axis.name, filterOf(axis, at, choose, axis === axes.at(-1)))));
  if (focused?.startsWith("tune-filter-")) byId(focused).focus();
}

/** What of an axis is shown, to be chosen without a pointer: a value, or the best of what is expected. */
function filterOf(axis, at, choose, isExpected) {
  const made = el("select", { id: `tune-filter-${at}`, onchange: () => choose(at, made.value ? made.value.split("-").map(Number) : undefined) },
    el("option", { value: "" }, "all"));
  const shares = isExpected ? [5, 10, 20].map((place) => [`0-${place}`, `at most ${axis.labels[place]}`])
    : axis.labels.map((label, place) => [`${place}-${place}`, label]);
  if (ranges[at] && !shares.some(([value]) => value === ranges[at].join("-")))
    shares.push([ranges[at].join("-"), `${axis.labels[ranges[at][0]]} to ${axis.labels[ranges[at][1]]}`]);
  made.append(...shares.map(([value, label]) => el("option", { value }, label)));
  made.value = ranges[at]?.join("-") ?? "";
  return made;
}

function showTables() {
  const { columns } = found;
  const rows = rowsOf((status, row) => columns.expected[row] !== null).sort((a, b) => columns.expected[a] - columns.expected[b]);
  const caption = rows.length > LISTED ? `The ${LISTED} that are expected to be best, of ${rows.length}` : "The best expected first";
  show(field("table"), table(caption, [
    ...names({ Configuration: (row) => named(configurationAt(row)) }), ...cells({ State: (row) => columns.status[row] }),
    ...VALUES.flatMap((name) => numbers({
      [name[0].toUpperCase() + name.slice(1)]: (row) => (columns[name][row] === null ? "" : format(columns[name][row])) })),
  ], rows.slice(0, LISTED)));
  const parameters = Object.keys(columns.parameters);
  show(field("all"), saves(() => "All configurations", {
    CSV: () => csv([[...parameters, "status", ...VALUES.map((name) => `${name}, ${found.unit}`)],
      ...columns.status.map((status, row) => [...parameters.map((name) => columns.parameters[name][row]), status, ...VALUES.map((name) => columns[name][row])])]),
  }));
  const refused = state.rows.filter((row) => row.problem);
  field("refused-box").hidden = !refused.length;
  field("refused-title").textContent = `${refused.length} cannot be predicted`;
  show(field("refused"), table("And why", [...CONFIGURATION, ...words({ Reason: "problem" })], refused.slice(0, LISTED)));
}

let suggested = "";

/** A space to begin with: the launch that is open, at clocks down to 60 %. It follows the form until somebody types another. */
function suggest() {
  const { gpu, clocks } = shown() ?? {};
  if (state || gpu !== kernel.gpu() || field("space").value !== suggested) return;
  const { grid, block } = kernel.settings().launch;
  const shape = Object.fromEntries(block.map((threads, axis) => [`block_size_${"xyz"[axis]}`, [threads]]));
  const core_mhz = [1, 0.9, 0.8, 0.7, 0.6].map((share) => Math.round(share * clocks.core_mhz));
  suggested = JSON.stringify({ tune_params: { ...shape, core_mhz }, problem_size: grid.map((blocks, axis) => blocks * (block[axis] ?? 1)) });
  field("space").value = suggested;
}

function forget() {
  running?.abort();
  sessionStorage.removeItem(KEPT);
  [state, found, ranges] = [null, null, []];
  field("result").hidden = true;
  field("busy").textContent = "";
  showButtons();
}

/** What the tab kept before the page was loaded again. */
function restore() {
  try {
    state = JSON.parse(sessionStorage.getItem(KEPT));
  } catch {
    state = null;
  }
  if (!state) return;
  FIELDS.forEach((name, at) => (field(name).value = state.fields[at]));
  field("busy").textContent = `${state.rows.length} predictions and ${state.measured.length} measurements are kept from before`;
  showButtons();
}

export function start() {
  submits("tune", begin, null);
  submits("tune-measured", take);
  field("stop").addEventListener("click", () => running?.abort());
  field("on").addEventListener("click", () => telling("tune", run, null));
  field("clear").addEventListener("click", forget);
  for (const name of ["objective", "most", "gain"])
    field(name).addEventListener("change", () => found && !running && taking(() => refresh()));
  takesFiles("tune-space", async (file) => (field("space").value = await file.text()));
  takesFiles("tune-results", (file) => taking(async () => refresh({ results: await file.text() })));
  whenOpened("tune", () => {
    if (!state) restore();
    telling("tune", async () => suggest(), null);
    if (found) showParallel();
    else if (state?.rows.length && !running) taking(() => refresh({ predictions: 0 }));
  });
}
