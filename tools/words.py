"""Count how often a word that was replaced is still the name of a mechanism.

    python tools/words.py [--list] [--allowed] [--word WORD ...] [PATH ...]

The core was once written in a private language: lanes, marks, seats, parties. Each of these words was replaced by the
field's word. `old_words.py` says for each what counts as a use of the old word, and what does not and why.

The parts of a Markdown page between `<!-- old words: begin -->` and `<!-- old words: end -->` are not looked at: a page
about the past needs the words of that time. The exit code is 1 if an old word is left.
"""

import argparse
import io
import keyword
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from old_words import WORDS, Allowed, Word, split_name

ROOT = Path(__file__).resolve().parents[1]
LOOKED_AT = (
    "src", "tests", "docs", "benchmarks", "examples", "tools", "README.md", "CONTRIBUTING.md", "CHANGELOG.md",
)  # fmt: skip
SKIPPED = ("tools/old_words.py", "tools/words.py", "tests/tools/test_words.py")  # they are about the old words


class Use(NamedTuple):
    """A place where an old word is used."""

    word: Word
    path: str
    line: int
    text: str
    allowed: Allowed | None

    def __str__(self) -> str:
        why = "" if self.allowed is None else f"  (allowed: {self.allowed.why})"
        return f"{self.path}:{self.line}: {self.word.old}: {self.text}{why}"


class Text(NamedTuple):
    """A comment, a string or a Markdown page; a test's name as a sentence."""

    line: int
    text: str


class Source:
    """A Python file: its names by line, its code without comments and strings, and its texts."""

    def __init__(self, text: str) -> None:
        self.names: list[tuple[str, int, int]] = []  # name, line, column
        self.texts: list[Text] = []
        self.lines = text.splitlines()
        self.code = [*self.lines]
        comments: list[tuple[int, int, str]] = []
        strings = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            (line, column), (end, end_column) = token.start, token.end
            if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
                if token.string.startswith("test_"):
                    self.texts.append(Text(line, token.string.replace("_", " ")))
                else:
                    self.names.append((token.string, line, column))
            elif token.type == tokenize.COMMENT:
                comments.append((line, column, token.string.lstrip("#! ")))
                self._blank(line, column, line, end_column)
            elif token.type in strings:
                self.texts.append(Text(line, token.string))
                self._blank(line, column, end, end_column)
        self.texts += _paragraphs(comments)

    def _blank(self, line: int, column: int, end: int, end_column: int) -> None:
        for number in range(line, end + 1):
            before = self.code[number - 1]
            first = column if number == line else 0
            last = end_column if number == end else len(before)
            self.code[number - 1] = before[:first] + " " * (last - first) + before[last:]


def _paragraphs(comments: Sequence[tuple[int, int, str]]) -> Iterator[Text]:
    """Comments in lines that follow each other are one text."""
    numbered = enumerate(comments)
    for _, part in groupby(numbered, key=lambda item: (item[1][0] - item[0], item[1][1])):
        lines = [comment for _, comment in part]
        yield Text(lines[0][0], "\n".join(text for _, _, text in lines))


def uses_of(path: Path, root: Path, words: Sequence[Word] = WORDS) -> Iterator[Use]:
    """Every use of an old word in a file, allowed or not."""
    name = path.relative_to(root).as_posix()
    text = path.read_text(encoding="utf-8")
    words = [word for word in words if _is_in(name, word.where)]
    for word in words:
        module = next((module for module in word.modules if f"/{module}" in f"/{name}"), None)
        if module is not None or (path.suffix == ".py" and not word.all_parts.isdisjoint(_module_words(path))):
            yield Use(
                word, name, 1, f"the name of the file: {path.name}", _allowed(word, name, path.stem, 0, len(path.stem))
            )
    if path.suffix == ".py":
        source = Source(text)
        yield from _uses_in_code(name, source, words)
        texts = source.texts
    else:
        texts = [Text(1, _without_history(text))]
    for part in texts:
        yield from _uses_in_text(name, part, words)


def _module_words(path: Path) -> list[str]:
    return [part for part in split_name(path.stem) if part != "test"]


