// Elements and numbers. Text from users and kernels enters the page as text nodes, here alone.

export const byId = (id) => document.getElementById(id);

/** An element with properties (`class`, `on...` handlers, attributes) and children: nodes or text. */
export function el(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  append(made, children);
  return made;
}

export const SVG = "http://www.w3.org/2000/svg";

/** An SVG element with attributes and children. */
export function svg(tag, given = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(given)) made.setAttribute(name, String(value));
  append(made, children);
  return made;
}

function append(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : String(child));
  }
}

/** Show `children` in `parent` instead of what is there. */
export function show(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
}

/** Say something, or nothing, in an element that is hidden while it is empty; in sight, unless somebody types. */
export function say(element, text) {
  element.textContent = text || "";
  element.hidden = !text;
  if (text && document.activeElement?.id !== "editor") element.scrollIntoView({ block: "nearest" });
}

/** Once what is there now can be seen. */
export const painted = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));

/** Tell those who cannot see it what has happened. */
export function announce(text) {
  byId("status").textContent = text;
}

/** A small button; `about`: what it is about, for those who cannot see where it stands. */
export const button = (title, onclick, about = null) => el("button", { type: "button", class: "plain small", onclick },
  title, about ? el("span", { class: "visually-hidden" }, ` ${about}`) : null);

/** Columns by title, {title: a member of the row, or what makes the cell of it}; `more` holds for all of them. */
export const cells = (titles, more = {}) => Object.entries(titles).map(([title, member]) =>
  ({ title, ...more, of: typeof member === "string" ? (row) => row[member] : member }));
export const heads = (titles) => cells(titles, { head: true });
export const names = (titles) => cells(titles, { head: true, class: "wrap" });
export const words = (titles) => cells(titles, { class: "wrap" });
export const numbers = (titles) => cells(titles, { num: true });

/** The column of such buttons. */
export const action = (of) => ({ title: "Action", hidden: true, of });

/** A column of numbers as `format` writes them; files hold the value in `unit`. */
export const amount = (title, of, format = (value) => value, unit = null) =>
  ({ title, num: true, of: (row) => format(of(row)), value: of, unit });

const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];

/** Copy what a read-only field holds, and say so on the button that was pressed. */
export async function copyField(field, button, what) {
  const title = button.textContent;
  field.select();
  try {
    await navigator.clipboard.writeText(field.value);
    announce(`${what} is copied.`);
    button.textContent = "Copied";
  } catch {
    announce(`${what} is selected; copy it with the keyboard.`);
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = title), 2000);
}

/** A number with three digits and a prefixed unit: 18.3 µs. */
export function quantity(value, unit, { sign = false, digits = 3 } = {}) {
  if (value === null || value === undefined) return "unknown";
  const size = Math.abs(value);
  const mark = value < 0 ? "−" : sign && value > 0 ? "+" : "";
  if (size === 0) return `0 ${unit}`;
  const found = PREFIXES.find(([factor]) => size >= factor * 0.99995) || PREFIXES.at(-1);
  return `${mark}${plain(size / found[0], digits)} ${found[1]}${unit}`;
}

/** A number with so many significant digits, never in powers of ten below a million. */
export function plain(value, digits = 3) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-4)) return value.toExponential(digits - 1);
  return size >= 10 ** digits ? String(Math.round(value)) : String(Number(value.toPrecision(digits)));
}

/** The prefixed unit that suits the largest of `values`, and what to divide by: [0.001, "mJ"]. */
export function unitFor(values, unit) {
  const most = Math.max(...values.map(Math.abs));
  const [factor, prefix] = PREFIXES.find(([size]) => most >= size) ?? PREFIXES.at(-1);
  return [factor, `${prefix}${unit}`];
}

export const watts = (value) => quantity(value, "W");
export const seconds = (value) => quantity(value, "s");
export const joules = (value) => quantity(value, "J");

/** What is predicted: its title, the member that holds it, and how it is written. */
export const QUANTITIES = { energy: ["Energy", "joules", joules], time: ["Time", "seconds", seconds], power: ["Power", "watts", watts] };

/** Columns of what is predicted. */
export const COSTS = Object.entries(QUANTITIES).flatMap(([name, [title, unit, format]]) =>
  numbers({ [title]: (one) => format(one[name][unit]) }));

/** Both ends of an estimate. */
export const between = (part, format) => `${format(part.low)} to ${format(part.high)}`;

/** A change with its sign, in percent. */
export const signed = (percents) => `${percents > 0 ? "+" : percents < 0 ? "−" : ""}${plain(Math.abs(percents))} %`;

/** A share of 1 as percent. */
export const percent = (share, digits = 3) => `${plain(100 * share, digits)} %`;

/** The dimensions of a grid or block without trailing ones: 64x8. */
export function dimensions(values) {
  const kept = values.slice();
  while (kept.length > 1 && kept.at(-1) === 1) kept.pop();
  return kept.join("x");
}

/** "64x8" as [64, 8]. */
export function parseDimensions(text) {
  const words = text.trim().split(/\s*[x,×]\s*|\s+/).map(Number);
  if (!text.trim() || words.length > 3 || words.some((n) => !Number.isSafeInteger(n)))
    throw new Error(`${text.trim() || "nothing"}: one to three whole numbers are taken, 64x8 say`);
  return words;
}

/** When something was, in the reader's own way of writing; a date without a time stays as it is. */
export const when = (iso) => (iso.includes("T") ? new Date(iso).toLocaleString() : iso);

/** A figure's colours, as the style sheet has them now. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
