// The form on the left: source, kernel, launch, loops and arguments, as a request.

import { get, post, Problem } from "./api.js";
import { kernelsIn, languageOf, SourceBox } from "./box.js";
import { byId, dimensions, el, parseDimensions, plain, say, show } from "./dom.js";
import { Pane } from "./editor.js";
import { members, pick } from "./forms.js";

/** Warnings of an answer that say something about a place in PTX that was sent. */
const MISREAD = new Set(["unknown_operand", "unparsed_statement", "unknown_opcode"]);

let box = null;
/** The editor: it and the field `source`, which holds the form's value, follow each other. */
let pane = null;
let known = [];
let tell = () => {};
let loopValues = {};
let argumentValues = {};

export const sourceText = () => box.text;
export const sourceName = () => box.name;
export const language = () => box.language;

/** Put a text into the form, with the name of the file that it came from. */
export const setSource = (text, name = "") => box.set(text, name);

/** Put a text into the form as if it had been typed: loops and arguments stay. */
export function edit(text) {
  box.field.value = text;
  box.field.dispatchEvent(new Event("input", { bubbles: true }));
}

/** Whether the editor holds the whole text. */
export const isWhole = () => !box.field.readOnly;
export const editor = () => pane;

/** Look at what was typed a moment ago, now. */
export const settle = () => box.settle();

function mirror() {
  pane.show(box.field.value, box.language, { fixed: box.field.readOnly });
}

/** Loops and arguments are those of a text; another has others. */
function forget() {
  loopValues = {};
  argumentValues = {};
  for (const id of ["loops", "arguments", "loops-count", "inspect-note"]) show(byId(id));
}

function changed(kernels) {
  const isOther = known.length > 0 && kernels.length > 0 && !kernels.some((name) => known.includes(name));
  if (kernels.length) known = kernels;
  listKernels(kernels);
  mirror();
  if (!isOther) return;
  forget();
  tell({ isOther });
}

/** Offer these kernels, and keep the one chosen if it is among them. */
function listKernels(names, chosen = byId("kernel").value) {
  const options = names.length === 1 ? [] : names;
  show(byId("kernel"),
    el("option", { value: "" }, names.length === 1 ? names[0]
      : names.length ? "Choose a kernel" : "The only one"),
    options.map((name) => el("option", { value: name }, name)));
  byId("kernel").value = options.includes(chosen) ? chosen : options[0] ?? "";
}

/** What every call about a kernel takes. Throws Error with what is missing. */
export function request() {
  if (!box.text.trim()) throw new Error("Paste PTX or CUDA source first, or take one of the examples.");
  settle();
  return { ...box.member, ...pick(said(), "kernel"), ...settings() };
}

/** What the form's fields say but for the code and the shape, those left to the service not among them. */
const said = () => Object.fromEntries(Object.entries(members(byId("kernel-form"))).filter(([, value]) => value !== "auto"));

/**
 * The same without the code: launch, loops, arguments, how it is analysed. For other code than the form's,
 * with these `kernels`, loops and arguments are left out unless it has a kernel of the form's.
 */
export function settings(kernels = known) {
  const isAbout = !known.length || kernels.some((name) => known.includes(name));
  const body = pick(said(), "launch", "static_shared_bytes", "registers_per_thread", "analysis", "time_model");
  body.launch = { grid: dims("grid"), block: dims("block"), ...body.launch };
  const loops = Object.entries(loopValues).filter(([, value]) => value !== "");
  if (loops.length && isAbout) body.loops = Object.fromEntries(loops.map(([name, value]) => [name, Number(value)]));
  const given = Object.entries(argumentValues).filter(([, value]) => value !== null);
  if (given.length && isAbout) body.launch.arguments = Object.fromEntries(given);
  return body;
}

function dims(name) {
  try {
    return parseDimensions(byId(name).value);
  } catch (error) {
    throw new Error(`${name === "grid" ? "Grid" : "Block"}: ${error.message}`);
  }
}

export const gpu = () => byId("gpu").value;

/** Clocks and power limit of the form, if any are given. */
export const operating = () => pick(said(), "clocks", "power_limit_watts");

/** Which power model answers, unless it is the usual one: a model, or the board's own. */
export function models() {
  const found = pick(said(), "board", "model");
  return found.board ? { model: "auto", ...found } : found;
}

/** Suggest the boards of the GPU that have a model of their own. */
async function listBoards() {
  const chosen = gpu();
  if (!chosen) return;
  const found = await get(`/models/${encodeURIComponent(chosen)}/power/registry`).catch(() => ({ places: [] }));
  if (gpu() !== chosen) return;
  show(byId("boards"), found.places.filter((place) => place.board && place.champion)
    .map((place) => el("option", { value: place.board })));
}

/** What a prediction takes. */
export const predictRequest = () => ({ ...request(), gpu: gpu(), details: true, ...operating(), ...models() });

/** Fill the form with a request that was answered before. */
export function fill(asked, name = "") {
  setSource(asked.ptx ?? asked.cuda ?? "", name);
  byId("language").value = "auto";
  if (asked.kernel) listKernels(kernelsIn(sourceText(), language()), asked.kernel);
  setAll(asked);
}

/** Change what advice says about launch, registers or clocks, as if it had been typed. */
export function change(members) {
  setAll({ ...predictRequest(), ...members });
  byId("grid").dispatchEvent(new Event("input", { bubbles: true }));
}

