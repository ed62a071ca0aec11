// Calls to the gateway that this page comes from.
import { eventsOf } from "./sse.js";

const KEY = "flowedge.key";

export class GatewayError extends Error {
  constructor(message, { status = 0, code = "", retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }
}

export function savedKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function saveKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

function headers(more = {}) {
  const key = savedKey();
  return key ? { ...more, authorization: `Bearer ${key}` } : more;
}

/** Return the response, or throw a GatewayError in words. */
async function call(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers(options.headers), credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new GatewayError("The gateway cannot be reached. Is it running, and is this device connected?");
  }
  if (response.ok) return response;
  let told = {};
  try {
    told = (await response.json()).error ?? {};
  } catch {
    // the answer of a proxy has another form
  }
  const retryAfter = Number(response.headers.get("retry-after")) || null;
  const message = told.message ?? `The gateway answered with status ${response.status}.`;
  throw new GatewayError(message, { status: response.status, code: told.code ?? "", retryAfter });
}

export async function getCluster() {
  return (await call("flowedge/v1/cluster")).json();
}

/** Yield ["cluster" or "activity", value] for as long as the gateway tells. */
export async function* activity(signal) {
  const response = await call("flowedge/v1/activity", { signal });
  for await (const { event, data } of eventsOf(response)) {
    if (event === "comment") continue;
    const value = JSON.parse(data);
    if (value.error) throw new GatewayError(value.error.message, { code: value.error.code });
    yield [event, value];
  }
}

const RECOVERING = "recovering device ";

/** Yield the parts of an answer: {content}, {reasoning}, {finish}, {usage}; {lost}: a device, after which it goes on. */
export async function* chat(request, signal) {
  const response = await call("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } }),
    signal,
  });
  for await (const { event, data } of eventsOf(response)) {
    if (event === "comment" && data.startsWith(RECOVERING)) yield { lost: data.slice(RECOVERING.length) };
    if (event === "comment") continue;
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new GatewayError(chunk.error.message, { code: chunk.error.code ?? "" });
    const choice = chunk.choices?.[0];
    const delta = choice?.delta ?? {};
    const reasoning = delta.reasoning_content ?? delta.reasoning;
    if (reasoning) yield { reasoning };
    if (delta.content) yield { content: delta.content };
    if (choice?.finish_reason) yield { finish: choice.finish_reason };
    if (chunk.usage) yield { usage: chunk.usage };
  }
}
