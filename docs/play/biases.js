// Encodings that add a bias to scores.
const biased = (s, bias, write) => ({
  score: (i, j) => s.c + bias(i, j),
  explain: (i, j) => [...write(i, j), `${plain(s.c)} + ${num(bias(i, j))}`],
});
const headSlopes = (H) => {
  const power = 2 ** Math.floor(Math.log2(H));
  return [...range(power, (h) => (h + 1) / power), ...range(H - power, (h) => (h + 0.5) / power)].map((one) => 2 ** (-8 * one));
};
const FADES = "Scores of two equal tokens: content, minus what the distance costs.";

encodings.alibi = {
  knobs: [knob("slope", "Global slope", 1, 0, 4), choice("distance", "Distance on grids", "manhattan", ["manhattan", "euclidean"], { axes: 2 })],
  heads: true, reading: FADES,
  make: (s) => {
    const slope = s.slope * headSlopes(s.H)[s.h], far = (i, j) => (s.distance === "euclidean" ? straight(i, j) : manhattan(i, j));
    return {
      ...biased(s, (i, j) => -slope * far(i, j), (i, j) => [`${plain(s.c)} \u2212 ${plain(slope)} \u00b7 ${plain(far(i, j))}`]),
      options: { distance: s.distance, global_slope: s.slope }, parameters: () => ({}),
    };
  },
};

encodings.kerple = {
  knobs: [choice("kind", "Kind", "log", ["log", "power"]), knob("a", "Rate a", 0.5, 0.001, 2), knob("p", "Scale or exponent p", 1, 0.01, 1.99)],
  reading: FADES,
  make: (s) => {
    const bias = (i, j) => (s.kind === "log" ? -s.p * Math.log1p(s.a * straight(i, j)) : -s.a * straight(i, j) ** s.p);
    const write = (i, j) => [s.kind === "log" ? `${plain(s.c)} \u2212 ${plain(s.p)} \u00b7 log(1 + ${plain(s.a)}\u00b7${plain(straight(i, j))})` : `${plain(s.c)} \u2212 ${plain(s.a)} \u00b7 ${plain(straight(i, j))}^${plain(s.p)}`];
    const shape = s.kind === "log" ? { log_scale: [Math.log(s.p)] } : { exponent: [logit(s.p / 2)] };
    return { ...biased(s, bias, write), options: { kind: s.kind }, parameters: () => ({ log_rate: [Math.log(s.a)], ...shape }) };
  },
};

encodings.fire = {
  knobs: [knob("rate", "c", 0.1, 0.001, 1), whole("threshold", "Threshold", 64, 1, 512), knob("slope", "f at the farthest token", -4, -8, 8)],
  reading: "Scores of two equal tokens: the logarithm of a distance is divided by that of the query's position, or of the threshold before it, so f never sees more than 1, however long the text. The network f is set by hand to a straight line.",
  make: (s) => {
    const corners = [[0, 0], [0, s.n - 1], [s.n - 1, 0], [s.n - 1, s.n - 1]];
    const own = (i) => Math.max(s.axes === 1 ? i : Math.max(...corners.map((one) => straight(i, one))), s.threshold);
    const psi = (x) => Math.log1p(Math.abs(s.rate * x)), ratio = (i, j) => psi(straight(i, j)) / (psi(own(i)) + 1e-6);
    const write = (i, j) => [`${plain(s.c)} + f(log(1 + ${plain(s.rate)}\u00b7${plain(straight(i, j))}) / log(1 + ${plain(s.rate)}\u00b7${plain(own(i))}))`, `${plain(s.c)} + ${num(s.slope)} \u00b7 ${plain(ratio(i, j))}`];
    const first = (unit) => Number(unit === 0);
    return {
      ...biased(s, (i, j) => s.slope * ratio(i, j), write),
      options: { threshold: s.threshold, hidden: 2 },
      parameters: () => ({ c: s.rate, "net.0.weight": [[1], [0]], "net.0.bias": [0], "net.2.weight": [range(2, (unit) => s.slope * first(unit))], "net.2.bias": [0] }),
    };
  },
};

