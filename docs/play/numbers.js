// Functions of numbers, vectors and small matrices, and random numbers that are the same everywhere.
const TURN = 2 * Math.PI;
const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const logit = (x) => Math.log(x) - Math.log1p(-x);
const softplus = (x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));
const inverseSoftplus = (y) => y + Math.log(-Math.expm1(-y));
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
const range = (count, map = (i) => i) => Array.from({ length: count }, (_, i) => map(i));
const sum = (values) => values.reduce((total, one) => total + one, 0);
const dot = (a, b) => sum(a.map((one, i) => one * b[i]));
const matrix = (rows, columns, value) => range(rows, (r) => range(columns, (c) => value(r, c)));

// Uniform numbers in (0, 1) of a seed (mulberry32), and normal ones (Box and Muller).
const uniforms = (seed) => () => {
  seed = (seed + 0x6d2b79f5) | 0;
  let bits = Math.imul(seed ^ (seed >>> 15), 1 | seed);
  bits = (bits + Math.imul(bits ^ (bits >>> 7), 61 | bits)) ^ bits;
  return (((bits ^ (bits >>> 14)) >>> 0) + 0.5) / 2 ** 32;
};
const normals = (seed) => {
  const draw = uniforms(seed);
  return () => Math.sqrt(-2 * Math.log(draw())) * Math.cos(TURN * draw());
};

const multiply = (a, b) => a.map((row) => b[0].map((_, c) => { let t = 0; for (let k = 0; k < row.length; k++) t += row[k] * b[k][c]; return t; }));
const apply = (a, x) => a.map((row) => dot(row, x));

// Eigenvalues and eigenvectors (rows) of a symmetric matrix, by the rotations of Jacobi.
const eigen = (symmetric) => {
  const n = symmetric.length, a = symmetric.map((row) => [...row]), vectors = matrix(n, n, (r, c) => Number(r === c));
  for (let sweep = 0; sweep < 60; sweep++) {
    let off = 0, all = 0;
    for (let p = 0; p < n; p++) for (let q = 0; q < n; q++) { all += a[p][q] ** 2; if (p !== q) off += a[p][q] ** 2; }
    if (off <= 1e-30 * all) break;
    for (let p = 0; p < n; p++) for (let q = p + 1; q < n; q++) {
      if (a[p][q] === 0) continue;
      const ratio = (a[q][q] - a[p][p]) / (2 * a[p][q]);
      const tangent = (ratio < 0 ? -1 : 1) / (Math.abs(ratio) + Math.hypot(1, ratio));
      const cos = 1 / Math.hypot(1, tangent), sin = tangent * cos;
      for (let k = 0; k < n; k++) [a[k][p], a[k][q]] = [cos * a[k][p] - sin * a[k][q], sin * a[k][p] + cos * a[k][q]];
      for (let k = 0; k < n; k++) [a[p][k], a[q][k]] = [cos * a[p][k] - sin * a[q][k], sin * a[p][k] + cos * a[q][k]];
      for (let k = 0; k < n; k++) {
        const first = vectors[p][k], second = vectors[q][k];
        [vectors[p][k], vectors[q][k]] = [cos * first - sin * second, sin * first + cos * second];
      }
    }
  }
  return { values: a.map((row, i) => row[i]), vectors };
};

// exp(A), by a series of A / 2^s that is squared s times.
const exponential = (a) => {
  const norm = Math.max(...a.map((row) => sum(row.map(Math.abs)))), halvings = Math.max(0, Math.ceil(Math.log2(norm || 1)) + 1);
  const small = a.map((row) => row.map((x) => x / 2 ** halvings));
  let power = matrix(a.length, a.length, (r, c) => Number(r === c)), total = power;
  for (let order = 1; order <= 16; order++) {
    power = multiply(power, small).map((row) => row.map((x) => x / order));
    total = total.map((row, r) => row.map((x, c) => x + power[r][c]));
  }
  for (let step = 0; step < halvings; step++) total = multiply(total, total);
  return total;
};

// x with A x = b, by elimination with pivots.
const solve = (a, b) => {
  const n = b.length, rows = a.map((row, r) => [...row, b[r]]);
  for (let p = 0; p < n; p++) {
    let best = p;
    for (let r = p + 1; r < n; r++) if (Math.abs(rows[r][p]) > Math.abs(rows[best][p])) best = r;
    [rows[p], rows[best]] = [rows[best], rows[p]];
    for (let r = p + 1; r < n; r++) {
      const factor = rows[r][p] / rows[p][p];
      if (factor) for (let c = p; c <= n; c++) rows[r][c] -= factor * rows[p][c];
    }
  }
  const x = Array(n).fill(0);
  for (let p = n - 1; p >= 0; p--) x[p] = (rows[p][n] - sum(range(n - p - 1, (k) => rows[p][p + 1 + k] * x[p + 1 + k]))) / rows[p][p];
  return x;
};

// A skew-symmetric matrix U - U^T of its strict upper triangle, row-major.
const fromUpperTriangle = (values, size) => {
  const skew = matrix(size, size, () => 0);
  let next = 0;
  for (let r = 0; r < size; r++) for (let c = r + 1; c < size; c++) { skew[r][c] = values[next++]; skew[c][r] = -skew[r][c]; }
  return skew;
};

// Weights and places of the four neighbours of x among `size` rows, bicubically; rows at the edges repeat.
const cubicNeighbours = (x, size, a = -0.75) => {
  const near = (d) => ((a + 2) * d - (a + 3)) * d * d + 1, far = (d) => ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
  const base = Math.floor(x), t = x - base;
  return [far(t + 1), near(t), near(1 - t), far(2 - t)].map((weight, k) => [weight, clamp(base + k - 1, 0, size - 1)]);
};

const softmax = (scores) => {
  const finite = scores.filter(Number.isFinite), top = Math.max(...finite);
  const powers = scores.map((one) => (Number.isFinite(one) ? Math.exp(one - top) : 0)), total = sum(powers);
  return powers.map((one) => one / total);
};
