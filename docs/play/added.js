// Encodings that add a vector to the input: scores of these vectors alone, in one head as wide as the model.
const product = (s, lines, value) => ({ score: value, explain: (i, j) => [...lines(i, j), `${plain(value(i, j) * Math.sqrt(s.K * s.H))} / \u221a${s.K * s.H}`] });
const ADDED = "Product of the vectors that are added at two positions, divided by the root of the model dim. Nothing else enters: without the vectors it is 0.";

encodings.none = {
  reading: "Every pair of equal tokens has the same score: only a causal mask tells positions apart.",
  make: (s) => ({ score: () => s.c, explain: () => [`q \u00b7 k / \u221a${s.K}`, plain(s.c)], options: {}, parameters: () => ({}) }),
};

encodings.sinusoidal = {
  knobs: [knob("base", "Base", 10000, 2, 1e6, { log: true })],
  added: true, width: true, reading: ADDED,
  make: (s) => {
    const width = (s.K * s.H) / s.axes, waves = range(width / 2, (t) => s.base ** ((-2 * t) / width));
    const value = (i, j) => sum(offset(i, j).map((d) => sum(waves.map((w) => Math.cos(d * w))))) / Math.sqrt(s.K * s.H);
    const lines = (i, j) => [`(${offset(i, j).map((d) => few(waves.map((w) => `cos(${num(d)}\u00b7${plain(w)})`))).join(" + ")}) / \u221a${s.K * s.H}`];
    return { ...product(s, lines, value), options: { base: s.base }, parameters: () => ({}) };
  },
};

encodings.cape = {
  knobs: [knob("stretch", "A draw of the scale (1 in evaluation)", 1, 0.7, 1.4)],
  added: true, width: true, reading: `${ADDED} In training, positions are shifted and stretched at random.`,
  make: (s) => {
    const half = (s.K * s.H) / 2;
    const vectors = s.axes === 1
      ? range(half, (t) => [10000 ** (-t / half)])
      : range(half, (k) => { const size = Math.PI * 10 ** (k / Math.max(half - 1, 1)); return [size * Math.cos(k), size * Math.sin(k)]; });
    const place = (i) => coordinates(s, s.axes === 1 ? "index" : "symmetric", i).map((p) => p * s.stretch);
    const angle = (i, j, w) => dot(offset(place(i), place(j)), w);
    const value = (i, j) => sum(vectors.map((w) => Math.cos(angle(i, j, w)))) / Math.sqrt(s.K * s.H);
    const lines = (i, j) => [`(${few(vectors.map((w) => `cos(${plain(angle(i, j, w))})`))}) / \u221a${s.K * s.H}`];
    return { ...product(s, lines, value), options: {}, parameters: () => ({}), place: (i) => place(i) };
  },
};

// A table of normal numbers, each row a mean of `alike` neighbours along each axis, as training makes it.
const drawTable = (s, rows, width, std, alike) => {
  const draw = normals(1), drawn = matrix(rows, width, () => std * draw());
  if (alike === 1) return drawn;
  const side = s.axes === 1 ? rows : Math.round(Math.sqrt(rows)), half = (alike - 1) / 2;
  return range(rows, (row) => {
    const near = range(rows).filter((other) => s.axes === 1 ? Math.abs(other - row) <= half
      : Math.abs(Math.floor(other / side) - Math.floor(row / side)) <= half && Math.abs((other % side) - (row % side)) <= half);
    return range(width, (c) => sum(near.map((other) => drawn[other][c])) / Math.sqrt(near.length));
  });
};
const TABLE = [
  knob("std", "Deviation of the table (0.02 at the start)", 0.5, 0.02, 1),
  choice("alike", "Neighbours that a row resembles (1 at the start)", 5, [1, 3, 5, 9]),
];
const STRETCH = choice("stretch", "Resample the table to a text as many times longer", 1, [1, 2, 4, 8], { axes: 1 });
// Rows of a table at a position, bicubically; undefined past its end.
const readRow = (s, table, size, stretch, i) => {
  const p = each(i);
  if (s.axes === 1) {
    if (p[0] >= Math.round(size * stretch)) return undefined;
    return cubicNeighbours((p[0] + 0.5) / stretch - 0.5, size).map(([weight, row]) => [weight, table[row]]);
  }
  const [rows, columns] = p.map((one) => cubicNeighbours((one + 0.5) * (size / s.n) - 0.5, size));
  return rows.flatMap(([v, r]) => columns.map(([w, c]) => [v * w, table[r * size + c]]));
};
const blend = (parts) => parts[0][1].map((_, c) => sum(parts.map(([weight, row]) => weight * row[c])));

encodings.learned = {
  knobs: [...TABLE, STRETCH],
  added: true, small: true, reading: `${ADDED} The table is set by hand: at the start its rows are unrelated, and training makes neighbours similar. A text has no rows past the training length.`,
  make: (s) => {
    const width = s.K * s.H, table = drawTable(s, s.L ** s.axes, width, s.std, s.alike);
    const row = remember((i) => { const parts = readRow(s, table, s.L, s.stretch, i); return parts && blend(parts); });
    const value = (i, j) => (row(i) && row(j) ? dot(row(i), row(j)) / Math.sqrt(width) : NaN);
    const lines = (i, j) => !row(i) || !row(j) ? [`the table has ${s.L} rows`]
      : [`(${few(range(width, (c) => `${num(row(i)[c])}\u00b7${num(row(j)[c])}`))}) / \u221a${width}`];
    return { ...product(s, lines, value), options: s.axes === 1 ? { stretch: s.stretch } : {}, parameters: () => ({ table }) };
  },
};

encodings.tupe = {
  knobs: [...TABLE, knob("weights", "Deviation of the projections (0.02 at the start)", 0.1, 0.02, 0.3), STRETCH],
  width: true, small: true, reading: "Content and positions have scores of their own, each divided by the root of 2K. The table is set by hand, and the projections are random.",
  make: (s) => {
    const width = s.K * s.H, table = drawTable(s, s.L, width, s.std, s.alike), draw = normals(2);
    const query = matrix(s.K, width, () => s.weights * draw());
    // A projection of keys that resembles that of queries, so that similar positions attend to each other.
    const key = query.map((row) => row.map((one) => 0.8 * one + 0.6 * s.weights * draw()));
    const norm = (row) => {
      const mean = sum(row) / width, spread = Math.sqrt(sum(row.map((x) => (x - mean) ** 2)) / width + 1e-5);
      return row.map((x) => (x - mean) / spread);
    };
    const rows = remember((i) => { const parts = readRow(s, table, s.L, s.stretch, i); return parts && norm(blend(parts)); });
    const queries = remember((i) => rows(i) && apply(query, rows(i))), keys = remember((i) => rows(i) && apply(key, rows(i)));
    const places = (i, j) => (queries(i) && keys(j) ? dot(queries(i), keys(j)) : NaN);
    return {
      score: (i, j) => (s.c * Math.sqrt(s.K) + places(i, j)) / Math.sqrt(2 * s.K),
      explain: (i, j) => Number.isNaN(places(i, j)) ? [`the table has ${s.L} rows`, plain(NaN)]
        : [`(q \u00b7 k + (W_q norm(t_${i})) \u00b7 (W_k norm(t_${j}))) / \u221a(2\u00b7${s.K})`, `(${plain(s.c * Math.sqrt(s.K))} + ${num(places(i, j))}) / \u221a${2 * s.K}`],
      options: { stretch: s.stretch },
      parameters: () => ({ table, "query.weight": query, "key.weight": key, "query.bias": [0], "key.bias": [0] }),
    };
  },
};
