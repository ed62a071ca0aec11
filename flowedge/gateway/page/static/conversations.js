// The conversations, which are kept in this browser only, by all its tabs together.

export const STORE = "flowedge.conversations";
const MOST = 200;

export const DEFAULTS = { system: "", temperature: "", top_p: "", max_tokens: "", seed: "", model: "" };

function load() {
  try {
    const stored = JSON.parse(localStorage.getItem(STORE) ?? "[]");
    if (!Array.isArray(stored)) return [];
    return stored.filter((each) => each?.id && Array.isArray(each.messages)).map(withIds);
  } catch {
    return [];
  }
}

/** Messages of earlier versions of the page have no ids; all tabs give them the same. */
function withIds(conversation) {
  const messages = conversation.messages.map((message, place) => (message.id ? message : { ...message, id: `${conversation.id}-${place}` }));
  return { ...conversation, messages };
}

export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), (b) => b.toString(16).padStart(2, "0")).join("");
}

/** A conversation with what this tab has changed of it, and what other tabs have.
 *
 * theirs: as it is stored; before: as this tab has stored or read it last; mine: as it is in this tab.
 */
export function merge(theirs, before, mine) {
  if (!theirs) return mine;
  const known = new Map((before?.messages ?? []).map((message) => [message.id, message]));
  const kept = new Set(mine.messages.map((message) => message.id));
  const messages = theirs.messages.filter((message) => kept.has(message.id) || !known.has(message.id));
  mine.messages.forEach((message, place) => {
    const index = messages.findIndex((each) => each.id === message.id);
    if (index >= 0) {
      if (known.get(message.id) !== message) messages[index] = message;
    } else if (!known.has(message.id)) {
      // Behind the message that it follows here: an answer stays with its question.
      const previous = messages.findIndex((each) => each.id === mine.messages[place - 1]?.id);
      messages.splice(previous >= 0 ? previous + 1 : messages.length, 0, message);
    }
  });
  const title = mine.title === before?.title ? theirs.title : mine.title;
  const settings = mine.settings === before?.settings ? theirs.settings : mine.settings;
  return { ...theirs, title, settings, messages };
}

/** The conversations as this tab shows them. */
export class Conversations {
  constructor() {
    this.running = null; // id of the conversation that this tab answers, which is stored at the end
    this.list = load();
    this.seen = new Map(this.list.map((each) => [each.id, each])); // as they were stored or read last
  }

  find(id) {
    return this.list.find((each) => each.id === id) ?? null;
  }

  add(conversation) {
    this.list = [conversation, ...this.list];
  }

  change(id, update) {
    this.list = this.list.map((each) => (each.id === id ? update(each) : each));
  }

  /** Store a conversation with what other tabs have changed of it; first: whether it becomes the first. */
  store(id, { first = false } = {}) {
    const stored = load();
    const theirs = stored.find((each) => each.id === id);
    const merged = merge(theirs, this.seen.get(id), this.find(id));
    const others = stored.filter((each) => each.id !== id);
    save(first || !theirs ? [merged, ...others] : stored.map((each) => (each.id === id ? merged : each)));
    if (load().some((each) => each.id === id)) this.read(); // else this browser stores nothing
  }

  remove(id) {
    save(load().filter((each) => each.id !== id));
    this.list = this.list.filter((each) => each.id !== id);
    this.read();
  }

  /** Take over what is stored, but for what this tab has not stored yet. */
  read() {
    const before = this.seen;
    const stored = load();
    const own = this.find(this.running);
    this.seen = new Map(stored.map((each) => [each.id, each]));
    this.list = stored.map((each) => (own?.id === each.id ? merge(each, before.get(each.id), own) : each));
    if (own && !this.seen.has(own.id)) this.list = [own, ...this.list];
  }
}

/** Store conversations; when the browser has no room, the oldest are left out. */
function save(conversations) {
  let kept = conversations.slice(0, MOST);
  while (kept.length) {
    try {
      localStorage.setItem(STORE, JSON.stringify(kept));
      return;
    } catch {
      kept = kept.slice(0, -1);
    }
  }
  localStorage.removeItem(STORE);
}

export function create(settings = DEFAULTS) {
  return { id: newId(), title: "", settings: { ...DEFAULTS, ...settings }, messages: [] };
}

/** A title made of the first question. */
export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = conversation.messages.find((message) => message.role === "user");
  const line = first?.content.trim().split("\n")[0] ?? "";
  return line.length > 48 ? `${line.slice(0, 47)}…` : line || "New conversation";
}

/** The request for the next answer of a conversation, or for the rest of an answer that it ends with. */
export function requestOf(conversation, model) {
  const { settings, messages } = conversation;
  const request = { model: settings.model || model, messages: [] };
  if (settings.system.trim()) request.messages.push({ role: "system", content: settings.system });
  for (const { role, content, error } of messages) {
    if (content || (role === "user" && !error)) request.messages.push({ role, content });
  }
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
    if (settings[name] !== "" && Number.isFinite(Number(settings[name]))) request[name] = Number(settings[name]);
  }
  return request;
}

/** The line below an answer.
 *
 * shown_s: the seconds in which the answer came, for one that was stopped before it had figures of its own.
 */
export function statisticsText(usage, shown_s = 0, flowedge = usage?.flowedge ?? {}) {
  const parts = [];
  const speed = flowedge.tokens_per_s || (shown_s > 0 ? usage?.completion_tokens / shown_s : 0);
  if (usage?.completion_tokens) parts.push(`${usage.completion_tokens} tokens`);
  if (speed) parts.push(`${speed.toFixed(1)} tokens/s`);
  const gain = flowedge.plain_tokens_per_s ? speed / flowedge.plain_tokens_per_s : 0;
  if (gain > 1.05) parts.push(`${gain.toFixed(1)} times plain decoding`);
  if (flowedge.tokens_per_segment) parts.push(`${(flowedge.accepted_drafts_per_segment ?? 0).toFixed(2)} accepted drafts a segment`);
  if (flowedge.ttft_s) parts.push(`first after ${(1000 * flowedge.ttft_s).toFixed(0)} ms`);
  return parts.join(" · ");
}
