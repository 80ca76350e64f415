// Tables that sort by a click on a column's title and show only rows that have every word of the filter.
"use strict";
function value(cell) {
  return cell.dataset.v === undefined ? null : Number(cell.dataset.v);
}
function sortBy(table, column, down) {
  const body = table.tBodies[0], sign = down ? -1 : 1, numeric = table.tHead.rows[0].cells[column].classList.contains("n");
  const rows = Array.from(body.rows, (row, at) => ({ row, at, cell: row.cells[column] }));
  rows.sort((a, b) => {
    if (!numeric) return sign * a.cell.textContent.localeCompare(b.cell.textContent, "en", { numeric: true }) || a.at - b.at;
    const left = value(a.cell), right = value(b.cell);
    if (left === null || right === null) return (left === null) - (right === null) || a.at - b.at;  // what has no value comes last
    return sign * (left - right) || a.at - b.at;
  });
  body.append(...rows.map(({ row }) => row));
}
for (const table of document.querySelectorAll("table.sort")) {
  const titles = table.tHead.rows[0].cells;
  Array.from(titles, (title, column) => title.querySelector("button").addEventListener("click", () => {
    const down = title.getAttribute("aria-sort") === "ascending";
    for (const other of titles) other.removeAttribute("aria-sort");
    title.setAttribute("aria-sort", down ? "descending" : "ascending");
    sortBy(table, column, down);
  }));
}
for (const input of document.querySelectorAll("input.filter")) {
  const table = document.getElementById(input.dataset.table);
  input.hidden = false;
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of table.tBodies[0].rows) {
      const text = Array.from(row.cells, (cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
}