encodings.t5 = {
  knobs: [choice("buckets", "Buckets", 32, [8, 16, 32, 64]), whole("farthest", "Largest distance", 128, 40, 512), knob("decay", "Penalty of the last bucket", 4, 0, 8)],
  heads: true, reading: "Scores of two equal tokens: the bucket of a distance chooses a learned number. The table is set by hand to fall from bucket to bucket, in each head at its own speed.",
  make: (s) => {
    const half = s.axes === 1 ? s.buckets : s.buckets / 2, exact = Math.floor(half / 2), { fround, log } = Math;
    // Logarithms are those of float32, which decide the bucket of some distances.
    const bucket = (d) => {
      if (d < exact) return d;
      const share = fround(fround(log(fround(d / exact))) / fround(log(s.farthest / exact)));
      return Math.min(exact + Math.trunc(fround(share * (half - exact))), half - 1);
    };
    const penalty = (b, h) => (-s.decay * ((s.H - h) / s.H) * b) / (half - 1);
    const distances = (i, j) => offset(i, j).map(Math.abs), bias = (i, j) => sum(distances(i, j).map((d) => penalty(bucket(d), s.h)));
    const rows = range(s.buckets, (b) => range(s.H, (h) => penalty(b % half, h)));
    return {
      ...biased(s, bias, (i, j) => [`${plain(s.c)} + ${distances(i, j).map((d) => `table[bucket(${d}) = ${bucket(d)}]`).join(" + ")}`]),
      options: { num_buckets: s.buckets, max_distance: s.farthest }, parameters: () => ({ table: s.axes === 1 ? rows : [rows, rows] }),
    };
  },
};

encodings.sandwich = {
  knobs: [choice("width", "Width", 128, [16, 32, 64, 128, 256])],
  heads: true, reading: FADES,
  make: (s) => {
    const waves = range(s.width / 2, (k) => 10000 ** ((-2 * (k + 1)) / s.width)), slope = s.H / (8 * (s.h + 1));
    const decay = (d) => sum(waves.map((w) => Math.cos(d * w))) - s.width / 2;
    const write = (i, j) => [`${plain(s.c)} + ${plain(slope)} \u00b7 (${few(waves.map((w) => `cos(${num(i - j)}\u00b7${plain(w)})`))} \u2212 ${s.width / 2})`, `${plain(s.c)} + ${plain(slope)} \u00b7 ${num(decay(i - j))}`];
    return { ...biased(s, (i, j) => slope * decay(i - j), write), options: { width: s.width }, parameters: () => ({}) };
  },
};

// Where fields of view start, in eighths of a turn from the right against the clock, of the first and second group.
const STARTS = { 180: [[0, 4, 2, 6], [7, 1, 5, 3]], 90: [[2, 0, 4, 6], [1, 5, 3, 7]], 45: [[2, 5, 3, 0], [1, 6, 4, 7]] };
const GROUPS = { 4: [4, 0, 0], 8: [4, 0, 4], 12: [4, 4, 4], 16: [8, 4, 4] };

