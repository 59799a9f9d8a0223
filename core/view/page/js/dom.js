// Elements and numbers. All text of a run reaches the page through here, as text nodes.

/// An element: `h("a.row", {href: "#"}, "text", child)`. Properties starting with "on" are listeners.
function h(name, properties, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key.startsWith("--")) element.style.setProperty(key, value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const $ = (id) => document.getElementById(id);

const thousands = (count) => count.toLocaleString("en");

const plural = (count, one, many = `${one}s`) => `${thousands(count)} ${count === 1 ? one : many}`;

/// Formats a number in about four digits, or as its unit is read best.
function format(value, unit) {
  if (value === null || value === undefined) return "–";
  if (value < 0) return `−${format(-value, unit)}`;
  if (unit === "share") return `${trim((value * 100).toPrecision(value >= 1 ? 4 : 3))}%`;
  if (unit === "bytes") {
    const power = value < 1 ? 0 : Math.min(4, Math.floor(Math.log10(value) / 3));
    return `${trim((value / 1000 ** power).toPrecision(3))} ${["B", "kB", "MB", "GB", "TB"][power]}`;
  }
  if (value !== 0 && (value < 1e-3 || value >= 1e6)) return value.toExponential(2).replace("e+", "e");
  return trim(value.toPrecision(value >= 1000 ? 6 : 4));
}

const trim = (digits) => (digits.includes(".") && !digits.includes("e") ? digits.replace(/\.?0+$/, "") : digits);

/// Formats a number whose sign matters.
function signed(value) {
  if (value === null || value === undefined) return "–";
  return value > 0 ? `+${format(value)}` : format(value);
}

/// Shows the tooltip beside a point of the window.
function showTip(x, y, ...children) {
  const tip = $("tip");
  tip.replaceChildren(...children);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 16 + width > innerWidth ? x - width - 12 : x + 16;
  tip.style.left = `${Math.max(4, Math.min(left, innerWidth - width - 4))}px`;
  tip.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - height - 4))}px`;
}

const hideTip = () => { $("tip").hidden = true; };
