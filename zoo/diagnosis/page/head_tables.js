// Tables of measures: the number of the head under the pointer or the focus.
const measured = (table, looks) => {
  const rows = all("tbody tr:not(.group)", table).map((row) => all("td", row));
  const told = find(".told", table.closest(".drawing"));
  const place = (cell) => ({ layer: Number(cell.parentElement.cells[0].textContent), head: cell.cellIndex - 1, name: table.dataset.run });
  const tell = (event) => {
    const cell = event.target.closest("td");
    if (!cell) return;
    const { layer, head, name } = place(cell);
    const run = name ? `${name}, ` : "";
    const more = looks?.has(place(cell)) ? " \u2013 click to see where it looks" : "";
    told.textContent = `${run}layer ${layer}, head ${head + 1}: ${cell.dataset.value} ${told.dataset.unit}${more}`;
  };
  const show = (event) => {
    const cell = event.target.closest("td");
    if (!cell || !looks?.has(place(cell)) || (event.key && event.key !== "Enter")) return;
    looks.show(place(cell));
  };
  rows[0][0].tabIndex = 0;
  table.addEventListener("keydown", roving(rows));
  table.addEventListener("keydown", show);
  table.addEventListener("click", show);
  table.addEventListener("pointerover", tell);
  table.addEventListener("focusin", tell);
};
