// Explorers without a kernel: the pictures were drawn beforehand over a grid of their controls.
function explorer(place, data) {
  const at = data.controls.map((control) => control.first);
  const image = place.querySelector("img"), words = place.querySelector("p");
  const show = () => {
    const found = data.pictures[at.join("-")];
    image.src = data.folder + "/" + found.file;
    image.alt = words.textContent = found.text;
  };
  data.controls.forEach((control, index) => {
    const label = document.createElement("label"), name = document.createElement("span");
    name.textContent = control.label;
    const input = document.createElement(control.ordered ? "input" : "select"), value = document.createElement("output");
    if (control.ordered) Object.assign(input, { type: "range", min: 0, max: control.values.length - 1, step: 1 });
    else control.values.forEach((text, number) => input.add(new Option(text, number)));
    input.value = control.first;
    const say = () => {
      if (!control.ordered) return;
      value.textContent = control.values[at[index]];
      input.setAttribute("aria-valuetext", value.textContent);
    };
    input.addEventListener("input", () => { at[index] = Number(input.value); say(); show(); });
    say();
    label.append(name, input, value);
    place.querySelector(".controls").append(label);
  });
}
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".explorer").forEach((place) => explorer(place, JSON.parse(place.querySelector("script").textContent)));
});
// Printed columns scroll on narrow pages; sentences, and lines longer than an output has columns, wrap.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("div.cell_output pre").forEach((output) => {
    const lines = output.textContent.split("\n");
    const inColumns = lines.filter((line) => /\S {2,}\S/.test(line)).length > 1;
    output.classList.toggle("columns", inColumns && lines.every((line) => line.length <= 100));
  });
});
// Whoever uses the keyboard alone can scroll what is wider than the page.
window.addEventListener("load", () => {
  document.querySelectorAll("table, pre, div.cell_output .text_html, .explorer .picture").forEach((each) => {
    if (each.scrollWidth <= each.clientWidth) return;
    each.tabIndex = 0;
    each.classList.add("scrolls");
  });
});
// The theme's column on the left says to nobody what it is.
document.addEventListener("DOMContentLoaded", () => {
  const column = document.getElementById("pst-primary-sidebar");
  if (column) { column.setAttribute("role", "complementary"); column.setAttribute("aria-label", "Search and all pages"); }
});
// A button copies each block of code that is read; what a reader types elsewhere is the reader's own.
document.addEventListener("DOMContentLoaded", () => {
  if (!navigator.clipboard) return;  // a page opened as a file in some browsers
  document.querySelectorAll("div.cell_input div.highlight, article div[class*=highlight-] > div.highlight").forEach((block) => {
    const button = document.createElement("button"), code = block.querySelector("pre");
    Object.assign(button, { type: "button", className: "copy", textContent: "Copy" });
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(code.innerText.trimEnd());
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    block.append(button);
  });
});
// Which lessons were opened, and which read to their end, is kept in this browser alone, and shown in the list of lessons.
document.addEventListener("DOMContentLoaded", () => {
  const marks = { opened: [" ◐", "opened, in this browser"], read: [" ✓", "read to its end, in this browser"] };
  const name = (address) => (new URL(address, location.href).pathname.match(/notebooks\/([^/]+)\.html$/) || [])[1];
  const kept = (state) => JSON.parse(localStorage.getItem("course-" + state) || "[]");
  const keep = (state, lesson) => localStorage.setItem("course-" + state, JSON.stringify([...new Set([...kept(state), lesson])]));
  const show = () => {
    const opened = kept("opened"), read = kept("read");
    document.querySelectorAll(".bd-sidebar-primary a.reference.internal").forEach((link) => {
      const lesson = name(link.href), state = read.includes(lesson) ? "read" : opened.includes(lesson) ? "opened" : "";
      link.querySelectorAll(".kept").forEach((old) => old.remove());
      if (!state) return;
      const mark = document.createElement("span");
      Object.assign(mark, { className: "kept " + state, textContent: marks[state][0], title: marks[state][1], role: "img" });
      mark.setAttribute("aria-label", marks[state][1]);
      link.append(mark);
    });
  };
  try {  // a browser may refuse to keep anything
    const here = name(location.href), end = document.querySelector(".prev-next-footer");
    if (here) keep("opened", here);
    show();
    if (!here || !end) return;
    new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      keep("read", here);
      show();
    }).observe(end);
  } catch { /* nothing is marked then */ }
});
