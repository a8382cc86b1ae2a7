// The tokens of a line of the policy language, for colours. No token spans two lines.

// As in policysched/lang/parse/keywords.py; a test compares them.
export const STATEMENTS = "policy library include param let record input metric state queue gang preemption quota outage resource extender layer canary shadow filter score amend replace reweight drop locked".split(" ");
export const KEYWORDS = "after and asc at borrow by default desc else for guard has higher in invalid lower missing normalize not of on optional or others over placing prefer preferred range recover reject require required rollback says scaleup then unit unlimited version weight when where within if never true false".split(" ");

const TOKEN = /(#.*)|("(?:\\.|[^"\\])*"?)|((?<![\w.])\d+(?:\.\d+)?(?:%|[A-Za-z]+)?)|((?<![\w.])[A-Za-z_]\w*)|[^#"\w]+|\w+/y;
const KINDS = ["comment", "string", "number"];
const statements = new Set(STATEMENTS);
const keywords = new Set(KEYWORDS);

// The token of `line` at `start`: `{ end, kind }`, kind "" for what has no colour.
export function tokenAt(line, start) {
  TOKEN.lastIndex = start;
  const match = TOKEN.exec(line);
  const end = TOKEN.lastIndex;
  const word = match[4];
  if (word === undefined) return { end, kind: KINDS.find((_, index) => match[index + 1] !== undefined) ?? "" };
  if (statements.has(word) && line.slice(0, start).trim() === "") return { end, kind: "statement" };
  return { end, kind: keywords.has(word) ? "keyword" : "" };
}
