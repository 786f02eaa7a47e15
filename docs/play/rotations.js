// Encodings that rotate queries and keys: of equal tokens, each pair of channels keeps the cosine of its angle.

// Scores c / (K/2) (sum of weight cos(angle) + pairs that do not rotate).
const turning = (s, { count, angle, weight, weights = "", still = 0, term, factor = 1 }) => {
  const pairs = s.K / 2, terms = (i, j) => range(count, (t) => (weight ? weight(t, i, j) : 1) * Math.cos(angle(t, i, j)));
  const score = (i, j) => (s.c * (factor * sum(terms(i, j)) + still)) / pairs;
  const rest = still ? ` + ${plain(still)}` : "", inner = (text) => (factor === 1 ? text : `${plain(factor)} \u00b7 (${text})`);
  const total = (i, j) => (factor === 1 && !rest ? num(sum(terms(i, j))) : `(${inner(plain(sum(terms(i, j))))}${rest})`);
  const write = term ?? ((t, i, j) => `${weight ? `${num(weight(t, i, j))}\u00b7` : ""}cos(${plain(angle(t, i, j))})`);
  return {
    score,
    explain: (i, j) => [
      `${plain(s.c)} \u00b7 1/${plain(pairs)} \u00b7 (${inner(few(range(count, (t) => write(t, i, j))))}${rest})`,
      `${plain(s.c)} \u00b7 1/${plain(pairs)} \u00b7 ${total(i, j)}`,
    ],
  };
};
const powers = (base, width, count = width / 2) => range(count, (t) => base ** ((-2 * t) / width));
const BASE = knob("base", "Base", 10000, 2, 1e6, { log: true });
const SHARES = "Scores of two equal tokens: pairs of channels that have rotated against each other by a quarter of a turn add nothing, by half a turn they subtract.";

// Rules that scale the frequencies of RoPE for texts `f` times as long as in training (L).
const stretchWaves = (rule, waves, { f, L, n, base, width, fraction = 0.5 }) => {
  const slow = (steps, by) => by ** ((-2 * steps) / (width > 2 ? width - 2 : 1));
  if (rule === "linear") return waves.map((w) => w / f);
  if (rule === "ntk") return waves.map((w, t) => w * slow(t, f));
  if (rule === "dynamic") return waves.map((w, t) => w * slow(t, f * Math.max(n / L, 1) - (f - 1)));
  if (rule === "proportional") return waves.map((w, t) => (t < Math.floor((fraction * width) / 2) ? w : 0));
  if (rule === "clipped") {
    const exact = (20 * width) / 128, count = exact % 1 === 0.5 ? 2 * Math.round(exact / 2) : Math.round(exact); // half to even
    const first = waves.length - count;
    return waves.map((w, t) => (t < first || count < 2 ? w : (w * (1 + Math.cos((Math.PI * (t - first)) / (count - 1)))) / 2));
  }
  const mixed = (w, kept) => kept * w + ((1 - kept) * w) / f;
  if (rule === "llama3") return waves.map((w) => mixed(w, clamp(((L * w) / TURN - 1) / 3, 0, 1)));
  if (rule === "yarn") {
    const find = (rotations) => (width * Math.log(L / (TURN * rotations))) / Math.max(2 * Math.log(base), 1e-9);
    const first = Math.min(Math.max(Math.floor(find(32)), 0), width - 1), last = Math.min(Math.max(Math.ceil(find(1)), 0), width - 1);
    return waves.map((w, t) => mixed(w, 1 - clamp((t - first) / (last !== first ? last - first : 0.001), 0, 1)));
  }
  return waves;
};
const sharpen = (rule, f) => (rule === "yarn" ? 0.1 * Math.log(f) + 1 : 1);

