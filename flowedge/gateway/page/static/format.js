// Numbers as people read them. Pure functions.

const UNITS = ["B", "kB", "MB", "GB", "TB"];

export function bytes(count) {
  if (!Number.isFinite(count)) return "–";
  let unit = 0;
  let value = Math.max(0, count);
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

export function gib(count) {
  return `${(count / 2 ** 30).toFixed(1)} GiB`;
}

export function rate(bytesPerSecond) {
  return `${bytes(bytesPerSecond)}/s`;
}

export function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
  return value < 60 ? `${value.toFixed(1)} s` : `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

export function percent(share) {
  return `${Math.round(100 * Math.min(Math.max(share, 0), 1))} %`;
}

export function shortened(text, most) {
  return text.length <= most ? text : `${text.slice(0, Math.max(most - 1, 1))}…`;
}

/** A token's text with its spaces and line ends made visible. */
export function visibleToken(text) {
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ /, "·").replace(/ $/, "·") || "∅";
}

/** Names without the beginning that all of them share, such as "kitchen-". */
export function shortNames(names) {
  let shared = names.length > 1 ? names[0].lastIndexOf("-") + 1 : 0;
  while (shared > 0 && !names.every((name) => name.length > shared && name.startsWith(names[0].slice(0, shared)))) {
    shared = names[0].lastIndexOf("-", shared - 2) + 1;
  }
  return names.map((name) => name.slice(shared));
}

export function layersText(layers) {
  if (!layers) return "";
  const [first, stop] = layers;
  return stop - first === 1 ? `layer ${first}` : `layers ${first}–${stop - 1}`;
}
