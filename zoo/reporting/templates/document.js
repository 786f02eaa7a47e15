const root = document.documentElement;
const find = (selector, within = document) => within.querySelector(selector);
const ready = [], printing = []; // what is done once the page is there, and before it is printed
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const digits = (number) => {
  const size = Math.abs(number);
  const text = size > 0 && (size < 0.001 || size >= 1e6) ? number.toExponential(1) : String(Number(number.toPrecision(3)));
  return text.replaceAll("-", "\u2212");
};

// Light or dark: as the reader chose, else as the system is; paper is always light.
const system = matchMedia("(prefers-color-scheme: dark)");
const recall = () => { try { return localStorage.getItem("zoo-theme"); } catch { return null; } };
const keep = (theme) => { try { localStorage.setItem("zoo-theme", theme); } catch { /* not kept */ } };
const changed = [];
const paper = (theme) => {
  root.dataset.theme = theme;
  const button = find("#theme");
  if (!button) return;
  button.textContent = theme === "dark" ? "Light" : "Dark";
  button.setAttribute("aria-pressed", String(theme === "dark"));
  for (const redraw of changed) redraw();
};
paper(recall() ?? (system.matches ? "dark" : "light"));

// Arrow keys within a table of things of which one can be focused by Tab.
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const roving = (rows) => (event) => {
  const step = STEPS[event.key];
  if (!step) return;
  const row = rows.findIndex((cells) => cells.includes(event.target));
  if (row < 0) return;
  const next = rows[row + step[0]]?.[rows[row].indexOf(event.target) + step[1]];
  event.preventDefault();
  if (!next) return;
  for (const cell of rows.flat()) cell.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
};

const tip = (event, text) => {
  const box = find("#tip");
  box.style.display = text ? "block" : "none";
  if (!text) return;
  box.textContent = text;
  const x = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 6);
  const y = event.clientY - box.offsetHeight - 10;
  box.style.transform = `translate(${Math.max(x, 4)}px, ${y < 0 ? event.clientY + 18 : y}px)`;
};
