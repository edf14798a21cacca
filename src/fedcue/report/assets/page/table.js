/* Sorting the table of methods by any column; what is missing comes last. */
let sorted = null; // { column, falling }

const sortTable = (table) => {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, i) => {
    if (sorted && sorted.column === i) head.setAttribute("aria-sort", sorted.falling ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
  if (!sorted) return;
  const key = (row) => {
    const cell = row.cells[sorted.column];
    return cell.tagName === "TH" ? cell.dataset.key : cell.dataset.key === "" ? null : Number(cell.dataset.key);
  };
  const rows = [...table.tBodies[0].rows].sort((a, b) => {
    const [one, other] = [key(a), key(b)];
    if (one === null || other === null) return (one === null) - (other === null);
    const order = typeof one === "string" ? one.localeCompare(other) : one - other;
    return sorted.falling ? -order : order;
  });
  table.tBodies[0].append(...rows);
};

const sortable = () => {
  const table = document.getElementById("method-table");
  if (!table) return;
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const again = sorted && sorted.column === column;
      sorted = { column, falling: again ? !sorted.falling : column > 0 };
      sortTable(table);
    });
  });
  sortTable(table);
};
