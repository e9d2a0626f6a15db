// What is shown, to take along: tables as CSV and HTML, figures as PNG, SVG, CSV and HTML, views as HTML.

import { announce, colour, el } from "./dom.js";

/** Pixels of a PNG for each of the page's. */
const SHARPER = 2;
/** What a copy leaves out: things to press, and what only screen readers say. */
const LEFT_OUT = "button, .saves, .visually-hidden, select, .file-label, input, [role=status], script, [hidden]";
const SI = { G: 1e9, M: 1e6, k: 1e3, "": 1, m: 1e-3, "µ": 1e-6, n: 1e-9 };
const UNITS = /^([−+-]?[\d.]+(?:e[+-]?\d+)?) ?([GMkmµn]?)(W|s|J|Js|%)$/;

/**
 * A row of buttons, each {kind: what its file is made by}. `name()` tells what the files are
 * called by. A maker answers text, or a Blob, or a promise of one.
 */
export function saves(name, makers) {
  return el("div", { class: "saves", role: "group", "aria-label": `Save ${name()}` },
    el("span", { "aria-hidden": "true" }, "Save"),
    Object.entries(makers).map(([kind, make]) => el("button", {
      type: "button", class: "save",
      onclick: async (event) => {
        try {
          keep(`${slug(name())}.${kind.toLowerCase()}`, await make());
          announce(`${name()} is saved as ${kind}.`);
        } catch (error) {
          announce(error.message);
          event.target.title = error.message;
        }
      },
    }, kind, el("span", { class: "visually-hidden" }, ` of ${name()}`))));
}

const MEDIA = { csv: "text/csv", html: "text/html", json: "application/json", svg: "image/svg+xml", png: "image/png" };

