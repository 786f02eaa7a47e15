// The page: knobs on one side, figures on the other, and all of it in the address.
const NAMES = Object.keys(FACTS);
const state = { name: "rope", axes: 1, shown: "scores", values: {} };
const COUNTED = {
  1: [
    whole("L", "Training length, tokens", 64, 16, 256, { step: 16 }), choice("factor", "Length now", 4, [1, 2, 4, 8], { write: (x) => `${x} times as long` }),
    whole("i", "Query, token", 255, 0, 2047), whole("d", "Distance of the key, tokens", 5, 0, 2047),
  ],
  2: [
    whole("L", "Training size, patches along a side", 12, 4, 20), choice("factor", "Size now", 2, [1, 2], { write: (x) => `${x} times as large` }),
    whole("row", "Query, row", 12, 0, 39), whole("column", "Query, column", 12, 0, 39),
    whole("down", "Key, rows down", 0, -39, 39), whole("right", "Key, columns to the right", 3, -39, 39),
  ],
};
const SHOWN_TOKENS = TEXT.length;

const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const drawn = (tag, attributes = {}, text) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
};

// Knobs and their values.
const listKnobs = () => {
  const one = encodings[state.name], uses = { K: one.width, H: one.heads || one.width, h: one.heads, c: !one.added };
  const own = (one.knobs ?? []).filter((knob) => (knob.axes ?? state.axes) === state.axes);
  return { own, common: [...COUNTED[state.axes], ...COMMON.filter((knob) => uses[knob.key])] };
};
const everyKnob = () => { const { own, common } = listKnobs(); return [...own, ...common]; };
const read = (knob) => state.values[knob.key] ?? knob.value;
const readSettings = () => {
  const s = { axes: state.axes };
  for (const knob of [...COMMON, ...COUNTED[state.axes], ...(encodings[state.name].knobs ?? [])]) s[knob.key] = read(knob);
  s.n = s.L * s.factor;
  s.h = Math.min(s.h, s.H) - 1;
  return s;
};
const limits = (knob) => {
  const s = readSettings();
  if (knob.key === "h") return [1, s.H];
  if (knob.key === "i") return [0, s.n - 1];
  if (knob.key === "d") return [0, Math.min(read(COUNTED[1][2]), s.n - 1)];
  if (knob.key === "row" || knob.key === "column") return [0, s.n - 1];
  if (knob.key === "down" || knob.key === "right") { const at = clamp(s[knob.key === "down" ? "row" : "column"], 0, s.n - 1); return [-at, s.n - 1 - at]; }
  return [knob.low, knob.high];
};
const STEPS_OF_LOG = 200;
const toSlider = (knob, value) => (knob.log ? (STEPS_OF_LOG * Math.log(value / knob.low)) / Math.log(knob.high / knob.low) : value);
const fromSlider = (knob, place) => (knob.log ? Number((knob.low * (knob.high / knob.low) ** (place / STEPS_OF_LOG)).toPrecision(3)) : Number(place));

const writeValue = (knob, value) => (knob.write ? knob.write(value) : String(value).replace("-", "\u2212"));
const makeKnob = (knob) => {
  const id = `knob-${knob.key}`, label = element("label", { for: id }, knob.label);
  if (knob.values) {
    const select = element("select", { id });
    for (const value of knob.values) select.append(element("option", { value }, writeValue(knob, value)));
    select.value = read(knob);
    select.addEventListener("change", () => change(knob, knob.values.find((one) => String(one) === select.value)));
    return element("div", { class: "knob" }, label, select);
  }
  const input = element("input", { id, type: "range" }), output = element("output", { for: id });
  if (knob.log) Object.assign(input, { min: 0, max: STEPS_OF_LOG, step: 1 });
  input.addEventListener("input", () => change(knob, fromSlider(knob, input.value)));
  const settle = () => {
    const [low, high] = limits(knob), value = clamp(read(knob), low, high);
    if (!knob.log) Object.assign(input, { min: low, max: high, step: knob.step });
    input.value = toSlider(knob, value);
    output.textContent = writeValue(knob, value);
    input.setAttribute("aria-valuetext", output.textContent);
  };
  settlers.push(settle);
  settle();
  return element("div", { class: "knob" }, label, output, input);
};
let settlers = [];
const change = (knob, value) => { state.values[knob.key] = value; refresh(); };
const layKnobs = () => {
  settlers = [];
  const { own, common } = listKnobs();
  find("#own").replaceChildren(...own.map(makeKnob));
  find("#own-group").hidden = own.length === 0;
  find("#common").replaceChildren(...common.map(makeKnob));
};