encodings.lookhere = {
  knobs: [choice("fov", "Field of view, degrees", 180, [180, 90, 45]), knob("slope", "Global slope", 1, 0, 4), choice("distance", "Distance", "linear", ["linear", "sqrt", "square"]), whole("layer", "Layer of 6", 1, 1, 6)],
  heads: true, reading: "Scores of two equal patches: a head sees what lies in its field of view, and near patches more than far ones. Patches outside are hidden.",
  make: (s) => {
    const [first, second, third] = GROUPS[s.H], directed = s.h < first + second, own = s.h < first ? s.h : s.h - first;
    const power = directed ? 1 + Math.floor(own / 4) : 2 * (1 + Math.floor((own - second) / Math.max(third / 4, 1)));
    const layerSlope = 1.5 + (0.5 - 1.5) * ((s.layer - 1) / 5), slope = s.slope * layerSlope * 2 ** -power;
    const start = directed && STARTS[s.fov][s.h < first ? 0 : 1][own % 4];
    const edge = (eighths) => [Math.cos, Math.sin].map((side) => Math.round(Math.SQRT2 * side((eighths * Math.PI) / 4)));
    const [from, to] = directed ? [edge(start), edge(start + s.fov / 45)] : [[0, 0], [0, 0]];
    const far = (i, j) => ({ linear: straight(i, j), sqrt: Math.sqrt(straight(i, j)), square: straight(i, j) ** 2 })[s.distance];
    const sees = (i, j) => { const up = i[0] - j[0], right = j[1] - i[1]; return from[0] * up - from[1] * right >= 0 && to[1] * right - to[0] * up >= 0; };
    return {
      ...biased(s, (i, j) => (sees(i, j) ? -slope * far(i, j) : -Infinity), (i, j) => [sees(i, j) ? `${plain(s.c)} \u2212 ${plain(s.slope)}\u00b7${plain(layerSlope)}\u00b7${plain(2 ** -power)} \u00b7 ${plain(far(i, j))}` : `outside the field of view`]),
      options: { fov: s.fov, global_slope: s.slope, distance: s.distance }, dims: { layer: s.layer - 1, depth: 6 }, parameters: () => ({}),
    };
  },
};

encodings.shaw = {
  knobs: [whole("farthest", "Largest distance", 16, 1, 64), knob("std", "Deviation of the table (0.02 at the start)", 0.3, 0.02, 1)],
  width: true, small: true, reading: "Scores of two equal tokens: a learned vector for each distance is added to the key, and all distances past the largest share one. The table is random.",
  make: (s) => {
    const draw = normals(8), key = matrix(2 * s.farthest + 1, s.K, () => s.std * draw()), row = (i, j) => clamp(j - i, -s.farthest, s.farthest) + s.farthest;
    const bias = (i, j) => (channel(s) * sum(key[row(i, j)])) / Math.sqrt(s.K);
    return {
      ...biased(s, bias, (i, j) => [`${plain(s.c)} + (q \u00b7 key_${row(i, j)}) / \u221a${s.K}`]),
      options: { max_distance: s.farthest, values: false }, parameters: () => ({ key }),
    };
  },
};

encodings.transformer_xl = {
  knobs: [BASE, knob("std", "Deviation of the projection (0.02 at the start)", 0.1, 0.02, 0.3)],
  width: true, small: true, reading: "Scores of two equal tokens: the query meets a projection of the sinusoids of the distance. The projection is random.",
  make: (s) => {
    const width = s.K * s.H, waves = powers(s.base, width), draw = normals(9), v = channel(s);
    const project = matrix(s.K, width, () => s.std * draw()), [content, place] = range(2, () => range(s.K, () => 0.02 * draw()));
    const met = range(width, (c) => sum(project.map((row, k) => row[c] * (v + place[k])))), prefers = (v * sum(content)) / Math.sqrt(s.K);
    const bias = (i, j) => sum(waves.map((w, t) => met[t] * Math.sin((i - j) * w) + met[t + width / 2] * Math.cos((i - j) * w))) / Math.sqrt(s.K);
    return {
      ...biased(s, (i, j) => prefers + bias(i, j), (i, j) => [`${plain(s.c)} + (content \u00b7 k) / \u221a${s.K} + (q + place) \u00b7 (W R_${i - j}) / \u221a${s.K}`, `${plain(s.c)} + ${num(prefers)} + ${num(bias(i, j))}`]),
      options: { base: s.base }, parameters: () => ({ "project.weight": project, content: [content], place: [place] }),
    };
  },
};

