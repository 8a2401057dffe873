
"use strict";
(() => {
  const table = document.getElementById("all");
  if (!table) return;
  const body = table.tBodies[0], filter = document.getElementById("filter");
  const search = document.getElementById("search"), shown = document.getElementById("shown");
  const rows = [...body.rows], tiles = document.querySelectorAll(".nodes a");
  const texts = new Map(), order = new Intl.Collator("en", { numeric: true });
  const text = (row) => texts.get(row) ?? texts.set(row, row.textContent.toLowerCase()).get(row);

  const update = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const only = [...filter.querySelectorAll(":checked")].map((box) => box.id.replace("only", "o"));
    let count = 0;
    for (const row of rows) {
      const matches = words.every((word) => text(row).includes(word));
      row.hidden = tiles[row.id.slice(1)].hidden = !matches;
      if (matches && (!only.length || only.includes(row.className))) count += 1;
    }
    shown.textContent = `${count.toLocaleString("en")} of ${rows.length.toLocaleString("en")} nodes`;
  };

  const sort = (header, column) => {
    const down = header.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const keys = new Map(rows.map((row) => {
      const cell = row.cells[column];
      return [row, cell.dataset.v === undefined ? cell.textContent : cell.dataset.v && Number(cell.dataset.v)];
    }));
    rows.sort((a, b) => {
      const x = keys.get(a), y = keys.get(b);
      if (x === "" || y === "") return (x === "") - (y === "");
      const difference = typeof x === "number" ? x - y : order.compare(x, y);
      return down ? -difference : difference;
    });
    body.append(...rows);
  };

  [...table.tHead.rows[0].cells].forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.addEventListener("click", () => sort(header, column));
    header.append(button);
  });
  search.closest("p").hidden = false;
  search.addEventListener("input", update);
  filter.addEventListener("change", update);
  filter.addEventListener("reset", () => setTimeout(() => { search.value = ""; update(); }));
  filter.addEventListener("submit", (event) => event.preventDefault());
  update();
})();
