// The search of the page of cards: a card stays if it has every word; one whose title has them comes first. What is after
// the # of the address is searched for when the page opens, so that a text can link to a card.
document.addEventListener("DOMContentLoaded", () => {
  const box = document.getElementById("card-search");
  if (!box) return;
  const cards = [...document.querySelectorAll(".card-of-one-screen")];
  const show = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    const has = (element) => words.every((word) => element.textContent.toLowerCase().includes(word));
    cards.forEach((card) => {
      card.hidden = !has(card);
      card.style.order = has(card.querySelector("strong")) ? 0 : 1;
    });
    const count = cards.filter((card) => !card.hidden).length;
    document.getElementById("card-count").textContent = `${count} of ${cards.length} cards`;
  };
  const fromAddress = () => {
    box.value = decodeURIComponent(location.hash.slice(1)).replaceAll("+", " ");
    show();
  };
  box.addEventListener("input", show);
  addEventListener("hashchange", fromAddress);
  fromAddress();
});
