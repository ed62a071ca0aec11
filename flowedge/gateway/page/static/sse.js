// Reading server-sent events from a fetch, which can carry an API key in its headers.

/** Take whole events out of text; returns them and the rest. An event is {event, data}; a comment's is "comment". */
export function takeEvents(text) {
  const events = [];
  const blocks = text.replaceAll("\r\n", "\n").split("\n\n");
  const rest = blocks.pop();
  for (const block of blocks) {
    let event = "message";
    const data = [];
    for (const line of block.split("\n")) {
      if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      else if (line.startsWith("event:")) event = line.slice(6).trim();
      else if (line.startsWith(":")) events.push({ event: "comment", data: line.slice(1).trim() });
    }
    if (data.length) events.push({ event, data: data.join("\n") });
  }
  return { events, rest };
}

/** Yield the events of a response as they come. */
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      const taken = takeEvents(text + value);
      text = taken.rest;
      yield* taken.events;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
