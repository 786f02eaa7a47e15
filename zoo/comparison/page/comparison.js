// Rows in the order of the condition that was chosen; on narrow screens the column of that condition alone is seen.
const ranked = (figure) => {
  const table = find(".ranks", figure), at = (row, condition) => Number(row.dataset.order.split(" ")[condition]);
  const rank = (condition) => {
    const bodies = all("tbody", table).map((body) => [body, all("tr[data-order]", body).sort((a, b) => at(a, condition) - at(b, condition))]);
    bodies.sort((a, b) => at(a[1][0], condition) - at(b[1][0], condition));
    for (const [body, rows] of bodies) {
      body.append(...rows);
      for (const row of rows) {
        const none = find(`[data-column="${condition}"]`, row).classList.contains("missing");
        find(".rank", row).textContent = none ? "\u2013" : at(row, condition) + 1;
      }
    }
    find("tfoot", table).before(...bodies.map(([body]) => body));
    for (const cell of all("[data-column]", table)) cell.classList.toggle("chosen", Number(cell.dataset.column) === condition);
    for (const told of all(".told-at", figure)) told.hidden = Number(told.dataset.column) !== condition;
  };
  for (const choice of all(".switch input", figure)) {
    choice.addEventListener("change", () => rank(Number(choice.value)));
    if (choice.checked) rank(Number(choice.value)); // a browser may keep what was chosen before
  }
};

// A heading sorts its table, and once more turns it round; what has no value stays last.
const sorting = (table) => {
  const heads = all("thead th", table), body = find("tbody", table);
  const order = (a, b) => (a.dataset.kind === "number" && b.dataset.kind === "number"
    ? Number(a.dataset.key) - Number(b.dataset.key)
    : a.dataset.key.localeCompare(b.dataset.key, "en", { numeric: true }));
  heads.forEach((head, column) => find("button", head).addEventListener("click", () => {
    const first = head.dataset.first ?? "ascending", turned = first === "ascending" ? "descending" : "ascending";
    const way = head.getAttribute("aria-sort") === first ? turned : first;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", way);
    const none = (row) => Number(row.cells[column].dataset.kind === "none"), sign = way === "ascending" ? 1 : -1;
    body.append(...[...body.rows].sort((a, b) => none(a) - none(b) || sign * order(a.cells[column], b.cells[column])));
  }));
};

ready.push(() => {
  for (const figure of all(".ranking")) ranked(figure);
  for (const table of all(".sortable")) sorting(table);
});
