// Uploads of measurements, checked before they are stored, and retraining on them.

import { follow, get, post, postForm, remove } from "./api.js";
import { table } from "./cards.js";
import {
  action, announce, button, byId, cells, colour, el, heads, names, numbers, percent, plain, show, when, words,
} from "./dom.js";
import { members, submits, takesFiles, telling } from "./forms.js";
import { diagonal, draw } from "./plot.js";
import { whenOpened } from "./tabs.js";

const SHOWN_ROWS = 20;
const PREVIEW_BYTES = 2000;
const PREVIEW_LINES = 5;

let file = null;
let checking = null;
let checked = null;
const chosen = new Set();

function form() {
  const made = new FormData();
  made.append("file", file, file.name);
  for (const [name, value] of Object.entries(members(byId("upload-form")))) made.append(name, value);
  return made;
}

async function choose(given) {
  file = given;
  byId("upload-name").textContent = `${file.name}, ${plain(file.size / 1024)} KiB`;
  byId("upload").disabled = true;
  await check();
}

/** Ask the service what it would take of the file; the latest question counts. A field that is left
 *  by pressing Upload asks too, so the button stays as it is and waits for the answer. */
function check() {
  if (file) checked = telling("upload", look, "checking each row");
  return checked;
}

async function look() {
  checking?.abort();
  checking = new AbortController();
  let found = null;
  try {
    found = await postForm("/measurements/check", form(), checking.signal);
  } catch (error) {
    if (error.name !== "AbortError") await showCheck(null);
    throw error;
  }
  await showCheck(found);
}

async function showCheck(found) {
  show(byId("upload-check"), await preview(), found && verdict(found));
  byId("upload").disabled = !found?.accepted;
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
    ...numbers({ Row: "row" }), ...cells({ Column: "column" }), ...words({ Reason: "reason" }),
  ], rows.slice(0, SHOWN_ROWS));

async function upload() {
  await checked;
  if (!file || byId("upload").disabled) return;
  await disabling("upload", async () => {
    const batch = await postForm("/measurements", form());
    show(byId("upload-check"), el("p", { class: "good", id: "upload-done" },
      `${batch.accepted} rows of ${file.name} are stored.`));
    announce(`${batch.accepted} rows stored`);
    file = null;
    byId("upload-name").textContent = "or drop one here";
    chosen.add(batch.id);
    await listBatches();
  })();
  byId("upload").disabled = true;
}

/** `act` while the button of this id cannot be pressed. */
const disabling = (id, act) => async () => {
  byId(id).disabled = true;
  try {
    await act();
  } finally {
    byId(id).disabled = false;
  }
};

const listBatches = () => telling("batches", async () => {
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
    ...heads({ Stored: (one) => when(one.created) }), ...numbers({ Rows: "accepted", Refused: "rejected" }),
    ...cells({ Schemas: (one) => Object.keys(one.schemas).join(", ") }), ...words({ By: "uploaded_by" }),
    { title: "Actions", hidden: true, of: deleteButton },
  ], batches) : el("p", { class: "hint" }, "Nothing has been uploaded yet."));
});

/** Deleting is for good, so the button asks once more. */
function deleteButton(batch) {
  const made = button("Delete", () => {
    if (made.textContent === "Delete") made.textContent = "Really delete?";
    else telling("batches", async () => {
      await remove(`/measurements/${batch.id}`);
      chosen.delete(batch.id);
      await listBatches();
    });
  });
  return made;
}

function retrainRequest() {
  if (!chosen.size) throw new Error("Choose batches above first.");
  const { targets, ...body } = members(byId("retrain-form"));
  return { ...body, batches: [...chosen], targets: targets.split(" ") };
}

/** Show what would be done; a button below it does it. */
const plan = disabling("retrain", async () => {
  byId("job").hidden = true;
  show(byId("plan"));
  const body = retrainRequest();
  const found = await post("/retrain", { ...body, dry_run: true });
  const start = el("button", { type: "button", id: "retrain-start", onclick: () => telling("retrain", () => retrain(body), null) }, "Start this retraining");
  show(byId("plan"), found.targets.map((one) => planOf(one, found)), el("div", { class: "row" }, start));
  announce("The plan is shown; nothing has started.");
});

const MODES = {
  new_gpu: "The physical model is calibrated", continue: "Trees are added", full: "New trees are fitted",
};

