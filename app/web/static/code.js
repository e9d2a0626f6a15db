// Where in the code the energy goes: heat on source and PTX, a list of lines, and links between them.

import { bar, barRow, barTable } from "./cards.js";
import { byId, el, joules, percent, seconds, show } from "./dom.js";
import { LINK_COLOURS, Pane } from "./editor.js";
import * as kernel from "./kernel.js";

const LISTED = 12;
const LEAST_SHARE = 0.001;
const SOURCE_FILE = "kernel.cu";  // what the service calls CUDA source in its line information

let ptxPane = null;
let groups = [];

/** Forget what was shown, of code that is no longer there. */
export function clear() {
  groups = [];
  kernel.editor().heat();
  ptxPane.heat();
  show(byId("hot-list"));
  byId("code-note").textContent = "";
}

/**
 * Show `found` (the answer of .../hotspots) on the code: `ptx` is what was analysed, `isCuda` tells
 * whether the editor holds the source that it was compiled from, `isNew` whether it was not seen before.
 */
export function showHotspots(found, { ptx, isCuda, isNew = false }) {
  const onEditor = isCuda || kernel.isWhole();
  byId("main").classList.toggle("one-pane", !isCuda && onEditor);
  byId("ptx-note").textContent = isCuda ? "compiled from the source" : "";
  const { rows, rest } = found.lines;
  const sources = isCuda ? ofSource(found.source_lines.rows) : [];
  const isLinked = sources.length > 0;
  groups = (isLinked ? sources : rows).map((row) => ({
    row,
    source: isCuda ? (isLinked ? [row.line] : []) : [],
    ptx: isLinked ? rows.filter((one) => one.source_line === row.line).map((one) => one.line) : [row.line],
  }));
  const inOrder = groups.slice().sort((a, b) => a.row.line - b.row.line);
  inOrder.forEach((group, at) => (group.link = isLinked ? at % LINK_COLOURS : null));
  const links = new Map(groups.flatMap((group) => group.ptx.map((line) => [line, group.link])));
  const heat = rows.map((row) => ({ line: row.line, share: row.energy_share, link: links.get(row.line) ?? null }));
  const ofEditor = isCuda
    ? groups.flatMap(({ row, source, link }) => source.map((line) => ({ line, share: row.energy_share, link }))) : heat;
  kernel.editor().heat(onEditor ? ofEditor : []);
  if (isCuda || !onEditor) ptxPane.show(ptx, "ptx", { heat });
  const lines = (isLinked ? kernel.sourceText() : ptx).split(/\r?\n/);
  show(byId("hot-list"), groups.length ? listing(lines) : null);
  byId("code-note").textContent = !groups.length ? "No line is known to cost anything."
    : `Point at a line to see it in each pane.${groups.length > listed().length
      ? ` ${groups.length - listed().length} lines cost less than these.` : ""}${
      rest.rows ? " Those that cost least are summed up." : ""}`;
  mark(null);
  if (!isNew || !groups.length) return;
  ptxPane.scrollTo(heat[0].line);
  kernel.editor().scrollTo(groups[0].row.line);
}

/** The groups that are worth a line, at least one. */
const listed = () => groups.slice(0, LISTED).filter((one, at) => at === 0 || one.row.energy_share >= LEAST_SHARE);

/** The lines of the text that was sent, not those of headers. */
function ofSource(rows) {
  const own = rows.filter((row) => (row.file ?? SOURCE_FILE).split("/").at(-1) === SOURCE_FILE);
  return own.length ? own : rows;
}

function listing(lines) {
  const first = listed();
  const most = first[0].row.energy_share || 1;
  return barTable("The costliest lines", ["Line", "Share of the costliest", "Energy", "Share"],
    first.map((group) => {
      const { row } = group;
      const made = barRow(group.link === null ? null : `link-${group.link}`,
        el("th", { scope: "row", role: "rowheader", title: `${seconds(row.seconds)}` },
          el("button", {
            type: "button", class: "plain line-number", onfocus: () => mark(group), onclick: () => mark(group, true),
          }, el("span", { class: "visually-hidden" }, "Line "), row.line),
          el("code", {}, (lines[row.line - 1] ?? row.text ?? "").trim())),
        [bar(0, row.energy_share / most), joules(row.joules), percent(row.energy_share, 2)]);
      made.dataset.line = row.line;
      made.addEventListener("mouseenter", () => mark(group));
      made.addEventListener("mouseleave", () => mark(null));
      group.shown = made;
      return made;
    }));
}

/** Mark a group in every pane, or none. */
function mark(group, scroll = false) {
  for (const one of groups) one.shown?.classList.toggle("marked", one === group);
  const [source, ptx] = group ? [group.source, group.ptx] : [[], []];
  const isInEditor = byId("main").classList.contains("one-pane");
  kernel.editor().mark(isInEditor ? ptx : source, { scroll });
  if (!isInEditor) ptxPane.mark(ptx, { scroll });
}

let marked = "";

/** The pointer or the cursor is on a line of a pane, or nowhere. */
function point(side, line, scroll = false) {
  const key = `${side} ${line}`;
  if (key === marked && !scroll) return;
  marked = key;
  const isPtx = side === "ptx" || byId("main").classList.contains("one-pane");
  const group = line === null ? null
    : groups.find((one) => (isPtx ? one.ptx : one.source).includes(line)) ?? null;
  mark(group);
  if (!group || !scroll) return;
  if (side === "ptx") kernel.editor().mark(group.source, { scroll });
  else if (!isPtx) ptxPane.mark(group.ptx, { scroll });
  group.shown?.scrollIntoView({ block: "nearest" });
}

/** What the editor tells of its lines. */
export const told = {
  pointed: (line) => point("source", line),
  picked: (line) => point("source", line, true),
};

export function start() {
  ptxPane = new Pane(byId("code"), {
    label: "PTX, compiled", pointed: (line) => point("ptx", line), picked: (line) => point("ptx", line, true),
  });
}