encodings.dape = {
  knobs: [knob("size", "Size of the network's weights (1 at the start)", 2, 0, 8)],
  heads: true, small: true, reading: "Scores of two equal tokens: a network changes the biases of alibi by the content and biases of all heads. Its weights are random.",
  make: (s) => {
    const draw = uniforms(10), weight = (inputs) => () => s.size * (2 * draw() - 1) / Math.sqrt(inputs), slopes = headSlopes(s.H);
    const first = matrix(32, 2 * s.H, weight(2 * s.H)), firstBias = range(32, weight(2 * s.H)), last = matrix(s.H, 32, weight(32)), lastBias = range(s.H, weight(32));
    const change = remember((d) => {
      const hidden = first.map((row, unit) => firstBias[unit] + sum(slopes.map((slope, h) => row[h] * s.c - row[s.H + h] * slope * d)));
      return lastBias[s.h] + dot(last[s.h], hidden.map((x) => (x > 0 ? x : 0.01 * x)));
    });
    const far = (i, j) => slopes[s.h] * Math.abs(i - j);
    return {
      ...biased(s, (i, j) => -far(i, j) + change(Math.abs(i - j)), (i, j) => [`${plain(s.c)} \u2212 ${plain(slopes[s.h])} \u00b7 ${Math.abs(i - j)} + f(A, B)`, `${plain(s.c)} \u2212 ${plain(far(i, j))} + ${num(change(Math.abs(i - j)))}`]),
      chain: ["alibi", "dape"], options: {}, parameters: () => ({ "net.0.weight": first, "net.0.bias": firstBias, "net.2.weight": last, "net.2.bias": lastBias }),
    };
  },
};

// Biases that tokens choose.
encodings.fox = {
  knobs: [knob("gate", "Gate of a word", 0.95, 0.01, 0.999, { step: 0.001 }), knob("stopGate", "Gate of a full stop", 0.5, 0.01, 0.999, { step: 0.001 })],
  content: true, reading: "Scores of two equal tokens: each token between key and query multiplies the weight by its gate. A full stop can close its gate, and what came before fades.",
  make: (s) => {
    const logs = sums(s.n, (i) => Math.log(isStop(i) ? s.stopGate : s.gate)), stops = sums(s.n, (i) => Number(isStop(i)));
    const write = (i, j) => [`${plain(s.c)} + ${i - j - stops(j + 1, i)}\u00b7log ${plain(s.gate)} + ${stops(j + 1, i)}\u00b7log ${plain(s.stopGate)}`];
    return {
      ...biased(s, (i, j) => logs(j + 1, i), write), options: {},
      parameters: () => ({ "gate.weight": [range(s.K * s.H, (c) => (c === 1 ? logit(s.stopGate) - logit(s.gate) : 0))], "gate.bias": [logit(s.gate)] }),
    };
  },
};

encodings.grape_a = {
  knobs: [choice("by", "Read by", "key", ["key", "query", "both"]), knob("rate", "Learned factor of slopes (1 at the start)", 1, 0.05, 4), knob("along", "Cosine of content and gate", 0, -1, 1)],
  heads: true, width: true, reading: `${FADES} Content along the gate makes the slope steeper.`,
  make: (s) => {
    const v = channel(s), chosen = softplus(s.along * v) * (s.by === "both" ? 2 : 1), slope = headSlopes(s.H)[s.h] * s.rate * chosen;
    const gate = range(s.K, (c) => s.along + Math.sqrt(1 - s.along ** 2) * (c % 2 ? -1 : 1));
    return {
      ...biased(s, (i, j) => -slope * Math.abs(i - j), (i, j) => [`${plain(s.c)} \u2212 ${Math.abs(i - j)} \u00b7 ${plain(headSlopes(s.H)[s.h])} \u00b7 ${plain(s.rate)} \u00b7 ${s.by === "both" ? "2\u00b7" : ""}softplus(${plain(s.along * v)})`, `${plain(s.c)} \u2212 ${Math.abs(i - j)} \u00b7 ${plain(slope)}`]),
      options: { by: s.by }, parameters: () => ({ rate: [inverseSoftplus(s.rate)], gate: [gate], ...(s.by === "both" ? { query_gate: [gate] } : {}) }),
    };
  },
};

