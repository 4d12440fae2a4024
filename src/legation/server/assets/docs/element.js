// el("p", { className: "note" }, "text", node): an element with its properties and children, never HTML from text.
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "for") node.htmlFor = value;
    else if (name === "role") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== ""));
  return node;
}

// Text in which `this` is code.
export function words(text) {
  return text.replace(/([^\n])\n(?!\n)/g, "$1 ").split("`").map((part, number) => (number % 2 ? el("code", {}, part) : part));
}