encodings.rope = {
  knobs: [
    BASE, choice("rotary", "Fraction of channels that rotate", 1, [0.25, 0.5, 1]),
    choice("rule", "Rule for longer texts", "none", ["none", "linear", "ntk", "yarn", "llama3", "dynamic", "proportional", "clipped"]),
    choice("f", "Factor of the rule", 4, [1, 2, 4, 8]),
  ],
  width: true, reading: SHARES,
  make: (s) => {
    const width = s.rotary * s.K, plainWaves = powers(s.base, width), a = sharpen(s.rule, s.f);
    const waves = stretchWaves(s.rule, plainWaves, { f: s.f, L: s.L, n: s.n, base: s.base, width });
    const scaling = { none: null, proportional: { rule: s.rule, fraction: 0.5 }, clipped: { rule: s.rule } }[s.rule];
    const given = scaling === undefined ? { rule: s.rule, factor: s.f, ...(s.rule === "linear" || s.rule === "ntk" ? {} : { original: s.L }) } : scaling;
    if (s.rule === "dynamic") given.length = s.n;
    return {
      ...turning(s, {
        count: width / 2, angle: (t, i, j) => (i - j) * waves[t], term: (t, i, j) => `cos(${num(i - j)}\u00b7${plain(waves[t])})`,
        still: (s.K - width) / 2, factor: a * a,
      }),
      waves, options: { base: s.base, rotary_fraction: s.rotary, scaling: given }, parameters: () => ({}),
    };
  },
};

// Groups of pairs of nearly equal size, one for each axis: [[axis, number within the group], ..].
const groups = (pairs, axes) => range(axes, (axis) => range(Math.floor(pairs / axes) + (axis < pairs % axes ? 1 : 0), (k) => [axis, k])).flat();
const AXIAL = "Scores of two equal patches: a group of pairs rotates with the column, the other with the row.";

encodings.rope_axial = {
  knobs: [
    knob("base", "Base", 100, 2, 1e4, { log: true }),
    choice("rule", "Rule for larger grids", "none", ["none", "linear", "ntk", "yarn"]),
    choice("f", "Factor of the rule", 2, [1, 2, 4]),
  ],
  width: true, reading: AXIAL,
  make: (s) => {
    const width = s.K / 2, members = groups(s.K / 2, 2), a = sharpen(s.rule, s.f);
    const waves = stretchWaves(s.rule, powers(s.base, width), { f: s.f, L: s.L, n: s.n, base: s.base, width });
    const turn = (t, i, j) => offset(i, j)[1 - members[t][0]];
    return {
      ...turning(s, {
        count: s.K / 2, angle: (t, i, j) => turn(t, i, j) * waves[members[t][1]], factor: a * a,
        term: (t, i, j) => `cos(${num(turn(t, i, j))}\u00b7${plain(waves[members[t][1]])})`,
      }),
      options: { base: s.base, ...(s.rule === "none" ? {} : { scaling: { rule: s.rule, factor: s.f, original: s.L } }) }, parameters: () => ({}),
    };
  },
};

encodings.mrope = {
  knobs: [
    BASE, choice("layout", "Layout", "interleaved", ["interleaved", "blocks"]),
    choice("share", "Pairs of each side", 2, [0, 1, 2]),
  ],
  width: true, reading: "Scores of two equal patches of one picture: some pairs rotate with the row, as many with the column, and the others with the time, which does not pass here.",
  make: (s) => {
    const pairs = s.K / 2, waves = powers(s.base, s.K), sections = [pairs - 2 * s.share, s.share, s.share];
    const axis = (t) => (s.layout === "blocks" ? (t < sections[0] ? 0 : t < sections[0] + s.share ? 1 : 2) : t < 3 * s.share ? t % 3 : 0);
    const turn = (t, i, j) => (axis(t) ? offset(i, j)[axis(t) - 1] : 0);
    return {
      ...turning(s, { count: pairs, angle: (t, i, j) => turn(t, i, j) * waves[t], term: (t, i, j) => `cos(${num(turn(t, i, j))}\u00b7${plain(waves[t])})` }),
      options: { base: s.base, layout: s.layout, sections }, parameters: () => ({}),
    };
  },
};

