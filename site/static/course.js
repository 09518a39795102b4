// Sphinx's search wants every word on one page. A pasted error message never passes: it has numbers, paths and names of
// its own. So from three words on this takes the pages that have most of the rare ones, entries of Troubleshooting first.
document.addEventListener("DOMContentLoaded", () => {
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
