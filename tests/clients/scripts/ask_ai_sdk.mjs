// The AI SDK with its providers for OpenAI's API and for services that are compatible with it.

import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";

const baseURL = process.env.CLIENT_URL + "/v1";
const MODEL = process.env.CLIENT_MODEL;
const openai = createOpenAI({ baseURL, apiKey: "none" });
const compatible = createOpenAICompatible({
  name: "flowedge", baseURL, includeUsage: true, supportsStructuredOutputs: true,
});
const ticket = z.object({ area: z.enum(["kitchen", "garden", "cellar"]), urgent: z.boolean() });
const asked = { prompt: "What is a list in Python?", maxOutputTokens: 24, temperature: 0, maxRetries: 0 };

for (const model of [compatible(MODEL), openai.chat(MODEL), openai.responses(MODEL)]) {
  const whole = await generateText({ model, ...asked });
  assert.ok(whole.text);
  assert.equal(whole.usage.outputTokens, 24);
  assert.equal(whole.finishReason, "length");

  const stream = streamText({ model, ...asked });
  let text = "";
  for await (const piece of stream.textStream) text += piece;
  assert.equal(text, whole.text);
  assert.equal((await stream.usage).outputTokens, 24);

  const { object } = await generateObject({ model, schema: ticket, ...asked, maxOutputTokens: 80 });
  assert.deepEqual(ticket.parse(object), object);
  const partial = streamObject({ model, schema: ticket, ...asked, maxOutputTokens: 80 });
  let last;
  for await (const part of partial.partialObjectStream) last = part;
  assert.deepEqual(last, object);

  const lit = [];
  const light = tool({
    description: "Switch the light of a room on.",
    inputSchema: ticket,
    execute: async ({ area }) => { lit.push(area); return "on"; },
  });
  const one = { openai: { parallelToolCalls: false }, flowedge: { parallel_tool_calls: false } };
  const called = await generateText({
    model, tools: { light }, toolChoice: "required", stopWhen: stepCountIs(1), providerOptions: one,
    ...asked, maxOutputTokens: 200,
  });
  assert.equal(called.toolCalls[0].toolName, "light");
  assert.equal(called.finishReason, "tool-calls");
  assert.deepEqual(lit, called.toolCalls.map((call) => call.input.area));
  assert.ok(["kitchen", "garden", "cellar"].includes(lit[0]));
  const both = await generateText({
    model, tools: { light }, output: Output.object({ schema: ticket }), stopWhen: stepCountIs(4), providerOptions: one,
    ...asked, maxOutputTokens: 200,
  });
  assert.deepEqual(ticket.parse(both.output), both.output);
  const streamed = streamText({
    model, tools: { light }, toolChoice: "required", stopWhen: stepCountIs(1), providerOptions: one,
    ...asked, maxOutputTokens: 200,
  });
  for await (const part of streamed.fullStream) assert.notEqual(part.type, "error");
  assert.deepEqual((await streamed.toolCalls)[0].input, called.toolCalls[0].input);
}

await assert.rejects(
  generateText({ model: compatible("no-such-model"), ...asked }),
  (error) => APICallError.isInstance(error) && error.statusCode === 404,
);