encodings.rope_mixed = {
  knobs: [
    { ...BASE, axes: 1 }, knob("gridBase", "Base", 10, 2, 1e3, { log: true, axes: 2 }),
    knob("direction", "Direction of the first group, degrees", 30, 0, 360, { step: 1, axes: 2 }),
    choice("coordinates", "Coordinates", "index", ["index", "interpolated"]),
  ],
  width: true, reading: "Scores of two equal patches: each pair of channels has a wave vector, which points along the first group's direction or at a right angle to it.",
  make: (s) => {
    const members = groups(s.K / 2, s.axes), angle = (s.direction / 360) * TURN, base = s.axes === 1 ? s.base : s.gridBase;
    const frame = s.axes === 1 ? [[1]] : [[Math.cos(angle), -Math.sin(angle)], [Math.sin(angle), Math.cos(angle)]];
    const vectors = members.map(([axis, k]) => frame.map((row) => row[axis] * base ** ((-2 * s.axes * k) / s.K)));
    const place = (i) => coordinates(s, s.coordinates, i);
    const phase = (t, i, j) => dot(offset(place(i), place(j)), vectors[t]);
    return {
      ...turning(s, { count: s.K / 2, angle: phase }),
      options: { coordinates: s.coordinates },
      parameters: () => ({ frequencies: range(s.axes, (axis) => [vectors.map((w) => w[axis])]) }),
    };
  },
};

encodings.xpos = {
  knobs: [BASE, knob("gamma", "Gamma", 0.4, 0.05, 2), whole("span", "Span", 512, 16, 2048)],
  width: true, reading: `${SHARES} Every pair also fades with distance, fast pairs first.`,
  make: (s) => {
    const waves = powers(s.base, s.K), zeta = range(s.K / 2, (t) => ((2 * t) / s.K + s.gamma) / (1 + s.gamma));
    const weight = (t, i, j) => zeta[t] ** ((i - j) / s.span);
    return {
      ...turning(s, {
        count: s.K / 2, angle: (t, i, j) => (i - j) * waves[t], weight,
        term: (t, i, j) => `${plain(zeta[t])}^(${plain(i - j)}/${s.span})\u00b7cos(${num(i - j)}\u00b7${plain(waves[t])})`,
      }),
      options: { base: s.base, gamma: s.gamma, span: s.span }, parameters: () => ({}),
    };
  },
};

encodings.fope = {
  knobs: [BASE, knob("gain", "Gain of the noise", 0.3, 0, 1)],
  width: true, reading: "Scores of two equal tokens: waves longer than the training length are left out, and each pair has a little of all others. Scores depend on both positions.",
  make: (s) => {
    const waves = powers(s.base, s.K).filter((w) => w >= TURN / s.L), count = Math.max(waves.length, 1), draw = normals(3);
    const columns = Math.min(count, Math.max(Math.floor(s.K / 4), 1)), std = s.gain * Math.sqrt(2 / (count + columns));
    const [cosine, sine] = range(2, () => matrix(count, columns, (wave, column) => Number(wave === Math.floor((column * count) / columns)) + std * draw()));
    const used = waves.length ? waves : [1];
    const sides = remember((p) => [[cosine, Math.cos], [sine, Math.sin]].map(([table, side]) => range(columns, (column) => sum(used.map((w, wave) => side(p * w) * table[wave][column])))));
    const products = (i, j) => { const [a, b] = [sides(i), sides(j)]; return dot(a[0], b[0]) + dot(a[1], b[1]); };
    const still = s.K / 2 - columns;
    return {
      score: (i, j) => (s.c * (products(i, j) + still)) / (s.K / 2),
      explain: (i, j) => [
        `${plain(s.c)} \u00b7 1/${s.K / 2} \u00b7 (${few(range(columns, (t) => `${num(sides(i)[0][t])}\u00b7${num(sides(j)[0][t])} + ${num(sides(i)[1][t])}\u00b7${num(sides(j)[1][t])}`))} + ${still})`,
        `${plain(s.c)} \u00b7 1/${s.K / 2} \u00b7 (${num(products(i, j))} + ${still})`,
      ],
      options: { base: s.base, gain: s.gain }, parameters: () => ({ cosine: [cosine], sine: [sine] }),
    };
  },
};

