// Where heads look.
const bytes = (text) => {
  const letters = atob(text), array = new Uint8Array(letters.length);
  for (let place = 0; place < letters.length; place++) array[place] = letters.charCodeAt(place);
  return array;
};
const open = (coded) => {
  const pairs = bytes(coded.largest);
  return { levels: bytes(coded.levels), largest: (row) => (pairs[2 * row] + 256 * pairs[2 * row + 1]) / 65535 };
};
const ramp = (name) => {
  const stops = getComputedStyle(root).getPropertyValue(`--${name}`).split(",")
    .map((colour) => [1, 3, 5].map((start) => parseInt(colour.trim().slice(start, start + 2), 16)));
  return Array.from({ length: 256 }, (_, level) => {
    const place = (level / 255) * (stops.length - 1), first = Math.min(Math.floor(place), stops.length - 2);
    return stops[first].map((channel, number) => Math.round(channel + (stops[first + 1][number] - channel) * (place - first)));
  });
};
const HIDDEN = /^[\p{M}\p{Cf}\p{Zl}\p{Zp}\x7f-\x9f]+$/u;  // what has no width of its own
const SEEN = { "\n": "\u21b5\n", "\t": "\u21e5\t", "\r": "\u240d", " ": "\u00b7" };
const shown = (token) => {
  if (token === "") return "\u2205";
  if (HIDDEN.test(token)) return Array.from(token, (letter) => `U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`).join(" ");
  const text = /^ +$/.test(token) ? "\u00b7".repeat(token.length) : token;
  return text.replace(/[\n\t\r]/g, (letter) => SEEN[letter]).replace(/[\0-\x08\x0b\x0c\x0e-\x1f]/g, (letter) => String.fromCharCode(0x2400 + letter.charCodeAt(0)));
};
const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};

