// Encodings that change rows of scores.
const TEMPERED = "Scores of equal tokens: without positions, a factor decides how sharp attention is.";

encodings.head_scale = {
  knobs: [knob("scale", "Scale (1 at the start)", 1, 0, 4)],
  reading: TEMPERED,
  make: (s) => ({ score: () => s.c * s.scale, explain: () => [`${plain(s.c)} \u00b7 ${plain(s.scale)}`], options: {}, parameters: () => ({ scale: [s.scale] }) }),
};

encodings.ssmax = {
  knobs: [knob("scale", "Scale (0.43 at the start)", 0.43, 0, 2)],
  reading: `${TEMPERED} It grows with the number of keys that the query sees, so that attention does not spread out over longer texts.`,
  make: (s) => {
    const seen = (i) => (s.axes === 1 ? i + 1 : s.n ** 2);
    return {
      score: (i) => s.c * s.scale * Math.log(seen(i)),
      explain: (i) => [`${plain(s.c)} \u00b7 ${plain(s.scale)} \u00b7 log ${seen(i)}`, `${plain(s.c)} \u00b7 ${plain(s.scale)} \u00b7 ${plain(Math.log(seen(i)))}`],
      options: {}, parameters: () => ({ scale: [s.scale] }),
    };
  },
};

// Keys of full stops have another length here, and so another score.
const STOP_SCORE = knob("stop", "Score of a full stop", 2, -8, 8, { step: 0.1 });
const keyScore = (s, j) => (isStop(j) ? s.stop : s.c);

encodings.stickbreaking = {
  knobs: [STOP_SCORE, choice("inclusive", "A token attends to itself", "no", ["no", "yes"])],
  content: true, weights: true, reading: "Weights, not scores: from the query backwards, each key takes the sigmoid of its score of what nearer keys have left.",
  make: (s) => {
    const last = s.inclusive === "yes" ? 0 : 1, passed = sums(s.n, (i) => softplus(keyScore(s, i)));
    const score = (i, j) => (j > i - last ? 0 : Math.exp(keyScore(s, j) - passed(j, i - last)));
    return {
      score,
      explain: (i, j) => (j > i - last ? ["a token does not attend to itself", "0"] : [
        `exp(${num(keyScore(s, j))} \u2212 (${few(range(i - last - j + 1, (k) => `softplus(${plain(keyScore(s, j + k))})`))}))`,
        `exp(${num(keyScore(s, j))} \u2212 ${plain(passed(j, i - last))})`,
      ]),
      options: { inclusive: s.inclusive === "yes" }, parameters: () => ({ remainder: [0] }), keys: (j) => keyScore(s, j) / s.c,
    };
  },
};

encodings.cope = {
  knobs: [STOP_SCORE, whole("most", "Positions", 64, 2, 256), knob("slope", "Slope of the table", 0.1, -1, 1)],
  content: true, width: true, reading: "Scores: a position is a sum of gates, the sigmoids of scores, so it counts tokens to which the query attends. The table is set by hand to fall by the slope per position; it starts at zero.",
  make: (s) => {
    const gates = sums(s.n, (i) => sigmoid(keyScore(s, i))), position = (i, j) => Math.min(gates(j, i), s.most - 1), v = channel(s);
    return {
      score: (i, j) => keyScore(s, j) - s.slope * position(i, j),
      explain: (i, j) => [
        `${plain(keyScore(s, j))} + z[min(${few(range(i - j + 1, (k) => `\u03c3(${plain(keyScore(s, j + k))})`))}, ${s.most - 1})]`,
        `${plain(keyScore(s, j))} \u2212 ${num(s.slope)} \u00b7 ${plain(position(i, j))}`,
      ],
      options: { max_positions: s.most }, keys: (j) => keyScore(s, j) / s.c,
      parameters: () => ({ table: range(s.most, (m) => Array(s.K).fill((-s.slope * m) / (s.K * v))) }),
    };
  },
};

encodings.key_offset = {
  knobs: [choice("fraction", "Fraction of the channels", 0.5, [0.25, 0.5, 1]), choice("first", "Keys of the first token", "zero", ["zero", "own"])],
  reading: "Scores of two equal tokens: some channels of a key are those of the key before it. All tokens are equal here, so only the first, which has none before it, differs.",
  make: (s) => {
    const kept = (j) => (j === 0 && s.first === "zero" ? 1 - s.fraction : 1);
    return {
      score: (i, j) => s.c * kept(j), explain: (i, j) => [`${plain(s.c)} \u00b7 ${plain(kept(j))}`],
      options: { fraction: s.fraction, first: s.first }, parameters: () => ({}),
    };
  },
};
