// The cluster as a picture: the devices of each pipeline in order, with the links between them.
import { html, useLayoutEffect, useRef, useState } from "./html.js";
import { Limit } from "./watch.js";
import { bytes, gib, layersText, percent, rate, seconds, shortNames, shortened } from "./format.js";

const CARD = { width: 188, height: 178 };
const GAP = { x: 62, y: 56 };
const MARGIN = 16;

export function ClusterView({ cluster, views }) {
  if (!cluster) return html`<div class="view"><h2>Cluster</h2><p class="empty card">Connecting …</p></div>`;
  return html`<div class="view">
    <div class="view-head"><h2>Cluster</h2></div>
    ${cluster.opening
      ? html`<section class="card" aria-label="Starting"><div class="card-head"><h3>The pipeline is being set up</h3><p class="badge bad" role="status">being set up</p></div>
          <${Transfers} progress=${cluster.opening} /></section>`
      : !cluster.pipelines.length && html`<p class="empty card">This gateway has no pipeline.</p>`}
    ${cluster.pipelines.map((pipeline) => html`<${Pipeline} key=${pipeline.name} pipeline=${pipeline} view=${views.get(pipeline.name)} />`)}
    <${Others} others=${cluster.others} />
  </div>`;
}

function firstUpper(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** What a pipeline does, in words. */
export function statusText(pipeline) {
  if (pipeline.ready) return "ready";
  if (pipeline.recovering) return "recovering";
  return pipeline.progress.length ? "being set up" : "not ready";
}

function Pipeline({ pipeline, view }) {
  const ours = performance.now() / 1000;
  const state = view?.state ?? pipeline.state;
  const names = pipeline.devices.map((device) => device.name).filter(Boolean);
  const short = shortNames(names);
  const devices = pipeline.devices.map((device) => ({
    ...device,
    busy: view && device.present ? view.busy(device.name, ours) : null,
    shares: sharedWith(device, pipeline.devices),
    sharesShort: short[names.indexOf(sharedWith(device, pipeline.devices))] ?? "",
  }));
  const gone = devices.filter((device) => !device.present).length;
  const status = statusText(pipeline);
  return html`<section class="card pipeline" aria-label=${`Pipeline of ${pipeline.model || pipeline.name}`}>
    <div class="card-head">
      <h3>${pipeline.model || "Pipeline"} <span class="hint">${pipeline.name}</span></h3>
      <p class=${`badge ${pipeline.ready ? "good" : "bad"}`} role="status">${status}${gone ? `, ${gone} ${gone === 1 ? "device" : "devices"} away` : ""}</p>
    </div>
    ${pipeline.recovering && html`<p class="hint recovery">${pipeline.recovering}</p>`}
    <${Picture} devices=${devices} links=${state?.links ?? []} name=${pipeline.model || pipeline.name} />
    ${pipeline.plan && html`<p class="hint plan">${firstUpper(pipeline.plan)}.</p>`}
    ${pipeline.proposal && html`<p class="plan" role="status">${pipeline.proposal}.</p>`}
    ${view?.state && html`<${Limit} view=${view} devices=${devices.filter((each) => each.part !== "middle" && each.name).map((each) => each.name)} />`}
    <${Transfers} progress=${pipeline.progress} />
    <details><summary>As a table</summary><${DeviceTable} devices=${devices} /><${LinkTable} links=${state?.links ?? []} /></details>
  </section>`;
}

/** Where cards are, in a picture of this width: from left to right, then on the next line. */
export function layoutCards(count, width) {
  const fitting = Math.max(1, Math.floor((width - 2 * MARGIN + GAP.x) / (CARD.width + GAP.x)));
  const columns = Math.ceil(count / Math.ceil(count / fitting)) || 1; // lines of the same length, if possible
  const used = columns * CARD.width + (columns - 1) * GAP.x;
  const left = Math.max(MARGIN, (width - used) / 2);
  const places = Array.from({ length: count }, (_, number) => ({
    x: left + (number % columns) * (CARD.width + GAP.x),
    y: MARGIN + Math.floor(number / columns) * (CARD.height + GAP.y),
  }));
  const lines = Math.max(1, Math.ceil(count / columns));
  return { places, height: 2 * MARGIN + lines * CARD.height + (lines - 1) * GAP.y + 34, columns };
}

function Picture({ devices, links, name }) {
  const frame = useRef(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(frame.current);
    return () => observer.disconnect();
  }, []);
  const chain = devices.filter((device) => device.part !== "middle");
  const { places, height } = layoutCards(devices.length, Math.max(width, CARD.width + 2 * MARGIN));
  const said = devices.map((device) => `${device.name || "unknown device"}, ${partText(device)}, ${presenceText(device)}`);
  return html`<div ref=${frame} class="picture">
    ${width > 0 && html`<svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="img"
      aria-label=${`Devices of the pipeline ${name}, in order: ${said.join("; ")}`}>
      <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse">
        <path class="arrow" d="M0 0 8 4 0 8z" /></marker></defs>
      ${chain.map((device, number) => html`<${Link} key=${`l${number}`} number=${number} count=${chain.length} places=${places} height=${height}
        link=${links[number]} live=${[device, chain[(number + 1) % chain.length]].every((each) => each.present && !each.lost)} />`)}
      ${devices.map((device, number) => html`<${Card} key=${device.id || number} device=${device} place=${places[number]} />`)}
    </svg>`}
  </div>`;
}

