// A pane of code: CodeMirror in a shadow root, where its style sheets are constructed ones, which the
// page's policy allows. Lines carry heat, colours that link them to lines elsewhere, and problems.

import * as cm from "./codemirror.js";
import { painted, percent } from "./dom.js";

const HEATS = 10;
export const LINK_COLOURS = 6;

/** PTX in words: an opcode or directive first, then its operands. */
const ptx = cm.StreamLanguage.define({
  name: "ptx",
  startState: () => ({ inComment: false, isFirst: true }),
  token(stream, state) {
    if (state.inComment) {
      if (stream.skipTo("*/")) {
        stream.match("*/");
        state.inComment = false;
      } else stream.skipToEnd();
      return "comment";
    }
    if (stream.eatSpace()) return null;
    if (stream.match("//")) {
      stream.skipToEnd();
      return "comment";
    }
    if (stream.match("/*")) {
      state.inComment = true;
      return "comment";
    }
    if (stream.match(/^"[^"]*"?/)) return "string";
    if (stream.match(/^[$\w]+:(?!:)/)) return "labelName";
    if (stream.match(/^@!?%\w+/)) return "controlKeyword";
    if (stream.match(/^%[\w.]+/)) return "variableName";
    if (stream.match(/^(0[fFdD][0-9a-fA-F]+|-?0[xX][0-9a-fA-F]+U?|-?\d+(\.\d+)?U?)\b/)) return "number";
    if (stream.match(/^\.[a-z]\w*/)) return state.isFirst ? "keyword" : "typeName";
    const { isFirst } = state;
    if (stream.match(/^[;{}]/)) {
      state.isFirst = true;
      return "punctuation";
    }
    state.isFirst = false;
    if (stream.match(/^[a-z][\w.:]*/)) return isFirst ? "keyword" : null;
    if (stream.match(/^\$\w+/)) return "labelName";
    stream.next();
    return null;
  },
});

const { tags } = cm;
const colours = cm.HighlightStyle.define([
  { tag: [tags.keyword, tags.modifier, tags.controlKeyword, tags.definitionKeyword], color: "var(--code-keyword)" },
  { tag: [tags.typeName, tags.standard(tags.typeName)], color: "var(--code-type)" },
  { tag: [tags.number, tags.bool, tags.string, tags.character], color: "var(--code-number)" },
  { tag: [tags.processingInstruction, tags.meta, tags.labelName], color: "var(--code-meta)" },
  { tag: tags.comment, color: "var(--muted)", fontStyle: "italic" },
]);

const theme = {
  "&": { height: "100%", color: "var(--text)", fontSize: ".8125rem" },
  "&.cm-focused": { outline: "3px solid var(--accent)", outlineOffset: "-3px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.5", overflow: "auto" },
  ".cm-content": { caretColor: "var(--text)", padding: ".4rem 0" },
  ".cm-content:focus": { outline: "none" },
  ".cm-gutters": { background: "var(--sunk)", color: "var(--muted)", borderRight: "1px solid var(--line)" },
  ".cm-cost .cm-gutterElement": { padding: "0 .4rem", textAlign: "right", fontVariantNumeric: "tabular-nums" },
  ".cm-cost .hot": { color: "var(--text)" },
  ".cm-line": { padding: "0 .6rem" },
  ".cm-line.marked": { backgroundImage: "linear-gradient(var(--tint), var(--tint))" },
  ".cm-tooltip": { background: "var(--panel)", color: "var(--text)", border: "1px solid var(--line)" },
  ".cm-diagnostic": { fontFamily: "var(--sans)", whiteSpace: "pre-wrap", maxWidth: "32rem" },
};
for (let heat = 1; heat <= HEATS; heat += 1) {
  theme[`.cm-line.heat-${heat}`] = { backgroundColor: `rgb(var(--heat) / ${(0.26 * heat / HEATS).toFixed(3)})` };
  theme[`.cm-cost .heat-${heat}`] = { background: `rgb(var(--heat) / ${(0.5 * heat / HEATS).toFixed(3)})` };
}
for (let link = 0; link < LINK_COLOURS; link += 1)
  theme[`.cm-line.link-${link}`] = { boxShadow: `inset 4px 0 var(--link-${link})` };

class Cost extends cm.GutterMarker {
  constructor(text, heat) {
    super();
    this.text = text;
    this.elementClass = heat ? `hot heat-${heat}` : "";
  }

  eq(other) {
    return other.text === this.text && other.elementClass === this.elementClass;
  }

  toDOM() {
    return document.createTextNode(this.text);
  }
}

const setLines = cm.StateEffect.define();
const setMarked = cm.StateEffect.define();
const byProgram = cm.Annotation.define();
const NOTHING = { costs: new cm.RangeSetBuilder().finish(), lines: cm.Decoration.none };

/** Heat and links: they move with the text while it is edited. */
const lineState = cm.StateField.define({
  create: () => NOTHING,
  update(value, change) {
    for (const effect of change.effects)
      if (effect.is(setLines)) return decorated(change.state.doc, effect.value);
    return change.docChanged
      ? { costs: value.costs.map(change.changes), lines: value.lines.map(change.changes) } : value;
  },
  provide: (field) => cm.EditorView.decorations.from(field, (value) => value.lines),
});

const markedState = cm.StateField.define({
  create: () => cm.Decoration.none,
  update(value, change) {
    for (const effect of change.effects) {
      if (!effect.is(setMarked)) continue;
      const shown = effect.value.filter((at) => at >= 1 && at <= change.state.doc.lines).sort((a, b) => a - b);
      return cm.Decoration.set(shown.map((at) =>
        cm.Decoration.line({ class: "marked" }).range(change.state.doc.line(at).from)));
    }
    return change.docChanged ? value.map(change.changes) : value;
  },
  provide: (field) => cm.EditorView.decorations.from(field),
});

/** `rows`: [{line, share, link}]: its share of the energy, and the number of its colour or null. */
function decorated(doc, rows) {
  const most = Math.max(...rows.map((row) => row.share), 1e-12);
  const costs = new cm.RangeSetBuilder();
  const lines = new cm.RangeSetBuilder();
  for (const row of rows.slice().sort((a, b) => a.line - b.line)) {
    if (row.line < 1 || row.line > doc.lines) continue;
    const { from } = doc.line(row.line);
    const heat = Math.round(HEATS * row.share / most);
    const known = [row.share > 0 && "hot", heat && `heat-${heat}`, row.link !== null && `link-${row.link}`].filter(Boolean);
    costs.add(from, from, new Cost(row.share >= 0.0005 ? percent(row.share, 2) : "", heat));
    if (known.length) lines.add(from, from, cm.Decoration.line({ class: known.join(" ") }));
  }
  return { costs: costs.finish(), lines: lines.finish() };
}

/** Code in an element, to edit where `typed` is given; `pointed` and `picked` are told lines. */
export class Pane {
  #view;
  #language = new cm.Compartment();
  #fixed = new cm.Compartment();
  /** What is shown as: language and whether it is fixed; what is marked, and whether any line has a problem. */
  #shown = "";
  #isMarked = false;
  /** The language that is to be coloured next. */
  #colours = null;
  #hasProblems = false;

  constructor(host, { label, typed = null, entered = () => {}, pointed = () => {}, picked = () => {} }) {
    const root = host.attachShadow({ mode: "open" });
    // Without the focus nothing is selected here; to look all the same has the browser lay out the page.
    root.getSelection = () => (root.activeElement ? Object.getPrototypeOf(root).getSelection.call(root) : null);
    host.wholeText = () => this.text;  // for a copy of the page, which cannot look inside
    const lineAt = (view, event) => {
      const at = view.posAtCoords({ x: event.clientX, y: event.clientY });
      return at === null ? null : view.state.doc.lineAt(at).number;
    };
    const watch = cm.EditorView.updateListener.of((update) => {
      const byUser = !update.transactions.some((one) => one.annotation(byProgram));
      if (typed && update.docChanged && byUser) typed(this.text);
      else if (update.selectionSet && byUser && update.view.hasFocus)
        pointed(update.state.doc.lineAt(update.state.selection.main.head).number);
    });
    this.#view = new cm.EditorView({
      root,
      parent: root,
      extensions: [
        typed ? [cm.lintGutter(), cm.history(), cm.bracketMatching(), cm.indentUnit.of("    ")]
          : [cm.EditorState.readOnly.of(true), cm.EditorView.editable.of(false)],
        this.#fixed.of([]),
        cm.keymap.of([
          { key: "Mod-Enter", run: () => (entered(), true) },
          ...(typed ? cm.historyKeymap : []), ...cm.defaultKeymap,
        ]),
        cm.lineNumbers(),
        cm.gutter({
          class: "cm-cost", markers: (view) => view.state.field(lineState).costs,
          initialSpacer: () => new Cost("0.00 %", 0),
        }),
        lineState, markedState,
        cm.syntaxHighlighting(colours),
        this.#language.of([]),
        cm.EditorView.theme(theme),
        cm.EditorView.contentAttributes.of({ "aria-label": label, tabindex: "0" }),
        cm.EditorView.domEventHandlers({
          mousemove: (event, view) => pointed(lineAt(view, event)),
          mouseleave: () => pointed(null),
          click: (event, view) => picked(lineAt(view, event)),
          drop: (event) => event.dataTransfer?.files.length > 0,  // a file is read by who holds the pane
        }),
        watch,
      ],
    });
  }

  get text() {
    return this.#view.state.doc.toString();
  }

  focus() {
    this.#view.focus();
  }

  /** Show another text, `cuda` or `ptx`, with the heat of its lines; one that is `fixed` cannot be edited.
   *  All in one step: each has the browser lay out what has changed on the page. */
  show(text, language, { fixed = false, heat = null } = {}) {
    const { state } = this.#view;
    const isSame = text === this.text;
    const effects = isSame ? [] : [setMarked.of([])];
    if (heat || !isSame) effects.push(setLines.of(heat ?? []));
    const isOther = this.#shown !== `${language} ${fixed}`;
    if (isOther) effects.push(this.#fixed.reconfigure(fixed ? cm.EditorState.readOnly.of(true) : []));
    if (isOther || !isSame) {
      effects.push(this.#language.reconfigure([]));
      this.#colour(language === "ptx" ? ptx : cm.cppLanguage);
    }
    this.#shown = `${language} ${fixed}`;
    if (effects.length) this.#view.dispatch({
      ...(isSame ? {} : { changes: { from: 0, to: state.doc.length, insert: text } }), effects, annotations: byProgram.of(true),
    });
  }

  /** Colours of the syntax, once the text can be seen: to read it takes longer than to show it. */
  async #colour(language) {
    const isAsked = this.#colours !== null;
    this.#colours = language;
    if (isAsked) return;
    await painted();
    this.#view.dispatch({ effects: this.#language.reconfigure(this.#colours), annotations: byProgram.of(true) });
    this.#colours = null;
  }

  /** Heat and colours of lines, [{line, share, link}]; none takes them away. */
  heat(rows = []) {
    this.#view.dispatch({ effects: setLines.of(rows) });
  }

  /** Mark these lines, and no others; scroll to the first if that is asked for. */
  mark(lines, { scroll = false } = {}) {
    if (this.#isMarked || lines.length) this.#view.dispatch({ effects: setMarked.of(lines) });
    this.#isMarked = lines.length > 0;
    if (scroll && lines.length) this.scrollTo(Math.min(...lines));
  }

  /** Bring a line into the middle of the pane; the page around it stays where it is. */
  scrollTo(line) {
    const view = this.#view;
    if (line > view.state.doc.lines) return;
    const { from } = view.state.doc.line(line);
    view.requestMeasure({
      key: "scrollTo",
      read: () => {
        const block = view.lineBlockAt(Math.min(from, view.state.doc.length));
        return block.top - (view.scrollDOM.clientHeight - block.height) / 2;
      },
      write: (top) => (view.scrollDOM.scrollTop = top),
    });
  }

  /** Problems in the margin, [{line, message, severity}]: each once. */
  problems(told) {
    const { state } = this.#view;
    const found = told.filter((one) => one.line >= 1 && one.line <= state.doc.lines).map((one) => {
      const line = state.doc.line(one.line);
      return { from: line.from, to: line.to, severity: one.severity ?? "error", message: one.message };
    });
    if (this.#hasProblems || found.length)
      this.#view.dispatch(cm.setDiagnostics(state, found.sort((a, b) => a.from - b.from)));
    this.#hasProblems = found.length > 0;
  }
}