encodings.pope = {
  knobs: [BASE, knob("phase", "Phase of all channels, radians", 0, -6.28, 0)],
  width: true, reading: "Scores of two equal tokens: lengths of channels are softplus of content, so they never change sign, and every channel has a frequency.",
  make: (s) => {
    const waves = range(s.K, (t) => s.base ** (-t / s.K)), length = softplus(channel(s)) ** 2;
    const terms = (i, j) => waves.map((w) => Math.cos((j - i) * w + s.phase));
    return {
      score: (i, j) => (length * sum(terms(i, j))) / Math.sqrt(s.K),
      explain: (i, j) => [
        `softplus(${plain(channel(s))})\u00b2 \u00b7 (${few(waves.map((w) => `cos(${num(j - i)}\u00b7${plain(w)}${s.phase ? ` \u2212 ${plain(-s.phase)}` : ""})`))}) / \u221a${s.K}`,
        `${plain(length)} \u00b7 ${num(sum(terms(i, j)))} / \u221a${s.K}`,
      ],
      options: { base: s.base }, parameters: () => ({ phase: [s.phase] }),
    };
  },
};

encodings.grape_m = {
  knobs: [BASE, knob("pace", "Learned factor of all frequencies", 1, 0.1, 4, { log: true })],
  width: true, reading: `${SHARES} The frequencies are learned; here one factor stands for what training did to them.`,
  make: (s) => {
    const waves = powers(s.base, s.K).map((w) => s.pace * w);
    return {
      ...turning(s, { count: s.K / 2, angle: (t, i, j) => (i - j) * waves[t], term: (t, i, j) => `cos(${num(i - j)}\u00b7${plain(waves[t])})` }),
      options: { base: s.base }, parameters: () => ({ log_frequencies: waves.map((w) => 16 * Math.log(w)) }),
    };
  },
};

// Rotations by blocks exp(t S): of equal channels u, u.exp(t S) u is a sum of squares times cosines.
const planes = (skew) => {
  const { values, vectors } = eigen(multiply(skew.map((_, c) => skew.map((row) => row[c])), skew));
  return range(values.length, (k) => ({ frequency: Math.sqrt(Math.max(values[k], 0)), share: sum(vectors[k]) ** 2 }));
};
const blockTurns = (s, blocks, time) => {
  const found = blocks.map(planes), u = channel(s) ** 2 / Math.sqrt(s.K);
  const rest = s.K - sum(blocks.map((one) => one.length));
  const terms = (i, j) => found.map((block, b) => sum(block.map(({ frequency, share }) => share * Math.cos(time(b, i, j) * frequency))));
  return {
    score: (i, j) => u * (sum(terms(i, j)) + rest),
    explain: (i, j) => [
      `${plain(u)} \u00b7 (${few(found.map((block, b) => block.filter((one) => one.share > 1e-9).map(({ frequency, share }) => `${plain(share)}\u00b7cos(${num(time(b, i, j))}\u00b7${plain(frequency)})`)).flat())}${rest ? ` + ${rest}` : ""})`,
      `${plain(u)} \u00b7 ${num(sum(terms(i, j)) + rest)}`,
    ],
  };
};
const BLOCK = choice("block", "Block, channels", 8, [2, 4, 8, 16, 32]);
const FRACTION = choice("coordinates", "Coordinates", "fraction", ["fraction", "index"]);
const STD = knob("std", "Deviation of the generators", 1, 0.1, 4);
const COMMUTING = "Scores of two equal tokens: a block of channels rotates in planes that its generator chooses, and all rotations of a block commute. Generators are random.";
const drawBlocks = (s, std, seed) => {
  const draw = normals(seed), generators = range(s.K / s.block, () => matrix(s.block, s.block, () => std * draw()));
  return { generators, skews: generators.map((g) => g.map((row, r) => row.map((one, c) => one - g[c][r]))) };
};

