// What policysched/serve/page/vendor/codemirror.min.js exports; vendored.json says how it is made.
export { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
export { bracketMatching, HighlightStyle, StreamLanguage, syntaxHighlighting } from "@codemirror/language";
export { lintGutter, setDiagnostics } from "@codemirror/lint";
export { EditorState } from "@codemirror/state";
export { drawSelection, EditorView, keymap, lineNumbers } from "@codemirror/view";
export { tags } from "@lezer/highlight";
