// What waits for the page.
addEventListener("DOMContentLoaded", () => {
  paper(root.dataset.theme);
  const frame = find(".looks"), looks = frame ? viewer(frame, JSON.parse(find("#data").textContent)) : null;
  find("#theme").addEventListener("click", () => {
    const theme = root.dataset.theme === "dark" ? "light" : "dark";
    keep(theme);
    paper(theme);
  });
  system.addEventListener("change", () => { if (!recall()) paper(system.matches ? "dark" : "light"); });
  for (const table of all("table.heat")) measured(table, looks);
  for (const svg of all("svg.plot")) readable(svg);
  for (const legend of all(".legend")) dimming(legend);
  for (const image of all("svg image")) tellable(image);
  let before = "light", folded = [];
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    folded = all("details:not([open])");
    for (const one of folded) one.open = true;
    paper("light");
    looks?.settle();
  });
  addEventListener("afterprint", () => {
    for (const one of folded) one.open = false;
    paper(before);
  });
  root.dataset.ready = String(Math.round(performance.now()));
});