/** Everything but the code. */
function setAll(asked) {
  byId("gpu").value = asked.gpu;
  for (const name of ["grid", "block"]) byId(name).value = dimensions([asked.launch[name]].flat());
  const flat = { ...asked, ...asked.clocks, ...asked.launch };
  for (const field of byId("kernel-form").elements)
    if (field.name && field.name !== "kernel") field.value = flat[field.id] ?? (field.matches("select") ? "auto" : "");
  loopValues = { ...asked.loops };
  argumentValues = { ...asked.launch.arguments };
}

/** Show a problem, each part once: in words below the source, and in the margin of its lines. */
export function complain(error) {
  const { members = {} } = error;
  if (error instanceof Problem && error.slug === "kernel" && members.known?.length)
    listKernels(members.known);
  const told = (members.errors ?? []).filter((one) => one.line !== undefined);
  const isCode = ["ptx-syntax", "cuda-compile"].includes(error.slug);
  say(byId("kernel-error"), isCode && told.length
    ? told.map((one) => `line ${one.line}: ${one.message}`).join("\n") : error.message);
  pane.problems(!isCode ? [] : told.length ? told
    : members.line ? [{ line: members.line, message: error.message }] : []);
}

/** There is no problem any more, but for what of PTX was not understood. */
export function content(warnings = []) {
  say(byId("kernel-error"), "");
  pane.problems(box.language !== "ptx" ? [] : warnings
    .filter((one) => MISREAD.has(one.code) && one.line)
    .map((one) => ({ line: one.line, message: one.detail, severity: "warning" })));
}

/** Show the loops that an answer names, each with a field for its trips. */
export function showLoops(trips) {
  const named = trips.filter((one) => one.loop !== null);
  show(byId("loops"), named.length ? el("div", { class: "arguments" }, named.map(loopField)) : null);
  const guessed = named.filter((one) => one.how === "assumed").length;
  byId("loops-count").textContent = !named.length ? ""
    : `${named.length} ${named.length === 1 ? "loop" : "loops"}${guessed ? `, ${guessed} assumed` : ""}`;
}

function loopField(one) {
  const at = one.source_line ? `source line ${one.source_line}` : `PTX line ${one.line}`;
  return el("label", { class: "wrap" }, `Loop ${one.loop} `,
    el("span", { class: "hint" }, `${at}; ${plain(one.trips)} ${one.how}`),
    el("input", {
      type: "number", min: 0, step: "any", placeholder: plain(one.trips),
      value: loopValues[one.loop] ?? null,
      oninput: (event) => (loopValues[one.loop] = event.target.value.trim()),
    }));
}

function argumentField(one) {
  const place = one.position + one.ptx_name.replace(/^[^+]*/, ""); // of a structure: 2+4
  const given = argumentValues[place];
  const pointer = one.type === "u64";
  const isBuffer = given !== null && typeof given === "object";
  const id = `argument-${place}`;
  const field = el("input", {
    id, inputmode: "numeric", value: isBuffer ? given.elements ?? null : given ?? null,
    placeholder: pointer ? "elements, if it points to a buffer" : "assumed",
    "aria-label": `Value of ${one.c_name ?? one.ptx_name}`,
  });
  const kind = el("select", { "aria-label": `What ${one.c_name ?? one.ptx_name} is` },
    [["number", "a number"], ["uniform", "buffer, random"], ["zeros", "buffer of zeros"],
      ["sorted", "buffer, sorted"], ["index", "buffer of indices"]]
      .map(([value, title]) => el("option", { value }, title)));
  kind.value = isBuffer ? given.values ?? "uniform" : pointer ? "uniform" : "number";
  const take = () => {
    const number = field.value.trim() ? Number(field.value) : null;
    argumentValues[place] = number === null || kind.value === "number" ? number : { elements: number, values: kind.value };
  };
  return el("div", { oninput: take }, el("label", { for: id, class: "wrap" }, one.c_name ?? one.ptx_name, " ",
    el("span", { class: "hint" }, `argument ${place}, ${one.type}`)), field, kind);
}

/** Ask the service what loops and arguments the kernel has. */
async function inspect() {
  const note = byId("inspect-note");
  note.textContent = "looking";
  try {
    const found = await post("/analyze", { ...request(), gpu: gpu() });
    showLoops(found.loops);
    show(byId("arguments"), el("div", { class: "arguments" }, found.launch.arguments.map(argumentField)));
    note.textContent = `${found.loops.length} loops, ${found.launch.arguments.length} arguments`;
  } catch (error) {
    complain(error);
    note.textContent = error.message;
  }
}

/** `changed()` is told of every change of the form, `entered()` of Ctrl-Enter, the others of lines. */
export function start({ changed: told, entered, pointed, picked }) {
  const chosen = byId("language");
  tell = told;
  box = new SourceBox("source", {
    language: (text) => (chosen.value === "auto" ? languageOf(text) : chosen.value), changed,
    replaced: () => {
      known = [];
      forget();
      mirror();
      told({ isOther: true });
    },
  });
  pane = new Pane(byId("editor"), { label: "PTX or CUDA source", typed: edit, entered, pointed, picked });
  box.field.addEventListener("input", mirror);
  byId("source-label").addEventListener("click", (event) => {
    event.preventDefault();
    pane.focus();
  });
  for (const kind of ["input", "change"])
    byId("main").addEventListener(kind, ({ target }) => {
      if (target.form?.id === "kernel-form" && !["gpu-search", "source-file"].includes(target.id)) told();
    });
  chosen.addEventListener("change", () => box.update());
  byId("clear").addEventListener("click", () => {
    setSource("");
    pane.focus();
  });
  byId("inspect").addEventListener("click", inspect);
  byId("board").addEventListener("focus", listBoards);
}
