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

/** Let a text field choose in a `select`: suggestions while typing, then any name the service knows. */
export function searchable(search, field, found) {
  show(search.list, found.map((gpu) => el("option", { value: gpu.name }, gpu.id)));
  const choose = async () => {
    const text = search.value.trim();
    if (!text) return;
    try {
      const gpu = found.find((one) => one.name === text) ?? await get(`/gpus/${encodeURIComponent(text)}`);
      if (search.value.trim() !== text) return;  // typed on meanwhile
      field.value = gpu.id;
      field.dispatchEvent(new Event("change", { bubbles: true }));
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

/** Fill a `fieldset` with a checkbox for each GPU, and a field that hides those not searched for. */
export function fillChecks(box, found, checked = []) {
  const legend = box.querySelector("legend");
  const labels = found.map((gpu) => el("label", { class: "check" },
    el("input", { type: "checkbox", value: gpu.id, checked: checked.includes(gpu.id) }), gpu.name));
  const names = found.map((gpu) => [gpu.id, gpu.name, ...gpu.aliases].join(" ").toLowerCase());
  const search = el("input", { type: "search", class: "wide", "aria-label": "Show only GPUs named",
    placeholder: "Show only: rtx, a100, laptop", oninput: () => {
      const words = search.value.toLowerCase().split(/\s+/);
      labels.forEach((label, at) => {
        label.hidden = !label.control.checked && !words.every((word) => names[at].includes(word));
      });
    } });
  show(box, legend, search, labels);
}

/** Ids of the GPUs checked in a `fieldset`. */
export const gpuChecks = (box) => [...box.querySelectorAll("input:checked")].map((one) => one.value);