encodings.comrope_ap = {
  // On grids a block belongs to one axis.
  knobs: [choice("block", "Block, channels", 8, [2, 4, 8]), STD, FRACTION], width: true, reading: `${COMMUTING} Each block belongs to one axis.`,
  make: (s) => {
    const { generators, skews } = drawBlocks(s, s.std, 4), place = (i) => coordinates(s, s.coordinates, i);
    return {
      ...blockTurns(s, skews, (b, i, j) => offset(place(i), place(j))[b % s.axes]),
      options: { block: s.block, std: s.std, coordinates: s.coordinates }, parameters: () => ({ generators: [generators] }),
    };
  },
};

encodings.comrope_ld = {
  knobs: [choice("block", "Block, channels", 8, [2, 4, 8, 16]), STD, FRACTION], width: true, reading: `${COMMUTING} Every block rotates with all axes, by a scale for each.`,
  make: (s) => {
    const { generators, skews } = drawBlocks(s, s.std, 4), place = (i) => coordinates(s, s.coordinates, i), draw = normals(5);
    const scales = matrix(s.axes, skews.length, () => draw());
    return {
      ...blockTurns(s, skews, (b, i, j) => dot(offset(place(i), place(j)), scales.map((row) => row[b]))),
      options: { block: s.block, std: s.std, coordinates: s.coordinates }, parameters: () => ({ generators: [generators], scales: scales.map((row) => [row]) }),
    };
  },
};

encodings.liere = {
  knobs: [choice("block", "Block, channels", 8, [2, 4, 8, 16]), knob("init_std", "Largest initial generator", 6.28, 0.1, 6.28), choice("coordinates", "Coordinates", "growing", ["growing", "index"])],
  width: true, reading: "Scores of two equal tokens: generators of rows and columns do not commute, so on a grid scores depend on both positions. Move the query and compare. Generators are random.",
  make: (s) => {
    const draw = uniforms(6), blocks = Math.floor(s.K / s.block), size = (s.block * (s.block - 1)) / 2;
    const generators = range(s.axes, () => range(blocks, () => range(size, () => s.init_std * draw())));
    const skews = generators.map((axis) => axis.map((values) => fromUpperTriangle(values, s.block)));
    const place = (i) => coordinates(s, s.coordinates, i);
    const shared = { options: { block: s.block, init_std: s.init_std, coordinates: s.coordinates }, parameters: () => ({ generators: generators.map((axis) => [axis]) }) };
    if (s.axes === 1) return { ...blockTurns(s, skews[0], (b, i, j) => offset(place(i), place(j))[0]), ...shared };

    // exp(p_row A_row + p_column A_column) of each block, times a vector of ones.
    const rotated = remember((i) => range(blocks, (b) => {
      const p = place(i), generator = skews[0][b].map((row, r) => row.map((x, c) => p[0] * x + p[1] * skews[1][b][r][c]));
      return exponential(generator).map(sum);
    }));
    const terms = (i, j) => rotated(i).map((block, b) => dot(block, rotated(j)[b])), u = channel(s) ** 2 / Math.sqrt(s.K);
    return {
      score: (i, j) => u * sum(terms(i, j)),
      explain: (i, j) => [`${plain(u)} \u00b7 \u03a3 over blocks of (exp(${few(place(i).map((p, a) => `${plain(p)} A_${a + 1}`))}) 1) \u00b7 (exp(${few(place(j).map((p, a) => `${plain(p)} A_${a + 1}`))}) 1)`,
        `${plain(u)} \u00b7 (${few(terms(i, j).map(num))})`, `${plain(u)} \u00b7 ${num(sum(terms(i, j)))}`],
      ...shared,
    };
  },
};

