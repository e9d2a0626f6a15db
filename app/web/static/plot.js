// Plotly, loaded when the first figure is drawn, under a policy that forbids inline styles.

import { colour, el, unitFor } from "./dom.js";
import { savesOfPlot } from "./save.js";

/** Styles that plotly and maplibre in it would write into the page; ours are in parts.css. */
const STYLES = ["9f215cf04c5486422605d13261cb87401f4e7763b6296af81e98efbc0130da53"];

let loading = null;

/** Begin to load plotly, 1.5 MB over the wire; later calls wait for the same. */
export function load() {
  loading ??= new Promise((resolve, reject) => {
    allowStyles();
    const script = el("script", {
      src: new URL("plotly.js", import.meta.url).href,
      onload: () => resolve(globalThis.Plotly),
      onerror: () => {
        loading = null;
        reject(new Error("The figures' script cannot be loaded; the tables below say the same."));
      },
    });
    document.head.append(script);
  });
  return loading;
}

/**
 * Plotly sets `style` attributes, which the policy blocks; the same through the object model is
 * allowed, since no text that somebody smuggled into the page can do it.
 */
function allowStyles() {
  const plain = Element.prototype.setAttribute;
  Element.prototype.setAttribute = function setAttribute(name, value) {
    if (name === "style" && this.style) this.style.cssText = value;
    else plain.call(this, name, value);
  };
  document.head.append(
    el("meta", { id: "plotly.js-style-global", class: "no-inline-styles" }),
    STYLES.map((id) => el("meta", { id }))[0],
  );
}

const drawn = new Map();
const dark = matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", () => drawn.forEach((figure, box) => draw(box, figure)));

/**
 * Draw `figure()`, {data, layout}, in `box`; again when the colours change. `title` says what it
 * shows to those who cannot see it.
 */
export async function draw(box, figure) {
  drawn.set(box, figure);
  try {
    const plotly = await load();
    const { data, layout, title } = figure();
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", title);
    await plotly.react(box, data, themed(layout), { displayModeBar: false, responsive: true });
    if (!box.nextElementSibling?.matches(".saves"))
      box.after(savesOfPlot(box, () => drawn.get(box)()));
  } catch (error) {
    box.replaceChildren(el("p", { class: "hint" }, error.message));
  }
}

const waiting = new Map();
const near = new IntersectionObserver((seen) => {
  for (const { isIntersecting, target } of seen) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    draw(target, waiting.get(target));
  }
}, { rootMargin: "200px" });

/** The same once the box comes near the window: nobody waits for what is further down. */
export function drawSeen(box, figure) {
  waiting.set(box, figure);
  near.observe(box);
}

function themed(layout) {
  const [text, line] = [colour("text"), colour("line")];
  const axis = (given = {}) => ({
    gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true, ...given,
  });
  return {
    autosize: true,
    height: 380,
    margin: { l: 60, r: 10, t: 20, b: 50 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: text, size: 13, family: "system-ui, sans-serif" },
    hoverlabel: { bgcolor: colour("panel"), bordercolor: line, font: { color: text } },
    legend: { orientation: "h", y: -0.25 },
    ...layout,
    xaxis: axis(layout.xaxis),
    yaxis: axis(layout.yaxis),
  };
}

/** Texts that points are pointed at for. */
export const named = (text) => ({ text, hovertemplate: "%{text}<extra></extra>" });

/** Stars on what is best. */
export const stars = (x, y, size = 12) => ({
  type: "scatter", mode: "markers", name: "Pareto set", hoverinfo: "skip", x, y,
  marker: { symbol: "star", size, color: colour("accent"), line: { color: "#ffffff", width: 1.5 } },
});

/** Rows of cells, some of them empty, with the `value` of each and what is `told` of it. */
export const heatmap = (x, y, cells, value, told, unit) => ({
  type: "heatmap", colorscale: HEAT, ygap: 2, hoverongaps: false, x, y,
  z: cells.map((row) => row.map((cell) => (cell ? value(cell) : null))),
  ...named(cells.map((row) => row.map((cell) => (cell ? told(cell) : "")))),
  colorbar: { title: { text: unit, side: "top" }, thickness: 14 },
});

/** The line on which both axes say the same, or one is `factor` times the other. */
export const diagonal = (ends, line, factor = 1) => ({
  type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false,
  x: ends, y: ends.map((end) => end * factor), line: { color: colour("control"), width: 1, ...line },
});

/** Energy against time: `at(points)` places some of `all`, `axes(x, y)` is the layout, each axis with more if given. */
export function energyAgainstTime(all) {
  const [joule, energy] = unitFor(all.map((point) => point.energy.joules), "J");
  const [second, time] = unitFor(all.map((point) => point.time.seconds), "s");
  return {
    at: (points) => ({
      type: "scatter", x: points.map((point) => point.time.seconds / second), y: points.map((point) => point.energy.joules / joule),
    }),
    axes: (x, y) => ({ xaxis: { title: { text: `Time, ${time}` }, ...x }, yaxis: { title: { text: `Energy, ${energy}` }, ...y } }),
  };
}

/** The same drawn: `groups` of points, [name, points, marker], each `told` of when pointed at, and the Pareto set as a line. */
export function front(all, told, groups, ...axes) {
  const { at, axes: titled } = energyAgainstTime(all);
  const pareto = all.filter((point) => point.pareto).sort((a, b) => a.time.seconds - b.time.seconds);
  const trace = (name, points, marker) => ({ mode: "markers", name, ...at(points), ...named(points.map(told)), marker });
  return {
    data: [
      ...groups.filter(([, points]) => points.length).map((group) => trace(...group)),
      { ...trace("Pareto set", pareto, { symbol: "star", size: 11, color: colour("bar-up") }), mode: "lines+markers",
        line: { color: colour("bar-up"), shape: "hv", width: 2 } },
    ],
    layout: titled(...axes),
  };
}

/** From thrifty to costly, in lightness too, so that it reads without colours. */
const HEAT = [
  [0, "#fdf3d8"], [0.25, "#f8cf8d"], [0.5, "#e98f4e"], [0.75, "#b4492f"], [1, "#5e1f2b"],
];
