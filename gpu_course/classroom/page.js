for (const button of document.querySelectorAll("thead button")) button.addEventListener("click", () => {
  const head = button.parentElement, body = head.closest("table").tBodies[0];
  const up = head.getAttribute("aria-sort") === "ascending";
  const value = row => row.cells[head.cellIndex].dataset.sort ?? row.cells[head.cellIndex].textContent;
  const rows = [...body.rows].sort((one, other) => value(one).localeCompare(value(other), undefined, {numeric: true}));
  for (const each of head.parentElement.cells) each.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "descending" : "ascending");
  body.append(...(up ? rows.reverse() : rows));
});
