// Parallel coordinates of many rows: what shares a piece of line is drawn once, so that the figure
// has as many lines for twenty thousand rows as for a hundred.

import { plain, svg } from "./dom.js";

/** Values of an axis that are told apart; more are put together by their order. */
const MOST_VALUES = 32;
const BINS = 40;
const HEIGHT = 380;
const [TOP, BOTTOM, SIDE, LEAST] = [52, 14, 46, 84];
/** How near to an axis, in pixels, a pointer is on it. */
const NEAR = 16;

const ascending = (one, other) => (typeof one === "number" && typeof other === "number" ? one - other
  : `${one}`.localeCompare(`${other}`));

/** An axis with a place for each different value. */
export function axisOf(name, values) {
  const different = [...new Set(values)].sort(ascending);
  const count = Math.min(different.length, MOST_VALUES);
  const place = new Map(different.map((value, at) => [value, Math.floor(at * count / different.length)]));
  const labels = Array(count).fill("");
  different.forEach((value) => (labels[place.get(value)] ||= typeof value === "number" ? plain(value, 6) : `${value}`));
  return { name, labels, at: values.map((value) => place.get(value)) };
}

/** An axis of positive numbers on a logarithmic scale; null has no place. */
export function scaleOf(name, values, format) {
  const known = values.filter((value) => value !== null);
  const low = Math.log(known.reduce((a, b) => Math.min(a, b), Infinity));
  const width = Math.log(known.reduce((a, b) => Math.max(a, b), 0)) - low || 1;
  return {
    name,
    labels: Array.from({ length: BINS }, (_, at) => format(Math.exp(low + width * at / (BINS - 1)))),
    at: values.map((value) => (value === null ? -1 : Math.round((Math.log(value) - low) / width * (BINS - 1)))),
  };
}

/**
 * The figure, `width` pixels wide. `rows`: numbers of the rows shown; `value[row]`: the less the better;
 * `marked`: [{row, kind}] drawn whole, on top; `ranges`: [low, high] or undefined for each axis.
 */
export function parallel(axes, rows, { value, marked, ranges, width, title }) {
  const wide = Math.max(width, LEAST * (axes.length - 1) + 2 * SIDE);
  const x = (axis) => SIDE + (wide - 2 * SIDE) * axis / Math.max(1, axes.length - 1);
  const y = (axis, place) => {
    const { length } = axes[axis].labels;
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (length > 1 ? place / (length - 1) : 0.5);
  };
  const ordered = rows.slice().sort((a, b) => value[b] - value[a]);  // the best last: it decides the shade
  const shade = new Map(ordered.map((row, rank) => [row, (rank + 1) / ordered.length]));
  const pieces = svg("g", { class: "pieces" });
  for (let left = 0; left + 1 < axes.length; left += 1) {
    const [from, to] = [axes[left], axes[left + 1]];
    const found = new Map();
    for (const row of ordered) {
      const key = from.at[row] * 64 + to.at[row];
      const one = found.get(key);
      if (one) {
        one.count += 1;
        one.best = row;
      } else found.set(key, { count: 1, best: row });
    }
    for (const [key, { count, best }] of [...found].sort((a, b) => shade.get(a[1].best) - shade.get(b[1].best)))
      pieces.append(svg("line", {
        x1: x(left), y1: y(left, Math.floor(key / 64)), x2: x(left + 1), y2: y(left + 1, key % 64),
        "stroke-width": (1 + 5 * Math.sqrt(count / ordered.length)).toFixed(2),
        "stroke-opacity": (0.1 + 0.8 * shade.get(best) ** 4).toFixed(2),
      }));
  }
  return svg("svg", { class: "parallel", role: "img", "aria-label": title, width: wide, height: HEIGHT, viewBox: `0 0 ${wide} ${HEIGHT}` },
    pieces,
    marked.map(({ row, kind }) => svg("polyline", {
      class: kind, points: axes.map((axis, at) => `${x(at).toFixed(1)},${y(at, axis.at[row]).toFixed(1)}`).join(" "),
    })),
    axes.map((axis, at) => {
      const every = Math.ceil(axis.labels.length / 8);
      const range = ranges[at];
      return svg("g", {},
        svg("line", { class: "axis", x1: x(at), x2: x(at), y1: TOP - 8, y2: HEIGHT - BOTTOM + 8 }),
        range ? svg("rect", { class: "range", x: x(at) - 5, width: 10, rx: 3, y: y(at, range[1]) - 5,
          height: y(at, range[0]) - y(at, range[1]) + 10 }) : "",
        svg("text", { class: "name", x: x(at), y: at % 2 ? 34 : 16, "text-anchor": at === 0 ? "start" : at === axes.length - 1 ? "end" : "middle",
          dx: at === 0 ? -SIDE + 4 : at === axes.length - 1 ? SIDE - 4 : 0 }, axis.name),
        axis.labels.map((label, place) => (place % every ? ""
          : svg("text", { x: x(at) + 5, y: y(at, place) + 4 }, label))));
    }));
}

/** Let a pointer choose places along an axis: `choose(axis, [low, high])`, or undefined for all. */
export function brushed(figure, axes, choose) {
  const box = () => figure.getBoundingClientRect();
  const spot = ({ clientX, clientY }) => {
    const wide = Number(figure.getAttribute("width"));
    const axis = Math.round((clientX - box().left - SIDE) / (wide - 2 * SIDE) * (axes.length - 1));
    if (!axes[axis]) return null;
    const off = clientX - box().left - SIDE - (wide - 2 * SIDE) * axis / Math.max(1, axes.length - 1);
    if (Math.abs(off) > NEAR) return null;
    const last = axes[axis].labels.length - 1;
    const share = (HEIGHT - BOTTOM - (clientY - box().top)) / (HEIGHT - TOP - BOTTOM);
    return { axis, place: Math.max(0, Math.min(last, Math.round(share * last))) };
  };
  let from = null;
  figure.addEventListener("pointerdown", (event) => {
    from = spot(event);
    if (from) event.preventDefault();
  });
  figure.addEventListener("pointerup", (event) => {
    if (!from) return;
    const to = spot({ clientX: event.clientX, clientY: event.clientY });
    const place = to?.axis === from.axis ? to.place : from.place;
    choose(from.axis, [Math.min(from.place, place), Math.max(from.place, place)]);
    from = null;
  });
}
