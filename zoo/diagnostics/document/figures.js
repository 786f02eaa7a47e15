// Numbers of lines under the pointer, read off the drawing.
const axis = (words) => {
  const [start, end, low, high] = words.split(" ").map(Number);
  const log = words.endsWith("log");
  return (place) => {
    const share = (place - start) / (end - start);
    return log ? low * (high / low) ** share : low + (high - low) * share;
  };
};
const places = (path) => path.getAttribute("d").match(/-?[\d.]+ -?[\d.]+/g)?.map((pair) => pair.split(" ").map(Number)) ?? [];
const readable = (svg) => {
  const lines = all(".line", svg).map((path) => ({ label: path.dataset.label, places: places(path) }));
  if (!lines.some((line) => line.places.length)) return;
  const across = axis(svg.dataset.x), up = axis(svg.dataset.y);
  const cross = document.createElementNS("http://www.w3.org/2000/svg", "path");
  cross.setAttribute("class", "cross");
  svg.append(cross);
  const bottom = Number(svg.dataset.y.split(" ")[0]), top = Number(svg.dataset.y.split(" ")[1]);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const near = (line) => line.places.reduce((best, place) => (Math.abs(place[0] - x) < Math.abs(best[0] - x) ? place : best), line.places[0]);
    const found = lines.filter((line) => line.places.length).map((line) => [line.label, near(line)]);
    const at = found.reduce((best, one) => (Math.abs(one[1][0] - x) < Math.abs(best[1][0] - x) ? one : best))[1][0];
    cross.setAttribute("d", `M${at} ${bottom}V${top}`);
    const told = found.filter((one) => Math.abs(one[1][0] - at) < 4).map(([label, place]) => `${label}: ${digits(up(place[1]))}`);
    tip(event, [digits(across(at)), ...told].join("\n"));
  });
  svg.addEventListener("pointerleave", () => { cross.setAttribute("d", ""); tip(); });
};
const dimming = (legend) => {
  const series = all("[data-series]", legend.parentElement).filter((one) => one.tagName !== "LI");
  const only = (number) => { for (const one of series) one.classList.toggle("dim", number !== null && one.dataset.series !== number); };
  for (const item of legend.children) {
    item.addEventListener("pointerenter", () => only(item.dataset.series));
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
const tellable = (image) => {
  const [low, high] = image.dataset.ends.split(" ").map(Number), [top, left, every] = image.dataset.corner.split(" ").map(Number);
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
