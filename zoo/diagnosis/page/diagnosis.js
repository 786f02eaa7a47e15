// What a diagnosis has beside its figures.
ready.push(() => {
  const frame = find(".looks"), looks = frame ? viewer(frame, JSON.parse(find("#data").textContent)) : null;
  for (const table of all("table.heat")) measured(table, looks);
  if (looks) printing.push(looks.settle);
});
