// Sphinx's search wants every word on one page. A pasted error message never passes: it has numbers, paths and names of
// its own. So from three words on this takes the pages that have most of the rare ones, entries of Troubleshooting first.
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return; // only the page of the search has its scripts
  // the lines around a hit come from the page itself, which a browser does not read for a page of file://
  if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
  const strict = Search.performTermsSearch;
  Search.performTermsSearch = (words, excluded) => {
    const found = words.size < 3 ? strict(words, excluded) : [];
    return found.length ? found : mostOf(words);
  };
});

// Paper is white, and does not scroll or unfold.
addEventListener("beforeprint", () => {
  document.querySelectorAll(".bd-article details").forEach((each) => (each.open = true));
  document.documentElement.dataset.theme = "light";
});

function mostOf(words) {
  const {terms, titleterms, docnames, filenames, titles} = Search._index;
  const pages = (index, word) => (Object.hasOwn(index, word) ? [index[word]].flat() : []);
  const points = new Map(); // page -> its points
  let best = 0; // what a page with all the words that are known would have
  for (const word of words) {
    const having = new Set([...pages(terms, word), ...pages(titleterms, word)]);
    if (!having.size) continue;
    const worth = Math.log(1 + docnames.length / having.size); // a rare word tells more
    best += worth;
    having.forEach((page) => points.set(page, (points.get(page) ?? 0) + worth));
  }
  return [...points]
    .filter(([, sum]) => sum > best / 4)
    .map(([page, sum]) => [page, sum + 1000 * docnames[page].startsWith("troubleshooting/")])
    .sort((one, other) => other[1] - one[1])
    .slice(0, 8)
    .map(([page, sum]) => [docnames[page], titles[page], "", null, sum, filenames[page], SearchResultKind.text]);
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".cell_output img").forEach((image) => { // a tap shows it in full size
    const link = Object.assign(document.createElement("a"), {href: image.src});
    image.replaceWith(link);
    link.append(image);
  });
  markFinished();
  explainTerms();
});

// The lessons that the reader has finished, kept in this browser: a box at a lesson's end, a tick beside the links to it.
function markFinished() {
  const lessonOf = ({pathname}) => pathname.match(/\/notebooks\/(\w+)\.html$/)?.[1];
  const links = [...document.querySelectorAll(".bd-sidebar-primary a, .lesson strong a")].filter(lessonOf);
  const all = new Set(links.map(lessonOf)), here = lessonOf(location);
  const finished = new Set(JSON.parse(localStorage.getItem("finished") ?? "[]"));
  const count = Object.assign(document.createElement("span"), {role: "status"});
  const draw = () => {
    links.forEach((link) => link.classList.toggle("done", finished.has(lessonOf(link))));
    count.textContent = `${[...all].filter((name) => finished.has(name)).length} of ${all.size} lessons finished`;
  };
  if (here) {
    const box = Object.assign(document.createElement("input"), {type: "checkbox", checked: finished.has(here)});
    const label = document.createElement("label"), line = document.createElement("p");
    label.append(box, " I have finished this lesson");
    line.className = "finished";
    line.append(label, count);
    document.querySelector(".bd-article").append(line);
    box.addEventListener("change", () => {
      finished[box.checked ? "add" : "delete"](here);
      localStorage.setItem("finished", JSON.stringify([...finished]));
      draw();
    });
  } else document.querySelector(".lessons")?.before(count);
  draw();
}

// The meaning of a term: while the mouse or the focus is on its link, or after a first tap. Escape takes it away.
function explainTerms() {
  const box = Object.assign(document.createElement("div"), {id: "meaning", role: "tooltip", hidden: true});
  let shown = null, before = null, waiting;
  const hide = () => ([shown, box.hidden] = [null, true]);
  const later = () => (waiting = setTimeout(hide, 200)); // time to move the mouse onto the text
  document.body.append(box);
  document.addEventListener("keydown", ({key}) => key === "Escape" && hide());
  box.addEventListener("mouseenter", () => clearTimeout(waiting));
  box.addEventListener("mouseleave", later);
  document.querySelectorAll("a.term").forEach((term) => {
    const meaning = term.title, show = () => {
      clearTimeout(waiting);
      [shown, box.hidden, box.textContent] = [term, false, meaning];
      const {left, bottom} = term.getBoundingClientRect();
      box.style.top = `${bottom + scrollY + 4}px`;
      box.style.left = `${Math.max(8, Math.min(left, document.documentElement.clientWidth - box.offsetWidth - 8)) + scrollX}px`;
    };
    term.removeAttribute("title");
    term.setAttribute("aria-describedby", "meaning");
    for (const [name, act] of Object.entries({mouseenter: show, focus: show, mouseleave: later, blur: later,
      pointerdown: () => (before = shown), // a first tap shows the meaning, a second one follows the link
      click: (event) => event.pointerType === "touch" && before !== term && event.preventDefault()})) term.addEventListener(name, act);
  });
}
