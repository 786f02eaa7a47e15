// What all encodings have in common: knobs, tokens and their coordinates, and how numbers are written.
//
// An encoding has knobs and a function `make` of the settings s:
//   axes 1 or 2, K head dim, H heads, h head (from 0), L training length, n tokens along an axis, c content.
// Queries and keys are equal: every channel of a head is sqrt(c / sqrt(K)), so that a score without an encoding is c.
// Positions i and j of queries and keys are numbers on texts, and [row, column] on grids. `make` returns
//   score(i, j)    what enters the softmax; NaN where the encoding refuses it, -Infinity where the key is hidden
//   explain(i, j)  lines of the formula with its numbers; the last one can be evaluated
//   options, parameters()   what makes an encoding of zoo compute the same; arrays are repeated over heads
const encodings = {};
const knob = (key, label, value, low, high, more = {}) => ({ key, label, value, low, high, step: more.log ? undefined : 0.01, ...more });
const whole = (key, label, value, low, high, more = {}) => knob(key, label, value, low, high, { step: 1, ...more });
const choice = (key, label, value, values, more = {}) => ({ key, label, value, values, ...more });

const COMMON = [
  choice("K", "Head dim", 64, [16, 32, 64, 128]),
  choice("H", "Heads", 8, [4, 8, 12, 16]),
  whole("h", "Head", 1, 1, 16),
  knob("c", "Score of equal tokens without an encoding", 2, 0.1, 8, { step: 0.1 }),
];

// The text: full stops are the tokens to which some encodings respond in another way.
const TEXT = "Attention sees a set . Order must come from somewhere . Here it comes from positions . Choose how .".split(" ");
const word = (i) => TEXT[i % TEXT.length];
const isStop = (i) => word(i) === ".";
// States of tokens that zoo reads: channel 0 is 1, and channel 1 marks full stops.
const states = (count, width) => matrix(count, width, (i, c) => (c === 0 ? 1 : c === 1 ? Number(isStop(i)) : 0));
const channel = (s) => Math.sqrt(s.c / Math.sqrt(s.K));

// Sums of a number per token, so that sums over tokens first .. last take one subtraction.
const sums = (count, value) => {
  const total = [0];
  for (let i = 0; i < count; i++) total.push(total[i] + value(i));
  return (first, last) => total[last + 1] - total[first];
};

const each = (i) => (Array.isArray(i) ? i : [i]);
const offset = (i, j) => each(i).map((one, axis) => one - each(j)[axis]);
const straight = (i, j) => Math.hypot(...offset(i, j));
const manhattan = (i, j) => sum(offset(i, j).map(Math.abs));

const CONVENTIONS = {
  index: (s, i) => i,
  fraction: (s, i) => (i + 0.5) / s.n,
  symmetric: (s, i) => (2 * (i + 0.5)) / s.n - 1,
  growing: (s, i) => (i * s.n) / (Math.max(s.n - 1, 1) * s.L),
  interpolated: (s, i) => i * Math.min(1, s.L / s.n),
};
const coordinates = (s, convention, i) => each(i).map((one) => CONVENTIONS[convention](s, one));

const plain = (x) => (Number.isFinite(x) ? String(Number(x.toPrecision(6))) : x === -Infinity ? "−∞" : "undefined").replace("-", "\u2212").replace("e-", "e\u2212");
const num = (x) => (x < 0 ? `(${plain(x)})` : plain(x));
const result = (x) => (Number.isFinite(x) ? x.toFixed(6).replace("-", "\u2212") : plain(x));
// A few of many terms.
const few = (terms, joint = " + ") => (terms.length <= 5 ? terms : [...terms.slice(0, 3), "\u2026", terms.at(-1)]).join(joint);
// A function of positions that keeps what it returned.
const remember = (make) => { const kept = new Map(); return (i) => { const key = String(i); if (!kept.has(key)) kept.set(key, make(i)); return kept.get(key); }; };