function Link({ number, count, places, height, link, live }) {
  if (count < 2) return null;
  const from = places[number];
  const back = number === count - 1;
  const to = places[back ? 0 : number + 1];
  const label = link ? [link.round_trip_s ? `${seconds(link.round_trip_s / 2)}` : "", link.sent_bytes_per_s ? rate(link.sent_bytes_per_s) : ""] : [];
  const kind = `link${live ? "" : " link-gone"}${back ? " link-back" : ""}`;
  if (back) {
    const [x, y, bottom] = [from.x + CARD.width / 2, from.y + CARD.height, height - 22];
    const end = to.x + CARD.width / 2;
    const side = Math.max(4, to.x - 10);
    const sameLine = from.y === to.y;
    const path = sameLine ? `M${x} ${y}V${bottom}H${end}V${to.y + CARD.height + 3}` : `M${x} ${y}V${bottom}H${side}V${to.y + CARD.height / 2}H${to.x - 3}`;
    return html`<g class=${kind}><path d=${path} marker-end="url(#arrow)" />
      <text class="link-text" x=${(x + (sameLine ? end : side)) / 2} y=${bottom + 15} text-anchor="middle">${["returns", ...label].filter(Boolean).join(" · ")}</text></g>`;
  }
  if (from.y === to.y) {
    const [x1, x2, y] = [from.x + CARD.width, to.x, from.y + CARD.height / 2];
    return html`<g class=${kind}><path d=${`M${x1} ${y}H${x2 - 3}`} marker-end="url(#arrow)" />
      <text class="link-text" x=${(x1 + x2) / 2} y=${y - 9} text-anchor="middle">${label[0]}</text>
      <text class="link-text" x=${(x1 + x2) / 2} y=${y + 19} text-anchor="middle">${label[1]}</text></g>`;
  }
  const [x1, y1, x2, y2] = [from.x + CARD.width / 2, from.y + CARD.height, to.x + CARD.width / 2, to.y];
  const bend = (y1 + y2) / 2;
  return html`<g class=${kind}><path d=${`M${x1} ${y1}V${bend}H${x2}V${y2 - 3}`} marker-end="url(#arrow)" />
    <text class="link-text" x=${x1 === x2 ? x1 + 10 : (x1 + x2) / 2} y=${x1 === x2 ? bend + 4 : bend - 6} text-anchor=${x1 === x2 ? "start" : "middle"}>${label.filter(Boolean).join(" · ")}</text></g>`;
}

function presenceText(device) {
  if (device.lost) return "lost";
  return device.present ? "present" : "away";
}

function heatText(device) {
  return device.temperature == null ? "" : `${device.temperature.toFixed(0)} °C`;
}

/** How fast the device answers, or what is wrong with it. */
function answerText(device) {
  if (device.lost) return "was lost";
  if (!device.present) return "does not answer";
  return device.throttled ? "is slowed down" : `answers in ${seconds(device.round_trip_s)}`;
}

function partText(device) {
  const held = layersText(device.layers);
  return held ? `${device.part}, ${held}` : device.part;
}

/** The name of the device before on the same machine, whose memory is shown there; "" for the first. */
export function sharedWith(device, devices) {
  const first = devices.find((each) => each.machine === device.machine && each.name);
  return first && first !== device && device.machine !== undefined ? first.name : "";
}

/** The parts of a device's memory, as shares of the whole. */
export function memoryShares(device) {
  const total = device.memory_total || 1;
  const weights = Math.min(device.weight_bytes / total, 1);
  const cache = Math.min(device.cache_bytes / total, 1 - weights);
  const used = Math.max(0, Math.min(1 - device.memory_available / total - weights - cache, 1 - weights - cache));
  return { weights, cache, used };
}