// Queries and keys: positions of the pair whose formula is written.
const choosePair = (s) => {
  const at = (key, low, high) => clamp(s[key], low, high);
  if (s.axes === 1) { const i = at("i", 0, s.n - 1); return [i, i - at("d", 0, i)]; }
  const i = [at("row", 0, s.n - 1), at("column", 0, s.n - 1)];
  return [i, [clamp(i[0] + s.down, 0, s.n - 1), clamp(i[1] + s.right, 0, s.n - 1)]];
};
const choose = (i, j) => {
  if (state.axes === 1) Object.assign(state.values, { i, d: i - j });
  else Object.assign(state.values, { row: i[0], column: i[1], down: j[0] - i[0], right: j[1] - i[1] });
  refresh();
};

// Attention of a query: weights over keys [[position, weight], ..]; undefined if a key is refused.
const listKeys = (s, i) => (s.axes === 1 ? range(i + 1) : range(s.n ** 2, (k) => [Math.floor(k / s.n), k % s.n]));
const attend = (s, made, i) => {
  const keys = listKeys(s, i), scores = keys.map((j) => made.score(i, j));
  if (scores.some(Number.isNaN)) return undefined;
  const weights = encodings[state.name].weights ? scores : softmax(scores);
  return keys.map((j, k) => ({ j, score: scores[k], weight: weights[k] }));
};
const countKeys = (row) => Math.exp(-sum(row.map(({ weight }) => (weight > 0 ? weight * Math.log(weight) : 0))));

// Axes with a few round numbers.
const ticks = (low, high, count) => {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw);
  return range(Math.floor(high / step) - Math.ceil(low / step) + 1, (k) => Number(((Math.ceil(low / step) + k) * step).toPrecision(12)));
};
const LEFT = 44, BOTTOM = 22, TOP = 20;

const drawCurves = (holder, lines, { mark, edge, label }) => {
  // On a narrow screen labels keep their size.
  const WIDE = clamp(holder.clientWidth, 280, 640), narrow = WIDE < 420, HIGH = narrow ? 170 : 250;
  const points = [...lines.flatMap((line) => line.points), ...(mark ? [mark] : [])].filter(([, y]) => Number.isFinite(y));
  if (!points.length) { holder.replaceChildren(element("p", {}, "The encoding is not defined here.")); return; }
  // Infinite scores, which are arrows at the edge, have a place along the axis too.
  const [low, high] = [Math.min, Math.max].map((pick) => lines.flatMap((line) => line.points).filter(([, y]) => !Number.isNaN(y)).reduce((best, [x]) => pick(best, x), points[0][0]));
  let [bottom, top] = [Math.min, Math.max].map((pick) => points.reduce((best, [, y]) => pick(best, y), points[0][1]));
  if (top - bottom < 1e-9) [bottom, top] = [bottom - 1, top + 1];
  const room = 0.05 * (top - bottom), x = (value) => LEFT + ((value - low) / (high - low || 1)) * (WIDE - LEFT - 8), y = (value) => HIGH - BOTTOM - ((value - bottom + room) / (top - bottom + 2 * room)) * (HIGH - BOTTOM - TOP);
  const svg = drawn("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": label });
  if (edge !== undefined && edge < high) {
    svg.append(drawn("rect", { class: "beyond", x: x(edge), y: TOP, width: x(high) - x(edge), height: HIGH - BOTTOM - TOP }));
    svg.append(drawn("text", { x: clamp(x(edge) + 5, LEFT, WIDE - 125), y: TOP - 7 }, "past the training length"));
  }
  for (const value of ticks(bottom - room, top + room, 5)) svg.append(drawn("line", { class: value === 0 ? "zero" : "grid", x1: LEFT, x2: WIDE - 8, y1: y(value), y2: y(value) }), drawn("text", { class: "end", x: LEFT - 6, y: y(value) + 3.5 }, digits(value)));
  for (const value of ticks(low, high, narrow ? 4 : 6)) svg.append(drawn("text", { class: "middle", x: x(value), y: HIGH - 6 }, digits(value)));
  for (const line of lines) {
    let path = "", pen = "M";
    let beyond = 0; // 1 or -1 within a run of infinite scores, which begins with an arrow at the edge
    for (const [px, py] of line.points) {
      const side = Number.isFinite(py) ? 0 : Math.sign(py) || 0;
      if (side && side !== beyond) svg.append(drawn("text", { class: "middle infinite", x: x(px), y: side > 0 ? TOP + 9 : HIGH - BOTTOM - 2, style: `fill:var(--s${line.colour ?? 0})` }, side > 0 ? "\u25b2" : "\u25bc"));
      beyond = side;
      if (Number.isFinite(py)) { path += `${pen}${x(px).toFixed(1)} ${y(py).toFixed(1)}`; pen = "L"; } else pen = "M";
    }
    svg.append(drawn("path", { class: line.faint ? "line faint" : "line", d: path, style: `stroke:var(--s${line.colour ?? 0})` }));
  }
  if (mark && Number.isFinite(mark[1])) svg.append(drawn("line", { class: "cross", x1: x(mark[0]), x2: x(mark[0]), y1: TOP, y2: HIGH - BOTTOM }), drawn("circle", { class: "mark", cx: x(mark[0]), cy: y(mark[1]), r: 4.5 }));
  holder.replaceChildren(svg);
};