function keep(file, content) {
  const type = `${MEDIA[file.split(".").pop()]};charset=utf-8`;
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  el("a", { href: url, download: file }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const slug = (name) => `wattcast-${name.toLowerCase().normalize("NFKD").replace(/[^a-z0-9]+/g, "-")
  .slice(0, 60).replace(/^-|-$/g, "")}`;

/** The buttons of a table. */
export const savesOfTable = (made, caption) =>
  saves(() => caption, { CSV: () => csv(rowsOf(made)), HTML: () => page(caption, [text(copy(made))]) });

/** The buttons of a figure: `drawn()` is it as the text of an SVG, `rows()` its numbers under their titles. */
function savesOfFigure(name, drawn, rows) {
  const grounded = async () => (await drawn()).replace(">", `><rect width="100%" height="100%" fill="${colour("panel")}"/>`);
  return saves(name, {
    PNG: async () => png(await grounded()), SVG: grounded, CSV: () => csv(rows()),
    HTML: async () => page(name(), [await grounded(), text(tableOf(rows()))]),
  });
}

/** The same of a plotly figure in `box`; `figure()` is what it was drawn from. */
export const savesOfPlot = (box, figure) => savesOfFigure(() => figure().title.split(";")[0],
  () => globalThis.Plotly.toImage(box, { format: "svg", imageDataOnly: true, width: box.clientWidth, height: box.clientHeight }),
  () => rowsOfPlot(figure()));

/** The same of an SVG. */
export const savesOfSvg = (node, title, rows) => savesOfFigure(() => title, () => text(styled(node)), rows);

/** The buttons of a whole view: what stands in it, without its forms. */
export function savesOfView(view, title) {
  const belongs = `[data-with=${view.id}], #${view.id} .panel:not(form, .empty)`;
  const parts = () => [...document.querySelectorAll(belongs)].filter((one) => one.offsetParent);
  const made = saves(() => title, {
    HTML: () => page(title, parts().map((part) => text(copy(part)))),
  });
  made.classList.add("whole");
  made.firstChild.textContent = "Save all of this";
  return made;
}

// Tables

/** Titles and cells of a table as it is read; quantities of one unit as plain numbers. */
export function rowsOf(made) {
  const lines = [...made.rows].filter((row) => !row.ariaHidden).map((row) => [...row.cells].map(partsOf));
  const columns = lines[0].flatMap(([title], at) => {
    const column = (named, part) => columnOf(named, lines.slice(1).map((row) => row[at]?.[part] ?? ""));
    const beside = lines.map((row) => row[at]?.[2]).find(Boolean);
    return [column(title, 0), ...(beside ? [column(`${title}, ${beside}`, 1)] : [])];
  }).filter(([, ...cells]) => cells.some(Boolean));  // bars and buttons say nothing
  return lines.map((_, row) => columns.map((column) => column[row]));
}

/** What a cell says; the interval in it apart, and what that is called. */
function partsOf(cell) {
  if (cell.dataset.value !== undefined) return [cell.dataset.value];
  if (cell.matches(".pic")) return [""];
  const range = cell.querySelector(".range-text");
  const kept = cell.cloneNode(true);
  for (const field of kept.querySelectorAll("input")) field.replaceWith(field.type === "checkbox" ? "" : field.value);
  numbered(kept);
  for (const gone of kept.querySelectorAll("button, svg, .visually-hidden, .range-text, .meaning")) gone.remove();
  return [told(kept), ...(range ? [told(range), range.dataset.title ?? "interval"] : [])];
}

/** A button that stands for a number, as lines of code do, says it all the same. */
function numbered(copied) {
  for (const one of copied.querySelectorAll(".line-number")) one.replaceWith(`${one.lastChild.data} `);
}

/** Text on one line; a dash stands for nothing. */
const told = (node) => node.textContent.replace(/\s+/g, " ").trim().replace(/^–$/, "");

function columnOf(title, cells) {
  const found = cells.map((cell) => UNITS.exec(cell));
  const unit = found.find(Boolean)?.[3];
  if (!unit || found.some((one, at) => (one ? one[3] !== unit : cells[at]))) return [title, ...cells];
  return [title.endsWith(` ${unit}`) ? title : `${title || "Value"}, ${unit}`, ...found.map(scaled)];
}

const scaled = (one) => (one
  ? String(Number((Number(one[1].replace("−", "-")) * SI[one[2]]).toPrecision(6))) : "");

/** Rows as CSV (RFC 4180). A text that a spreadsheet would compute is marked as text. */
export function csv(rows) {
  const cell = (value) => {
    const plain = String(value ?? "");
    const safe = /^[=@\t\r]|^[+-](?![\d.])/.test(plain) ? `'${plain}` : plain;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return `${rows.map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`;
}

function rowsOfPlot({ data, layout }) {
  const clean = (value) => String(value ?? "").replace(/<br>/g, ", ").replace(/<[^>]*>/g, "");
  const axis = (name) => clean(layout[name]?.title?.text) || name[0];
  const rows = [["Series", axis("xaxis"), axis("yaxis"), "Value", "Note"]];
  for (const one of data) {
    if (one.hoverinfo === "skip") continue;  // marks on what another series shows
    if (one.type === "heatmap") {
      const unit = clean(one.colorbar?.title?.text);
      one.y.forEach((y, i) => one.x.forEach((x, j) => one.z[i][j] !== null
        && rows.push([unit, x, y, one.z[i][j], clean(one.text?.[i]?.[j])])));
    } else one.x.forEach((x, i) => rows.push([one.name ?? "", x, one.y[i], "", clean(one.text?.[i])]));
  }
  const used = rows[0].map((_, at) => rows.slice(1).some((row) => row[at] !== ""));
  return rows.map((row) => row.filter((_, at) => used[at]));
}

function tableOf([titles, ...rows]) {
  return el("table", {}, el("thead", {}, el("tr", {}, titles.map((title) => el("th", {}, title)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell))))));
}

// HTML

const LOOKS = "body{font:16px/1.5 system-ui,sans-serif;margin:2rem;max-width:75rem}"
  + "table{border-collapse:collapse;font-size:.9rem;margin:1rem 0}"
  + "th,td{text-align:left;vertical-align:top;padding:.35rem .75rem .35rem 0;border-bottom:1px solid #d8dfe6}"
  + ".num{text-align:right}caption{text-align:left;color:#53606d}.bar{display:block;width:20rem;height:1.1rem}"
  + ".code li{white-space:pre;font:13px/1.45 monospace;list-style:none}svg,img{max-width:100%}";

/** A file that stands by itself: nothing is loaded, nothing runs. Its style is text: the page's
 *  policy holds for documents that it makes, too. `parts` are markup. */
function page(title, parts) {
  const body = [text(el("h1", {}, title)), ...parts].join("\n");
  return `<!doctype html>\n<html lang="en"><head><meta charset="utf-8">${text(el("title", {}, title))}`
    + `<style>${LOOKS}</style></head>\n<body>\n${body}\n</body></html>\n`;
}

/** A copy without what can be pressed, its small figures as they look. */
function copy(given) {
  const made = given.cloneNode(true);
  const drawn = [...given.querySelectorAll("svg")];
  made.querySelectorAll("svg").forEach((one, at) => one.replaceWith(styled(drawn[at])));
  const canvases = [...given.querySelectorAll("canvas")];
  made.querySelectorAll("canvas").forEach((one, at) => one.replaceWith(el("img", {
    src: canvases[at].toDataURL(), alt: canvases[at].getAttribute("aria-label") })));
  const panes = [...given.querySelectorAll(".pane")];
  made.querySelectorAll(".pane").forEach((one, at) => {
    if (panes[at].wholeText) one.replaceWith(el("pre", {}, panes[at].wholeText()));
  });
  numbered(made);
  for (const gone of made.querySelectorAll(LEFT_OUT)) gone.remove();
  for (const link of made.querySelectorAll("[href]")) link.removeAttribute("href");
  for (const one of [made, ...made.querySelectorAll("*")])
    for (const name of ["id", "tabindex", "aria-live"]) one.removeAttribute(name);
  return made;
}

// Pictures

const text = (node) => new XMLSerializer().serializeToString(node);
const STYLES = ["display", "visibility", "fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width",
  "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight", "text-anchor", "white-space"];

/** An SVG element with the styles that the page gives it, of the size that it has there. */
function styled(given) {
  const made = given.cloneNode(true);
  const { width, height } = given.getBoundingClientRect();
  const pairs = [[given, made], ...[...given.querySelectorAll("*")].map((one, at) => [one, made.querySelectorAll("*")[at]])];
  for (const [from, to] of pairs) {
    const looks = getComputedStyle(from);
    for (const name of STYLES) {
      const value = looks.getPropertyValue(name);
      if (value) to.setAttribute(name, value);
    }
    to.removeAttribute("style");
  }
  if (width) {
    made.setAttribute("width", width);
    made.setAttribute("height", height);
  }
  return made;
}

/** A picture, the text of an SVG, as PNG. */
async function png(drawn) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(drawn)}`;
  await image.decode();
  const canvas = el("canvas", { width: SHARPER * image.width, height: SHARPER * image.height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) => canvas.toBlob(
    (blob) => (blob ? resolve(blob) : reject(new Error("This picture is too large for a PNG."))), "image/png"));
}
