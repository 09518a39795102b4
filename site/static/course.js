// Sphinx's search wants every word on one page. A pasted error message never passes: it has numbers, paths and names of
// its own. So from three words on this takes the pages that have most of the rare ones, entries of Troubleshooting first,
// and before all others the entries whose messages have words of it in a row. SEEN is {name of an entry's page: [its
// title and what one sees, in words; how that begins; each message]}.
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return; // only the page of the search has its scripts
  // the lines around a hit come from the page itself, which a browser does not read for a page of file://
  if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
  let asked = "";
  const {performTermsSearch: strict, _parseQuery: parse, _performSearch: perform} = Search;
  Search._parseQuery = (query) => {
    asked = query;
    const parsed = parse(query.replace(HANGS, "hangs"));
    if (parsed[1].size > 2) localStorage.removeItem("sphinx_highlight_terms"); // they would colour half of the page
    return parsed;
  };
  Search._performSearch = (...parsed) => {
    const results = perform(...parsed);
    results.filter(([page]) => isEntry(page)).forEach((result) => (result[3] = SEEN[result[0]][1]));
    return results;
  };
  Search.performTermsSearch = (words, excluded) => {
    const enough = words.has("hang") ? 2 : 3; // "training hangs": an entry on hangs need not say training
    const found = words.size < enough ? strict(words, excluded) : [];
    found.forEach((page) => (page[4] += 10 * isEntry(page[0]))); // less than a word in a title brings
    const results = found.length ? found : mostOf(words);
    if (asked.trim().split(/\s+/).length < 3 && words.size < 3) return results;
    const entries = entriesWith(asked);
    if (!entries.length && /error|warning|fail|exception|[:=]/i.test(asked) && Search.status) {
      Search.status.textContent = "No entry of Troubleshooting has exactly this message. The nearest pages:";
      Search.status = document.createElement("p"); // where Sphinx will write how many pages match
    }
    return [...entries, ...results.filter((page) => !entries.some((entry) => entry[0] === page[0]))];
  };
  Search.htmlToText = (html) => {
    const article = new DOMParser().parseFromString(html, "text/html").querySelector(".bd-article");
    article?.querySelectorAll(".headerlink, script, style").forEach((each) => each.remove());
    return article?.textContent ?? "";
  };
});

// The theme lets the keyboard scroll what is wider than its box when the page opens: here what is unfolded later.
document.addEventListener("toggle", ({target}) => target.querySelectorAll("pre, .output").forEach((box) => {
  if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) box.tabIndex = 0;
}), true);

const isEntry = (name) => name.startsWith("troubleshooting/");

// What people call a hang, where the entries say that it hangs.
const HANGS = /\b(freezes|stall(s|ed|ing)|((gets?|got|is) )?stuck|(waits?|waiting) for ?ever|nothing happens)\b/gi;

// Paper is white, and does not scroll or unfold.
addEventListener("beforeprint", () => {
  document.querySelectorAll(".bd-article details").forEach((each) => (each.open = true));
  document.documentElement.dataset.theme = "light";
});