const describe = (i) => (Array.isArray(i) ? `row ${i[0]}, column ${i[1]}` : `token ${i}`);
const drawCurve = (s, made, [i, j]) => {
  const one = encodings[state.name], faint = [];
  let lines, mark;
  if (s.axes === 1) {
    const trace = (maker, most) => range(Math.ceil((i + 1) / Math.ceil((i + 1) / most)), (k) => { const d = k * Math.ceil((i + 1) / most); return [d, maker.score(i, i - d)]; });
    if (one.heads) for (const h of range(s.H)) if (h !== s.h) faint.push({ points: trace(one.make({ ...s, h }), 160), faint: true });
    lines = [...faint, { points: trace(made, 1024) }];
    mark = [i - j, made.score(i, j)];
  } else {
    const steps = [[0, 1], [1, 0], [1, 1]];
    lines = steps.map(([down, right], colour) => ({
      colour, points: range(2 * s.n - 1, (k) => k - s.n + 1).map((d) => [d, i[0] + d * down, i[1] + d * right]).filter(([, r, c]) => r >= 0 && c >= 0 && r < s.n && c < s.n).map(([d, r, c]) => [d, made.score(i, [r, c])]),
    }));
    const along = i[0] === j[0] ? j[1] - i[1] : i[1] === j[1] || j[0] - i[0] === j[1] - i[1] ? j[0] - i[0] : undefined;
    mark = along === undefined ? undefined : [along, made.score(i, j)];
  }
  const last = made.score(i, j);
  drawCurves(find("#curve"), lines, { mark, edge: s.axes === 1 ? s.L : undefined, label: `${one.weights ? "Weight" : "Score"} against distance from ${describe(i)}: ${result(last)} at ${describe(j)}` });
  find("#curve-x").textContent = s.axes === 1 ? `Distance from query ${i} to the key, in tokens` : `Patches from the query at ${describe(i)}`;
  find("#curve-legend").replaceChildren(...(s.axes === 1 ? (one.heads ? [["this head", 0], ["other heads (faint)", 0]] : []) : [["along the row", 0], ["along the column", 1], ["along the diagonal", 2]]).map(([text, colour]) => element("li", {}, element("span", { class: "swatch", style: `--c:var(--s${colour})` }), text)));
};

