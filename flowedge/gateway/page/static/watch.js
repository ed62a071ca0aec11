// The view in which one watches a pipeline work.
import { html, useEffect, useRef, useState } from "./html.js";
import { Gantt } from "./gantt.js";
import { shortNames } from "./format.js";
import { limitText } from "./live.js";
import { DraftTree } from "./tree.js";

export function WatchView({ views, cluster, chosen, choose, dark }) {
  const names = cluster?.pipelines.map((pipeline) => pipeline.name) ?? [];
  const name = names.includes(chosen) ? chosen : names[0];
  const pipeline = cluster?.pipelines.find((each) => each.name === name);
  const view = views.get(name);
  const devices = (pipeline?.devices ?? []).filter((each) => each.part !== "middle" && each.name).map((each) => each.name);
  return html`<div class="view" >
    <div class="view-head"><h2>Live</h2>
      ${names.length > 1 && html`<label class="inline">Pipeline
        <select value=${name} onChange=${(event) => choose(event.target.value)}>
          ${names.map((each) => html`<option value=${each}>${each}</option>`)}</select></label>`}
    </div>
    ${!view || !view.state
      ? html`<p class="empty card">${cluster ? `No pipeline tells what it does at the moment.${pipeline?.recovering ? ` It recovers: ${pipeline.recovering}` : ""}` : "Connecting …"}</p>`
      : html`<${Figures} view=${view} /><${Limit} view=${view} devices=${devices} />
          <div class="live-grid">
            <div class="stack"><${Gantt} view=${view} devices=${devices} dark=${dark} />
              ${cluster.may_chat && html`<${SoFar} view=${view} />`}</div>
            <${DraftTree} view=${view} mayRead=${cluster.may_chat} />
          </div>
          ${view.incomplete && html`<p class="hint" role="status">This browser reads too slowly: some activity is missing.</p>`}`}
  </div>`;
}

/** The text of the running answer, with what the latest segment brought. */
function SoFar({ view }) {
  const [, redraw] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => redraw((count) => count + 1), 300);
    return () => clearInterval(timer);
  }, [view]);
  const text = useRef(null);
  const tree = view.tree;
  useEffect(() => {
    if (text.current) text.current.scrollTop = text.current.scrollHeight;
  }, [tree?.accepted]);
  if (!tree?.told.length) return null;
  return html`<section class="card" aria-labelledby="so-far-title">
    <div class="card-head"><h3 id="so-far-title">The answer so far</h3>
      <span class="hint">${tree.accepted} tokens${tree.finished ? `, ${tree.finished}` : ""}</span></div>
    <p ref=${text} class="so-far" tabindex="0">${tree.told.slice(0, -1).join("")}<mark>${tree.told.at(-1)}</mark></p>
  </section>`;
}

/** Which device the others wait for. */
export function Limit({ view, devices }) {
  const [, redraw] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => redraw((count) => count + 1), 1000);
    return () => clearInterval(timer);
  }, [view]);
  const short = shortNames(devices);
  const text = limitText(devices.map((name, place) => [short[place], view.busy(name, performance.now() / 1000)]));
  return text && html`<p class="hint limit">${text}</p>`;
}

export function Figures({ view }) {
  const [, redraw] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => redraw((count) => count + 1), 500);
    return () => clearInterval(timer);
  }, [view]);
  const { state, series } = view;
  const tree = [...view.trees.values()].at(-1);
  const accepted = tree?.sent ? `${Math.round((100 * tree.acceptedDrafts) / tree.sent)} %` : "–";
  return html`<dl class="figures" aria-label="Speed">
    <${Figure} label="Tokens a second" value=${state.tokens_per_s.toFixed(1)} values=${series.tokens_per_s} />
    <${Figure} label="Tokens a segment" value=${state.tokens_per_segment ? state.tokens_per_segment.toFixed(2) : "–"} values=${series.tokens_per_segment} />
    <${Figure} label="Sent drafts accepted" value=${accepted} />
    <${Figure} label="Requests running" value=${state.running} />
    <${Figure} label="Requests waiting" value=${state.waiting} values=${series.waiting} />
  </dl>`;
}

function Figure({ label, value, values }) {
  return html`<div class="figure"><dt>${label}</dt><dd>${value}${values && html`<${Sparkline} values=${values} />`}</dd></div>`;
}

export function sparklinePoints(values, width, height) {
  const most = Math.max(...values, 1e-9);
  const step = width / Math.max(values.length - 1, 1);
  return values.map((value, place) => `${(place * step).toFixed(1)},${(height - 2 - (value / most) * (height - 4)).toFixed(1)}`).join(" ");
}

function Sparkline({ values }) {
  if (values.length < 2) return null;
  return html`<svg class="sparkline" viewBox="0 0 96 28" width="96" height="28" aria-hidden="true" preserveAspectRatio="none">
    <polyline points=${sparklinePoints(values, 96, 28)} /></svg>`;
}