function viewer(frame, data) {
  const runs = data.runs;
  const state = { run: 0, sample: 0, layer: 0, head: "mean", query: -1 };
  const stage = find(".stage", frame), matrix = find(".matrix", frame), told = find(".told", frame), most = find(".most", frame);
  const pickers = Object.fromEntries(all("select", frame).map((select) => [select.name, select]));
  const strength = find("input", frame);
  const pictures = data.pictures.map((source) => Object.assign(new Image(), { src: source }));
  let run, keys, start, sides, text, opened = [], colours, held = false, over = -1, cells = [];

  // What a slot is: (step, row, column) on the grid, or a token without a place.
  const placed = (slot) => {
    const [, rows, columns] = sides, number = slot - start;
    return [Math.floor(number / (rows * columns)), Math.floor(number / columns) % rows, number % columns];
  };
  const name = (slot) => {
    if (slot < start) return run.extra[slot];
    if (text) return `${run.unit === "points" ? "point" : "token"} ${slot - start} \u201c\u2068${shown(run.samples[state.sample].tokens[slot - start] ?? "").replace(/\n/g, "")}\u2069\u201d`;
    const [number, row, column] = placed(slot);
    return `${sides[0] > 1 ? `step ${number}, ` : ""}row ${row}, column ${column}`;
  };

  const take = () => {
    run = runs[state.run];
    text = run.grid.length === 1;
    sides = [1, 1, 1, ...run.grid].slice(-3);
    start = run.extra.length;
    keys = start + run.grid.reduce((a, b) => a * b, 1);
    opened[state.run] ??= { heads: open(run.weights), rollout: run.rollout && open(run.rollout) };
    if (state.head === "rollout" && !run.rollout) state.head = "mean";
    if (Number(state.head) >= run.heads) state.head = "mean";
    state.sample = Math.min(state.sample, run.samples.length - 1);
    state.layer = Math.min(state.layer, run.layers.length - 1);
    if (!run.queries.includes(state.query)) state.query = nearest(text ? keys - Math.ceil((keys - start) / 4) : middle());
  };
  const middle = () => start + (Math.floor(sides[0] / 2) * sides[1] + Math.floor((sides[1] - 1) / 2)) * sides[2] + Math.floor((sides[2] - 1) / 2);
  const apart = (one, other) => {
    if (one < start || other < start) return one === other ? 0 : 1e6;
    const first = placed(one), second = placed(other);
    return text ? Math.abs(one - other) : first.reduce((sum, place, number) => sum + (number ? 1 : 1e3) * (place - second[number]) ** 2, 0);
  };
  const nearest = (slot) => run.queries.reduce((best, query) => (apart(query, slot) < apart(best, slot) ? query : best), run.queries[0]);

  // Weights of a row of keys, and the largest of them.
  const weights = (layer, head) => {
    const query = run.queries.indexOf(state.query), queries = run.queries.length, values = new Float32Array(keys);
    const add = (part, row, share) => {
      const unit = (part.largest(row) / 255) * share;
      for (let key = 0; key < keys; key++) values[key] += part.levels[row * keys + key] * unit;
    };
    const { heads, rollout } = opened[state.run];
    if (head === "rollout") add(rollout, state.sample * queries + query, 1);
    else {
      const first = (state.sample * run.layers.length + layer) * run.heads;
      const wanted = head === "mean" ? Array.from({ length: run.heads }, (_, one) => one) : [Number(head)];
      for (const one of wanted) add(heads, (first + one) * queries + query, 1 / wanted.length);
    }
    return values;
  };

  const colour = (share) => colours[Math.round(255 * Math.min(Math.max(share, 0), 1))];
  const paint = (chip, share) => {
    const [red, green, blue] = colour(share);
    chip.style.background = `rgb(${red} ${green} ${blue})`;
    // black and white have the same contrast with a luminance of 0.179 (WCAG 2.2)
    const [r, g, b] = [red, green, blue].map((one) => (one / 255 <= 0.04045 ? one / 3294.6 : ((one / 255 + 0.055) / 1.055) ** 2.4));
    chip.style.color = 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
  };

  // The stage: built for a sample, painted for a query.
  const build = () => {
    const sample = run.samples[state.sample], chosen = new Set(run.queries);
    const chip = (slot, words) => {
      const element = make("span", { className: `chip${chosen.has(slot) ? " pick" : ""}`, textContent: words });
      element.dataset.slot = slot;
      return element;
    };
    const dot = (slot, [left, top]) => {
      const element = chip(slot, "");
      Object.assign(element.style, { left: `${left}%`, top: `${top}%` });
      return element;
    };
    const extras = make("div", { className: "extras" }, ...run.extra.map((words, slot) => chip(slot, words)));
    let body;
    if (sample.places) body = make("div", { className: "places" }, ...sample.places.flatMap((place, number) => (place ? [dot(start + number, place)] : [])), make("small", { textContent: sample.axes[1] }), make("small", { textContent: sample.axes[0] }));
    else if (text) body = make("div", { className: "words" }, ...Array.from({ length: keys - start }, (_, place) => chip(start + place, shown(sample.tokens[place] ?? ""))));
    else {
      const parts = Array.from({ length: sides[0] }, (_, number) => {
        const plain = make("canvas"), canvas = make("canvas");
        for (const one of [plain, canvas]) one.dataset.frame = number;
        plain.dataset.plain = "";
        if (sample.pictures[number] === undefined) plain.hidden = true;
        return sides[0] > 1 ? [make("div", {}, plain, canvas, `step ${number}`)] : [make("div", {}, plain), make("div", {}, canvas)];
      });
      body = make("div", { className: `frames${sides[0] > 1 ? "" : " one"}` }, ...parts.flat());
    }
    stage.replaceChildren(...(start ? [extras] : []), body);
    stage.classList.toggle("some-only", chosen.size < keys);
    find(".view", frame).classList.toggle("wide-stage", text || sides[0] > 2);
    strength.parentElement.hidden = text;
    find(".ramp", frame).className = `ramp ${text ? "weights" : "cividis"}`;
    const less = chosen.size < run.of ? ` ${run.of} were measured; the page keeps ${chosen.size} so that it stays small.` : "";
    const smaller = !text && data.smaller > 1 ? ` Large pictures are shown at 1/${data.smaller} of their sides.` : "";
    const dots = sample.places ? "the large ones" : text ? "those with dots under them" : "those with a dot";
    find(".some", frame).textContent = (chosen.size < keys ? `${chosen.size} of ${keys} tokens can be the query: ${dots}.${less}` : "") + smaller;
  };
  const canvasPainted = (canvas, values, largest) => {
    const number = Number(canvas.dataset.frame), picture = pictures[run.samples[state.sample].pictures[number]];
    const [, rows, columns] = sides, ready = Boolean(picture?.complete && picture.naturalWidth);
    const share = ready ? picture.naturalHeight / picture.naturalWidth : rows / columns;
    const width = columns * Math.max(8, Math.ceil((sides[0] > 1 ? 300 : 560) / columns)), height = Math.round(width * share);
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    const context = canvas.getContext("2d"), first = start + number * rows * columns;
    const box = (slot, inside = 0) => {
      const place = slot - first, across = width / columns, down = height / rows;
      if (place < 0 || place >= rows * columns) return null;
      const left = (place % columns) * across, top = Math.floor(place / columns) * down;
      return [left + inside, top + inside, across - 2 * inside, down - 2 * inside];
    };
    context.clearRect(0, 0, width, height);
    context.imageSmoothingEnabled = ready && picture.naturalWidth > 64;
    if (ready) context.drawImage(picture, 0, 0, width, height);
    if (!("plain" in canvas.dataset)) {
      const slots = Array.from({ length: rows * columns }, (_, place) => first + place);
      patches(context, slots.map((slot) => [slot, box(slot), values[slot] / largest]), ready);
    }
    context.globalAlpha = 1;
    const unit = (width / 560) * (sides[0] > 1 ? 2 : 1);
    outline(context, box(over, 2 * unit), "#fff", 2 * unit);
    outline(context, box(state.query, 4 * unit), "#ff5a1f", 4 * unit);
  };
  const patches = (context, parts, ready) => {
    const chosen = new Set(stage.classList.contains("some-only") ? run.queries : []);
    context.lineWidth = context.canvas.width / 560;
    for (const [slot, [x, y, w, h], share] of parts) {
      context.globalAlpha = ready ? Number(strength.value) / 100 : 1;
      context.fillStyle = `rgb(${colour(share)})`;
      context.fillRect(x, y, w, h);
      context.globalAlpha = 0.22;
      context.strokeStyle = "#fff";
      context.strokeRect(x, y, w, h);
      if (!chosen.has(slot)) continue;
      context.globalAlpha = 0.85;
      context.fillStyle = "#fff";
      context.beginPath();
      context.arc(x + w / 2, y + h / 2, Math.max(2, w * 0.06), 0, 7);
      context.fill();
    }
  };
  const outline = (context, box, light, thick) => {
    if (!box) return;
    for (const [style, width] of [["#000", 2 * thick], [light, thick]]) {
      context.strokeStyle = style;
      context.lineWidth = width;
      context.strokeRect(...box);
    }
  };
  const painted = (values, largest) => {
    for (const chip of all(".chip", stage)) {
      const slot = Number(chip.dataset.slot);
      paint(chip, values[slot] / largest);
      chip.classList.toggle("query", slot === state.query);
      chip.classList.toggle("over", slot === over);
    }
    for (const canvas of all("canvas", stage)) canvasPainted(canvas, values, largest);
  };

  // All heads of all layers, small; a click chooses.
  const buildMatrix = () => {
    const heads = ["mean", ...Array.from({ length: run.heads }, (_, head) => String(head))];
    matrix.classList.toggle("text", text);
    const widest = text ? "1fr" : sides[0] > 1 ? "8rem" : "4rem";
    matrix.style.gridTemplateColumns = `1.6rem minmax(2.1rem, ${widest}) repeat(${run.heads}, minmax(1.1rem, ${widest}))`;
    const top = make("div", {}, make("span"), ...heads.map((head) => make("span", head === "mean" ? { textContent: "mean", className: "mean" } : { textContent: Number(head) + 1 })));
    cells = run.layers.map((layer, place) => heads.map((head) => {
      const canvas = make("canvas", { width: text ? keys - start : sides[0] * sides[2], height: text ? 1 : sides[1], tabIndex: -1 });
      canvas.setAttribute("role", "gridcell");
      canvas.setAttribute("aria-label", `layer ${layer}, ${head === "mean" ? "mean of heads" : `head ${Number(head) + 1}`}`);
      canvas.addEventListener("click", () => choose({ layer: place, head }));
      canvas.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        choose({ layer: place, head });
      });
      return Object.assign(canvas, { looks: { layer: place, head } });
    }));
    const rows = cells.map((row, place) => make("div", {}, make("span", { textContent: run.layers[place], role: "rowheader" }), ...row));
    for (const row of rows) row.setAttribute("role", "row");
    top.setAttribute("aria-hidden", "true");
    matrix.replaceChildren(top, ...rows);
    matrix.onkeydown = roving(cells);
    (cells[state.layer]?.[0] ?? cells[0][0]).tabIndex = 0;
  };
  const paintMatrix = () => {
    const [frames, rows, columns] = sides;
    for (const canvas of cells.flat()) {
      const { layer, head } = canvas.looks, values = weights(layer, head), largest = Math.max(...values) || 1;
      const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
      for (let place = 0; place < keys - start; place++) {
        const [number, row, column] = placed(start + place), pixel = text ? place : row * frames * columns + number * columns + column;
        image.data.set([...colour(values[start + place] / largest), 255], 4 * pixel);
      }
      context.putImageData(image, 0, 0);
      const selected = layer === state.layer && head === String(state.head);
      canvas.setAttribute("aria-selected", String(selected));
    }
  };

  const tell = (values, largest) => {
    const best = values.indexOf(Math.max(...values));
    const query = `query ${name(state.query)}: looks most at ${name(best)} (${digits(values[best])})`;
    told.textContent = over >= 0 && over !== state.query ? `${query}; at ${name(over)} with ${digits(values[over])}` : query;
    const order = [...values.keys()].sort((one, other) => values[other] - values[one]).slice(0, 5).filter((key) => values[key] > 0);
    most.replaceChildren(...order.map((key) => {
      const bar = make("b");
      bar.style.width = `${(100 * values[key]) / largest}%`;
      return make("li", {}, make("span", { textContent: name(key) }), make("i", {}, bar), make("span", { textContent: digits(values[key]) }));
    }));
    find(".largest", frame).textContent = digits(largest);
    find(".scale .unit", frame).textContent = "weight; the scale ends at the largest of this query";
  };
  let rest = 0;  // the many small maps follow when the pointer rests
  const draw = () => {
    const values = weights(state.layer, state.head), largest = Math.max(...values) || 1;
    painted(values, largest);
    tell(values, largest);
    clearTimeout(rest);
    rest = setTimeout(paintMatrix, 40);
  };

  // Selects say what is chosen; the address keeps it.
  const fill = (select, options, value) => {
    select.replaceChildren(...options.map(([key, words]) => make("option", { value: key, textContent: words })));
    select.value = String(value);
    select.closest("label").hidden = options.length < 2;
  };
  const refill = () => {
    fill(pickers.run, runs.map((one, number) => [number, one.name]), state.run);
    fill(pickers.sample, run.samples.map((one, number) => [number, one.title || `sample ${number + 1}`]), state.sample);
    fill(pickers.layer, run.layers.map((layer, number) => [number, `layer ${layer}`]), state.layer);
    const heads = Array.from({ length: run.heads }, (_, head) => [head, `head ${head + 1}`]);
    fill(pickers.head, [["mean", "mean of heads"], ...heads, ...(run.rollout ? [["rollout", "rollout, all layers"]] : [])], state.head);
    pickers.layer.disabled = state.head === "rollout";
  };
  let later;
  const kept = () => {
    clearTimeout(later);
    later = setTimeout(() => {
      const head = Number.isNaN(Number(state.head)) ? state.head : Number(state.head) + 1;
      const words = `run=${state.run + 1}&sample=${state.sample + 1}&layer=${run.layers[state.layer]}&head=${head}&query=${state.query}`;
      history.replaceState(null, "", `#looks?${words}`);
    }, 200);
  };
  const linked = () => {
    if (!location.hash.startsWith("#looks?")) return false;
    const words = new URLSearchParams(location.hash.slice(7)), number = (key) => Number(words.get(key) ?? 1) - 1;
    state.run = Math.min(Math.max(number("run"), 0) || 0, runs.length - 1);
    state.sample = Math.max(number("sample"), 0) || 0;
    state.layer = Math.max(runs[state.run].layers.indexOf(Number(words.get("layer") ?? -1)), 0);
    const head = number("head");
    state.head = words.get("head") === "rollout" ? "rollout" : Number.isInteger(head) && head >= 0 && words.has("head") ? String(head) : "mean";
    state.query = Number(words.get("query") ?? -1);
    held = true;
    return true;
  };
  const renew = () => {
    take();
    colours = ramp(text ? "weights" : "cividis");
    refill();
    build();
    buildMatrix();
    draw();
    reveal();
  };
  const choose = (changes) => {
    const anew = "run" in changes || "sample" in changes;
    Object.assign(state, changes);
    if (anew) renew();
    else { refill(); draw(); }
    kept();
  };

  // Pointer and keys on the stage.
  const under = (event) => {
    const chip = event.target.closest("[data-slot]");
    if (chip) return Number(chip.dataset.slot);
    const canvas = event.target.closest("canvas");
    if (!canvas) return -1;
    const box = canvas.getBoundingClientRect(), [, rows, columns] = sides;
    const column = Math.min(Math.max(Math.floor(((event.clientX - box.left) / box.width) * columns), 0), columns - 1);
    const row = Math.min(Math.max(Math.floor(((event.clientY - box.top) / box.height) * rows), 0), rows - 1);
    return start + (Number(canvas.dataset.frame) * rows + row) * columns + column;
  };
  let pending = 0;
  const soon = () => { pending ||= requestAnimationFrame(() => { pending = 0; draw(); }); };
  stage.addEventListener("pointermove", (event) => {
    if (event.pointerType === "touch") return;
    const slot = under(event);
    if (slot < 0 || slot === over) return;
    over = slot;
    if (!held) state.query = nearest(slot);
    soon();
  });
  stage.addEventListener("pointerleave", () => { over = -1; soon(); });
  stage.addEventListener("click", (event) => {
    const slot = under(event);
    if (slot < 0) return;
    const query = nearest(slot);
    held = !(held && query === state.query);
    choose({ query });
  });
  const centre = (slot) => {
    const chip = find(`[data-slot="${slot}"]`, stage);
    if (chip) { const box = chip.getClientRects()[0]; return [(box.left + box.right) / 2, (box.top + box.bottom) / 2]; }
    if (text) return [NaN, NaN];  // padding of a set of points has no dot
    const [number, row, column] = placed(slot), box = find(`[data-frame="${number}"]:not([data-plain])`, stage).getBoundingClientRect();
    return [box.left + ((column + 0.5) / sides[2]) * box.width, box.top + ((row + 0.5) / sides[1]) * box.height];
  };
  // The next query in a direction; along a line of text also round its ends.
  const towards = ([down, right]) => {
    const [x, y] = centre(state.query);
    let best = -1, least = Infinity;
    for (const query of run.queries) {
      const [a, b] = centre(query), along = right ? (a - x) * right : (b - y) * down, off = Math.abs(right ? b - y : a - x);
      if (along <= 1 || (right && off > 0.5 * along + 6)) continue;
      const far = along + 2.5 * off;
      if (far < least) { least = far; best = query; }
    }
    const order = run.queries.indexOf(state.query) + right;
    return best >= 0 || !right ? best : run.queries[order] ?? -1;
  };
  // A long text scrolls by itself; the page stays where it is.
  const reveal = () => {
    const box = find(".words", stage), chip = box && find(`[data-slot="${state.query}"]`, box);
    if (!chip) return;
    const { top, bottom } = chip.getBoundingClientRect(), around = box.getBoundingClientRect();
    if (top < around.top + 8) box.scrollTop -= around.top + 30 - top;
    if (bottom > around.bottom - 8) box.scrollTop += bottom - around.bottom + 30;
  };
  stage.addEventListener("keydown", (event) => {
    const ends = { Home: run.queries[0], End: run.queries.at(-1) };
    if (event.key === "Escape") { held = false; return; }
    if (!STEPS[event.key] && !(event.key in ends)) return;
    event.preventDefault();
    const query = STEPS[event.key] ? towards(STEPS[event.key]) : ends[event.key];
    if (query < 0) return;
    held = true;
    over = -1;
    choose({ query });
    reveal();
  });
  for (const [key, select] of Object.entries(pickers)) {
    select.addEventListener("change", () => choose({ [key]: key === "head" ? select.value : Number(select.value) }));
  }
  strength.addEventListener("input", soon);
  addEventListener("hashchange", () => { if (linked()) renew(); });
  changed.push(() => { colours = ramp(text ? "weights" : "cividis"); draw(); });

  const here = linked();
  renew();
  for (const picture of pictures) picture.decode().then(soon, () => {});
  if (here) frame.closest("section").scrollIntoView();
  const where = ({ layer, head, name: wanted }) => {
    const number = wanted ? runs.findIndex((one) => one.name === wanted) : 0, place = runs[number]?.layers.indexOf(layer) ?? -1;
    return place >= 0 && head < runs[number].heads ? { run: number, layer: place, head: String(head) } : null;
  };
  return {
    settle: paintMatrix,
    has: (place) => where(place) !== null,
    show: (place) => { choose(where(place)); frame.closest("section").scrollIntoView(); stage.focus({ preventScroll: true }); },
  };
}
