// A page is calculated from data as a tree of plain values and patched into the document: what has not changed keeps its
// element, and with it focus, selection and scroll position. Text is only ever set as text, so nothing that an ad holds can
// become markup.

const SVG = "http://www.w3.org/2000/svg";
const ON = Symbol("handlers");
const KEY = Symbol("key");
const GIVEN = Symbol("value");

// h("td", {class: "number", on: {click: f}, key: id}, children…). Children may be nested lists; null and false are left out.
export function h(tag, props, ...children) {
  const { key, on, ...attributes } = props || {};
  return { tag, key, on: on || {}, attributes, children: flat(children) };
}

function flat(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false && child !== "")
    .map((child) => (typeof child === "object" ? child : { text: String(child) }));
}

// Make the children of an element what is wanted.
export function patch(parent, ...wanted) {
  const nodes = flat(wanted);
  const keys = new Set(nodes.map((node) => node.key));
  const keyed = new Map();
  for (const child of [...parent.childNodes]) {
    if (child[KEY] === undefined) continue;
    // Of several with one key, the first is kept: the others are made anew, and none is lost.
    if (keys.has(child[KEY]) && !keyed.has(child[KEY])) keyed.set(child[KEY], child);
    else child.remove();
  }
  let at = parent.firstChild;
  for (const node of nodes) {
    const candidate = node.key === undefined ? at : keyed.get(node.key);
    if (candidate && candidate[KEY] === node.key && fits(candidate, node)) {
      keyed.delete(node.key);
      if (candidate === at) at = at.nextSibling;
      else parent.insertBefore(candidate, at);
      update(candidate, node);
    } else {
      parent.insertBefore(create(node, parent), at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// A note that comes before a form must not be made out of the form: what is kept has the same tag and the same first class.
function fits(element, node) {
  if (node.tag === undefined) return element.nodeType === Node.TEXT_NODE;
  return element.localName === node.tag && firstWord(element.getAttribute("class")) === firstWord(node.attributes.class);
}

function firstWord(text) {
  return (text || "").split(" ", 1)[0];
}

function create(node, parent) {
  if (node.tag === undefined) return document.createTextNode(node.text);
  const svg = node.tag === "svg" || (parent.namespaceURI === SVG && parent.localName !== "foreignObject");
  const element = svg ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
  element[KEY] = node.key;
  element[ON] = {};
  update(element, node);
  return element;
}

function update(element, node) {
  if (node.tag === undefined) {
    if (element.data !== node.text) element.data = node.text;
    return;
  }
  for (const type of Object.keys(node.on)) {
    if (!(type in element[ON])) element.addEventListener(type, (event) => element[ON][type]?.(event));
  }
  for (const type of Object.keys(element[ON])) element[ON][type] = undefined;
  Object.assign(element[ON], node.on);
  setAttributes(element, node.attributes);
  if (element.localName !== "textarea") patch(element, node.children);
  // A select shows a value only once its options are there.
  if ("value" in node.attributes && element[GIVEN] !== node.attributes.value && "value" in element) {
    element.value = element[GIVEN] = node.attributes.value;
  }
}

function setAttributes(element, wanted) {
  for (const name of element.getAttributeNames()) {
    // What a reader has opened stays open.
    if (!(name in wanted) && name !== "open") element.removeAttribute(name);
  }
  for (const [name, value] of Object.entries(wanted)) {
    if (name === "value" && "value" in element && element.localName !== "progress") continue;
    if (name === "checked") {
      element.checked = Boolean(value);
    } else if (value === false || value === null || value === undefined) {
      element.removeAttribute(name);
    } else {
      const text = value === true ? "" : String(value);
      if (element.getAttribute(name) !== text) element.setAttribute(name, text);
    }
  }
}