// The words between numbers, addresses and paths, which are the same wherever a message is printed: a list of lists.
// An exit status (-9) is a word, too. Of a name in quotes with dots in it only the first part is the same:
// "module.encoder.weight" becomes module.*
function wordsOf(text) {
  const bare = (word) => word.replace(/^[("'`[{]+|[)"'`\]},.;:!]+$/g, "");
  const general = text.toLowerCase().replace(/(["'`])(\w+\.)[\w.…]*\1/g, " $2* … ");
  const parts = general.replace(/\(run with nccl_debug=\w+ for details\), nccl version|\S+ nccl error in:/g, " … ").split(/(?:^|\s)(?!-\d\d?\W*(?:\s|$))\S*[\d/…]\S*/);
  return parts.map((part) => part.split(/\s+/).map(bare).filter(Boolean));
}

// Results for the entries that have the most of `text` in a row, in rare words.
function entriesWith(text) {
  const errors = text.replace(WARNINGS, "");
  const parts = wordsOf(/(error|exception):/i.test(errors) ? errors : text);
  const messages = Object.entries(SEEN).map(([page, [, , ...printed]]) => [page, printed.flatMap(wordsOf)]);
  const having = new Map(); // word -> how many messages have it
  for (const [, lists] of messages) {
    for (const word of new Set(lists.flat())) having.set(word, (having.get(word) ?? 0) + 1);
  }
  const longest = Math.max(...parts.map((part) => part.length));
  const {docnames, titles, filenames} = Search._index;
  const found = messages.map(([page, lists]) => {
    let sum = 0; // the points of the best row of words in each part
    for (const part of parts) {
      let most = 0;
      for (const list of lists) for (let shift = 1 - list.length; shift < part.length; shift++) {
        if (list.some((word, at) => list[at - 1] === "exitcode" && STATUS.test(word) && part[at + shift] !== word)) continue;
        let points = 0, length = 0, first = -1, count = 0;
        for (let at = Math.max(0, shift); at < Math.min(part.length, shift + list.length); at++) {
          const same = part[at] === list[at - shift];
          points = same ? points + !stopwords.has(part[at]) * Math.log(messages.length / having.get(part[at])) : 0;
          length = same ? length + 1 : 0;
          if (same && first < 0) first = at;
          count += same;
          if (points > most && 2 * count > at - first && (points > ENOUGH && (count > 2 || 2 * count >= longest) || length === longest)) most = points;
        }
      }
      sum += most;
    }
    const number = docnames.indexOf(page);
    return [page, titles[number], "", null, 2000 + sum, filenames[number], SearchResultKind.text];
  });
  const best = Math.max(...found.map((entry) => entry[4]));
  return best > 2000 ? found.filter((entry) => entry[4] === best) : [];
}
const STATUS = /^-\d+$/; // of a message that has an exit status, nothing counts without it
const WARNINGS = /\[W\d*[^\]]*\].*?(?=\[rank\d+\]:|\[E\d|\n|$)/g; // they end no rank: an error beside them is what is asked for
const ENOUGH = 6; // two rare words, or three that are less rare

function mostOf(words) {
  const {terms, titleterms, docnames, filenames, titles} = Search._index;
  const stemmer = new Stemmer();
  const stems = (text) => splitQuery(text.toLowerCase()).map((word) => stemmer.stemWord(word));
  const seen = docnames.map((page) => stems(SEEN[page]?.[0] ?? ""));
  const pages = (index, word) => (Object.hasOwn(index, word) ? [index[word]].flat() : []);
  const points = new Map(); // page -> its points
  let best = 0; // what a page with all the words that are known has, if it says none of them in what one sees
  for (const word of words) {
    const having = new Set([...pages(terms, word), ...pages(titleterms, word)]);
    if (!having.size) continue;
    const worth = Math.log(1 + docnames.length / having.size); // a rare word tells more
    best += worth;
    // what one sees counts twice: an entry's causes have the words of other symptoms, too
    having.forEach((page) => points.set(page, (points.get(page) ?? 0) + worth * (1 + seen[page].includes(word))));
  }
  return [...points]
    .filter(([, sum]) => sum > best / 4)
    .map(([page, sum]) => [page, sum + 1000 * isEntry(docnames[page])])
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
  document.querySelectorAll(".question").forEach(judgeChoice);
  markFinished();
  explainTerms();
});

// A question of the quiz: its answer unfolds once there is a choice, and the verdict stands above it.
function judgeChoice(question) {
  const [verdict, answer] = question.querySelectorAll("[role=status], details");
  const {right} = question.dataset;
  answer.querySelector("summary").addEventListener("click", (event) => {
    const chosen = question.querySelector(":checked")?.value;
    if (!chosen) event.preventDefault();
    const message = chosen ? `✗ ${chosen} is wrong. The answer is ${right}.` : "Choose first.";
    verdict.classList.toggle("right", chosen === right);
    verdict.textContent = chosen === right ? "✓ Right." : message;
  });
  question.addEventListener("change", () => ([answer.open, verdict.textContent] = [false, ""]));
}

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
