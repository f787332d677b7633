// Programs on the SDKs for Node: METHOD against the gateway at URL, told as JSON on stdout.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, method, url, given] = process.argv.slice(2);
const { asked, parameters, results } = JSON.parse(given);
const require = createRequire(`${modules}/of-tests.js`);
const load = (name) => import(pathToFileURL(require.resolve(name)));
const [name, how] = method.split(" ");
const stream = how === "streamed";
const commands = [];

function result(call) {
  const { command } = typeof call === "string" ? JSON.parse(call) : call;
  return results[command];
}

function note(calls) {
  commands.push(...calls.map((call) => (typeof call === "string" ? JSON.parse(call) : call).command));
}

async function ofChat(client, zod) {
  const { chat } = client;
  const messages = [{ role: "user", content: asked }];
  const body = { model: "policy", messages };
  if (how === "parsed" || name === "chat.parse") {
    const response_format = (await load("openai/helpers/zod")).zodResponseFormat(zod, "answer");
    const ask = { ...body, response_format };
    const completion = how
      ? await chat.completions.stream(ask).finalChatCompletion()
      : await chat.completions.parse(ask);
    const [{ message }] = completion.choices;
    return { text: message.content, parsed: message.parsed.answer };
  }
  const definition = { name: "bash", description: "Runs it.", parameters };
  if (name === "chat.runTools") {
    const run = (call) => (note([call]), result(call));
    const tool = { type: "function", function: { ...definition, parse: JSON.parse, function: run } };
    const runner = chat.completions.runTools({ ...body, tools: [tool], stream });
    return { text: await runner.finalContent() };
  }
  const ask = { ...body, tools: [{ type: "function", function: definition }] };
  for (;;) {
    let message;
    if (name === "chat.create" && !stream) {
      [{ message }] = (await chat.completions.create(ask)).choices;
    } else if (name === "chat.create") {
      message = await collected(await chat.completions.create({ ...ask, stream }));
    } else {
      message = await chat.completions.stream(ask).finalMessage();
    }
    messages.push(message);
    if (!message.tool_calls?.length) return { text: message.content };
    note(message.tool_calls.map((call) => call.function.arguments));
    for (const call of message.tool_calls.toReversed())
      messages.push({ role: "tool", tool_call_id: call.id, content: result(call.function.arguments) });
  }
}

async function collected(chunks) {
  const message = { role: "assistant", content: "", tool_calls: [] };
  for await (const { choices } of chunks) {
    const { content, tool_calls } = choices[0].delta;
    message.content += content ?? "";
    for (const { index, ...call } of tool_calls ?? []) message.tool_calls[index] = call;
  }
  return message.tool_calls.length ? message : { role: "assistant", content: message.content };
}

async function ofResponses(client, zod) {
  const { responses } = client;
  const input = [{ role: "user", content: asked }];
  const body = { model: "policy", input };
  if (how === "parsed" || name === "responses.parse") {
    const format = (await load("openai/helpers/zod")).zodTextFormat(zod, "answer");
    const ask = { ...body, text: { format } };
    const response = how
      ? await responses.stream(ask).finalResponse()
      : await responses.parse(ask);
    return { text: response.output_text, parsed: response.output_parsed.answer };
  }
  const tools = [{ type: "function", name: "bash", parameters, strict: false }];
  for (;;) {
    const ask = { ...body, tools };
    let response;
    if (name === "responses.stream") {
      response = await responses.stream(ask).finalResponse();
    } else if (stream) {
      for await (const event of await responses.create({ ...ask, stream }))
        if (event.type === "response.completed") response = event.response;
    } else {
      response = await responses.create(ask);
    }
    input.push(...response.output);
    const calls = response.output.filter((item) => item.type === "function_call");
    if (!calls.length) return { text: response.output.at(-1).content[0].text };
    note(calls.map((call) => call.arguments));
    for (const { call_id, arguments: call } of calls.toReversed())
      input.push({ type: "function_call_output", call_id, output: result(call) });
  }
}

async function ofEvents(events) {
  const content = [];
  for await (const event of events) {
    if (event.type === "content_block_start") content.push({ ...event.content_block });
    if (event.type !== "content_block_delta") continue;
    const [block, { type, partial_json, ...texts }] = [content.at(-1), event.delta];
    if (partial_json) block.input = JSON.parse(partial_json);
    for (const [key, text] of Object.entries(texts)) block[key] += text;
  }
  return { content };
}

async function ofMessages(client, zod) {
  const messages = [{ role: "user", content: asked }];
  const body = { model: "policy", max_tokens: 1000, messages };
  if (how === "parsed" || name === "messages.parse") {
    const format = (await load("@anthropic-ai/sdk/helpers/zod")).zodOutputFormat(zod);
    const ask = { ...body, output_config: { format } };
    const message = how
      ? await client.messages.stream(ask).finalMessage()
      : await client.messages.parse(ask);
    return { text: message.content.at(-1).text, parsed: message.parsed_output.answer };
  }
  const definition = { name: "bash", description: "Runs it.", input_schema: parameters };
  if (name === "tool_runner") {
    const run = (call) => (note([call]), result(call));
    const tool = { type: "custom", ...definition, run, parse: (input) => input };
    const runner = client.beta.messages.toolRunner({ ...body, tools: [tool], stream });
    if (stream) for await (const one of runner) await one.finalMessage();
    return { text: (await runner.runUntilDone()).content.at(-1).text };
  }
  for (;;) {
    const ask = { ...body, tools: [definition] };
    let message;
    if (name === "messages.create" && !stream) message = await client.messages.create(ask);
    else if (name === "messages.create")
      message = await ofEvents(await client.messages.create({ ...ask, stream }));
    else message = await client.messages.stream(ask).finalMessage();
    messages.push({ role: "assistant", content: message.content });
    const calls = message.content.filter((block) => block.type === "tool_use");
    if (!calls.length) return { text: message.content.at(-1).text };
    note(calls.map((call) => call.input));
    const content = calls.toReversed().map(({ id, input }) => {
      return { type: "tool_result", tool_use_id: id, content: result(input) };
    });
    messages.push({ role: "user", content });
  }
}

const { z } = await load("zod");
const zod = z.object({ answer: z.number() });
const options = { apiKey: "x", maxRetries: 0 };
let outcome;
if (name.startsWith("chat") || name.startsWith("responses")) {
  const client = new (await load("openai")).default({ ...options, baseURL: `${url}/v1` });
  outcome = await (name.startsWith("chat") ? ofChat : ofResponses)(client, zod);
} else {
  const client = new (await load("@anthropic-ai/sdk")).default({ ...options, baseURL: url });
  outcome = await ofMessages(client, zod);
}
console.log(JSON.stringify({ commands, parsed: null, ...outcome }));
