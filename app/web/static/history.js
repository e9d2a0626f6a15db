// Predictions answered before, a page at a time; two of them side by side.

import { get } from "./api.js";
import { differences, estimated, linear, table } from "./cards.js";
import {
  QUANTITIES, amount, announce, byId, cells, dimensions, el, heads, joules, numbers, plain, seconds, show, signed, watts, when,
  words,
} from "./dom.js";
import { telling } from "./forms.js";
import { openPrediction } from "./predict.js";
import { whenOpened } from "./tabs.js";

const PAGE = 50;

let listed = [];
/** Ids of those to compare, the older choice first. */
let chosen = [];

const load = (before = null) => telling("history", async () => {
  const query = new URLSearchParams({ limit: PAGE, ...(before && { before }) });
  const page = await get(`/predictions?${query}`);
  listed = before ? [...listed, ...page] : page;
  chosen = chosen.filter((id) => listed.some((one) => one.id === id));
  byId("history-more").hidden = page.length < PAGE;
  showTable();
  showChoice();
});

const nameOf = (one) => one.kernel ?? "measured work";
const launchOf = ({ grid, block }) => (grid
  ? `${dimensions(grid)} x ${block ? dimensions(block) : "its own"}` : "");
const clocksOf = (one) => (one.core_mhz ? `${plain(one.core_mhz, 4)}/${plain(one.memory_mhz, 4)} MHz` : "");

function showTable() {
  show(byId("history-table"), !listed.length ? el("p", { class: "hint" }, "Nothing has been predicted yet.") : table("Newest first", [
    { title: "Compare", hidden: true, of: choiceOf },
    {
      title: "Kernel", head: true, class: "wrap",
      of: (one) => el("a", {
        href: `/?prediction=${one.id}`,
        onclick: (event) => {
          if (event.ctrlKey || event.metaKey || event.shiftKey) return;
          event.preventDefault();
          openPrediction(one.id);
        },
      }, nameOf(one)),
    },
    ...cells({ "Grid x block": launchOf, GPU: "gpu", Clocks: clocksOf }),
    amount("Power", (one) => one.watts, watts, "W"),
    amount("Time", (one) => one.seconds, seconds, "s"),
    amount("Energy", (one) => one.joules, joules, "J"),
    { title: "When", of: (one) => when(one.created), value: (one) => one.created },
  ], listed));
}

function choiceOf(one) {
  return el("input", {
    type: "checkbox", value: one.id, checked: chosen.includes(one.id),
    "aria-label": `Compare ${nameOf(one)}, ${launchOf(one)} on ${one.gpu}, ${when(one.created)}`,
    onchange: (event) => {
      chosen = chosen.filter((id) => id !== one.id);
      if (event.target.checked) chosen.push(one.id);
      if (chosen.length > 2) {
        const [first] = chosen.splice(0, 1);
        byId("history-table").querySelector(`input[value="${first}"]`).checked = false;
      }
      showChoice();
    },
  });
}

function showChoice() {
  byId("history-compare").disabled = chosen.length !== 2;
  byId("history-chosen").textContent = chosen.length === 2 ? "Two are chosen."
    : chosen.length ? "Choose one more." : "Choose two to compare them.";
}

async function compare() {
  // The earlier one is what the later is held against.
  const ids = chosen.slice().sort((a, b) => listed.findIndex((one) => one.id === b) - listed.findIndex((one) => one.id === a));
  const answers = await Promise.all(ids.map((id) => get(`/predictions/${encodeURIComponent(id)}`)));
  const entries = ids.map((id, at) => ({ ...listed.find((one) => one.id === id), answer: answers[at] }));
  byId("history-pair").hidden = false;
  show(byId("history-sides"), pairTable(entries), componentChanges(entries));
  byId("history-pair").scrollIntoView({ block: "nearest" });
  announce("The two are side by side.");
}

function change(before, after) {
  if (!before || !after) return "";
  const share = 100 * (after / before - 1);
  return Math.abs(share) < 0.05 ? "the same" : signed(share);
}

function pairTable(entries) {
  const facts = [
    ["Kernel", nameOf], ["Grid x block", launchOf], ["GPU", (one) => one.gpu], ["Clocks", clocksOf],
    ["Power model", ({ answer }) => (answer.model ? `${answer.model.family}, version ${answer.model.version}` : "none")],
    ["Bound by", ({ answer }) => answer.time_model?.regime ?? ""],
    ["Asked", (one) => when(one.created)],
  ].map(([title, of]) => ({ title, cells: entries.map(of), change: "" }));
  const predicted = Object.entries(QUANTITIES).reverse().map(([part, as]) => {
    const found = entries.map(({ answer }) => answer[part]);
    const at = linear(0, Math.max(...found.filter(Boolean).map((one) => one.high)));
    return {
      title: as[0], cells: found.map((one) => (one ? estimated(one, as, at) : "unknown")),
      change: change(...found.map((one) => one?.[as[1]])),
    };
  });
  return table("The earlier and the later; intervals of 90 %", [
    ...heads({ "": "title" }), ...words({ Earlier: (row) => row.cells[0], Later: (row) => row.cells[1] }),
    ...numbers({ Change: (row) => el("b", {}, row.change) }),
  ], [...predicted, ...facts]);
}

/** Watts by component, later less earlier, where the model of both knows components. */
function componentChanges(entries) {
  const [before, after] = entries.map(({ answer }) => answer.components);
  if (!before || !after) return null;
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  const changes = names.map((name) => [name, (after[name] ?? 0) - (before[name] ?? 0)])
    .sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  return differences("Power by component, later less earlier", Object.fromEntries(changes), "W", 1e-3);
}

export function start() {
  byId("history-reload").addEventListener("click", () => load());
  byId("history-more").addEventListener("click", () => load(listed.at(-1)?.id));
  byId("history-compare").addEventListener("click", () => telling("history", compare));
  whenOpened("history", () => load());
}