function planOf(one, { gpu, board }) {
  const where = `${gpu}${board ? `, board ${board}` : ""}`;
  const left = Object.entries(one.left_out);
  return el("div", { class: "planned" },
    el("h3", {}, `${one.target} of ${where}: ${one.mode ? MODES[one.mode].toLowerCase() : "times are corrected"}`),
    el("p", { class: "wrap" }, `Why: ${one.why}.`),
    el("p", {}, `${one.rows} rows of ${one.kernels.length} kernels train. Each kernel is left out once, in `
      + `${one.folds} folds. Old and new are compared on ${one.judged_kernels} kernels.`),
    one.obstacles.length ? el("div", { class: "notice bad" }, el("p", {}, "With these rows nothing can be promoted:"),
      el("ul", {}, one.obstacles.map((text) => el("li", { class: "wrap" }, text)))) : null,
    one.notes.map((text) => el("p", { class: "hint wrap" }, text)),
    el("details", {}, el("summary", {}, "Rows by kernel"), table("What trains, and in which fold it is left out", [
      ...names({ Kernel: "kernel" }), ...numbers({ Rows: "rows", "Earlier rows": "earlier_rows", Fold: "fold" }),
      ...cells({ "Known before": (row) => (row.known ? "yes" : "") }),
    ], one.kernels)),
    left.length ? [table("Rows that do not train", [
      ...names({ Reason: ([why]) => why }), ...numbers({ Rows: ([, count]) => count }),
    ], left), el("details", {}, el("summary", {}, "Which rows"), table("The first of them", [
      ...numbers({ Row: "row" }), ...words({ Reason: "reason" }),
    ], one.left_out_rows.slice(0, SHOWN_ROWS)))] : el("p", { class: "hint" }, "No row is left out."));
}

async function retrain(body) {
  show(byId("plan"));
  await disabling("retrain", async () => {
    const job = await post("/retrain", body, { more: { "Idempotency-Key": crypto.randomUUID?.() ?? String(Math.random()) } });
    listJobs();
    await watch(job);
  })().finally(listJobs);
}

async function watch(job) {
  const bar = el("progress", { id: "job-progress", max: 1, value: 0, "aria-label": "Progress of the retraining" });
  const stage = el("p", { class: "hint", id: "job-stage", role: "status" }, "waiting");
  const cancel = button("Cancel", () => telling("retrain", () => remove(`/jobs/${job.id}`), null));
  const box = byId("job");
  box.hidden = false;
  show(box, bar, stage, cancel);
  const ended = await follow(job.id, ({ state, stage: name, progress }) => {
    bar.value = progress;
    stage.textContent = [state, name, percent(progress, 2)].filter(Boolean).join(" · ");
  });
  show(box, outcome(ended, "job-done"));
  announce(`The retraining is ${ended.state}`);
}

const stateOf = (job) => (job.state !== "done" ? job.state
  : [job.result, ...(job.result.also ?? [])].map((one) => `${one.target} ${one.promoted ? "promoted" : "not promoted"}`).join(", "));
const whyOf = (job) => (job.state === "failed" ? job.error?.detail ?? ""
  : [job.result, ...(job.result?.also ?? [])].flatMap((one) => one?.verdict.reasons ?? []).join("; "));

/** Retrainings of before with what became of them. */
const listJobs = () => telling("jobs", async () => {
  const jobs = await get("/jobs?limit=20");
  show(byId("jobs"), jobs.length ? table("Newest first", [
    ...heads({ Started: (job) => when(job.created) }), ...cells({ GPU: (job) => job.request.gpu }),
    ...words({ Board: (job) => job.result?.board ?? job.request.board }),
    ...cells({ Mode: (job) => job.result?.mode ?? job.request.mode }),
    ...words({ Verdict: (job) => el("span", { class: job.result?.promoted ? "good" : null }, stateOf(job)), Why: whyOf }),
    action((job) => (job.state === "done" ? jobButton("Show", job, () => showJob(job.id))
      : ["queued", "running"].includes(job.state) ? jobButton("Watch", job, () => watch(job).then(listJobs)) : "")),
  ], jobs) : el("p", { class: "hint" }, "Nothing has been retrained yet."));
});

const jobButton = (title, job, act) => button(title, () => telling("jobs", act), `the retraining of ${when(job.created)}`);

async function showJob(id) {
  show(byId("past-job"), outcome(await get(`/jobs/${id}`), "past-done"));
  announce("The retraining is shown below the list.");
}

function outcome(job, id) {
  if (job.state !== "done") return el("p", { class: "error" },
    job.state === "failed" ? `It failed: ${job.error?.detail ?? "no reason is known"}` : "It was cancelled.");
  return el("div", { id }, [job.result, ...(job.result.also ?? [])].map(ofTarget));
}

/** Whether the candidate of one target serves now, and why if it does not. */
function ofTarget({ candidate, verdict, promoted, gpu, board, target, scores: found, held_out: rows = [] }) {
  const name = `${candidate.family}, version ${candidate.version},`;
  const where = `${gpu}${board ? `, board ${board}` : ""}`;
  return el("div", {},
    el("p", {}, promoted
      ? el("span", { class: "good" }, `${name} serves now for the ${target} of ${where}.`)
      : `${name} is a candidate for the ${target} of ${where}; it does not serve. It can be promoted under Models.`),
    verdict.reasons?.length ? el("ul", {}, verdict.reasons.map((reason) => el("li", { class: "wrap" }, reason))) : null,
    rows.length ? heldOut(rows, target) : null,
    scores(target, found));
}

