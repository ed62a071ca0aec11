// The rolling chart of what each device computed in the last seconds.
import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import { percent, seconds, shortNames, shortened } from "./format.js";

const WINDOW_S = 6;
const ROW = 34;
const AXIS = 22;
const HUES = [226, 160, 32, 288, 190, 350, 95, 255]; // of sessions
export const KINDS = [
  ["draft", "drafts"],
  ["verify", "verifies"],
  ["prefill", "reads a prompt"],
  ["decode", "decodes"],
];

export function Gantt({ view, devices, dark }) {
  const canvas = useRef(null);
  const [paused, setPaused] = useState(false);
  const [by, setBy] = useState("kind");
  const [table, setTable] = useState(null);
  const still = useMemo(() => matchMedia("(prefers-reduced-motion: reduce)"), []);
  const frozen = useRef(0);

  useEffect(() => {
    let running = true;
    let timer = 0;
    let frame = 0;
    const draw = () => {
      if (!running) return;
      const now = paused ? frozen.current : view.time(performance.now() / 1000);
      if (!paused) frozen.current = now;
      if (canvas.current) paint(canvas.current, view.bars, devices, now, by);
      if (still.matches || paused) timer = setTimeout(draw, 1000);
      else frame = requestAnimationFrame(draw);
    };
    draw();
    return () => {
      running = false;
      clearTimeout(timer);
      cancelAnimationFrame(frame);
    };
  }, [view, devices.join("\n"), paused, by, dark]);

  useEffect(() => {
    const tell = () => setTable(summary(view, devices, frozen.current));
    tell();
    const timer = setInterval(tell, 2000);
    return () => clearInterval(timer);
  }, [view, devices.join("\n")]);

  return html`<section class="card" aria-labelledby="gantt-title">
    <div class="card-head">
      <h3 id="gantt-title">The last ${WINDOW_S} seconds</h3>
      <div class="tools">
        <label class="inline">Colour by
          <select value=${by} onChange=${(event) => setBy(event.target.value)}>
            <option value="kind">work</option><option value="session">request</option>
          </select></label>
        <button type="button" aria-pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? "Go on" : "Pause"}</button>
      </div>
    </div>
    <canvas ref=${canvas} class="gantt" style=${{ height: `${devices.length * ROW + AXIS}px` }} role="img"
      aria-label="Chart of when each device computed; the table below has its figures"></canvas>
    ${by === "kind" && html`<ul class="legend" aria-label="Colours of work">
      ${KINDS.map(([kind, text]) => html`<li><span class=${`swatch kind-${kind}`}></span>${text}</li>`)}</ul>`}
    <details><summary>As a table</summary>
      <div class="scroll" tabindex="0" role="group" aria-label="Table of work"><table>
        <thead><tr><th scope="col">Device</th><th scope="col">Computing</th><th scope="col">Computations</th><th scope="col">Mean</th></tr></thead>
        <tbody>${(table ?? []).map((row) => html`<tr><th scope="row">${row.device}</th><td>${percent(row.share)}</td><td>${row.count}</td><td>${row.count ? seconds(row.mean) : "–"}</td></tr>`)}</tbody>
      </table></div>
    </details>
  </section>`;
}

/** For each device, what it computed in the window that ends at `end`. */
export function summary(view, devices, end) {
  return devices.map((device) => {
    const bars = view.bars.filter((bar) => bar.device === device && bar.end > end - WINDOW_S && bar.start < end);
    const sum = bars.reduce((total, bar) => total + bar.end - bar.start, 0);
    return { device, count: bars.length, share: sum / WINDOW_S, mean: bars.length ? sum / bars.length : 0 };
  });
}

function paint(canvas, bars, devices, now, by) {
  const style = getComputedStyle(canvas);
  const color = (name) => style.getPropertyValue(name).trim();
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  const dense = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * dense) || canvas.height !== Math.round(height * dense)) {
    canvas.width = Math.round(width * dense);
    canvas.height = Math.round(height * dense);
  }
  const context = canvas.getContext("2d");
  context.setTransform(dense, 0, 0, dense, 0, 0);
  context.clearRect(0, 0, width, height);
  const narrow = width < 500;
  const left = narrow ? 56 : 130;
  const names = narrow ? shortNames(devices) : devices;
  const scale = (width - left - 8) / WINDOW_S;
  const start = now - WINDOW_S;
  context.font = `12px ${style.fontFamily}`;
  context.textBaseline = "middle";
  for (let second = Math.ceil(start); second <= now; second += 1) {
    const x = Math.round(left + (second - start) * scale) + 0.5;
    context.strokeStyle = color("--line");
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, devices.length * ROW);
    context.stroke();
    const ago = Math.round(now - second);
    context.fillStyle = color("--muted");
    context.textAlign = "center";
    if (x > left + 10) context.fillText(ago ? `−${ago} s` : "now", Math.min(x, width - 16), devices.length * ROW + AXIS / 2);
  }
  const rows = new Map(devices.map((device, row) => [device, row]));
  context.textAlign = "left";
  devices.forEach((device, row) => {
    context.fillStyle = color("--track");
    context.fillRect(left, row * ROW + 6, width - left - 8, ROW - 12);
    context.fillStyle = color("--text");
    context.fillText(shortened(names[row], Math.floor(left / 7)), 2, row * ROW + ROW / 2);
  });
  for (const bar of bars) {
    const row = rows.get(bar.device);
    if (row === undefined || bar.end < start || bar.start > now) continue;
    const from = left + Math.max(0, bar.start - start) * scale;
    const to = left + (Math.min(bar.end, now) - start) * scale;
    context.fillStyle = by === "kind" ? color(`--kind-${bar.kind}`) || color("--accent") : `hsl(${HUES[bar.session % HUES.length]} 62% 50%)`;
    context.fillRect(from, row * ROW + 6, Math.max(to - from - 0.5, 1), ROW - 12);
  }
}