encodings.grape_ap = {
  knobs: [knob("size", "Path of a word", 1, -4, 4), knob("stopSize", "Path of a full stop", 4, -4, 4)],
  heads: true, content: true, reading: "Scores of two equal tokens: every token between key and query adds a penalty, which depends on the query and on its own state. Keys' paths rotate by one radian per token, so scores depend on both positions.",
  make: (s) => {
    const path = (i) => (isStop(i) ? s.stopSize : s.size), unit = (i) => path(i) / Math.sqrt(path(i) ** 2 + 1e-6), slope = headSlopes(s.H)[s.h];
    const byQuery = remember((kind) => sums(s.n, (l) => -softplus(-(kind === "stop" ? s.stopSize : s.size) * unit(l) * Math.cos(l))));
    const total = (i, j) => byQuery(isStop(i) ? "stop" : "word")(j + 1, i);
    const write = (i, j) => [`${plain(s.c)} + ${plain(slope)} \u00b7 (${few(range(i - j, (k) => j + 1 + k).map((l) => `log \u03c3(${num(path(i))}\u00b7${num(unit(l))}\u00b7cos ${l})`)) || 0})`, `${plain(s.c)} + ${plain(slope)} \u00b7 ${num(total(i, j))}`];
    return {
      ...biased(s, (i, j) => slope * total(i, j), write), options: {},
      parameters: () => ({ "path.weight": [range(s.K * s.H, (c) => (c === 0 ? s.size : c === 1 ? s.stopSize - s.size : 0))] }),
    };
  },
};

encodings.pape = {
  knobs: [choice("form", "Form", "parabolas", ["parabolas", "rotation invariant"]), knob("a", "Curvature a", 0.1, 0.01, 2), knob("b", "Slope b", 0.2, -2, 2)],
  content: true, width: true, reading: "Scores of two equal tokens: the query chooses a parabola of the offset along each axis. Its curvature keeps attention near, its slope prefers one direction.",
  make: (s) => {
    const isInvariant = s.form !== "parabolas", b = isInvariant ? 0 : s.b, width = s.K * s.H, root = Math.sqrt(s.K);
    const bend = (i, j) => sum(offset(i, j).map((d) => d * d)), lean = (i, j) => sum(offset(i, j)), first = (value) => [range(width, (c) => (c === 0 ? value : 0))];
    const bias = (i, j) => (-s.a * bend(i, j) + b * lean(i, j)) / root;
    const a = { "a.weight": first(inverseSoftplus(s.a)) };
    return {
      ...biased(s, bias, (i, j) => [`${plain(s.c)} + (${plain(-s.a)}\u00b7${plain(bend(i, j))} + ${num(b)}\u00b7${num(lean(i, j))}) / \u221a${s.K}`]),
      options: isInvariant ? { rotation_invariant: true } : { parabolas: s.axes },
      parameters: () => (isInvariant ? { ...a, scale: [1] } : { ...a, "b.weight": first(s.b), "position.weight": matrix(s.axes, s.axes, (r, c) => Number(r === c)) }),
    };
  },
};

encodings.relative_projection = {
  knobs: [whole("reach", "Reach", 16, 1, 64), knob("decay", "Penalty of the farthest distance", 4, -8, 8)],
  content: true, width: true, reading: "Scores of two equal tokens: the query mixes learned profiles of the distance, and keys out of reach get nothing. Here one profile is set by hand to fall in a straight line.",
  make: (s) => {
    const profile = range(s.reach, (d) => (-s.decay * d) / s.reach), bias = (i, j) => profile[i - j] ?? 0;
    return {
      ...biased(s, bias, (i, j) => [`${plain(s.c)} + profile(${i - j})`]),
      options: { reach: s.reach, width: 1 },
      parameters: () => ({ "query.weight": [range(s.K * s.H, (c) => Number(c === 0))], profiles: [profile] }),
    };
  },
};
