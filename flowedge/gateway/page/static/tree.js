// The draft tree of the running request as it grows, is sent, accepted and pruned.
import { html, useEffect, useState } from "./html.js";
import { shortened, visibleToken } from "./format.js";
import { layoutTree } from "./live.js";

const COLUMN = 84;
const ROW = 28;
const BOX = { width: 70, height: 22 };
const STATES = [
  ["accepted", "accepted"],
  ["sent", "sent"],
  ["grown", "drafted"],
  ["pruned", "pruned"],
];

export function DraftTree({ view, mayRead }) {
  const [, redraw] = useState(0);
  const [paused, setPaused] = useState(null);
  useEffect(() => {
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const timer = setInterval(() => redraw((count) => count + 1), still ? 1000 : 150);
    return () => clearInterval(timer);
  }, [view]);
  const tree = view.tree;
  const { nodes, columns, rows } = paused ?? (tree ? layoutTree(tree) : { nodes: [], columns: 0, rows: 0 });
  const drafts = nodes.filter((each) => each.node.state !== "accepted").length;
  return html`<section class="card" aria-labelledby="tree-title">
    <div class="card-head"><h3 id="tree-title">Draft tree</h3>
      <div class="tools"><button type="button" aria-pressed=${paused !== null}
        onClick=${() => setPaused(paused ? null : freeze(nodes, columns, rows))}>${paused ? "Go on" : "Pause"}</button></div>
    </div>
    ${!nodes.length
      ? html`<p class="empty">Ask something: the tokens that are drafted, sent and accepted appear here.</p>`
      : html`<div class="scroll tree" tabindex="0" role="group" aria-label="Draft tree, may be scrolled">
          <svg width=${columns * COLUMN} height=${rows * ROW + 4} role="img"
            aria-label=${`Draft tree: ${tree?.accepted ?? 0} tokens accepted so far, ${drafts} drafts shown`}>
            ${nodes.map((each) => html`<${Edge} key=${`e${each.node.number}`} to=${each} nodes=${nodes} />`)}
            ${nodes.map((each) => html`<${Node} key=${each.node.number} place=${each} mayRead=${mayRead} isRoot=${each.node.number === tree?.root} />`)}
          </svg></div>`}
    <ul class="legend" aria-label="Colours of the tree">
      ${STATES.map(([state, text]) => html`<li><span class=${`swatch node-${state}`}></span>${text}</li>`)}</ul>
    ${!mayRead && html`<p class="hint">The tokens' texts are shown to those who have given a key.</p>`}
  </section>`;
}

function freeze(nodes, columns, rows) {
  return { columns, rows, nodes: nodes.map((each) => ({ ...each, node: { ...each.node } })) };
}

function stateOf(node) {
  return node.prunedAt ? "pruned" : node.state;
}

function Edge({ to, nodes }) {
  const from = nodes.find((each) => each.node.number === to.node.parent);
  if (!from) return null;
  const [x1, y1] = [from.column * COLUMN + BOX.width + 2, from.row * ROW + BOX.height / 2 + 2];
  const [x2, y2] = [to.column * COLUMN + 2, to.row * ROW + BOX.height / 2 + 2];
  const bend = (x1 + x2) / 2;
  return html`<path class=${`edge edge-${stateOf(to.node)}`} d=${`M${x1} ${y1}C${bend} ${y1} ${bend} ${y2} ${x2} ${y2}`} />`;
}

function Node({ place, mayRead, isRoot }) {
  const { node, column, row } = place;
  const text = mayRead && node.text !== null ? shortened(visibleToken(node.text), 8) : "•";
  return html`<g class=${`node node-${stateOf(node)}${isRoot ? " node-root" : ""}`} transform=${`translate(${column * COLUMN + 2} ${row * ROW + 2})`}>
    <title>${mayRead ? node.text : ""} (${stateOf(node)}, probability ${Math.exp(Math.min(node.score, 0)).toPrecision(2)})</title>
    <rect width=${BOX.width} height=${BOX.height} rx="6" />
    <text x=${BOX.width / 2} y=${BOX.height / 2 + 4} text-anchor="middle">${text}</text>
  </g>`;
}
