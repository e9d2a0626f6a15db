// Forms: what they hold as members of a request, what is done with it, and files that are opened or dropped.

import { byId, say } from "./dom.js";

/**
 * What a field holds, `data-per` times larger than is asked for. Text is a list of numbers (`data-list`), a percentage
 * (`data-percent`), or stands for ? in `data-json`.
 */
function valueOf({ type, checked, value, dataset: { per = 1, plus = 0, list, percent, json } }) {
  if (type === "checkbox") return checked;
  if (list !== undefined) return value.split(/[\s,;]+/).filter(Boolean).map(Number);
  if (percent !== undefined) return Number(value.replace("%", "").replace("−", "-").replace(",", "."));
  if (type === "number") return Number(plus) + Number(value) / Number(per);
  return json ? JSON.parse(json.replace("?", value)) : value.trim();
}

/** What the named fields in use hold; those left empty have their defaults. `tariff.currency` is a member of a member. */
export function members(form) {
  const found = {};
  for (const field of form.elements) {
    if (!field.name || !field.value.trim() || field.matches(":disabled")) continue;
    const path = field.name.split(".");
    const last = path.pop();
    path.reduce((at, name) => (at[name] ??= {}), found)[last] = valueOf(field);
  }
  if (found.tariff && !("price_per_kwh" in found.tariff)) delete found.tariff;
  if (found.tariff && !found.tariff.currency) throw new Error("Say in which currency the price is.");
  return found;
}

/** Of an object these members alone, those that it has. */
export const pick = (of, ...names) => Object.fromEntries(names.filter((name) => name in of).map((name) => [name, of[name]]));

const turns = {};

/**
 * Do `act`, telling in the elements `name`-busy and `name`-error that it is under way, unless `busy` is null, and why
 * it failed. What was given up for something else (AbortError) has not failed.
 */
export async function telling(name, act, busy = "computing") {
  const [note, error] = [busy && byId(`${name}-busy`), byId(`${name}-error`)];
  const turn = turns[name] = {};
  say(error, "");
  if (note) note.textContent = busy;
  try {
    return await act();
  } catch (problem) {
    if (problem.name !== "AbortError") say(error, problem.message);
    return undefined;
  } finally {
    if (note && turns[name] === turn) note.textContent = "";
  }
}

/** The form `name`-form does `act`. */
export function submits(name, act, busy) {
  byId(`${name}-form`).addEventListener("submit", (event) => {
    event.preventDefault();
    telling(name, act, busy);
  });
}

/** Read a file that is chosen in the field `name`-file, or dropped on `name`-drop where there is one. */
export function takesFiles(name, take) {
  const [file, drop] = [byId(`${name}-file`), byId(`${name}-drop`)];
  file?.addEventListener("change", () => {
    if (file.files.length) take(file.files[0]);
    file.value = "";
  });
  for (const kind of ["dragover", "dragleave", "drop"]) drop?.addEventListener(kind, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
  });
}