function Card({ device, place }) {
  if (!device.name) {
    return html`<g class="device away" transform=${`translate(${place.x} ${place.y})`}><rect class="device-box" width=${CARD.width} height=${CARD.height} rx="12" />
      <text x="14" y="30" class="device-name">Not reached yet</text><text x="14" y="50" class="device-line">${device.part}</text></g>`;
  }
  const wide = CARD.width - 28;
  const { weights, cache, used: usedByAll } = memoryShares(device);
  const used = device.shares ? 0 : usedByAll;
  const memory = device.shares ? `shared with ${shortened(device.sharesShort, 8)}` : `${gib(device.memory_total - device.memory_available).slice(0, -4)} of ${gib(device.memory_total)}`;
  const held = device.weight_bytes ? `${bytes(device.weight_bytes)} weights${device.quant && device.quant !== "none" ? `, ${device.quant}` : ""}` : device.present ? "holds no weights" : presenceText(device);
  return html`<g class=${`device${device.present && !device.lost ? "" : " away"}`} transform=${`translate(${place.x} ${place.y})`}>
    <title>${device.name}: ${partText(device)}, ${device.kind}, ${device.processor}${device.throttled && `, slowed down by ${device.throttled}`}</title>
    <rect class="device-box" width=${CARD.width} height=${CARD.height} rx="12" />
    <circle class="presence" cx=${CARD.width - 18} cy="20" r="5" />
    <text x="14" y="25" class="device-name">${shortened(device.name, 20)}</text>
    <text x="14" y="43" class="device-line">${shortened(partText(device), 27)}</text>
    <text x="14" y="60" class="device-line">${shortened(`${device.kind} · ${device.compute}`, 27)}</text>
    <text x="14" y="77" class="device-line">${shortened(held, 27)}</text>
    <text x="14" y="101" class="device-label">Memory</text>
    <text x=${CARD.width - 14} y="101" class="device-label" text-anchor="end">${memory}</text>
    <rect class="track" x="14" y="107" width=${wide} height="8" rx="4" />
    <rect class="mem-weights" x="14" y="107" width=${wide * weights} height="8" rx="3" />
    <rect class="mem-cache" x=${14 + wide * weights} y="107" width=${wide * cache} height="8" />
    <rect class="mem-used" x=${14 + wide * (weights + cache)} y="107" width=${wide * used} height="8" rx="3" />
    <text x="14" y="135" class="device-label">Computing</text>
    <text x=${CARD.width - 14} y="135" class="device-label" text-anchor="end">${device.busy === null ? "–" : percent(device.busy)}</text>
    <rect class="track" x="14" y="141" width=${wide} height="8" rx="4" />
    <rect class="busy" x="14" y="141" width=${wide * (device.busy ?? 0)} height="8" rx="4" />
    <text x="14" y="168" class="device-label">${heatText(device)}</text>
    <text x=${CARD.width - 14} y="168" class=${`device-label${device.throttled ? " slowed" : ""}`} text-anchor="end">${answerText(device)}</text>
  </g>`;
}

function Transfers({ progress }) {
  if (!progress.length) return null;
  return html`<div class="transfers" role="group" aria-label="Setting up">
    ${progress.map((each) => html`<div class="transfer" key=${each.device}>
      <span>${each.device}</span>
      ${each.total
        ? html`<progress max=${each.total} value=${each.done} aria-label=${`Weights of ${each.device}`}></progress>
            <span class="hint">${bytes(each.done)} of ${bytes(each.total)} · ${rate(each.bytes_per_s)}${each.left_s === null ? "" : ` · ${seconds(each.left_s)} left`}</span>`
        : html`<span class="hint">is being set up</span>`}
    </div>`)}
  </div>`;
}

function DeviceTable({ devices }) {
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Table of devices"><table>
    <caption>Devices</caption>
    <thead><tr><th scope="col">Device</th><th scope="col">Part</th><th scope="col">State</th><th scope="col">Kind</th><th scope="col">Computes on</th><th scope="col">Holds</th><th scope="col">Memory free</th><th scope="col">Temperature</th><th scope="col">Computing</th></tr></thead>
    <tbody>${devices.map((device) => html`<tr>
      <th scope="row">${device.name || "unknown"}</th><td>${partText(device)}</td><td>${presenceText(device)}</td><td>${device.kind}</td>
      <td>${device.processor || device.compute}</td><td>${device.weight_bytes ? bytes(device.weight_bytes) : "–"}</td>
      <td>${device.shares ? `shared with ${device.shares}` : device.memory_total ? `${gib(device.memory_available)} of ${gib(device.memory_total)}` : "–"}</td>
      <td>${heatText(device) || "–"}${device.throttled && `, slowed down by ${device.throttled}`}</td><td>${device.busy == null ? "–" : percent(device.busy)}</td></tr>`)}</tbody>
  </table></div>`;
}

function LinkTable({ links }) {
  if (!links.length) return null;
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Table of links"><table>
    <caption>Links</caption>
    <thead><tr><th scope="col">From</th><th scope="col">To</th><th scope="col">One way</th><th scope="col">Sends</th></tr></thead>
    <tbody>${links.map((link) => html`<tr><td>${link.sender}</td><td>${link.receiver}</td><td>${link.round_trip_s ? seconds(link.round_trip_s / 2) : "–"}</td><td>${rate(link.sent_bytes_per_s)}</td></tr>`)}</tbody>
  </table></div>`;
}

function Others({ others }) {
  return html`<section class="card" aria-labelledby="others-title">
    <div class="card-head"><h3 id="others-title">Also on the network</h3></div>
    ${others.length
      ? html`<ul class="others">${others.map((device) => html`<li key=${device.id} class=${device.present ? "" : "away"}>
          <strong>${device.name}</strong> <span class="hint">${device.kind}${device.memory_total ? ` · ${gib(device.memory_total)}` : ""}${device.present ? "" : " · silent"}</span></li>`)}</ul>`
      : html`<p class="hint">No other device has announced itself.</p>`}
  </section>`;
}
