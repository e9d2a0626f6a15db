// Which model serves, how good each version is, and changing it.

import { get, post } from "./api.js";
import { table } from "./cards.js";
import { action, announce, button, byId, cells, el, heads, numbers, plain, show, when, words } from "./dom.js";
import { pick, telling } from "./forms.js";
import { fillGpus } from "./gpus.js";
import { errorsOf, scores } from "./measurements.js";
import { whenOpened } from "./tabs.js";

const target = () => byId("models-target").value;
const path = () => `/models/${encodeURIComponent(byId("models-gpu").value)}/${target()}`;
const nameOf = (one) => `${one.family}, version ${one.version} (${one.source})`;
const isSame = (a, b) => a && b && a.card === b.card;

// GPUs that came with a power model; others may have retrained ones.
let packaged = new Set();

/** Which GPUs there are. */
export function fill(gpus, first) {
  packaged = new Set(gpus.filter((gpu) => gpu.power_models.length).map((gpu) => gpu.id));
  fillGpus(byId("models-gpu"), gpus, first);
}

const load = () => telling("models", async () => {
  const [gpu, asked] = [byId("models-gpu").value, path()];
  if (!gpu) return;
  const registry = await get(`${asked}/registry`);
  const any = registry.versions.length || (target() === "power" && packaged.has(gpu));
  const cards = any ? await get(asked) : [];
  if (asked === path()) showAll(cards, registry);
});

/** Versions of the registry and packaged cards, each once, with who serves. */
function showAll(cards, registry) {
  const versions = new Map();
  for (const card of cards) {
    const name = `${card.family}-${card.feature_schema.id}-${card.source}/${card.version}`;
    versions.set(`${path()}/${name}`, {
      card: `${path()}/${name}`, family: card.family, version: card.version, source: card.source,
      schema: card.feature_schema.id, created: card.created, origin: "packaged", board: "", promoted: null,
      reasons: [], scores: card.scores, rows: card.training.rows,
    });
  }
  for (const one of registry.versions) versions.set(one.card, { ...versions.get(one.card), ...one });
  const places = registry.places.filter((place) => place.champion);
  const general = places.find((place) => place.board === "");
  const serving = general ? nameOf(general.champion) : registry.default ? `the packaged default, ${nameOf(registry.default)}`
    : target() === "power" ? "the packaged default" : "the default time model, uncorrected";
  show(byId("serving"),
    el("p", {}, "Serving: ", el("b", { id: "champion" }, serving), ". ", general ? rollbackButton("") : null),
  places.filter((place) => place.board).map((place) => el("p", { class: "wrap" },
    `For board ${place.board}: ${nameOf(place.champion)}. `, rollbackButton(place.board))),
  registry.observed.map((one) => el("p", { class: "wrap" },
    `${one.inside} of ${one.kernels} kernels measured${one.board ? ` on board ${one.board}` : ""} after they were predicted lay in `
    + `the intervals of ${one.model} (promised: ${100 * one.promised} %)${one.widened > 1
      ? `; answers are ${plain(one.widened)} times as wide until it is retrained` : ""}.`)));
  const rows = [...versions.values()];
  const isServing = (one) => places.some((place) => isSame(place.champion, one));
  const served = (board) => places.find((place) => place.board === board)?.champion ?? general?.champion ?? registry.default;
  const none = el("p", { class: "hint" }, `No ${target()} model of this GPU has been trained.`);
  show(byId("versions"), !rows.length ? none : table("Error on kernels not seen, beside that of no information", [
    ...heads({ Model: nameOf }), ...words({ Board: "board" }), ...cells({ Schema: "schema", Made: (one) => when(one.created) }),
    ...numbers({ Rows: "rows" }), ...errorsOf(target()),
    ...words({ State: (one) => stateOf(one, registry, isServing(one)) }),
    action((one) => (isServing(one) || (one.family === "physical" && one.source !== "uploads") ? ""
      : button("Promote", () => askFirst(one, versions.get(served(one.board ?? "")?.card)), nameOf(one)))),
  ], rows, { chosen: isServing }),
  rows.filter((one) => one.scores?.length).map((one) => el("details", {},
    el("summary", {}, `Scores of ${nameOf(one)}`), scores(target(), one.scores))));
  show(byId("promotions"), registry.promotions.length ? table("Newest first, also those undone since", [
    ...heads({ When: (one) => when(one.at) }), ...cells({ Model: (one) => nameOf(one.version) }),
    ...words({ Board: "board", By: "actor", Why: "why" }),
  ], registry.promotions) : el("p", { class: "hint" }, "No such model of this GPU has been promoted."));
}

function stateOf(one, registry, isServing) {
  if (isServing) return el("span", { class: "good" }, "serves");
  if (registry.places.some((place) => isSame(place.candidate, one))) return "candidate";
  return one.reasons.length ? `${one.origin}; ${one.reasons.join("; ")}` : one.origin;
}

/** Ask before a model serves, with its errors beside those of the one that it replaces. */
function askFirst(one, serving) {
  const errors = errorsOf(target());
  const [now, then] = [serving, one].map((each) => Number(each && errors[0].of(each)) || null);
  const body = { ...pick(one, "family", "schema", "source", "version"), board: one.board ?? "" };
  const dialog = byId("promote-dialog");
  const promote = async () => (await act("promote", body, `${nameOf(one)} serves now.`)) && dialog.close();
  byId("promote-title").textContent = `Let ${nameOf(one)} serve?`;
  show(byId("promote-why"),
    table("Error on kernels not seen", [
      ...heads({ "": ([role]) => role }), ...words({ Model: ([, each]) => (each ? nameOf(each) : "the packaged default") }),
      ...errors.map((column) => ({ ...column, of: ([, each]) => (each && column.of(each)) || "not measured" })),
    ], [["Serves now", serving], ["Would serve", one]]),
    now && then > now ? el("p", { class: "bad-text" }, "Its error is larger than that of the model that serves now.") : null,
    one.reasons.map((reason) => el("p", { class: "wrap" }, `${reason}.`)));
  byId("promote-error").hidden = true;
  byId("promote").onclick = promote;
  byId("promote-cancel").onclick = () => dialog.close();
  dialog.showModal();
}

const rollbackButton = (board) => button("Roll back",
  () => act("rollback", { board }, "The model before serves again.", "models"), board && `board ${board}`);

const act = (what, body, told, place = what) => telling(place, async () => {
  await post(`${path()}/${what}`, { ...body, why: "on the page" });
  announce(told);
  await load();
  return true;
});

export function start() {
  for (const id of ["models-gpu", "models-target"]) byId(id).addEventListener("change", load);
  whenOpened("models", load);
}
