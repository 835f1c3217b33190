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
// Whoever uses the keyboard alone can scroll what is wider than the page.
window.addEventListener("load", () => {
  document.querySelectorAll("table, pre").forEach((each) => { if (each.scrollWidth > each.clientWidth) each.tabIndex = 0; });
});
