// What the page uses of CodeMirror 6, as one module. README.md beside it says how it is built.

export { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
export { cppLanguage } from "@codemirror/lang-cpp";
export { HighlightStyle, StreamLanguage, bracketMatching, indentUnit, syntaxHighlighting } from "@codemirror/language";
export { lintGutter, setDiagnostics } from "@codemirror/lint";
export { Annotation, Compartment, EditorState, RangeSetBuilder, StateEffect, StateField } from "@codemirror/state";
export { Decoration, EditorView, GutterMarker, gutter, keymap, lineNumbers } from "@codemirror/view";
export { tags } from "@lezer/highlight";