encodings.string = {
  knobs: [{ ...BASE, axes: 1 }, knob("gridBase", "Base", 100, 2, 1e4, { log: true, axes: 2 }), knob("std", "Deviation of the basis (0 at the start)", 0, 0, 0.3)],
  width: true, small: true, reading: `${SHARES} A learned basis decides which mixtures of channels rotate; at the start it is that of RoPE along the axes.`,
  make: (s) => {
    const members = groups(s.K / 2, s.axes), base = s.axes === 1 ? s.base : s.gridBase, draw = normals(7);
    const waves = members.map(([, k]) => base ** ((-2 * s.axes * k) / s.K));
    const upper = range((s.K * (s.K - 1)) / 2, () => s.std * draw()), skew = fromUpperTriangle(upper, s.K);
    // Q 1 = (I - S) (I + S)^-1 1
    const y = s.std ? solve(skew.map((row, r) => row.map((x, c) => x + Number(r === c))), Array(s.K).fill(1)) : Array(s.K).fill(1);
    const mixed = s.std ? y.map((one, r) => one - dot(skew[r], y)) : y;
    const weight = (t) => (mixed[2 * t] ** 2 + mixed[2 * t + 1] ** 2) / 2;
    return {
      ...turning(s, { count: s.K / 2, angle: (t, i, j) => offset(i, j)[members[t][0]] * waves[t], weight }),
      options: {}, parameters: () => ({ frequencies: range(s.axes, (axis) => [members.map(([own], t) => (own === axis ? waves[t] : 0))]), skew: [upper] }),
    };
  },
};

// Rotations whose pace tokens choose: sums over the tokens between key and query.
const PACED = "Scores of two equal tokens: the text between them decides how far they are apart. Full stops may count for more, or for less.";

encodings.carope = {
  knobs: [BASE, knob("stopBase", "Base that full stops choose", 10000, 2, 1e6, { log: true })],
  width: true, content: true, reading: PACED,
  make: (s) => {
    const [f, g] = [s.base, s.stopBase].map((base) => base ** (-2 / s.K)), between = sums(s.n, (i) => Number(isStop(i)));
    const angle = (t, i, j) => { const stops = between(j + 1, i); return (i - j - stops) * f ** t + stops * g ** t; };
    const need = (pace) => inverseSoftplus(1 / pace - 1);
    return {
      ...turning(s, { count: s.K / 2, angle }),
      options: { base: s.base },
      parameters: () => ({ "frequency.weight": [range(s.K * s.H, (c) => (c === 1 ? need(g) - need(f) : 0))], "frequency.bias": [need(f)] }),
    };
  },
};

encodings.grape_m_contextual = {
  knobs: [BASE, knob("pace", "Pace of a word", 0.394, 0.01, 0.99), knob("stopPace", "Pace of a full stop", 0.394, 0.01, 0.99)],
  width: true, content: true, reading: PACED,
  make: (s) => {
    const waves = powers(s.base, s.K), counted = sums(s.n, (i) => (isStop(i) ? s.stopPace : s.pace));
    const need = (pace) => 16 * logit(pace);
    return {
      ...turning(s, { count: s.K / 2, angle: (t, i, j) => counted(j, i - 1) * waves[t], term: (t, i, j) => `cos(${plain(counted(j, i - 1))}\u00b7${plain(waves[t])})` }),
      options: { base: s.base },
      parameters: () => ({ log_frequencies: waves.map(Math.log), "pace.weight": [range(s.K * s.H, (c) => (c === 1 ? need(s.stopPace) - need(s.pace) : 0))], "pace.bias": [need(s.pace)] }),
    };
  },
};

encodings.selective_rope = {
  knobs: [knob("base", "Base", 500000, 2, 1e6, { log: true }), knob("angle", "Angle of a word", 1, -3.14, 3.14), knob("stopAngle", "Angle of a full stop", 1, -3.14, 3.14)],
  width: true, content: true, reading: PACED,
  make: (s) => {
    const waves = powers(s.base, s.K), turned = sums(s.n, (i) => (isStop(i) ? s.stopAngle : s.angle));
    const channels = (s.K * s.H) / 2, one = (c) => range(s.K * s.H, (k) => Number(k === c));
    return {
      ...turning(s, { count: s.K / 2, angle: (t, i, j) => turned(j + 1, i) * waves[t], term: (t, i, j) => `cos(${num(turned(j + 1, i))}\u00b7${plain(waves[t])})` }),
      options: { base: s.base, rank: 2, width: 1 },
      // States are normalized: those of words are (1, 0), those of full stops (1, 1) / sqrt(2).
      parameters: () => ({ "into.weight": [one(0), one(1)], "out.weight": matrix(channels, 2, (r, c) => (c ? Math.SQRT2 * s.stopAngle - s.angle : s.angle)), kernel: [[1]] }),
    };
  },
};