// A map of levels; a click chooses the pair of a cell.
const drawMap = (holder, cells, { columns, rows, labels, mark, label, edge }) => {
  const finite = cells.map(({ value }) => value).filter(Number.isFinite), low = Math.min(...finite), high = Math.max(...finite);
  const size = 20, left = labels ? 76 : 2, svg = drawn("svg", { viewBox: `0 0 ${left + columns * size + 4} ${rows * size + (labels ? 80 : 4)}`, role: "img", "aria-label": label });
  for (const { row, column, value, pair } of cells) {
    const level = Math.round((16 * (value - low)) / (high - low || 1)), box = drawn("rect", {
      x: left + column * size, y: 2 + row * size, width: size, height: size, class: Number.isFinite(value) ? "cell" : "cell hiddenkey", ...(Number.isFinite(value) ? { style: `fill:var(--w${level})` } : {}),
    });
    box.append(drawn("title", {}, `${describe(pair[0])} to ${describe(pair[1])}: ${result(value)}`));
    box.addEventListener("click", () => choose(...pair));
    svg.append(box);
  }
  if (edge) svg.append(drawn("rect", { class: "edge", x: left, y: 2, width: edge * size, height: edge * size }));
  for (const [row, column, kind] of mark) svg.append(drawn("rect", { class: kind, x: left + column * size + 1, y: 3 + row * size, width: size - 2, height: size - 2 }));
  if (labels) labels.forEach((text, k) => svg.append(
    drawn("text", { class: "end", x: left - 5, y: 2 + k * size + 14 }, text),
    drawn("text", { class: "end", transform: `translate(${left + k * size + 14} ${rows * size + 10}) rotate(-60)` }, text),
  ));
  holder.replaceChildren(svg);
  find("#map-low").textContent = finite.length ? digits(low) : "";
  find("#map-high").textContent = finite.length ? digits(high) : "";
};
const drawPicture = (s, made, [i, j]) => {
  const asWeights = state.shown === "weights", relative = (row) => { const top = Math.max(...row.map(({ weight }) => weight)); return row.map((one) => ({ ...one, value: top > 0 ? one.weight / top : 0 })); };
  const rowOf = (query) => {
    if (!asWeights) return listKeys(s, query).map((key) => ({ j: key, value: made.score(query, key) }));
    const row = attend(s, made, query);
    return row ? relative(row) : listKeys(s, query).map((key) => ({ j: key, value: NaN }));
  };
  const what = asWeights ? `Weights, relative to the largest${s.axes === 1 ? " of the row" : ""}` : encodings[state.name].weights ? "Weights" : "Scores";
  if (s.axes === 1) {
    const shown = Math.min(SHOWN_TOKENS, s.n), cells = range(shown).flatMap((row) => rowOf(row).map(({ j: column, value }) => ({ row, column, value, pair: [row, column] })));
    drawMap(find("#map"), cells, { rows: shown, columns: shown, labels: range(shown, word), mark: i < shown ? [[i, j, "chosen"]] : [], label: `${what} of a text of ${shown} tokens under a causal mask` });
    find("#map-title").textContent = "A short text";
    find("#map-note").textContent = `${what}: rows are queries, columns are keys, and later keys are hidden.${i >= shown ? " The query of the formula is further on in the text." : ""}`;
    return;
  }
  const cells = rowOf(i).map(({ j: [row, column], value }) => ({ row, column, value, pair: [i, [row, column]] }));
  drawMap(find("#map"), cells, { rows: s.n, columns: s.n, mark: [[...i, "query"], [...j, "chosen"]], edge: s.factor > 1 ? s.L : undefined, label: `${what} of the patch at ${describe(i)} with all patches of a grid of ${s.n} by ${s.n}` });
  find("#map-title").textContent = "A grid";
  const hidden = cells.some(({ value }) => value === -Infinity) ? " Empty patches are hidden." : "";
  find("#map-note").textContent = `${what}: the query, in the dashed square, with all patches.${s.factor > 1 ? " The large frame has the size of grids in training." : ""}${hidden}`;
};

const LENGTHS = { 1: [1, 2, 4, 8], 2: [1, 2] };
const writeLengths = (s) => {
  const isText = s.axes === 1, heads = isText
    ? ["Length", "Lowest score", "Highest score", `Attention further back than ${s.L} tokens`, "Keys attended"]
    : ["Side", "Lowest score", "Highest score", "Attention within 3 patches", "Keys attended"];
  if (encodings[state.name].weights) [heads[1], heads[2]] = ["Lowest weight", "Highest weight"];
  const body = LENGTHS[s.axes].filter((factor) => factor <= Math.max(s.factor, 2)).map((factor) => {
    const longer = { ...s, n: s.L * factor }, middle = Math.floor(longer.n / 2), query = isText ? longer.n - 1 : [middle, middle];
    const row = attend(longer, encodings[state.name].make(longer), query);
    const title = element("th", { scope: "row" }, `${longer.n}${factor === 1 ? " (training)" : ""}`);
    if (!row) return element("tr", {}, title, element("td", { colspan: 4 }, "refused: there are no rows for these positions"));
    const scores = row.map((one) => one.score).filter(Number.isFinite), low = Math.min(...scores), high = Math.max(...scores);
    const near = isText ? ({ j }) => query - j >= s.L : ({ j }) => straight(query, j) <= 3;
    return element("tr", {}, title, ...[digits(low), digits(high), `${(100 * sum(row.filter(near).map((one) => one.weight))).toFixed(1)} %`, digits(countKeys(row))].map((text) => element("td", {}, text)));
  });
  find("#lengths").replaceChildren(element("thead", {}, element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)))), element("tbody", {}, ...body));
  find("#lengths-note").textContent = isText
    ? "Of the last query of each text, if all tokens have equal content. Keys attended are exp(entropy) of its weights."
    : "Of the middle patch of each grid, if all patches have equal content. Keys attended are exp(entropy) of its weights.";
};