/** Old and new against what was measured, on kernels that were left out: a picture and a table. */
function heldOut(rows, target) {
  const [word, unit] = target === "power" ? ["power", "W"] : ["time", "s"];
  const figure = el("div", { class: "figure" });
  const measured = rows.map((row) => row.measured);
  const ends = [Math.min(...measured), Math.max(...measured)];
  const points = (name, symbol, shade, of) => ({
    type: "scatter", mode: "markers", name, x: measured, y: rows.map(of), text: rows.map((row) => row.kernel),
    hovertemplate: `%{text}<br>measured %{x:.4g} ${unit}, ${name} %{y:.4g} ${unit}<extra></extra>`,
    marker: { color: colour(shade), size: 8, symbol },
  });
  setTimeout(() => draw(figure, () => ({
    title: `Predicted against measured ${word} of kernels left out, old and new; the table below says the same by kernel`,
    data: [
      { ...diagonal(ends, { width: 2, dash: "dot" }), name: "as measured", showlegend: true },
      points("old", "x-thin-open", "bar-up", (row) => row.old),
      points("new", "circle-open", "bar", (row) => row.new),
    ],
    layout: {
      xaxis: { title: { text: `Measured ${word}, ${unit}` }, type: "log", nticks: 8 },
      yaxis: { title: { text: `Predicted ${word}, ${unit}` }, type: "log", nticks: 8 },
    },
  })));
  const kernels = [...new Set(rows.map((row) => row.kernel))].map((kernel) => {
    const own = rows.filter((row) => row.kernel === kernel);
    const error = (name) => (own.some((row) => row[name] === null) ? null
      : own.reduce((sum, row) => sum + Math.abs(row[name] / row.measured - 1), 0) / own.length);
    return { kernel, launches: own.length, old: error("old"), new: error("new") };
  });
  const told = (value) => (value === null ? "unknown" : percent(value, 2));
  return el("div", { class: "held-out" }, el("h3", {}, "Old and new on kernels left out"), figure,
    el("details", {}, el("summary", {}, "Error by kernel"), table("Mean error of launches whose kernel was not in training", [
      ...names({ Kernel: "kernel" }),
      ...numbers({ Launches: "launches", Old: (one) => told(one.old), New: (one) => told(one.new) }),
    ], kernels)));
}

/** How kernels that were not seen are told from others. */
const UNSEEN = { power: "grouped", time: "program" };

/** Columns of errors in a row of scores: of watts the mean beside that of the median power, of times the median. */
const ERRORS = {
  power: [["MAE, W", (one) => one.model?.mae_watts], ["Baseline", (one) => one.baseline?.mae_watts]],
  time: [["Error, %", (one) => one.model?.median_ape_percent],
    ["Uncorrected", (one) => one.others["default time model"]?.median_ape_percent],
    ["Median time", (one) => one.others["median time"]?.median_ape_percent]],
};

/** The same of a model, on kernels that it has not seen, as it was scored last. */
export const errorsOf = (target) => ERRORS[target].flatMap(([title, of]) => numbers({
  [title.replace("Median time", "Baseline")]: (model) => {
    const last = model.scores?.filter((one) => one.protocol === UNSEEN[target]).at(-1);
    return last && of(last) ? plain(of(last).mean) : "";
  },
}));

/** Scores on seen and unseen kernels beside those of no information. */
export function scores(target, rows) {
  const isPower = target === "power";
  const told = (found) => (found ? plain(found.mean) + (isPower ? ` ± ${plain(found.std, 2)}` : "") : "");
  const seen = heads({ Kernels: (one) => (one.protocol === UNSEEN[target] ? "not seen" : "seen") });
  const fits = [["R²", (one) => one.model?.r2], ["Baseline", (one) => one.baseline?.r2]];
  const columns = [...ERRORS[target], ...(isPower ? fits : [])].flatMap(([title, of]) => numbers({ [title]: (one) => told(of(one)) }));
  if (!isPower) return table("Half of the launches are nearer than this", [...seen, ...columns], rows);
  return table("Error and fit, beside the median power as the answer to everything", [
    ...seen, ...cells({ Rows: (one) => one.table.replaceAll("_", " ") }), ...columns,
  ], rows.filter((one) => [UNSEEN.power, "random"].includes(one.protocol)));
}

async function fillSchemas() {
  const field = byId("upload-schema");
  if (field.options.length > 1) return;
  const found = await get("/schemas").catch(() => []);
  field.append(...found.map((schema) => el("option", { value: schema.id }, `features of ${schema.id}`)));
}

export function start() {
  takesFiles("upload", choose);
  for (const id of ["upload-gpu", "upload-board", "upload-schema"]) byId(id).addEventListener("change", check);
  submits("upload", upload, "storing");
  submits("retrain", plan, "looking at each row");
  byId("retrain-form").addEventListener("change", () => show(byId("plan")));
  whenOpened("measurements", () => {
    fillSchemas();
    listBatches();
    listJobs();
  });
}
