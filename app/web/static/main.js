// Starts the page: every view wires itself, then GPUs are listed and the address is followed.

import { byId, el, show } from "./dom.js";
import * as kernel from "./kernel.js";
import * as keys from "./keys.js";
import * as predict from "./predict.js";
import * as tabs from "./tabs.js";

const FIRST_GPU = "tesla-v100";

async function fillGpus() {
  const found = await kernel.gpus();
  const field = byId("gpu");
  const chosen = field.value || FIRST_GPU;
  const measured = found.filter((gpu) => gpu.power_models.length);
  const others = found.filter((gpu) => !gpu.power_models.length);
  const options = (list) => list.map((gpu) => el("option", { value: gpu.id }, gpu.name));
  show(field,
    el("optgroup", { label: "Power measured on this GPU" }, options(measured)),
    el("optgroup", { label: "Power pooled from others" }, options(others)));
  field.value = chosen;
}

async function fill() {
  try {
    await fillGpus();
  } catch (error) {
    kernel.complain(error);
    return;
  }
  const id = new URLSearchParams(location.search).get("prediction");
  if (id) await predict.openPrediction(id);
  document.documentElement.dataset.ready = "true";
}

kernel.start();
predict.start();
keys.start(() => {
  kernel.complain({ message: "" });
  fill();
});
tabs.start();
fill();
