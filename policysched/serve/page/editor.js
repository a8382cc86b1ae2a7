// The editor of a policy's text: CodeMirror in a shadow root, where its styles need no exception of the
// Content-Security-Policy. Its colours are those of the page.

import {
  EditorState, EditorView, HighlightStyle, StreamLanguage, bracketMatching, defaultKeymap, drawSelection, history,
  historyKeymap, keymap, lineNumbers, lintGutter, setDiagnostics, syntaxHighlighting, tags,
} from "./vendor/codemirror.min.js";
import { el } from "./dom.js";
import { tokenAt } from "./policy_syntax.js";

const TAGS = { comment: "lineComment", string: "string", number: "number", statement: "definitionKeyword", keyword: "keyword" };
const SEVERITIES = new Set(["error", "warning", "info"]);

const language = StreamLanguage.define({
  name: "policy",
  token: (stream) => {
    const { end, kind } = tokenAt(stream.string, stream.pos);
    stream.pos = end;
    return TAGS[kind] ?? null;
  },
  languageData: { commentTokens: { line: "#" } },
});

const colours = HighlightStyle.define([
  { tag: tags.lineComment, color: "var(--soft)" },
  { tag: tags.string, color: "var(--ok)" },
  { tag: tags.number, color: "var(--warn)" },
  { tag: tags.definitionKeyword, color: "var(--accent)", fontWeight: "600" },
  { tag: tags.keyword, color: "var(--accent)" },
]);

// Marks of CodeMirror's own theme are images of `data:` addresses, which the page does not load.
const wavy = (colour) => ({ backgroundImage: "none", textDecoration: `underline wavy ${colour}`, textUnderlineOffset: "3px" });
const mark = (sign, colour) => ({ content: "none", "&::before": { content: `"${sign}"`, color: colour, fontWeight: "600" } });
const theme = EditorView.theme({
  "&": { height: "100%", color: "var(--ink)", backgroundColor: "var(--panel)" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { font: "12px/1.6 var(--mono)", overflow: "auto" },
  ".cm-content": { caretColor: "var(--ink)" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { background: "var(--bar)" },
  ".cm-gutters": { color: "var(--soft)", backgroundColor: "var(--panel)", borderRight: "1px solid var(--line)" },
  ".cm-tooltip": { color: "var(--ink)", backgroundColor: "var(--panel)", border: "1px solid var(--line)" },
  ".cm-lintRange-error": wavy("var(--bad)"),
  ".cm-lintRange-warning": wavy("var(--warn)"),
  ".cm-lintRange-info": wavy("var(--accent)"),
  ".cm-diagnostic-error": { borderLeftColor: "var(--bad)" },
  ".cm-diagnostic-warning": { borderLeftColor: "var(--warn)" },
  ".cm-diagnosticSource": { fontSize: "inherit", opacity: "1", color: "var(--soft)" },
  ".cm-lint-marker-error": mark("✕", "var(--bad)"),
  ".cm-lint-marker-warning": mark("△", "var(--warn)"),
  ".cm-lint-marker-info": mark("·", "var(--accent)"),
});

// `changed` runs after each edit, `submitted` at Ctrl+Enter. Nothing can be typed before `load`.
export function policyEditor(label, { changed, submitted }) {
  const element = el("div", { class: "editor" });
  const root = element.attachShadow({ mode: "open" });
  const extensions = [
    keymap.of([{ key: "Mod-Enter", run: () => { submitted(); return true; } }, ...defaultKeymap, ...historyKeymap]),
    lintGutter(), lineNumbers(), history(), drawSelection(), bracketMatching(), language, syntaxHighlighting(colours), theme,
    EditorView.contentAttributes.of({ "aria-label": label, spellcheck: "false", autocorrect: "off", autocapitalize: "off" }),
    EditorView.updateListener.of((update) => update.docChanged && changed()),
  ];
  const view = new EditorView({ parent: root, root, state: EditorState.create({ extensions: [extensions, EditorView.editable.of(false)] }) });

  // The server counts characters, JavaScript UTF-16 units: where each character begins.
  const offsets = () => {
    const starts = [0];
    for (const character of view.state.doc.toString()) starts.push(starts.at(-1) + character.length);
    return (characters) => starts[Math.min(characters, starts.length - 1)];
  };

  return {
    element,
    text: () => view.state.doc.toString(),
    // A new text with no history of edits, so that undo does not bring another policy's back.
    load: (text) => view.setState(EditorState.create({ doc: text, extensions })),
    replace: (text) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } }),
    mark: (diagnostics) => {
      const offset = offsets();
      view.dispatch(setDiagnostics(view.state, diagnostics.filter((each) => each.line).map((each) => ({
        from: offset(each.start),
        to: offset(each.end),
        severity: SEVERITIES.has(each.severity) ? each.severity : "info",
        source: each.code,
        message: each.message,
      }))));
    },
    select: (start, end) => {
      const offset = offsets();
      view.dispatch({ selection: { anchor: offset(start), head: offset(end) }, scrollIntoView: true });
      view.focus();
    },
    close: () => view.destroy(),
  };
}
