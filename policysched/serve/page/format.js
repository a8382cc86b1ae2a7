// Numbers, durations and amounts for people, and the links between views.

export function duration(ms) {
  let rest = Math.max(0, Math.round(ms / 1000));
  const parts = [];
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]]) {
    if (rest >= size || parts.length) {
      parts.push([Math.floor(rest / size), unit]);
      rest %= size;
    }
  }
  return parts.slice(0, 2).filter(([n]) => n > 0).map(([n, unit]) => `${n}${unit}`).join(" ") || "0s";
}

export const count = (n) => Number(n ?? 0).toLocaleString("en-US");

export function rate(perS) {
  return perS >= 10 ? count(Math.round(perS)) : perS.toFixed(1).replace(".0", "");
}

const SCALES = {
  cpu: (v) => `${trim(v / 1000)} cores`,
  memory: (v) => binary(v),
  bytes: (v) => binary(v),
  bandwidth: (v) => `${decimal(v)}bit/s`,
  ratio: (v) => `${trim(v * 100)} %`,
  duration: (v) => `${trim(v / 1e9)} s`,
};

export function amount(value, type) {
  if (value === null || value === undefined) return "no sample";
  return (SCALES[type] ?? ((v) => trim(v)))(value);
}

function trim(value) {
  return Number(value.toPrecision(4)).toLocaleString("en-US", { maximumFractionDigits: 3 });
}

function scaled(value, base, units) {
  let index = 0;
  while (Math.abs(value) >= base && index < units.length - 1) {
    value /= base;
    index += 1;
  }
  return `${trim(value)} ${units[index]}`;
}

const binary = (value) => scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
const decimal = (value) => scaled(value, 1000, ["", "k", "M", "G", "T"]);

export const podLink = (pod) => `#pod/${encodeURIComponent(pod)}`;
export const time = (ms) => new Date(ms).toISOString().replace("T", " ").slice(0, 19);
export const hash = (sha256) => (sha256 ? sha256.slice(0, 12) : "none");

// The queue of a follower is empty even if pods are pending.
export function nothingPending({ leader }) {
  if (leader.leads) return "No pod is pending.";
  return `This replica does not lead; ${leader.holder || "the leader"} shows the pending pods.`;
}