encodings.tape = {
  knobs: [BASE],
  width: true, reading: `${SHARES} These are scores of the first layer, where frames are those of RoPE. Each later layer mixes frames by attention weights, which starts at zero.`,
  make: (s) => {
    const waves = powers(s.base, s.K);
    return {
      ...turning(s, { count: s.K / 2, angle: (t, i, j) => (i - j) * waves[t], term: (t, i, j) => `cos(${num(i - j)}\u00b7${plain(waves[t])})` }),
      options: { base: s.base }, parameters: () => ({}),
    };
  },
};

encodings.path = {
  knobs: [
    knob("beta", "Strength \u03b2 of a word", 0.1, 0, 2), knob("stopBeta", "Strength \u03b2 of a full stop", 1, 0, 2),
    knob("share", "Share of the content along w", 0.5, 0, 1),
  ],
  content: true, width: true, reading: "Scores of two equal tokens: each token between them removes, at \u03b2 = 1, or reflects, at \u03b2 = 2, a direction of the key. All tokens have the same direction w here.",
  make: (s) => {
    // Products over a long text underflow, so they are made from the query back to the key.
    const count = (value) => sums(s.n, (i) => Number(isStop(i) === value)), [words, stops] = [count(false), count(true)];
    const left = (i, j) => (1 - s.beta) ** words(j + 1, i) * (1 - s.stopBeta) ** stops(j + 1, i);
    const need = (beta) => logit(clamp(beta / 2, 1e-9, 1 - 1e-9));
    const w = range(s.K, (c) => Math.sqrt(s.share) + Math.sqrt(1 - s.share) * (c % 2 ? -1 : 1));
    return {
      score: (i, j) => s.c * (1 - s.share * (1 - left(i, j))),
      explain: (i, j) => [
        `${plain(s.c)} \u00b7 (1 \u2212 ${plain(s.share)} \u00b7 (1 \u2212 (1 \u2212 ${plain(s.beta)})^${words(j + 1, i)} \u00b7 (1 \u2212 ${plain(s.stopBeta)})^${stops(j + 1, i)}))`,
        `${plain(s.c)} \u00b7 (1 \u2212 ${plain(s.share)} \u00b7 (1 \u2212 ${num(left(i, j))}))`,
      ],
      options: { rank: 1, convolution: 1 },
      parameters: () => ({
        "direction.0.weight": [range(s.K * s.H, (c) => Number(c === 0))], "direction.1.weight": w.map((one) => [one]),
        "strength.weight": [range(s.K * s.H, (c) => (c === 1 ? need(s.stopBeta) - need(s.beta) : 0))], "strength.bias": [need(s.beta)],
      }),
    };
  },
};

encodings.repo = {
  knobs: [BASE, knob("place", "Position of a word", 3, -20, 20), knob("stopPlace", "Position of a full stop", 0, -20, 20)],
  width: true, content: true, reading: "Scores of two equal tokens: each token chooses a real number as its position, here one for words and one for full stops. Tokens that choose the same are near, however far apart in the text.",
  make: (s) => {
    const waves = powers(s.base, s.K), width = s.K * s.H, place = (i) => (isStop(i) ? s.stopPlace : s.place), silu = sigmoid(1);
    const row = (values) => matrix(width / 8, width, (r, c) => (r === 0 ? (values[c] ?? 0) : 0));
    return {
      ...turning(s, { count: s.K / 2, angle: (t, i, j) => (place(i) - place(j)) * waves[t], term: (t, i, j) => `cos(${num(place(i) - place(j))}\u00b7${plain(waves[t])})` }),
      options: { base: s.base, first_layer: 0 },
      parameters: () => ({ "gate.weight": row([1]), "content.weight": row([s.place / silu, (s.stopPlace - s.place) / silu]), "position.weight": [range(width / 8, (c) => Number(c === 0))] }),
    };
  },
};
