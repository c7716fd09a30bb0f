"use strict";
const form = document.getElementById("form");
const annotator = document.getElementById("annotator");
const about = JSON.parse(form.dataset.about);
const place = "selfrag " + about.sample;
const names = new Set([...form.elements].filter((one) => one.type === "radio").map((one) => one.name));

function verdicts() {
  const said = {};
  for (const [name, value] of new FormData(form)) said[name] = value === "yes";
  return said;
}

function noted() {
  const said = verdicts();
  document.getElementById("left").textContent = names.size - Object.keys(said).length + " of " + names.size + " are open";
  try {
    localStorage.setItem(place, JSON.stringify({ said, annotator: annotator.value }));
  } catch { /* a browser that keeps nothing for files */ }
}

try {
  const kept = JSON.parse(localStorage.getItem(place) || "{}");
  annotator.value = kept.annotator || "";
  for (const [name, yes] of Object.entries(kept.said || {})) form.elements[name].value = yes ? "yes" : "no";
} catch { /* nothing was kept */ }
form.addEventListener("change", noted);
annotator.addEventListener("change", noted);
document.getElementById("save").addEventListener("click", () => {
  const text = JSON.stringify({ ...about, annotator: annotator.value, verdicts: verdicts() }, null, 1);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text + "\n"], { type: "application/json" }));
  link.download = "annotation-" + (annotator.value.replace(/[^\w-]+/g, "-") || "me") + ".json";
  link.click();
});
noted();
