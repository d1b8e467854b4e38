// Making and changing elements. Texts go in as text nodes only: nothing that a server says is ever read as HTML.

/** An element. attributes: `on` (listeners by name), `data` (data-*), the rest as they are; null is left out. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "data") {
      Object.assign(element.dataset, value);
    } else if (name === "value") {
      element.value = value;
    } else if (name.startsWith("on") || name === "style" || name === "srcdoc") {
      throw new Error(`el: ${name} is not set from here`);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Sets an element's text; one that has it already is left alone, so that a selection in it stays. */
export function put(element, text) {
  const wanted = String(text ?? "");
  if (element.textContent !== wanted) element.textContent = wanted;
  return element;
}

/** Sets or, with null, takes away one attribute. */
export function mark(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

/** Shows or hides. */
export function show(element, visible) {
  if (element.hidden === visible) element.hidden = !visible;
}

/**
 * Children of `parent`, one for each item, in order; those that are there already are changed in place, so that focus
 * and scroll position stay. make(item) gives an element, fill(element, item) writes the item's values into it.
 */
export function keyed(parent, items, keyOf, make, fill) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let before = null;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = old.get(key);
    if (child) old.delete(key);
    else {
      child = make(item);
      child.dataset.key = key;
    }
    fill(child, item);
    const place = before ? before.nextSibling : parent.firstChild;
    if (place !== child) parent.insertBefore(child, place);
    before = child;
  }
  for (const left of old.values()) left.remove();
}

/** Tells those who do not see the page; polite. */
export function announce(text) {
  put(document.getElementById("announce"), text);
}

let count = 0;
/** A new id for pairs of label and field. */
export function newId(stem) {
  count += 1;
  return `${stem}-${count}`;
}
