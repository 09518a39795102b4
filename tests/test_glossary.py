"""site/glossary.toml: what its page and the links of the lessons rely on."""

import re
import tomllib
from pathlib import Path

import jupytext
import pytest

ROOT = Path(__file__).resolve().parent.parent
TERMS = tomllib.loads((ROOT / "site/glossary.toml").read_text(encoding="utf-8"))["term"]
each_term = pytest.mark.parametrize("term", TERMS, ids=lambda term: term["name"])


def prose(path):
    """A lesson's markdown without blocks of code and without addresses; what stands between backticks is a word."""
    text = "\n\n".join(cell.source for cell in jupytext.read(path).cells if cell.cell_type == "markdown")
    text = re.sub(r"```.*?```", " ", text, flags=re.DOTALL)
    return re.sub(r"\]\([^)]*\)|^\[\w+\]: .*$|[`*]", "", text, flags=re.MULTILINE)


LESSONS = {path.name[:2]: prose(path) for path in sorted((ROOT / "notebooks/text").glob("*.py"))}


def forms(term):
    return [term["name"], *term.get("forms", [])]


def pattern(words):
    """Whole words, over the end of a line, too: not `reduce` in `all-reduce`, nor `checkpoint` in `checkpoint.py`."""
    text = r"(?<![\w-])" + r"\s+".join(map(re.escape, words.split())) + r"(?![\w-]|\.\w)"
    return re.compile(text, re.IGNORECASE if words == words.lower() else 0)


def test_terms_are_sorted_and_no_word_has_two_entries():
    names = [term["name"] for term in TERMS]
    assert names == sorted(names, key=str.casefold)
    words = [word for term in TERMS for word in dict.fromkeys(map(str.casefold, forms(term)))]
    assert len(words) == len(set(words)), sorted(word for word in set(words) if words.count(word) > 1)
    anchors = [re.sub(r"\W+", "-", name.casefold()) for name in names]
    assert len(anchors) == len(set(anchors))


@each_term
def test_an_entry_is_short_and_whole(term):
    assert set(term) <= {"name", "forms", "text", "taught", "not_in"}
    assert term["text"].endswith(".") and len(term["text"]) <= 300 and "\n" not in term["text"]
    assert len(re.findall(r"[.:;!?](?:\s|$)", term["text"])) <= 6 and term["text"].count("`") % 2 == 0


@each_term
def test_lessons_use_each_form_and_the_one_named_teaches_it(term):
    for form in forms(term):
        assert form == term["name"] or any(pattern(form).search(text) for text in LESSONS.values()), form
    used = {number for number, text in LESSONS.items() if any(pattern(form).search(text) for form in forms(term))}
    excepted = set(term.get("not_in", []))
    assert excepted <= used, "the word is not there any more"
    assert term["taught"] in used - excepted
