// The form on the left: source, kernel, launch, loops and arguments, as a request.

import { post, Problem } from "./api.js";
import { byId, dimensions, el, parseDimensions, plain, say, show } from "./dom.js";
import { kernelsIn, languageOf } from "./source.js";

const SHOWN_CHARACTERS = 400_000;
const NUMBERS = ["dynamic_shared_bytes", "static_shared_bytes", "registers_per_thread"];

/** A text too long to edit: the form shows its beginning and sends the whole. */
let whole = null;
let fileName = "";
let loopValues = {};
let argumentValues = {};

export const sourceText = () => whole ?? byId("source").value;

export function language() {
  const chosen = byId("language").value;
  return chosen === "auto" ? languageOf(sourceText()) : chosen;
}

/** Put a text into the form, with the name of the file that it came from. */
export function setSource(text, name = "") {
  whole = text.length > SHOWN_CHARACTERS ? text : null;
  const field = byId("source");
  field.value = whole ? text.slice(0, SHOWN_CHARACTERS) : text;
  field.readOnly = whole !== null;
  fileName = name;
  loopValues = {};
  argumentValues = {};
  show(byId("loops"));
  show(byId("arguments"));
  byId("loops-count").textContent = "";
  byId("inspect-note").textContent = "";
  changed();
}

