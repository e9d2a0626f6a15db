// Power over time and the launches below it, on a canvas: sorted typed arrays, looked up by halving,
// and what is narrower than a pixel is merged, so that a frame takes as long for a million launches.

import { colour, el, joules, quantity, seconds, watts } from "./dom.js";

const GUTTER = 78, TITLE = 20, POWER = 96, LANE = 15, AXIS = 20;
/** Streams drawn by themselves on each GPU; the last lane holds all others. */
const MOST_LANES = 6;
/** Kernels with a colour of their own, those of the most energy first. */
export const COLOURED = 6;
const STEP = 0.12, ZOOM = 1.25, LEAST_SECONDS = 1e-7;
/** Degrees of how much of a pixel is busy. */
const LEVELS = 6;
const TOLD_MILLISECONDS = 200;

/** The first place in sorted `values` whose value is above `limit`, from `low` on. */
function above(values, limit, low = 0, high = values.length) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

const sorted = (values) => Uint32Array.from(values.keys()).sort((a, b) => values[a] - values[b]);

/** Watts between sorted times, and the joules until each of them. */
class Steps {
  constructor(times, power) {
    [this.times, this.power] = [times, power];
    this.energy = new Float64Array(times.length);
    for (let i = 1; i < times.length; i += 1)
      this.energy[i] = this.energy[i - 1] + power[i - 1] * (times[i] - times[i - 1]);
  }

  /** Joules from the beginning to a time; `low`: a place at or before it. */
  until(time, low = 0) {
    const at = Math.min(above(this.times, time, low) - 1, this.times.length - 2);
    return at < 0 ? 0 : this.energy[at] + this.power[at] * (Math.min(time, this.times.at(-1)) - this.times[at]);
  }
}

/** What a board draws: the mean power of the launches that run, its idle power where none does. */
function stepsOf({ start, end, power }, idle, span) {
  const order = sorted(end);
  const [times, values] = [new Float64Array(2 * start.length + 2), new Float64Array(2 * start.length + 2)];
  let [begun, ended, sum, size] = [0, 0, 0, 1];
  values[0] = idle;
  while (ended < start.length) {
    const begins = begun < start.length && start[begun] <= end[order[ended]];
    const [one, sign] = begins ? [begun++, 1] : [order[ended++], -1];
    sum = begun === ended ? 0 : sum + sign * power[one];
    times[size] = begins ? start[one] : end[one];
    values[size++] = begun === ended ? idle : sum;
  }
  times[size++] = Math.max(span, times[size - 2]);
  return new Steps(times.subarray(0, size), values.subarray(0, size));
}

/** Launches in the order of their start, of one stream or of several. */
class Lane {
  constructor(name, places, all) {
    this.name = name;
    const take = (values) => values.constructor.from(places, (place) => values[place]);
    [this.start, this.end, this.kernel] = [all.start, all.end, all.kernel].map(take);
    this.places = places;
    // How far those before reach, and which of them does: to find what began before the view.
    this.reach = new Float64Array(places.length);
    this.reacher = new Uint32Array(places.length);
    this.busy = new Float64Array(places.length + 1);
    for (let i = 0; i < places.length; i += 1) {
      const further = !i || this.end[i] > this.reach[i - 1];
      this.reach[i] = further ? this.end[i] : this.reach[i - 1];
      this.reacher[i] = further ? i : this.reacher[i - 1];
      this.busy[i + 1] = this.busy[i] + this.end[i] - this.start[i];
    }
  }
}

/** Each board of an answer with its streams and its power over time. */
export function bandsOf(answer, columns = columnsOf(answer)) {
  const places = new Map(answer.devices.map((device) => [device.device, []]));
  if (columns) columns.device.forEach((id, place) => places.get(id).push(place));
  return answer.devices.map((device) => {
    const own = Uint32Array.from(places.get(device.device));
    const { timeline } = device;
    if (!own.length) {
      const times = Float64Array.from([...timeline.start_seconds, device.span_seconds]);
      return { device, lanes: [], own, steps: new Steps(times, Float64Array.from([...timeline.watts, 0])) };
    }
    const take = (values) => Float64Array.from(own, (place) => values[place]);
    const [start, end, power] = [columns.start, columns.end, columns.power].map(take);
    const streams = [...new Set(Array.from(own, (place) => columns.stream[place]))].sort((a, b) => a - b);
    const laneOf = new Map(streams.map((stream, at) => [stream, Math.min(at, MOST_LANES - 1)]));
    const rows = Array.from({ length: Math.min(streams.length, MOST_LANES) }, () => []);
    for (const place of own) rows[laneOf.get(columns.stream[place])].push(place);
    const more = streams.length - MOST_LANES + 1;
    const lanes = rows.map((row, at) => new Lane(
      more > 1 && at === MOST_LANES - 1 ? `${more} others` : answer.streams[streams[at]]?.name ?? "others",
      Uint32Array.from(row), columns));
    return { device, lanes, own, start, ends: end.slice().sort(), steps: stepsOf({ start, end, power }, device.idle_watts, device.span_seconds) };
  });
}