const writeFormula = (made, [i, j]) => {
  const one = encodings[state.name], value = made.score(i, j), lines = Number.isNaN(value) ? made.explain(i, j).slice(0, 1) : made.explain(i, j);
  find("#pair").textContent = `Query: ${describe(i)}${state.axes === 1 ? `, \u201c${word(i)}\u201d` : ""}. Key: ${describe(j)}${state.axes === 1 ? `, \u201c${word(j)}\u201d` : ""}.`;
  find("#filled").textContent = `${one.weights ? "weight" : "score"}\n${[...lines, result(value)].filter((line, k, all) => line !== all[k - 1]).map((line) => `  = ${line}`).join("\n")}`;
};

// Name, knobs and address.
const writeAddress = () => {
  const changed = everyKnob().filter((knob) => state.values[knob.key] !== undefined && state.values[knob.key] !== knob.value).map((knob) => `${knob.key}=${state.values[knob.key]}`);
  const parts = [...(FACTS[state.name].axes.length > 1 && state.axes === 2 ? ["grid"] : []), ...(state.shown === "weights" ? ["weights"] : []), ...changed];
  const address = `#${state.name}${parts.length ? `&${parts.join("&")}` : ""}`;
  if (address !== location.hash) history.replaceState(null, "", address);
};
const readAddress = () => {
  const [name, ...parts] = decodeURIComponent(location.hash.slice(1)).split("&");
  if (!Object.hasOwn(FACTS, name)) return false;
  state.shown = parts.includes("weights") ? "weights" : "scores";
  state.axes = FACTS[name].axes.includes(1) && !parts.includes("grid") ? 1 : FACTS[name].axes.at(-1);
  state.name = name;
  state.values = {};
  for (const part of parts) {
    const [key, text] = part.split("="), knob = everyKnob().find((one) => one.key === key);
    if (!knob || text === undefined) continue;
    const value = knob.values ? knob.values.find((one) => String(one) === text) : Number(text);
    if (knob.values ? value !== undefined : Number.isFinite(value)) state.values[key] = knob.values || knob.key in { i: 1, d: 1, row: 1, column: 1, down: 1, right: 1 } ? value : clamp(value, knob.low, knob.high);
  }
  return true;
};
const layPage = () => {
  const { title, formula, axes, page, group } = FACTS[state.name];
  find("#encoding").value = state.name;
  find("#about").textContent = title;
  find("#formula").textContent = formula;
  find("#changes").textContent = `It changes ${group}.`;
  find("#reading").textContent = encodings[state.name].reading;
  find("#page").href = page;
  find("#page").textContent = `All about ${state.name}`;
  for (const one of all("[name=axes]")) { one.checked = Number(one.value) === state.axes; one.disabled = !axes.includes(Number(one.value)); }
  for (const one of all("[name=shown]")) one.checked = one.value === state.shown;
  document.title = `${state.name}: play with positions`;
  // Where a table ends with the training length, the page begins with its last token.
  const s = readSettings();
  if (s.axes === 1 && state.values.i === undefined && Number.isNaN(encodings[state.name].make(s).score(s.n - 1, s.n - 1))) state.values.i = s.L - 1;
  layKnobs();
  refresh();
};
let waiting = false;
const refresh = () => {
  for (const settle of settlers) settle();
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    const s = readSettings(), made = encodings[state.name].make(s), pair = choosePair(s);
    writeFormula(made, pair);
    drawCurve(s, made, pair);
    drawPicture(s, made, pair);
    writeLengths(s);
    writeAddress();
  });
};
const selectEncoding = (name) => {
  state.name = name;
  if (!FACTS[name].axes.includes(state.axes)) state.axes = FACTS[name].axes[0];
  // Other encodings have other knobs of the same name.
  const kept = new Set([...COMMON, ...COUNTED[state.axes]].map((knob) => knob.key));
  for (const key of Object.keys(state.values)) if (!kept.has(key)) delete state.values[key];
  layPage();
};

ready.push(() => {
  const select = find("#encoding"), named = [...new Set(NAMES.map((name) => FACTS[name].group))];
  for (const group of named) select.append(element("optgroup", { label: group }, ...NAMES.filter((name) => FACTS[name].group === group).map((name) => element("option", { value: name }, name))));
  select.addEventListener("change", () => selectEncoding(select.value));
  for (const one of all("[name=axes]")) one.addEventListener("change", () => { state.axes = Number(one.value); selectEncoding(state.name); });
  for (const one of all("[name=shown]")) one.addEventListener("change", () => { state.shown = one.value; refresh(); });
  find("#reset").addEventListener("click", () => { state.values = {}; layPage(); });
  let wide = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== wide) { wide = innerWidth; refresh(); } });
  addEventListener("hashchange", () => { if (readAddress()) layPage(); });
  readAddress();
  layPage();
});
