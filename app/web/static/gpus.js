// Lists of GPUs: to choose one from, or several.

import { get } from "./api.js";
import { el, show } from "./dom.js";

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

/** Fill a `fieldset` with a checkbox for each GPU. */
export function fillChecks(box, found, checked = []) {
  const legend = box.querySelector("legend");
  show(box, legend, found.map((gpu) => el("label", { class: "check" },
    el("input", { type: "checkbox", value: gpu.id, checked: checked.includes(gpu.id) }), gpu.name)));
}

/** Ids of the GPUs checked in a `fieldset`. */
export const gpuChecks = (box) => [...box.querySelectorAll("input:checked")].map((one) => one.value);
