// Uploads of measurements, checked before they are stored, and retraining on them.

import { follow, get, post, postForm, remove } from "./api.js";
import { announce, byId, el, percent, plain, say, show, table, when } from "./dom.js";
import { takesFiles } from "./box.js";
import { whenOpened } from "./tabs.js";

const SHOWN_ROWS = 20;
const PREVIEW_BYTES = 2000;
const PREVIEW_LINES = 5;

let file = null;
let checking = null;
const chosen = new Set();

function form() {
  const made = new FormData();
  made.append("file", file, file.name);
  for (const [name, id] of [["gpu", "upload-gpu"], ["board", "upload-board"], ["schema", "upload-schema"]])
    if (byId(id).value.trim()) made.append(name, byId(id).value.trim());
  return made;
}

async function choose(given) {
  file = given;
  byId("upload-name").textContent = `${file.name}, ${plain(file.size / 1024)} KiB`;
  await check();
}

/** Ask the service what it would take of the file; the latest question counts. */
async function check() {
  if (!file) return;
  checking?.abort();
  checking = new AbortController();
  const { signal } = checking;
  byId("upload").disabled = true;
  say(byId("upload-error"), "");
  byId("upload-busy").textContent = "checking each row";
  try {
    const found = await postForm("/measurements/check", form(), signal);
    show(byId("upload-check"), await preview(), verdict(found));
    byId("upload").disabled = !found.accepted;
  } catch (error) {
    if (error.name === "AbortError") return;
    show(byId("upload-check"), await preview());
    say(byId("upload-error"), error.message);
  }
  byId("upload-busy").textContent = "";
}

async function preview() {
  const start = await file.slice(0, PREVIEW_BYTES).text();
  if (start.includes("\u0000") || start.includes("\uFFFD")) return null;
  const lines = start.split(/\r?\n/).slice(0, PREVIEW_LINES);
  return el("div", { class: "code scroll", tabindex: 0, role: "region", "aria-label": "Beginning of the file" },
    el("pre", { class: "preview" }, lines.join("\n")));
}

function verdict(found) {
  const counted = el("p", {},
    el("span", { class: "good" }, `${found.accepted} rows would be taken`), ", ",
    el("span", { class: found.rejected ? "bad-text" : "" }, `${found.rejected} refused`), ".");
  return [counted, found.rejections.length ? rejected(found.rejections) : null];
}

const rejected = (rows) => table(
  rows.length > SHOWN_ROWS ? `The first ${SHOWN_ROWS} reasons` : "Why rows are refused", [
    { title: "Row", num: true, of: (one) => one.row },
    { title: "Column", of: (one) => one.column ?? "" },
    { title: "Reason", class: "wrap", of: (one) => one.reason },
  ], rows.slice(0, SHOWN_ROWS));

async function upload(event) {
  event.preventDefault();
  if (!file) return;
  say(byId("upload-error"), "");
  byId("upload").disabled = true;
  byId("upload-busy").textContent = "storing";
  try {
    const batch = await postForm("/measurements", form());
    show(byId("upload-check"), el("p", { class: "good", id: "upload-done" },
      `${batch.accepted} rows of ${file.name} are stored.`));
    announce(`${batch.accepted} rows stored`);
    file = null;
    byId("upload-name").textContent = "or drop one here";
    chosen.add(batch.id);
    await listBatches();
  } catch (error) {
    say(byId("upload-error"), error.message);
    byId("upload").disabled = false;
  }
  byId("upload-busy").textContent = "";
}

async function listBatches() {
  say(byId("batches-error"), "");
  try {
    const batches = await get("/measurements?limit=50");
    show(byId("batches"), batches.length ? table("Newest first", [
      {
        title: "For retraining",
        of: (one) => el("input", {
          type: "checkbox", value: one.id, checked: chosen.has(one.id),
          "aria-label": `Retrain on the batch of ${when(one.created)}`,
          onchange: (event) => (event.target.checked ? chosen.add(one.id) : chosen.delete(one.id)),
        }),
      },
      { title: "Stored", head: true, of: (one) => when(one.created) },
      { title: "Rows", num: true, of: (one) => one.accepted },
      { title: "Refused", num: true, of: (one) => one.rejected },
      { title: "Schemas", of: (one) => Object.keys(one.schemas).join(", ") },
      { title: "By", class: "wrap", of: (one) => one.uploaded_by },
      { title: "Actions", hidden: true, of: deleteButton },
    ], batches) : el("p", { class: "hint" }, "Nothing has been uploaded yet."));
  } catch (error) {
    say(byId("batches-error"), error.message);
  }
}

/** Deleting is for good, so the button asks once more. */
function deleteButton(batch) {
  let asked = false;
  const button = el("button", {
    type: "button", class: "plain small",
    onclick: async () => {
      if (!asked) {
        asked = true;
        button.textContent = "Really delete?";
        return;
      }
      try {
        await remove(`/measurements/${batch.id}`);
        chosen.delete(batch.id);
        await listBatches();
      } catch (error) {
        say(byId("batches-error"), error.message);
      }
    },
  }, "Delete");
  return button;
}