function changed() {
  const text = sourceText();
  const kernels = text.trim() ? kernelsIn(text, language()) : [];
  listKernels(kernels);
  const told = [];
  if (fileName) told.push(fileName);
  if (text.trim()) {
    told.push(language() === "ptx" ? "PTX" : "CUDA");
    told.push(kernels.length === 1 ? "1 kernel" : `${kernels.length} kernels`);
  }
  if (whole) told.push("too long to edit here: only its beginning is shown, all of it is sent");
  byId("source-note").textContent = told.join(" · ");
  say(byId("kernel-error"), "");
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

/** Of what every call about a kernel takes. Throws Error with what is missing. */
export function request() {
  const text = sourceText();
  if (!text.trim()) throw new Error("Paste PTX or CUDA source first, or use the example.");
  const body = { [language()]: text, launch: { grid: dims("grid"), block: dims("block") } };
  const kernel = byId("kernel").value;
  if (kernel) body.kernel = kernel;
  for (const name of NUMBERS) {
    const value = byId(name).value.trim();
    if (!value) continue;
    (name === "dynamic_shared_bytes" ? body.launch : body)[name] = Number(value);
  }
  if (byId("analysis").value !== "auto") body.analysis = byId("analysis").value;
  if (byId("time_model").value !== "auto") body.time_model = byId("time_model").value;
  const loops = Object.entries(loopValues).filter(([, value]) => value !== "");
  if (loops.length) body.loops = Object.fromEntries(loops.map(([name, value]) => [name, Number(value)]));
  const given = Object.entries(argumentValues).filter(([, value]) => value !== null);
  if (given.length) body.launch.arguments = Object.fromEntries(given);
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

/** The clocks of the form, if any are given. */
export function clocks() {
  const given = {};
  for (const name of ["core_mhz", "memory_mhz"])
    if (byId(name).value.trim()) given[name] = Number(byId(name).value);
  return Object.keys(given).length ? given : null;
}

/** What a prediction takes, for one GPU or, with a list, for several. */
export function predictRequest(gpus = null) {
  const body = request();
  if (gpus) body.gpus = gpus;
  else body.gpu = gpu();
  if (clocks()) body.clocks = clocks();
  if (byId("model").value !== "auto") body.model = byId("model").value;
  return body;
}

/** Fill the form with a request that was answered before. */
export function fill(asked) {
  setSource(asked.ptx ?? asked.cuda ?? "");
  byId("language").value = "auto";
  if (asked.kernel) listKernels(kernelsIn(sourceText(), language()), asked.kernel);
  byId("gpu").value = asked.gpu;
  byId("grid").value = dimensions([asked.launch.grid].flat());
  byId("block").value = dimensions([asked.launch.block].flat());
  for (const name of NUMBERS) byId(name).value = asked.launch[name] ?? asked[name] ?? "";
  byId("core_mhz").value = asked.clocks?.core_mhz ?? "";
  byId("memory_mhz").value = asked.clocks?.memory_mhz ?? "";
  for (const name of ["analysis", "time_model", "model"]) byId(name).value = asked[name] ?? "auto";
  loopValues = { ...asked.loops };
  argumentValues = { ...asked.launch.arguments };
}

/** Show a problem beside the form; one about kernels fills the list of them. */
export function complain(error) {
  if (error instanceof Problem && error.slug === "kernel" && error.members.known?.length)
    listKernels(error.members.known);
  const more = (error.members?.errors ?? [])
    .filter((one) => one.line !== undefined)
    .map((one) => `\nline ${one.line}: ${one.message}`);
  say(byId("kernel-error"), error.message + more.join(""));
}

/** Show the loops that an answer names, each with a field for its trips. */
export function showLoops(trips) {
  const named = trips.filter((one) => one.loop !== null);
  show(byId("loops"), named.length ? el("div", { class: "arguments" }, named.map(loopField)) : null);
  const guessed = named.filter((one) => one.how === "assumed").length;
  byId("loops-count").textContent = !named.length ? ""
    : `${named.length} ${named.length === 1 ? "loop" : "loops"}${guessed ? `, ${guessed} guessed` : ""}`;
}

function loopField(one) {
  const at = one.source_line ? `source line ${one.source_line}` : `line ${one.line}`;
  return el("label", { class: "wrap" }, `Loop ${one.loop} `,
    el("span", { class: "hint" }, `${at}; ${plain(one.trips)} ${one.how}`),
    el("input", {
      type: "number", min: 0, step: "any", placeholder: plain(one.trips),
      value: loopValues[one.loop] ?? null,
      oninput: (event) => (loopValues[one.loop] = event.target.value.trim()),
    }));
}

function argumentField(one) {
  const place = String(one.position);
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
    const text = field.value.trim();
    const number = Number(text);
    if (!text) argumentValues[place] = null;
    else if (kind.value === "number") argumentValues[place] = number;
    else argumentValues[place] = { elements: number, values: kind.value };
  };
  field.addEventListener("input", take);
  kind.addEventListener("change", take);
  return el("div", {}, el("label", { for: id, class: "wrap" }, one.c_name ?? one.ptx_name, " ",
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
    note.textContent = "";
    complain(error);
  }
}

async function read(file) {
  setSource(await file.text(), file.name);
}

/** Read files that are dropped on an element. */
export function takesFiles(element, take) {
  element.addEventListener("dragover", (event) => {
    event.preventDefault();
    element.classList.add("over");
  });
  element.addEventListener("dragleave", () => element.classList.remove("over"));
  element.addEventListener("drop", (event) => {
    event.preventDefault();
    element.classList.remove("over");
    if (event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
  });
}

async function example() {
  const path = new URL("vector_add.ptx", import.meta.url);
  setSource(await (await fetch(path)).text(), "vector_add.ptx");
  byId("grid").value = "4096";
  byId("block").value = "256";
}

export function start() {
  let later;
  byId("source").addEventListener("input", () => {
    fileName = "";
    clearTimeout(later);
    later = setTimeout(changed, 150);
  });
  byId("source").addEventListener("paste", () => setTimeout(changed));
  byId("language").addEventListener("change", changed);
  byId("file").addEventListener("change", (event) => {
    if (event.target.files.length) read(event.target.files[0]);
    event.target.value = "";
  });
  takesFiles(byId("drop"), read);
  byId("example").addEventListener("click", () => example().catch(complain));
  byId("clear").addEventListener("click", () => {
    setSource("");
    byId("source").focus();
  });
  byId("inspect").addEventListener("click", inspect);
}
