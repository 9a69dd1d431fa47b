"""The fields of dataclasses of settings: what they say about themselves, and what they refuse."""

from dataclasses import MISSING, dataclass, field

import pytest

from hotrows.options import check_options, describe_options, find_option, option, required

REGISTRY = {"first": 1}


@dataclass
class Section:
    inner: int = option(1, "Inside.")


@dataclass
class Settings:
    name: str = required("What it is called.")
    kind: str = option("first", "Which one.", choices=REGISTRY)
    size: int | None = option(None, "How large.", least=1, most=8)
    count: int = option(3, "How many.", least=1)
    share: float = option(0.5, "How much.", above=0, most=1)
    rest: float = option(0.5, "How much is left.", least=0, below=1)
    site: str = option("here", "Where.", choices=("here",), also="any other site")
    plain: list[int] = field(default_factory=list)
    section: Section = field(default_factory=Section)


def settings(**given: object) -> Settings:
    return Settings(**{"name": "x", **given})  # type: ignore[arg-type]


def test_options_are_described_in_order() -> None:
    found = {each.name: each for each in describe_options(Settings)}
    assert list(found) == ["name", "kind", "size", "count", "share", "rest", "site", "plain"]
    assert found["name"].default is MISSING
    assert (found["plain"].default, found["plain"].help) == ([], "")
    assert [each.allowed for each in found.values()] == [
        "", "first", "from 1 to 8", "1 or more", "more than 0 and at most 1", "from 0 to less than 1",
        "here or any other site", "",
    ]  # fmt: skip
    assert found["count"].full_help == "How many. Allowed: 1 or more."


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "second"}, "things.kind is 'second': known are first"),
        ({"size": 0}, "things.size is 0, it must be from 1 to 8"),
        ({"size": 9}, "things.size is 9, it must be from 1 to 8"),
        ({"size": 2.0}, "things.size is 2.0, it must be a whole number"),
        ({"count": True}, "things.count is True, it must be a whole number"),
        ({"count": 0}, "things.count is 0, it must be 1 or more"),
        ({"share": 0}, "things.share is 0, it must be more than 0 and at most 1"),
        ({"share": float("nan")}, "things.share is nan, it must be more than 0 and at most 1"),
        ({"rest": 1}, "things.rest is 1, it must be from 0 to less than 1"),
    ],
)
def test_what_is_not_allowed_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_options(settings(**given), "things")


def test_what_is_allowed_is_taken() -> None:
    check_options(settings())
    check_options(settings(size=8, share=1, rest=0, site="there"))


def test_a_registry_may_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, "second", 2)
    check_options(settings(kind="second"))
    assert find_option(Settings, "kind").allowed == "first, second"


def test_an_unknown_word_of_a_declaration_is_an_error() -> None:
    with pytest.raises(AssertionError, match=r"an option has no .*lowest"):
        option(1, "How many.", lowest=1)
