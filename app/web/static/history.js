// Predictions answered before, a page at a time; two of them side by side.

import { get } from "./api.js";
import { differences, interval, linear } from "./charts.js";
import { announce, byId, dimensions, el, joules, plain, say, seconds, show, table, watts, when } from "./dom.js";
import { openPrediction } from "./predict.js";
import { whenOpened } from "./tabs.js";

const PAGE = 50;
const PARTS = [["Power", "power", "watts", watts], ["Time", "time", "seconds", seconds], ["Energy", "energy", "joules", joules]];

let listed = [];
/** Ids of those to compare, the older choice first. */
let chosen = [];

async function load(before = null) {
  say(byId("history-error"), "");
  try {
    const query = new URLSearchParams({ limit: PAGE, ...(before && { before }) });
    const page = await get(`/predictions?${query}`);
    listed = before ? [...listed, ...page] : page;
    chosen = chosen.filter((id) => listed.some((one) => one.id === id));
    byId("history-more").hidden = page.length < PAGE;
    showTable();
    showChoice();
  } catch (error) {
    say(byId("history-error"), error.message);
  }
}

const nameOf = (one) => one.kernel ?? "measured work";
const launchOf = ({ grid, block }) => (grid
  ? `${dimensions(grid)} x ${block ? dimensions(block) : "its own"}` : "");
const clocksOf = (one) => (one.core_mhz ? `${plain(one.core_mhz, 4)}/${plain(one.memory_mhz, 4)} MHz` : "");

function showTable() {
  if (!listed.length) {
    show(byId("history-table"), el("p", { class: "hint" }, "Nothing has been predicted yet."));
    return;
  }
  show(byId("history-table"), table("Newest first", [
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
    { title: "Grid x block", of: launchOf },
    { title: "GPU", of: (one) => one.gpu },
    { title: "Clocks", of: clocksOf },
    { title: "Power", num: true, of: (one) => watts(one.watts), value: (one) => one.watts, unit: "W" },
    { title: "Time", num: true, of: (one) => seconds(one.seconds), value: (one) => one.seconds, unit: "s" },
    { title: "Energy", num: true, of: (one) => joules(one.joules), value: (one) => one.joules, unit: "J" },
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
  say(byId("history-error"), "");
  // The earlier one is what the later is held against.
  const ids = chosen.slice().sort((a, b) => listed.findIndex((one) => one.id === b) - listed.findIndex((one) => one.id === a));
  try {
    const answers = await Promise.all(ids.map((id) => get(`/predictions/${encodeURIComponent(id)}`)));
    const entries = ids.map((id, at) => ({ ...listed.find((one) => one.id === id), answer: answers[at] }));
    byId("history-pair").hidden = false;
    show(byId("history-sides"), pairTable(entries), componentChanges(entries));
    byId("history-pair").scrollIntoView({ block: "nearest" });
    announce("The two are side by side.");
  } catch (error) {
    say(byId("history-error"), error.message);
  }
}

function change(before, after) {
  if (!before || !after) return "";
  const share = 100 * (after / before - 1);
  return Math.abs(share) < 0.05 ? "the same" : `${share > 0 ? "+" : "−"}${plain(Math.abs(share))} %`;
}

function pairTable(entries) {
  const facts = [
    ["Kernel", nameOf], ["Grid x block", launchOf], ["GPU", (one) => one.gpu], ["Clocks", clocksOf],
    ["Power model", ({ answer }) => (answer.model ? `${answer.model.family}, version ${answer.model.version}` : "none")],
    ["Bound by", ({ answer }) => answer.time_model?.regime ?? ""],
    ["Asked", (one) => when(one.created)],
  ].map(([title, of]) => ({ title, cells: entries.map(of), change: "" }));
  const numbers = PARTS.map(([title, part, unit, format]) => {
    const found = entries.map(({ answer }) => answer[part]);
    const known = found.filter(Boolean);
    const at = linear(0, Math.max(...known.map((one) => one.high)));
    return {
      title,
      cells: found.map((one) => (one ? [el("b", {}, format(one[unit])), " ",
        el("span", { class: "hint range-text" }, `${format(one.low)} to ${format(one.high)}`),
        interval(at(one.low), at(one[unit]), at(one.high))] : "unknown")),
      change: change(...found.map((one) => one?.[unit])),
    };
  });
  const side = (at) => ({
    title: at ? "Later" : "Earlier", class: "wrap", of: (row) => row.cells[at],
  });
  return table("The earlier and the later; intervals of 90 %", [
    { title: "", head: true, of: (row) => row.title },
    side(0), side(1),
    { title: "Change", num: true, of: (row) => el("b", {}, row.change) },
  ], [...numbers, ...facts]);
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
  byId("history-compare").addEventListener("click", compare);
  whenOpened("history", () => load());
}