def _uses_in_code(name: str, source: Source, words: Sequence[Word]) -> Iterator[Use]:
    found: dict[str, list[Word]] = {}
    for identifier, line, column in source.names:
        if identifier not in found:
            found[identifier] = [word for word in words if word.is_name(identifier)]
        for word in found[identifier]:
            shown = source.lines[line - 1]
            yield Use(word, name, line, identifier, _allowed(word, name, shown, column, column + len(identifier)))
    for word in words:
        for number, line_of_code in enumerate(source.code, 1):
            for regex in word.code_regexes:
                for match in regex.finditer(line_of_code):
                    yield Use(word, name, number, match[0], _allowed(word, name, line_of_code, *match.span()))


def _uses_in_text(name: str, part: Text, words: Sequence[Word]) -> Iterator[Use]:
    text = part.text
    for word in words:
        spans = {match.span() for regex in word.prose_regexes for match in regex.finditer(text)}
        for quoted in re.finditer(r"`[^`\n]+`", text):
            for match in re.finditer(r"[A-Za-z_]\w*", quoted[0]):
                if word.is_name(match[0]):
                    spans.add((quoted.start() + match.start(), quoted.start() + match.end()))
        for start, end in _disjoint(spans):
            line = part.line + text.count("\n", 0, start)
            begin = text.rfind("\n", 0, start) + 1
            shown = " ".join(text[max(begin, start - 40) : end + 40].split("\n")[0].split())
            yield Use(word, name, line, shown, _allowed(word, name, text, start, end))


def _disjoint(spans: set[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The spans, without those that overlap an earlier one."""
    last = -1
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        if start >= last:
            last = end
            yield start, end


def _allowed(word: Word, name: str, text: str, start: int, end: int) -> Allowed | None:
    """The exception that a use falls under."""
    for allowed in word.allowed:
        if _is_in(name, allowed.where):
            near = max(0, start - 200)
            for match in allowed.regex.finditer(text, near, min(len(text), end + 200)):
                if match.start() < end and start < match.end():
                    return allowed
    return None


def _is_in(name: str, where: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in where)


def _without_history(text: str) -> str:
    """A Markdown page with the parts about the past left blank. Line numbers stay."""
    part = re.compile(r"<!-- old words: begin -->.*?<!-- old words: end -->", re.DOTALL)
    return part.sub(lambda match: "\n" * match[0].count("\n"), text)


def files_in(paths: Sequence[Path], root: Path) -> list[Path]:
    """The Python and Markdown files in folders, and files that are named."""
    found = [
        file for path in paths for file in ([path] if path.is_file() else [*path.rglob("*.py"), *path.rglob("*.md")])
    ]
    return sorted(file for file in set(found) if file.relative_to(root).as_posix() not in SKIPPED)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders; all of the project by default")
    parser.add_argument("--list", action="store_true", help="show every use with its place")
    parser.add_argument("--allowed", action="store_true", help="show what is allowed instead, each use with its reason")
    parser.add_argument("--word", action="append", help="only the words that contain this text; may be repeated")
    given = parser.parse_args(arguments)
    words = [word for word in WORDS if given.word is None or any(text in word.old for text in given.word)]
    paths = [path.resolve() for path in given.paths] or [root / name for name in LOOKED_AT]
    uses = [
        use for file in files_in([path for path in paths if path.exists()], root) for use in uses_of(file, root, words)
    ]
    left = [use for use in uses if use.allowed is None]
    if given.allowed:
        print("\n".join(str(use) for use in uses if use.allowed is not None))
    elif given.list:
        print("\n".join(map(str, left)))
    numbers, allowed = Counter(use.word.old for use in left), Counter(use.word.old for use in uses if use.allowed)
    for word in words:
        if numbers[word.old] or allowed[word.old]:
            print(f"{numbers[word.old]:5} left {allowed[word.old]:5} allowed  {word.old} → {word.new}")
    print(f"{len(left)} uses of {sum(numbers[word.old] > 0 for word in words)} old words are left")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
