// How the page writes quantities and makes elements. Text only ever becomes text: nothing here parses HTML.

function size(bytes) {
  if (bytes === null || bytes === undefined) return "-";
  const units = ["KiB", "MiB", "GiB", "TiB"];
  if (Math.abs(bytes) < 1024) return `${bytes} B`;
  let amount = bytes, unit = "B";
  for (const larger of units) {
    if (Math.abs(amount) < 1024) break;
    amount /= 1024;
    unit = larger;
  }
  return `${amount.toFixed(2)} ${unit}`;
}

function duration(ns) {
  if (ns < 1e3) return `${ns} ns`;
  if (ns < 1e6) return `${(ns / 1e3).toFixed(2)} us`;
  if (ns < 1e9) return `${(ns / 1e6).toFixed(2)} ms`;
  return `${(ns / 1e9).toFixed(2)} s`;
}

const grouped = (count) => count.toLocaleString("en");

const byId = (id) => document.getElementById(id);

// make("button", {type: "button", class: "x", onclick: f}, "text", child, ...)
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function swatch(name) {
  const square = make("span", {class: "swatch", "aria-hidden": "true"});
  square.style.background = `var(--${name.replaceAll(" ", "-")})`;
  return square;
}

// Colours as the theme has them now, for canvases.
function themeColours(names) {
  const probe = document.body.appendChild(make("span"));
  const colours = {};
  for (const name of names) {
    probe.style.color = `var(--${name.replaceAll(" ", "-")})`;
    colours[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return colours;
}
