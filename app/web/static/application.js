// A whole application from its trace: what its kernels draw, power over time, what to do about it.

import { packaged, packagedFile, postForm } from "./api.js";
import { bar, card, estimate, rates, table, trustLine, warningsBox } from "./cards.js";
import {
  amount, announce, between, byId, cells, el, heads, joules, names, numbers, percent, plain, quantity, seconds, show, signed,
  watts,
} from "./dom.js";
import { members, submits, takesFiles, telling } from "./forms.js";
import { csv, saves } from "./save.js";
import { whenOpened } from "./tabs.js";
import { COLOURED, Timeline } from "./timeline.js";

const HOWS = {
  code: "by their code", "code, other launch": "by their code, launched otherwise",
  operator: "by the operator that launched them", "operator, by time": "by an operator of their kind that takes as long",
  name: "from launch and name alone", copy: "copies",
};
const SHOWN_ROWS = 50;
const LISTED = 50;
/** Of the table of all kernels that is saved. */
const COLUMNS = ["name", "device", "how", "family", "data_type", "launches", "seconds", "joules", "low", "high", "energy_share", "watts", "why", "code"];

/** Files chosen, by the id of their field. */
const chosen = { trace: [], code: [], against: [] };
const field = (name) => byId(`application-${name}`);

let asking = null;
/** Whether the files chosen are those of the solved example. */
let isExample = false;
let timeline = null;
let view = null;

function choose(name, files) {
  if (isExample) {
    isExample = false;
    choose("code", []);
  }
  chosen[name] = files;
  field(`${name}-name`).textContent = files.length > 3
    ? `${files.length} files` : files.map((file) => file.name).join(", ") || "none";
}

/** The place opens on a trace that was added up before, and on its files. */
async function openExample() {
  const { prediction, files } = await packaged("application");
  const [trace, code] = await Promise.all([files.file, files.code].map(packagedFile));
  if (chosen.trace.length || chosen.code.length) return;
  choose("trace", [trace]);
  choose("code", [code]);
  isExample = true;
  showAnswer(prediction, trace.name);
}

async function ask() {
  asking?.abort();
  asking = new AbortController();
  if (!chosen.trace.length) throw new Error("Choose a trace first.");
  field("result").hidden = true;
  const form = new FormData();
  for (const [name, files] of Object.entries({ file: chosen.trace, code: chosen.code, against: chosen.against }))
    for (const file of files) form.append(name, file, file.name);
  form.append("options", JSON.stringify({ launches: true, ...members(field("form")) }));
  const answer = await postForm("/applications", form, asking.signal);
  showAnswer(answer, chosen.trace[0].name);
  announce(`${answer.launches.toLocaleString()} launches: ${joules(answer.energy.joules)}`);
}

/** The first line of every report: how the power of the launches' time is known. */
const covered = (answer) => `Coverage of the time of ${answer.launches.toLocaleString("en")} launches: `
  + answer.coverage.map((one) => `${(100 * one.time_share).toFixed(1)} % `
    + `(${(100 * one.energy_share).toFixed(1)} % of the energy) ${HOWS[one.how]}`).join(", ");

function showAnswer(answer, name) {
  field("result").hidden = false;
  field("coverage").textContent = covered(answer);
  showNumbers(answer);
  showTimeline(answer, name);
  showToDo(answer);
  showRows(answer);
  showChanges(answer.changes);
  show(field("warnings"), warningsBox(answer.warnings));
  show(field("saves"), saves(() => `Answer about ${name}`, {
    JSON: () => JSON.stringify(answer), CSV: () => csv([COLUMNS, ...answer.kernels.map((row) => COLUMNS.map((column) => row[column]))]) }));
}

function showNumbers(answer) {
  show(field("numbers"),
    estimate("application-energy", `Energy of the boards, ${plain(answer.kwh, 4)} kWh`, answer.energy, "joules", joules),
    card("application-time", "Time", seconds(answer.span_seconds), el("p", { class: "hint" },
      `${watts(answer.power.watts)} on average`)),
    rates(answer, "application-cost", "application-co2"));
  show(field("trust"), trustLine(answer.trust));
  show(field("boards"), table("GPU boards; gaps are at idle power", [
    ...heads({ GPU: (one) => `${one.device}: ${one.gpu}` }),
    ...numbers({
      Launches: (one) => one.launches.toLocaleString("en"), Busy: (one) => percent(one.busy_seconds / (one.span_seconds || 1)),
      "Mean power": (one) => watts(one.mean_watts),
    }),
    amount("Energy", (one) => one.energy.joules, joules, "J"),
    amount("In gaps", (one) => one.gaps.joules, joules, "J"),
  ], answer.devices));
}

