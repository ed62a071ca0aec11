// What the pipelines did in the last seconds, collected from the events of the gateway. No drawing here.

import { percent } from "./format.js";

export const KEPT_S = 20; // of bars and figures
const DELAY_S = 0.6; // by which the picture lags, so that what is drawn has been told
const PRUNED_S = 0.8; // for which pruned nodes are shown
const PAST = 2; // accepted tokens that stay in sight before the root
const MOST_NODES = 3000;
const MOST_PRUNED = 6; // nodes that are shown while they fade

/** The draft tree of one session. */
export class DraftTreeView {
  constructor(session) {
    this.session = session;
    this.nodes = new Map(); // number -> {number, parent, text, score, state, prunedAt}
    this.path = []; // accepted numbers, the root last
    this.finished = null;
    this.accepted = 0;
    this.sent = 0;
    this.acceptedDrafts = 0; // of those that were sent
    this.told = []; // the texts of the latest accepted changes
    this.changedAt = 0;
  }

  get root() {
    return this.path.at(-1);
  }

  apply(change, at) {
    this.changedAt = at;
    if (change.kind === "finished") {
      this.finished = change.reason || "finished";
      return;
    }
    change.nodes.forEach(([number, parent, score], place) => {
      const known = this.nodes.get(number);
      const text = change.texts?.[place] ?? known?.text ?? null;
      if (!known) this.nodes.set(number, { number, parent, text, score, state: "grown", prunedAt: 0 });
      const node = this.nodes.get(number);
      if (node.text === null) node.text = text;
      if (change.kind === "sent") {
        this.sent += 1;
        if (node.state === "grown") node.state = "sent";
      }
      if (change.kind === "accepted") {
        this.acceptedDrafts += node.state === "sent";
        node.state = "accepted";
        this.accepted += 1;
        this.path.push(number);
      }
    });
    if (change.kind === "accepted") {
      this.prune(at);
      if (change.texts) this.told = [...this.told.slice(-199), change.texts.join("")];
    }
    if (this.nodes.size > MOST_NODES) this.forgetUnsent();
  }

  /** Mark all that is not below the root, and drop what was marked before. */
  prune(at) {
    this.path = this.path.slice(-PAST - 1);
    const alive = new Set(this.path);
    // A parent's number is below its children's unless it was told of late, so a second round settles it.
    for (let round = 0, grew = true; grew && round < 8; round += 1) {
      grew = false;
      for (const node of this.nodes.values()) {
        const inside = node.parent === this.root || (alive.has(node.parent) && !this.path.includes(node.parent));
        if (!alive.has(node.number) && inside) {
          alive.add(node.number);
          grew = true;
        }
      }
    }
    for (const [number, node] of this.nodes) {
      if (alive.has(number)) node.prunedAt = 0;
      else if (!node.prunedAt && node.state !== "accepted") node.prunedAt = at;
      else if (node.state === "accepted" || at - node.prunedAt > PRUNED_S) this.nodes.delete(number);
    }
  }

  forgetUnsent() {
    const unsent = [...this.nodes.values()].filter((node) => node.state === "grown");
    unsent.sort((a, b) => a.score - b.score);
    for (const node of unsent.slice(0, MOST_NODES / 2)) this.nodes.delete(node.number);
  }
}

/** A pipeline's last seconds. */
export class PipelineView {
  constructor(name) {
    this.name = name;
    this.bars = []; // {device, session, kind, start, end, rows}, in the order of coming
    this.trees = new Map();
    this.series = { tokens_per_s: [], tokens_per_segment: [], waiting: [] };
    this.state = null;
    this.ahead = null; // by how much the draft node's clock is ahead of ours
    this.incomplete = false;
  }

  /** The time up to which everything has been told, in the draft node's clock. */
  time(ours) {
    return this.ahead === null ? 0 : ours + this.ahead - DELAY_S;
  }

