// Lists of GPUs: to choose one from, or several.

import { get } from "./api.js";
import { announce, el, show } from "./dom.js";

let known = null;

/** Every GPU that the service knows; asked once. */
export function gpus() {
  known ??= get("/gpus").catch((error) => {
    known = null;
    throw error;
  });
  return known;
}

/** Fill a `select`, those first on which power was measured; keeps what is chosen. */
export function fillGpus(field, found, first) {
  const chosen = field.value || first;
  const options = (measured) => found.filter((gpu) => (gpu.power_models.length > 0) === measured)
    .map((gpu) => el("option", { value: gpu.id }, gpu.name));
  show(field, [...field.querySelectorAll(":scope > option")],
    el("optgroup", { label: "Power measured on this GPU" }, options(true)),
    el("optgroup", { label: "Power pooled from others" }, options(false)));
  if (chosen) field.value = chosen;
}

/** Let a text field name a GPU: suggestions while typing, then any name the service knows. */
function searched(search, found, take) {
  const choose = async () => {
    const text = search.value.trim();
    if (!text) return;
    try {
      const gpu = found.find((one) => one.name === text) ?? await get(`/gpus/${encodeURIComponent(text)}`);
      if (search.value.trim() !== text) return;  // typed on meanwhile
      take(gpu);
      search.value = "";
      announce(`${gpu.name} chosen`);
    } catch (error) {
      search.setCustomValidity(error.message);
      search.reportValidity();
    }
  };
  search.addEventListener("input", () => search.setCustomValidity(""));
  search.addEventListener("change", choose);
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();  // no prediction yet
    choose();
  });
}

/** Let a text field choose in a `select`; its suggestions are those of all such fields. */
export function searchable(search, field, found) {
  show(search.list, found.map((gpu) => el("option", { value: gpu.name }, gpu.id)));
  searched(search, found, (gpu) => {
    field.value = gpu.id;
    field.dispatchEvent(new Event("change", { bubbles: true }));
  });
}

/** Fill a `fieldset` (chips in fields.html.j2) with a chip for each GPU chosen, to be pressed away; its field adds others. */
export function fillChips(box, found, first = []) {
  const [chips, search] = ["div", "input"].map((tag) => box.querySelector(tag));
  const add = (gpu) => chosenGpus(box).includes(gpu.id) || chips.append(el("button", {
    type: "button", class: "pill", "data-gpu": gpu.id, onclick: (event) => {
      event.currentTarget.remove();
      search.focus();
    },
  }, gpu.name, el("span", { "aria-hidden": "true" }, " ×"), el("span", { class: "visually-hidden" }, ": remove")));
  searched(search, found, add);
  for (const id of first) add(found.find((gpu) => gpu.id === id));
}

/** Ids of the GPUs chosen in a `fieldset`. */
export const chosenGpus = (box) => [...box.querySelectorAll("[data-gpu]")].map((one) => one.dataset.gpu);