function columnsOf({ launch_columns: given }) {
  if (!given) return null;
  const start = Float64Array.from(given.start_seconds);
  const lasts = Float64Array.from(given.seconds);
  return {
    start, lasts, end: start.map((value, at) => value + lasts[at]), joules: Float64Array.from(given.joules),
    power: lasts.map((value, at) => (value > 0 ? given.joules[at] / value : 0)),
    device: given.device, stream: Uint32Array.from(given.stream), kernel: Uint32Array.from(given.kernel),
  };
}

/** Round times to mark between two others, about six of them. */
function marks(from, to) {
  const rough = (to - from) / 6;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((one) => one * power >= rough) ?? 10);
  const found = [];
  for (let mark = Math.ceil(from / step) * step; mark <= to; mark += step) found.push(mark);
  return found;
}

export class Timeline {
  #bands = [];
  #frame = 0;
  #later = 0;
  #palette = null;

  /** In `box`; `told(view)` hears what is in view, a moment after it changed, `hovered(text)` what is pointed at. */
  constructor(box, told, hovered) {
    this.canvas = el("canvas", { role: "img" });
    [this.box, this.told, this.hovered] = [box, told, hovered];
    box.replaceChildren(this.canvas);
    new ResizeObserver(() => this.#resized()).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#resized());
    box.addEventListener("keydown", (event) => this.#pressed(event));
    this.canvas.addEventListener("wheel", (event) => this.#wheeled(event), { passive: false });
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      this.dragged = event.offsetX;
    });
    this.canvas.addEventListener("pointermove", (event) => this.#moved(event));
    for (const name of ["pointerup", "pointercancel"])
      this.canvas.addEventListener(name, () => (this.dragged = undefined));
    this.canvas.addEventListener("pointerleave", () => this.hovered(""));
  }

  /** Draw an answer; `colourOf[kernel]`: the place of its colour, COLOURED for all that have none. */
  show(answer, colourOf) {
    this.columns = columnsOf(answer);
    this.answer = answer;
    this.colourOf = colourOf;
    this.#bands = bandsOf(answer, this.columns);
    this.span = Math.max(answer.span_seconds, LEAST_SECONDS);
    [this.from, this.to] = [0, this.span];
    const lanes = this.#bands.reduce((sum, band) => sum + band.lanes.length, 0);
    this.height = AXIS + this.#bands.length * (TITLE + POWER) + lanes * LANE;
    this.canvas.style.height = `${this.height}px`;
    this.#resized();
    this.#tell();
  }

  get width() {
    return Math.max(1, this.canvas.clientWidth - GUTTER);
  }

  /** Move by a share of what is in view. */
  pan(share) {
    const by = Math.max(-this.from, Math.min(this.span - this.to, share * (this.to - this.from)));
    this.#look(this.from + by, this.to + by);
  }

  /** Show `factor` times as much time, the moment at `share` of the view staying where it is. */
  zoom(factor, share = 0.5) {
    const wide = Math.max(LEAST_SECONDS, Math.min(this.span, factor * (this.to - this.from)));
    const from = Math.max(0, Math.min(this.span - wide, this.from + share * (this.to - this.from - wide)));
    this.#look(from, from + wide);
  }

  all() {
    this.#look(0, this.span);
  }

  #look(from, to) {
    if (from === this.from && to === this.to) return;
    [this.from, this.to] = [from, to];
    this.redraw();
    clearTimeout(this.#later);
    this.#later = setTimeout(() => this.#tell(), TOLD_MILLISECONDS);
  }

  #resized() {
    this.#palette = null;
    if (this.answer) this.redraw();
  }

  redraw() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#draw();
    });
  }

  #pressed(event) {
    const act = {
      ArrowLeft: () => this.pan(-STEP), ArrowRight: () => this.pan(STEP), Home: () => this.all(),
      ArrowUp: () => this.zoom(1 / ZOOM), ArrowDown: () => this.zoom(ZOOM),
      "+": () => this.zoom(1 / ZOOM), "=": () => this.zoom(1 / ZOOM), "-": () => this.zoom(ZOOM),
    }[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  }

  #wheeled(event) {
    const along = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
    const isPan = Math.abs(along) > Math.abs(event.shiftKey ? 0 : event.deltaY);
    const [from, to] = [this.from, this.to];
    if (isPan) this.pan(along / this.width);
    else this.zoom(ZOOM ** (event.deltaY / 100), Math.max(0, (event.offsetX - GUTTER) / this.width));
    // At its end the page scrolls on.
    if (from !== this.from || to !== this.to) event.preventDefault();
  }

  #moved(event) {
    if (this.dragged === undefined) {
      this.hovered(this.#at(event.offsetX, event.offsetY));
      return;
    }
    this.pan((this.dragged - event.offsetX) / this.width);
    this.dragged = event.offsetX;
  }

  /** What is at a place of the canvas, as text. */
  #at(x, y) {
    const time = this.from + (x - GUTTER) / this.width * (this.to - this.from);
    if (x < GUTTER) return "";
    let top = 0;
    for (const { device, steps, lanes } of this.#bands) {
      if (y < top + TITLE + POWER) {
        const at = Math.max(0, Math.min(above(steps.times, time) - 1, steps.power.length - 2));
        return `GPU ${device.device}: ${watts(steps.power[at])} at ${seconds(time)}`;
      }
      top += TITLE + POWER;
      for (const lane of lanes) {
        if (y < top + LANE) {
          // One that a pixel's width is too narrow for counts as the pixel.
          const edge = time + (this.to - this.from) / this.width;
          const at = above(lane.start, edge) - 1;
          const one = at < 0 ? 0 : lane.end[at] >= time ? at : lane.reacher[at];
          return at < 0 || lane.end[one] < time ? `${lane.name}: nothing at ${seconds(time)}` : this.#named(lane.places[one]);
        }
        top += LANE;
      }
    }
    return "";
  }

  #named(place) {
    const { start, lasts, joules: energy, kernel } = this.columns;
    return `${this.answer.kernels[kernel[place]].name}: ${seconds(lasts[place])} from ${seconds(start[place])}, `
      + `${joules(energy[place])}`;
  }

  /** What is in view: its ends, launches, joules; `most` launches of the most energy when called. */
  #tell() {
    let [launches, energy] = [0, 0];
    for (const { start, ends, steps } of this.#bands) {
      if (start) launches += above(start, this.to) - above(ends, this.from);
      energy += steps.until(this.to) - steps.until(this.from);
    }
    const most = (count) => this.#bands.flatMap(({ own, start }) => {
      const inside = own.subarray(0, start ? above(start, this.to) : 0).filter((place) => this.columns.end[place] > this.from);
      return [...inside.sort((a, b) => this.columns.joules[b] - this.columns.joules[a]).subarray(0, count)];
    }).sort((a, b) => this.columns.joules[b] - this.columns.joules[a]).slice(0, count);
    this.told({ from: this.from, to: this.to, isAll: this.to - this.from >= this.span, launches, energy, most });
  }

  #draw() {
    const { canvas, from, to, height } = this;
    const sharp = devicePixelRatio || 1;
    const size = [Math.round(canvas.clientWidth * sharp), Math.round(height * sharp)];
    if (!size[0]) return;  // the tab is not open
    if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
    this.#palette ??= {
      ...Object.fromEntries(["panel", "sunk", "text", "muted", "line", "bar", "bad"].map((name) => [name, colour(name)])),
      kernels: [...Array.from({ length: COLOURED }, (_, at) => colour(`link-${at}`)), colour("control")],
      font: `12px ${getComputedStyle(canvas).fontFamily}`,
    };
    const pen = canvas.getContext("2d", { alpha: false });
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    pen.fillStyle = this.#palette.panel;
    pen.fillRect(0, 0, canvas.clientWidth, height);
    pen.font = this.#palette.font;
    pen.textBaseline = "middle";
    let top = 0;
    for (const band of this.#bands) {
      this.#drawPower(pen, band, top);
      top += TITLE + POWER;
      for (const lane of band.lanes) {
        this.#drawLane(pen, lane, top);
        top += LANE;
      }
    }
    pen.fillStyle = this.#palette.muted;
    pen.textAlign = "center";
    for (const mark of marks(from, to)) {
      const x = GUTTER + (mark - from) / (to - from) * this.width;
      if (x > GUTTER + this.width - 24) continue;
      pen.fillRect(x, top, 1, 4);
      pen.fillText(quantity(mark, "s", { digits: 6 }), x, top + 12);
    }
  }

  /** The mean power of every pixel, as an area, and the board's limit. */
  #drawPower(pen, { device, steps, lanes }, top) {
    const { width, from, to } = this;
    const { muted, text, bar, sunk, bad } = this.#palette;
    const high = 1.05 * Math.max(device.limit_watts, ...(lanes.length ? [] : device.timeline.watts));
    const foot = top + TITLE + POWER - 2;
    const y = (value) => foot - Math.min(1, value / high) * (POWER - 4);
    pen.textAlign = "left";
    pen.fillStyle = text;
    pen.fillText(`GPU ${device.device}: ${device.gpu}`, GUTTER, top + TITLE / 2);
    pen.fillStyle = sunk;
    pen.fillRect(GUTTER, top + TITLE, width, POWER - 2);
    pen.fillStyle = bar;
    const wide = (to - from) / width;
    let [low, before, left, height] = [0, steps.until(from), 0, 0];
    for (let x = 0; x <= width; x += 1) {
      const time = from + (x + 1) * wide;
      low = Math.max(0, above(steps.times, time - wide, low) - 1);
      const now = steps.until(time, low);
      const level = Math.round(foot - y((now - before) / wide));
      before = now;
      if (level === height && x < width) continue;
      pen.fillRect(GUTTER + left, foot - height, x - left, height);  // pixels of one height at once
      [left, height] = [x, level];
    }
    pen.textAlign = "right";
    pen.fillStyle = muted;
    pen.fillText(watts(device.limit_watts), GUTTER - 6, y(device.limit_watts) + 4);
    pen.fillText("0 W", GUTTER - 6, foot - 4);
    pen.fillStyle = bad;
    pen.fillRect(GUTTER, y(device.limit_watts), width, 1);
  }

  #drawLane(pen, lane, top) {
    const { width, from, to, colourOf } = this;
    const { muted, line, kernels } = this.#palette;
    const { start, end, reach, reacher, busy, kernel } = lane;
    pen.textAlign = "right";
    pen.fillStyle = muted;
    pen.fillText(lane.name, GUTTER - 6, top + LANE / 2, GUTTER - 8);
    pen.fillStyle = line;
    pen.fillRect(GUTTER, top + LANE - 1, width, 1);
    const wide = (to - from) / width;
    const x = (time) => Math.max(0, Math.min(width, (time - from) / wide));
    let run = { left: 0, right: 0, shade: 0, level: 0 };
    /** A box in the colour of a launch; merged ones that go on where the last one ends are drawn with it. */
    const box = (one, left, right, level) => {
      const shade = one < 0 ? -1 : colourOf[kernel[one]];
      if (level < LEVELS && left === run.right && shade === run.shade && level === run.level) {
        run.right = right;
        return;
      }
      const wide = run.right - run.left;
      if (wide > 0) {
        pen.fillStyle = kernels[run.shade];
        pen.globalAlpha = run.level / LEVELS;
        pen.fillRect(GUTTER + run.left, top + 1, wide > 3 && run.level === LEVELS ? wide - 0.5 : wide, LANE - 3);
      }
      run = { left, right, shade, level };
    };
    const stop = above(start, to);
    let at = above(reach, from);
    while (at < stop) {
      if (end[at] - start[at] >= wide) {
        box(at, x(start[at]), x(end[at]), LEVELS);
        at += 1;
        continue;
      }
      // All that begin in this pixel as one, as dense as they are; of those the one that goes on.
      const pixel = Math.floor((start[at] - from) / wide);
      const edge = from + (pixel + 1) * wide;
      const next = Math.max(at + 1, above(start, edge, at, stop));
      box(at, Math.max(0, pixel), pixel + 1, Math.min(LEVELS - 1, 1 + Math.round((LEVELS - 2) * (busy[next] - busy[at]) / wide)));
      const last = reacher[next - 1];
      if (last >= at && end[last] > edge) box(last, x(start[last]), x(end[last]), LEVELS);
      at = next;
    }
    box(-1, Infinity, 0, 0);
    pen.globalAlpha = 1;
  }
}