// The timeline

function showTimeline(answer, name) {
  timeline ??= new Timeline(field("timeline"), showView, (text) => (field("pointed").textContent = text));
  const names = [...new Set(answer.kernels.map((row) => row.name))].slice(0, COLOURED);
  const place = new Map(names.map((one, at) => [one, at]));
  const colourOf = Uint8Array.from(answer.kernels, (row) => place.get(row.name) ?? COLOURED);
  const swatch = (shade, text) => {
    const box = el("span", { class: "swatch" });
    box.style.background = `var(--${shade})`;
    return el("li", {}, box, text);
  };
  show(field("key"), names.map((one, at) => swatch(`link-${at}`, shortened(one))),
    colourOf.includes(COLOURED) ? swatch("control", "all other kernels") : null);
  timeline.canvas.setAttribute("aria-label", `Power over time and launches of ${answer.devices.length} GPU, `
    + `${watts(answer.power.watts)} on average over ${seconds(answer.span_seconds)}; the tables below say the same`);
  timeline.show(answer, colourOf);
  const stretches = () => [["GPU", "Start, s", "Time, s", "Power, W", "Busy share"],
    ...answer.devices.flatMap(({ device, timeline: line }) => line.start_seconds.map((start, at) =>
      [device, start, line.seconds[at], line.watts[at], line.busy[at]]))];
  const launches = () => {
    const all = answer.launch_columns;
    return [["Start, s", "Time, s", "Energy, J", "GPU", "Stream", "Kernel"], ...all.start_seconds.map((start, at) =>
      [start, all.seconds[at], all.joules[at], all.device[at], answer.streams[all.stream[at]]?.name, answer.kernels[all.kernel[at]].name])];
  };
  show(field("timeline-saves"),
    saves(() => `Power over time of ${name}`, {
      PNG: () => new Promise((done) => timeline.canvas.toBlob(done)), CSV: () => csv(stretches()) }),
    saves(() => `Launches of ${name}`, { CSV: () => csv(launches()) }));
}

/** What is in view, in words, and in the table if that is open. */
function showView(now) {
  view = now;
  const wide = now.to - now.from;
  field("view").textContent = `${now.isAll ? "All of it" : `${seconds(now.from)} to ${seconds(now.to)}`}: `
    + `${now.launches.toLocaleString("en")} ${now.launches === 1 ? "launch" : "launches"}, ${joules(now.energy)} in ${seconds(wide)}, ${watts(now.energy / wide)} on average.`;
  if (field("launches").open) listLaunches();
}

function listLaunches() {
  const { columns, answer } = timeline;
  const rows = view.most(LISTED);
  show(field("launch-table"), table(`Of ${view.launches.toLocaleString("en")} launches in view the ${rows.length} of the most energy`, [
    ...names({ Kernel: (place) => shortened(answer.kernels[columns.kernel[place]].name) }),
    ...cells({ GPU: (place) => columns.device[place], Stream: (place) => answer.streams[columns.stream[place]]?.name ?? "others" }),
    amount("Start", (place) => columns.start[place], (value) => quantity(value, "s", { digits: 6 }), "s"),
    amount("Time", (place) => columns.lasts[place], seconds, "s"),
    amount("Energy", (place) => columns.joules[place], joules, "J"),
    amount("Power", (place) => columns.power[place], watts, "W"),
  ], rows));
}

// What to do, sums, changes

const shortened = (name) => (name.length > 120 ? `${name.slice(0, 117)}...` : name);

function showToDo(answer) {
  const best = answer.clocks.filter((one) => one.best);
  const advised = answer.kernels.filter((row) => row.advice.length);
  field("to-do").hidden = !best.length && !advised.length;
  show(field("clocks"), best.length ? table("Best core clock within the slowdown, for the kernels that have code", [
    ...heads({ Launches: (one) => `GPU ${one.device}, ${one.step ?? "all"}` }),
    ...numbers({
      "Core clock": (one) => `${plain(one.best.core_mhz, 4)} MHz`,
      Energy: (one) => signed(100 * (one.best.energy - 1)), Time: (one) => signed(100 * (one.best.time - 1)),
      "Power limit": (one) => (one.power_limit_watts === null ? "" : `about ${watts(one.power_limit_watts)}`),
      "Time that has code": (one) => percent(one.covers),
    }),
  ], best) : null);
  show(field("advice"), advised.map((row) => [
    el("h3", {}, shortened(row.name)),
    el("ol", { class: "advice" }, row.advice.map((one) => el("li", {},
      el("p", {}, el("b", {}, one.remedy), `: ${plain(one.gain.energy_percent)} % less energy, `
        + `${signed(-one.gain.time_percent)} time`),
      el("p", { class: "hint" }, one.detail))))]));
}

