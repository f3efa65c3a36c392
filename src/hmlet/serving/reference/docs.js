// The reference: every operation of /openapi.json, with a form that sends a request. It loads nothing from the network.

const $ = (selector) => document.querySelector(selector);

/** An element; children that are strings become text, never markup. */
function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Text whose `code` is code. */
const prose = (text) => text.split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part));

function authorization() {
  const token = sessionStorage.getItem("token"); // the explorer's
  return token ? { Authorization: `Bearer ${token}` } : {};
}

/** The schema that a reference points to, or the schema itself. */
function resolve(api, schema = {}) {
  return schema.$ref ? schema.$ref.split("/").slice(1).reduce((part, key) => part[key], api) : schema;
}

/** Bodies to start from: the examples of a schema, or of the schemas that it is a choice of. */
function examples(api, schema) {
  const found = resolve(api, schema);
  return found.examples ?? (found.oneOf ?? found.anyOf ?? []).flatMap((each) => examples(api, each));
}

/** A type in a few words. */
function typeOf(api, schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return [...new Set(choices.map((each) => typeOf(api, each)))].join(" | ");
  return schema.type === "array" ? `list of ${typeOf(api, schema.items ?? {})}` : schema.type ?? "anything";
}

/** A title that is the name of a class, as words: ForUsers becomes "For users". */
const words = (title = "") => title.replace(/(?!^)[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);

/** The fields of a body, with their types and what they mean. */
function fields(api, schema) {
  const found = resolve(api, schema);
  const choices = found.oneOf ?? found.anyOf;
  if (choices) return choices.flatMap((each) => [h("h3", {}, words(resolve(api, each).title)), ...fields(api, each)]);
  const rows = Object.entries(found.properties ?? {}).map(([name, field]) => h("tr", {},
    h("td", {}, h("code", {}, name)),
    h("td", {}, typeOf(api, field) + (found.required?.includes(name) ? "" : " (optional)")),
    h("td", {}, ...prose(field.description ?? ""))));
  return [h("table", { "aria-label": found.title ?? "fields" }, ...rows)];
}

function operation(api, path, method, about) {
  const parameters = (about.parameters ?? []).map((each) => ({
    name: each.name, required: each.required,
    input: h("input", { value: each.schema?.default ?? "", ...(each.required ? { required: "" } : {}) }),
    type: typeOf(api, each.schema ?? {}),
  }));
  const schema = about.requestBody?.content["application/json"].schema;
  const samples = schema ? examples(api, schema) : [];
  const body = h("textarea", { spellcheck: "false", "aria-label": "Body" });
  const fill = (sample) => {
    body.value = JSON.stringify(sample, null, 2);
    body.rows = body.value.split("\n").length + 1;
  };
  fill(samples[0] ?? {});
  const answer = h("pre", { "aria-live": "polite", tabindex: "0", "aria-label": "Answer" });
  const [first, ...rest] = (about.description ?? "").split("\n\n").map((text) => text.replaceAll("\n", " "));
  const form = h("form", {}, ...rest.map((text) => h("p", {}, ...prose(text))),
    ...parameters.map((each) => h("label", {}, `${each.name} `, h("small", {}, `${each.type}${each.required ? "" : ", optional"}`), each.input)),
    ...(schema ? [...fields(api, schema), h("label", {}, "Body", body)] : []), h("button", { class: "send" }, "Send"), answer);
  if (samples.length > 1) {
    const choose = samples.map((sample, at) => {
      const button = h("button", { type: "button" }, `Example ${at + 1}`);
      button.addEventListener("click", () => fill(sample));
      return button;
    });
    body.parentElement.before(h("div", { class: "samples" }, ...choose));
  }
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const query = new URLSearchParams(parameters.flatMap((each) => each.input.value ? [[each.name, each.input.value]] : []));
    const url = query.size ? `${path}?${query}` : path;
    const headers = { ...authorization(), ...(schema ? { "Content-Type": "application/json" } : {}) };
    answer.textContent = "…";
    try {
      const response = await fetch(url, { method, headers, ...(schema ? { body: body.value } : {}) });
      const text = await response.text();
      const isJson = response.headers.get("content-type")?.startsWith("application/json");
      const run = response.headers.get("x-hmlet-run");
      const head = `${response.status} ${response.statusText}${run ? `\nx-hmlet-run: ${run}` : ""}`;
      answer.textContent = `${head}\n\n${isJson ? JSON.stringify(JSON.parse(text), null, 2) : text}`;
    } catch (error) {
      answer.textContent = String(error);
    }
  });
  return h("details", {},
    h("summary", {}, h("b", { class: method }, method.toUpperCase()), h("code", {}, path), h("span", {}, ...prose(first))), form);
}

async function show() {
  const response = await fetch("/openapi.json", { headers: authorization() });
  $("#access").hidden = response.status !== 401;
  if (response.status === 401) {
    $("#about").textContent = sessionStorage.getItem("token") ? "The service did not accept that token." : "This service asks for a token.";
    return;
  }
  const api = await response.json();
  if (!response.ok) {
    $("#about").textContent = api.error.message;
    return;
  }
  $("#about").replaceChildren(...prose(`${api.info.title} ${api.info.version}. ${api.info.description}`));
  const groups = {};
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, about] of Object.entries(methods)) {
      (groups[about.tags?.[0] ?? "other"] ??= []).push(operation(api, path, method, about));
    }
  }
  $("#operations").replaceChildren(...Object.entries(groups).flatMap(([name, each]) => [h("h2", {}, name), ...each]));
}

$("#access").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("#token").value);
  show();
});
show();
