// JSON Schema for people: a notation like a type of a programming language, and an example to start from.

const INDENT = "  ";

function resolve(schema, schemas) {
  return schema.$ref ? schemas[schema.$ref.split("/").pop()] : schema;
}

function union(schema) {
  return schema.anyOf ?? schema.oneOf;
}

function limits(schema) {
  const found = [];
  if (schema.minLength !== undefined || schema.maxLength !== undefined) found.push(`${schema.minLength ?? 0}–${schema.maxLength ?? "∞"} characters`);
  if (schema.minItems !== undefined || schema.maxItems !== undefined) found.push(`${schema.minItems ?? 0}–${schema.maxItems ?? "∞"} items`);
  // The bounds of 64 bits are everybody's and say nothing.
  if (schema.minimum !== undefined && schema.minimum > -1e18) found.push(`≥ ${schema.minimum}`);
  if (schema.maximum !== undefined && schema.maximum < 1e18) found.push(`≤ ${schema.maximum}`);
  return found.length ? ` (${found.join(", ")})` : "";
}

// `depth`: how many levels of named types are written out.
export function notation(schema, schemas, depth = 0, indent = "") {
  const name = schema.$ref?.split("/").pop();
  if (name && depth <= 0) return name;
  const found = resolve(schema, schemas);
  if (union(found)) return union(found).map((each) => notation(each, schemas, depth, indent)).join(" | ");
  if (found.enum) return found.enum.map((each) => JSON.stringify(each)).join(" | ");
  if (found.const !== undefined) return JSON.stringify(found.const);
  if (found.type === "array") return `${items(notation(found.items ?? {}, schemas, depth, indent))}${limits(found)}`;
  if (found.properties) return members(found, schemas, depth - (name ? 1 : 0), indent);
  if (found.type === "object") return `{ [name]: ${notation(found.additionalProperties ?? {}, schemas, depth, indent)} }`;
  return (found.type ?? "any JSON") + limits(found);
}

function items(written) {
  return written.includes(" | ") && !written.startsWith("{") ? `(${written})[]` : `${written}[]`;
}

function members(schema, schemas, depth, indent) {
  const required = new Set(schema.required);
  const lines = Object.entries(schema.properties).map(([name, each]) => {
    const standard = each.default === undefined || each.default === null ? "" : `  = ${JSON.stringify(each.default)}`;
    return `${indent}${INDENT}${name}${required.has(name) ? "" : "?"}: ${notation(each, schemas, depth, indent + INDENT)}${standard}`;
  });
  return `{\n${lines.join("\n")}\n${indent}}`;
}

const PLAIN = { string: "", integer: 0, number: 0, boolean: false, null: null };

export function example(schema, schemas, depth = 0) {
  const found = resolve(schema, schemas);
  if (found.default !== undefined) return found.default;
  if (found.examples) return found.examples[0];
  if (found.enum) return found.enum[0];
  if (union(found)) return example(union(found).find((each) => each.type !== "null") ?? {}, schemas, depth);
  if (found.properties && depth < 4) {
    const required = new Set(found.required);
    const entries = Object.entries(found.properties).filter(([name]) => required.has(name));
    return Object.fromEntries(entries.map(([name, each]) => [name, example(each, schemas, depth + 1)]));
  }
  if (found.type === "array") return [];
  if (found.type === "object") return {};
  if (found.type === "string" && found.minLength) return "x".repeat(found.minLength);
  return PLAIN[found.type] === 0 ? Math.max(0, found.minimum ?? 0) : PLAIN[found.type] ?? {};
}
