"use strict";

// Renders /openapi.json: one foldable entry per route, its schema, and a form that tries it.

function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "class") node.className = value;
    else node[key] = value;
  }
  node.append(...children);
  return node;
}

function pretty(value) {
  return JSON.stringify(value, null, 2);
}

// The schema behind a reference, with references inside it followed too (signatures never refer to themselves).
function resolved(schema, all) {
  if (Array.isArray(schema)) return schema.map((part) => resolved(part, all));
  if (schema === null || typeof schema !== "object") return schema;
  if (schema.$ref) return resolved(all[schema.$ref.split("/").pop()], all);
  return Object.fromEntries(Object.entries(schema).map(([key, part]) => [key, resolved(part, all)]));
}

function trial(path, method, body) {
  const text = body ? make("textarea", { value: body, spellcheck: false, ariaLabel: "request body" }) : null;
  const status = make("span", { class: "status" });
  const answer = make("pre", { hidden: true });
  const button = make("button", { type: "button" }, "Send");
  button.addEventListener("click", async () => {
    button.disabled = true;
    const started = performance.now();
    try {
      const options = { method: method.toUpperCase() };
      if (text) Object.assign(options, { body: text.value, headers: { "Content-Type": "application/json" } });
      const response = await fetch(path, options);
      const received = await response.text();
      const took = Math.round((performance.now() - started) * 10) / 10;
      status.textContent = `${response.status} in ${took} ms ${response.headers.get("Server-Timing") || ""}`;
      try { answer.textContent = pretty(JSON.parse(received)); } catch { answer.textContent = received; }
    } catch (error) {
      status.textContent = "no answer";
      answer.textContent = String(error);
    }
    answer.hidden = false;
    button.disabled = false;
  });
  return [...(text ? [text] : []), make("p", {}, button, status), answer];
}

function route(path, method, operation, schemas) {
  const content = operation.requestBody && operation.requestBody.content["application/json"];
  const entry = make("details", {},
    make("summary", {},
      make("span", { class: "method" }, method.toUpperCase()), make("code", {}, path),
      make("span", { class: "what" }, operation.summary)));
  let filled = false;
  entry.addEventListener("toggle", () => {
    if (filled) return;
    filled = true;
    const inside = make("div", {}, ...trial(path, method, content && pretty(content.example || {})));
    if (content) {
      inside.append(make("p", {}, "Request schema"), make("pre", {}, pretty(resolved(content.schema, schemas))));
    }
    entry.append(inside);
  });
  return entry;
}

async function show() {
  const place = document.getElementById("routes");
  const api = await (await fetch("/openapi.json")).json();
  const sections = new Map();
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const tag = operation.tags[0];
      if (!sections.has(tag)) sections.set(tag, []);
      sections.get(tag).push(route(path, method, operation, api.components.schemas));
    }
  }
  const models = [...sections.keys()].filter((tag) => tag !== "server");
  place.replaceChildren(...[...models, "server"].flatMap((tag) => [
    make("h2", { id: tag }, tag), ...(sections.get(tag) || [])]));
  if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}

show().catch((error) => { document.getElementById("routes").textContent = String(error); });
