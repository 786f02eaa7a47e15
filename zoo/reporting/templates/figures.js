// Numbers of charts under the pointer, read off the drawing.
const invert = ([low, high, log], end) => (place) => {
  const share = place / end;
  return log ? low * (high / low) ** share : low + (high - low) * share;
};
const vertices = (path) => path.getAttribute("d")?.match(/-?[\d.]+,-?[\d.]+/g)?.map((pair) => pair.split(",").map(Number)) ?? [];
const toLocal = (event, element) => new DOMPoint(event.clientX, event.clientY).matrixTransform(element.getScreenCTM().inverse());
const readLines = (drawing, chart) => {
  const svg = find("svg", drawing), paths = all(".mark-line path", svg);
  const lines = paths.map((path, order) => ({ label: chart.series[chart.lines[order]][1], places: vertices(path) })).filter((line) => line.places.length);
  if (!lines.length) return;
  const [, width, height] = find(".background", svg).getAttribute("d").match(/h([\d.]+)v([\d.]+)/).map(Number);
  const across = invert(chart.x, width), up = invert([chart.y[1], chart.y[0], chart.y[2]], height);
  const cross = document.createElementNS("http://www.w3.org/2000/svg", "path");
  cross.setAttribute("class", "cross");
  paths[0].parentElement.append(cross);
  svg.addEventListener("pointermove", (event) => {
    const { x } = toLocal(event, paths[0]);
    const near = (line) => line.places.reduce((best, place) => (Math.abs(place[0] - x) < Math.abs(best[0] - x) ? place : best));
    const found = lines.map((line) => [line.label, near(line)]);
    const at = found.reduce((best, one) => (Math.abs(one[1][0] - x) < Math.abs(best[1][0] - x) ? one : best))[1][0];
    cross.setAttribute("d", `M${at} 0V${height}`);
    const told = found.filter((one) => Math.abs(one[1][0] - at) < 4).map(([label, place]) => `${label}: ${digits(up(place[1]))}`);
    tip(event, [digits(across(at)), ...told].join("\n"));
  });
  svg.addEventListener("pointerleave", () => { cross.setAttribute("d", ""); tip(); });
};
const readDots = (drawing, chart) => {
  for (const [order, dot] of all(".mark-symbol path", drawing).entries()) {
    dot.addEventListener("pointermove", (event) => tip(event, chart.series[chart.dots[order]][1]));
    dot.addEventListener("pointerleave", () => tip());
  }
};
// A name in the legend dims all other series.
const dimming = (drawing, chart) => {
  const marks = [
    ...all(".mark-line path", drawing).map((path, order) => [path, chart.lines[order]]),
    ...all(".mark-symbol path", drawing).map((path, order) => [path, chart.dots[order]]),
    ...all(".mark-area path", drawing).map((path, order) => [path, chart.bands[order]]),
  ];
  const only = (number) => { for (const [mark, series] of marks) mark.classList.toggle("dim", number !== null && series !== number); };
  for (const [number, item] of all(".legend li", drawing).entries()) {
    item.addEventListener("pointerenter", () => only(number));
    item.addEventListener("pointerleave", () => only(null));
  }
};

// Words of what is under the pointer.
const telling = (one) => {
  one.addEventListener("pointermove", (event) => tip(event, one.dataset.tip));
  one.addEventListener("pointerleave", () => tip());
};

// Numbers of maps under the pointer, read off the grey levels of their pictures.
const levels = async (image) => {
  const picture = new Image();
  picture.src = image.getAttribute("href");
  await picture.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: picture.naturalWidth, height: picture.naturalHeight });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(picture, 0, 0);
  return context.getImageData(0, 0, canvas.width, canvas.height);
};
const readMap = (image, { ends: [low, high], corner: [top, left], every }) => {
  let pixels;
  image.addEventListener("pointermove", async (event) => {
    pixels ??= await levels(image);
    const box = image.getBoundingClientRect();
    const column = Math.min(Math.floor(((event.clientX - box.left) / box.width) * pixels.width), pixels.width - 1);
    const row = Math.min(Math.floor(((event.clientY - box.top) / box.height) * pixels.height), pixels.height - 1);
    const place = 4 * (row * pixels.width + column);
    const value = pixels.data[place + 3] ? Number((low + ((pixels.data[place] - 1) / 254) * (high - low)).toPrecision(2)) : "no value";
    tip(event, `${top + row * every}, ${left + column * every}: ${value}`);
  });
  image.addEventListener("pointerleave", () => tip());
};
const readChart = (drawing) => {
  const chart = JSON.parse(drawing.dataset.chart);
  for (const image of all("svg image", drawing)) readMap(image, chart);
  if (!chart.series) return;
  if (chart.lines.length) readLines(drawing, chart);
  else readDots(drawing, chart);
  dimming(drawing, chart);
};
