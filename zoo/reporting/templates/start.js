// What waits for the page.
addEventListener("DOMContentLoaded", () => {
  paper(root.dataset.theme);
  for (const begin of ready) begin();
  find("#theme").addEventListener("click", () => {
    const theme = root.dataset.theme === "dark" ? "light" : "dark";
    keep(theme);
    paper(theme);
  });
  system.addEventListener("change", () => { if (!recall()) paper(system.matches ? "dark" : "light"); });
  for (const drawing of all("[data-chart]")) readChart(drawing);
  for (const one of all("[data-tip]")) telling(one);
  let before = "light", folded = [];
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    folded = all("details:not([open])");
    for (const one of folded) one.open = true;
    paper("light");
    for (const settle of printing) settle();
  });
  addEventListener("afterprint", () => {
    for (const one of folded) one.open = false;
    paper(before);
  });
  root.dataset.ready = String(Math.round(performance.now()));
});
