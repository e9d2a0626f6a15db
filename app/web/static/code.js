// Code with the energy of each line, as numbers and as heat.

import { byId, el, joules, percent, seconds, show, table } from "./dom.js";

const MOST_LINES = 3000;
const AROUND = 30;

/** Show `text` with `rows` (`line`, `joules`, `energy_share`): the costliest lines, then all. */
export function showCode(text, rows, { what, complete = true }) {
  const costs = new Map(rows.map((row) => [row.line, row]));
  const lines = text === null ? [] : text.split(/\r?\n/);
  const span = windowOf(rows, lines.length);
  const most = Math.max(...rows.map((row) => row.energy_share), 1e-12);
  show(byId("hot-list"), rows.length ? hottest(rows, lines) : null);
  const left = lines.length - (span.to - span.from + 1);
  byId("code-note").textContent = !rows.length
    ? `No line of the ${what} is known to cost anything.`
    : text === null ? `The ${what} is not kept; its costliest lines are listed.`
      : "Energy of each line, as the physical model shares the prediction out."
        + (left > 0 ? ` ${left} lines around it are left out.` : "")
        + (complete ? "" : " Lines that cost least are summed up.");
  byId("code").hidden = text === null || !rows.length;
  const items = [];
  for (let at = span.from; at <= span.to && at <= lines.length; at += 1)
    items.push(line(at, lines[at - 1], costs.get(at), most));
  show(byId("code"), el("ol", {}, items));
  if (rows.length) scrollTo(Math.min(...rows.slice(0, 3).map((row) => row.line)));
}

function scrollTo(number) {
  const box = byId("code");
  const found = byId(`line-${number}`);
  if (found) box.scrollTop = found.offsetTop - box.offsetTop - box.clientHeight / 3;
}

function windowOf(rows, count) {
  if (count <= MOST_LINES) return { from: 1, to: count };
  const numbers = rows.map((row) => row.line);
  const from = Math.max(1, numbers.reduce((a, b) => Math.min(a, b), count) - AROUND);
  const to = Math.min(count, numbers.reduce((a, b) => Math.max(a, b), 1) + AROUND);
  return { from, to: Math.min(to, from + MOST_LINES - 1) };
}

function line(number, text, cost, most) {
  const made = el("li", { id: `line-${number}`, class: cost ? "hot" : null },
    el("span", { class: "at" }, number),
    el("span", { class: "cost" }, cost ? percent(cost.energy_share, 2) : ""),
    el("span", { class: "text" }, text));
  if (cost) {
    made.style.setProperty("--share", (0.55 * cost.energy_share / most).toFixed(3));
    made.title = `${joules(cost.joules)}, ${seconds(cost.seconds)}`;
  }
  return made;
}

function hottest(rows, lines) {
  const first = rows.slice(0, 8);
  return table("The costliest lines", [
    {
      title: "Line", num: true,
      of: (row) => lines.length
        ? el("button", { type: "button", class: "plain small", onclick: () => aim(row.line) }, row.line)
        : row.line,
    },
    { title: "Energy", num: true, of: (row) => joules(row.joules) },
    { title: "Share", num: true, of: (row) => percent(row.energy_share) },
    { title: "Time", num: true, of: (row) => seconds(row.seconds) },
    { title: "Code", class: "mono line", of: (row) => (row.text ?? lines[row.line - 1] ?? "").trim() },
  ], first);
}

function aim(number) {
  const box = byId("code");
  const found = byId(`line-${number}`);
  if (!found) return;
  scrollTo(number);
  for (const other of box.querySelectorAll(".aimed")) other.classList.remove("aimed");
  found.classList.add("aimed");
  box.focus({ preventScroll: true });
}