async function retrain(event) {
  event.preventDefault();
  say(byId("retrain-error"), "");
  if (!chosen.size) {
    say(byId("retrain-error"), "Choose batches above first.");
    return;
  }
  const body = {
    gpu: byId("retrain-gpu").value, mode: byId("retrain-mode").value, batches: [...chosen],
    targets: byId("retrain-targets").value.split(" "),
    promote: byId("retrain-promote").checked,
  };
  if (byId("retrain-family").value) body.families = [byId("retrain-family").value];
  byId("retrain").disabled = true;
  try {
    const job = await post("/retrain", body, { more: { "Idempotency-Key": crypto.randomUUID?.() ?? String(Math.random()) } });
    await watch(job);
  } catch (error) {
    say(byId("retrain-error"), error.message);
  }
  byId("retrain").disabled = false;
}

async function watch(job) {
  const bar = el("progress", { id: "job-progress", max: 1, value: 0, "aria-label": "Progress of the retraining" });
  const stage = el("p", { class: "hint", id: "job-stage", role: "status" }, "waiting");
  const cancel = el("button", {
    type: "button", class: "plain small",
    onclick: () => remove(`/jobs/${job.id}`).catch((error) => say(byId("retrain-error"), error.message)),
  }, "Cancel");
  const box = byId("job");
  box.hidden = false;
  show(box, bar, stage, cancel);
  const ended = await follow(job.id, ({ state, stage: name, progress, detail }) => {
    bar.value = progress;
    stage.textContent = [state, name, percent(progress, 2), detail].filter(Boolean).join(" · ");
  });
  show(box, outcome(ended));
  announce(`The retraining is ${ended.state}`);
}

function outcome(job) {
  if (job.state !== "done") return el("p", { class: "error" },
    job.state === "failed" ? `It failed: ${job.error?.detail ?? "no reason is known"}` : "It was cancelled.");
  return el("div", { id: "job-done" }, [job.result, ...(job.result.also ?? [])].map(ofTarget));
}

/** Whether the candidate of one target serves now, and why if it does not. */
function ofTarget({ candidate, verdict, promoted, gpu, target, scores: found }) {
  const name = `${candidate.family}, version ${candidate.version},`;
  return el("div", {},
    el("p", {}, promoted
      ? el("span", { class: "good" }, `${name} serves now for the ${target} of ${gpu}.`)
      : `${name} is a candidate for the ${target} of ${gpu}; it does not serve. It can be promoted under Models.`),
    verdict.reasons?.length ? el("ul", {}, verdict.reasons.map((reason) => el("li", { class: "wrap" }, reason))) : null,
    target === "power" ? scores(found) : timeScores(found));
}

/** Scores on seen and unseen kernels beside those of no information. */
export function scores(rows) {
  const of = (part, name) => (one) => {
    const found = one[part]?.[name];
    return found ? `${plain(found.mean)} ± ${plain(found.std, 2)}` : "";
  };
  return table("Error and fit, beside the median power as the answer to everything", [
    { title: "Kernels", head: true, of: (one) => (one.protocol === "grouped" ? "not seen" : "seen") },
    { title: "Rows", of: (one) => one.table.replaceAll("_", " ") },
    { title: "MAE, W", num: true, of: of("model", "mae_watts") },
    { title: "Baseline", num: true, of: of("baseline", "mae_watts") },
    { title: "R²", num: true, of: of("model", "r2") },
    { title: "Baseline", num: true, of: of("baseline", "r2") },
  ], rows.filter((one) => ["grouped", "random"].includes(one.protocol)));
}

/** The same of times, beside the default model as it is and the median time. */
export function timeScores(rows) {
  const of = (scored) => {
    const found = scored?.median_ape_percent;
    return found ? plain(found.mean) : "";
  };
  return table("Half of the launches are nearer than this", [
    { title: "Kernels", head: true, of: (one) => (one.protocol === "program" ? "not seen" : "seen") },
    { title: "Error, %", num: true, of: (one) => of(one.model) },
    { title: "Uncorrected", num: true, of: (one) => of(one.others["default time model"]) },
    { title: "Median time", num: true, of: (one) => of(one.others["median time"]) },
  ], rows);
}

async function fillSchemas() {
  const field = byId("upload-schema");
  if (field.options.length > 1) return;
  const found = await get("/schemas").catch(() => []);
  field.append(...found.map((schema) => el("option", { value: schema.id }, `features of ${schema.id}`)));
}

export function start() {
  byId("upload-file").addEventListener("change", (event) => {
    if (event.target.files.length) choose(event.target.files[0]);
    event.target.value = "";
  });
  takesFiles(byId("upload-drop"), choose);
  for (const id of ["upload-gpu", "upload-board", "upload-schema"]) byId(id).addEventListener("change", check);
  byId("upload-form").addEventListener("submit", upload);
  byId("retrain-form").addEventListener("submit", retrain);
  whenOpened("measurements", () => {
    fillSchemas();
    listBatches();
  });
}
