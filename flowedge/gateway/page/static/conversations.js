// The conversations, which are kept in this browser only.

const STORE = "flowedge.conversations";
const MOST = 200;

export const DEFAULTS = { system: "", temperature: "", top_p: "", max_tokens: "", seed: "", model: "" };

export function load() {
  try {
    const stored = JSON.parse(localStorage.getItem(STORE) ?? "[]");
    return Array.isArray(stored) ? stored.filter((each) => each?.id && Array.isArray(each.messages)) : [];
  } catch {
    return [];
  }
}

/** Store conversations; when the browser has no room, the oldest are left out. */
export function save(conversations) {
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
  const id = Array.from(crypto.getRandomValues(new Uint8Array(8)), (b) => b.toString(16).padStart(2, "0"));
  return { id: id.join(""), title: "", settings: { ...DEFAULTS, ...settings }, messages: [] };
}

/** A title made of the first question. */
export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = conversation.messages.find((message) => message.role === "user");
  const line = first?.content.trim().split("\n")[0] ?? "";
  return line.length > 48 ? `${line.slice(0, 47)}…` : line || "New conversation";
}

/** The request for the next answer of a conversation. */
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
  // The bundled model has learned too little to be sampled from.
  if (request.model === "bundled") request.temperature ??= 0;
  return request;
}

/** The line below an answer. */
export function statisticsText(usage, flowedge = usage?.flowedge ?? {}) {
  const parts = [];
  if (usage?.completion_tokens) parts.push(`${usage.completion_tokens} tokens`);
  if (flowedge.tokens_per_s) parts.push(`${flowedge.tokens_per_s.toFixed(1)} tokens/s`);
  if (flowedge.tokens_per_round) parts.push(`${flowedge.tokens_per_round.toFixed(1)} tokens a round`);
  if (flowedge.tokens_per_segment) parts.push(`${flowedge.tokens_per_segment.toFixed(2)} tokens a segment`);
  if (flowedge.ttft_s) parts.push(`first after ${(1000 * flowedge.ttft_s).toFixed(0)} ms`);
  return parts.join(" · ");
}