  apply(told, ours) {
    const ahead = told.now - ours;
    if (this.ahead === null || Math.abs(ahead - this.ahead) > 5) {
      this.ahead = ahead;
      this.bars = [];
      this.trees.clear();
    }
    this.ahead = Math.max(this.ahead - 0.001, ahead); // the message with the shortest way tells best
    this.incomplete = told.incomplete;
    for (const [device, session, kind, start, end, rows] of told.computed) {
      this.bars.push({ device, session, kind, start, end, rows });
    }
    const oldest = told.now - KEPT_S;
    if (this.bars.length && this.bars[0].end < oldest) this.bars = this.bars.filter((bar) => bar.end >= oldest);
    for (const change of told.trees) {
      let tree = this.trees.get(change.session);
      if (!tree || (tree.finished && change.kind !== "finished")) {
        tree = new DraftTreeView(change.session);
        this.trees.delete(change.session);
        this.trees.set(change.session, tree);
      }
      tree.apply(change, change.at);
      if (this.trees.size > 16) this.trees.delete(this.trees.keys().next().value);
    }
    if (told.state) {
      this.state = told.state;
      for (const [name, values] of Object.entries(this.series)) {
        values.push(told.state[name]);
        if (values.length > 80) values.shift();
      }
    }
  }

  /** The tree to be shown: of the session that changed last among those that run, else the last. */
  get tree() {
    const trees = [...this.trees.values()];
    const running = trees.filter((tree) => !tree.finished);
    return (running.length ? running : trees).reduce((a, b) => (!a || b.changedAt > a.changedAt ? b : a), null);
  }

  /** The share of the last seconds in which a device computed. */
  busy(device, ours, window = 3) {
    const end = this.time(ours);
    let sum = 0;
    for (const bar of this.bars) {
      if (bar.device === device) sum += Math.max(0, Math.min(bar.end, end) - Math.max(bar.start, end - window));
    }
    return Math.min(sum / window, 1);
  }
}

/** What keeps a pipeline from being faster, in words; "" while nothing is computed.
 *
 * shares: [name, the share of the time in which the device computes], in pipeline order.
 */
export function limitText(shares) {
  const [most, ...others] = [...shares].sort((a, b) => b[1] - a[1]);
  if (!most || most[1] < 0.02) return "";
  const rest = others.map(([name, share]) => `${name} ${percent(share)}`).join(", ");
  if (most[1] >= 0.5 || (others.length && most[1] >= 2 * others[0][1])) {
    return `${most[0]} limits the speed: it computes ${percent(most[1])} of the time${rest ? `, ${rest}` : ""}.`;
  }
  return `No device limits the speed: the busiest, ${most[0]}, computes ${percent(most[1])} of the time. They wait for links, for each other or for requests.`;
}

/** Places for the nodes of a tree: the likeliest ones, at most `most`, from left to right by depth. */
export function layoutTree(tree, most = 28) {
  const { path } = tree;
  if (!path.length) return { nodes: [], columns: 0, rows: 0 };
  const drafts = [...tree.nodes.values()].filter((node) => node.state !== "accepted");
  const rank = { sent: 0, grown: 1 };
  drafts.sort((a, b) => rank[a.state] - rank[b.state] || b.score - a.score);
  const pruned = drafts.filter((node) => node.prunedAt).slice(0, MOST_PRUNED);
  const alive = drafts.filter((node) => !node.prunedAt).slice(0, most - pruned.length);
  const kept = new Map();
  for (const number of path) if (tree.nodes.has(number)) kept.set(number, tree.nodes.get(number));
  for (const node of [...pruned, ...alive]) {
    if (kept.size >= most) break;
    const missing = [];
    let above = node;
    while (above && !kept.has(above.number)) {
      missing.push(above);
      above = tree.nodes.get(above.parent);
    }
    if (above) for (const each of missing) kept.set(each.number, each); // else its branch is not known
  }
  const children = new Map();
  for (const node of kept.values()) {
    if (kept.has(node.parent)) children.set(node.parent, [...(children.get(node.parent) ?? []), node]);
  }
  const placed = [];
  let row = 0;
  const place = (node, column) => {
    // The accepted child first, so that the path is a straight line.
    const below = (children.get(node.number) ?? []).sort(
      (a, b) => (b.state === "accepted") - (a.state === "accepted") || b.score - a.score,
    );
    const at = { node, column, row };
    placed.push(at);
    below.forEach((child, number) => {
      if (number) row += 1;
      place(child, column + 1);
    });
  };
  const first = path.find((number) => kept.has(number));
  place(kept.get(first), 0);
  return { nodes: placed, columns: 1 + Math.max(...placed.map((each) => each.column)), rows: row + 1 };
}
