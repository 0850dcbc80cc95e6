"use strict";
// Sorts and filters the table of results. Without scripts the table stands in the order in which it was measured.
(() => {
  const table = document.getElementById("rows");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const [controls, filter, result, count] = ["controls", "filter", "result", "count"].map((id) => document.getElementById(id));
  const resultColumn = heads.findIndex((head) => head.textContent === "result");
  const texts = rows.map((row) => row.textContent.toLowerCase());

  const value = (text) => (text === "inf" ? Infinity : parseFloat(text));

  // numbers by their value, whatever unit follows; empty cells last, in either direction
  const compare = (number, sign) => (a, b) => {
    if (!a.text || !b.text) return (a.text ? 0 : 1) - (b.text ? 0 : 1);
    return sign * (number ? value(a.text) - value(b.text) : a.text.localeCompare(b.text, "en", { numeric: true }));
  };

  const sort = (index) => {
    const head = heads[index];
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    const keyed = rows.map((row) => ({ row, text: row.cells[index].textContent }));
    const number = keyed.every(({ text }) => !text || !Number.isNaN(value(text)));
    body.append(...keyed.sort(compare(number, sign)).map(({ row }) => row));
  };

  const show = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, i) => {
      const named = !result.value || row.cells[resultColumn].textContent === result.value;
      row.hidden = !named || !words.every((word) => texts[i].includes(word));
      shown += row.hidden ? 0 : 1;
    });
    count.textContent = `${shown} of ${rows.length} rows`;
  };

  heads.forEach((head, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.dataset.title = head.textContent;
    button.addEventListener("click", () => sort(index));
    head.replaceChildren(button);
  });
  filter.addEventListener("input", show);
  result.addEventListener("change", show);
  controls.addEventListener("submit", (event) => event.preventDefault());
  controls.hidden = false;
  show();
})();