const energyShare = (one) => [percent(one.energy_share), bar(0, one.energy_share)];

function sums(caption, rows, ...more) {
  const [first, ...others] = more.length ? more : [{ title: "Name", head: true, class: "wrap", of: (one) => shortened(one.name ?? "(none)") }];
  const cut = rows.length > SHOWN_ROWS ? `; the first ${SHOWN_ROWS} of ${rows.length.toLocaleString("en")}` : "";
  return rows.length ? table(`${caption}${cut}`, [
    first,
    amount("Launches", (one) => one.launches, (value) => value.toLocaleString("en")),
    amount("Time", (one) => one.seconds, seconds, "s"),
    amount("Energy", (one) => one.joules, joules, "J"),
    { title: "Share of energy", of: energyShare, value: (one) => one.energy_share },
    ...others,
  ], rows.slice(0, SHOWN_ROWS)) : null;
}

function showRows(answer) {
  show(field("kernels"), sums("By energy", answer.kernels,
    { title: "Kernel", head: true, class: "wrap", of: (one) => shortened(one.name), value: (one) => one.name },
    { title: "Between", num: true, of: (one) => between(one, joules), value: (one) => `${one.low} to ${one.high}`, unit: "J" },
    amount("Power", (one) => one.watts, watts, "W"),
    { title: "Known", of: (one) => el("span", { title: one.why }, one.code ? `${one.how}: ${one.code}` : one.how) },
    ...cells({ Trust: (one) => one.trust.mark, GPU: "device" })));
  show(field("operators"), sums("Framework operators, by energy", answer.operators));
  show(field("streams"), sums("Streams, by energy", answer.streams,
    { title: "Stream", head: true, of: (one) => one.name ?? "(none)" }, { title: "GPU", of: (one) => one.device }));
  show(field("steps"), sums("Steps, in their order", answer.steps));
  for (const name of ["operators", "steps"]) field(`${name}-box`).hidden = !answer[name].some((row) => row.name !== null);
}

function showChanges(found) {
  field("changes-panel").hidden = !found;
  if (!found) return;
  const pair = (name, format, unit) => ["old", "new"].map((side) => ({
    title: side === "old" ? `${name} before` : `${name} now`, num: true,
    of: (one) => format(one[`${side}_${name.toLowerCase() === "energy" ? "joules" : "launches"}`]), unit,
  }));
  const rows = (caption, given) => table(caption, [
    { title: "Name", head: true, class: "wrap", of: (one) => shortened(one.name ?? "(none)") },
    ...pair("Energy", joules), ...pair("Launches", (value) => value.toLocaleString("en")),
    amount("Change", (one) => one.joules, (value) => quantity(value, "J", { sign: true }), "J"),
  ], given);
  const whole = { name: "All of it, gaps included", joules: found.joules, ...Object.fromEntries(["old", "new"].flatMap((side) =>
    [[`${side}_joules`, found[side].joules], [`${side}_launches`, found[side].launches]])) };
  show(field("changes"), el("p", {}, `${joules(found.old.joules)} before, ${joules(found.new.joules)} now; `
    + `${seconds(found.old.seconds)} before, ${seconds(found.new.seconds)} now.`),
  rows("Kernels by how much their energy changed", [whole, ...found.kernels]),
  el("details", {}, el("summary", {}, "Operators"), rows("Operators by how much their energy changed", found.operators)));
}

export function start() {
  for (const name of Object.keys(chosen)) {
    field(name).addEventListener("change", (event) => {
      if (event.target.files.length || name !== "trace") choose(name, [...event.target.files]);
    });
  }
  takesFiles("application", (file) => choose("trace", [file]));
  submits("application", ask, "reading the trace");
  field("launches").addEventListener("toggle", () => view && field("launches").open && listLaunches());
  for (const [name, act] of Object.entries({
    left: () => timeline.pan(-0.5), right: () => timeline.pan(0.5), in: () => timeline.zoom(0.5),
    out: () => timeline.zoom(2), all: () => timeline.all(),
  })) field(`go-${name}`).addEventListener("click", act);
  let isOpened = false;
  whenOpened("application", () => {
    if (isOpened) return timeline?.redraw();
    isOpened = true;
    return telling("application", openExample);
  });
}
