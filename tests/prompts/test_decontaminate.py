"""Which word runs count as a benchmark's content."""

from __future__ import annotations

from eyrie.prompts.decontaminate import Benchmarks, words


def made(*prompts: str, length: int = 4) -> Benchmarks:
    benchmarks = Benchmarks(length)
    benchmarks.add((f"b{number}", text) for number, text in enumerate(prompts))
    return benchmarks


def test_case_punctuation_and_line_breaks_do_not_hide_a_copy() -> None:
    assert words("Sort the_list: [1, 2]\nÉTÉ!") == ["sort", "the", "list", "1", "2", "été"]
    assert made("Reverse the given string fast").hit("reverse -- THE\ngiven (string)") is not None


def test_a_shorter_overlap_is_none() -> None:
    assert made("reverse the given string").hit("reverse the given word") is None


def test_the_hit_names_the_benchmark_prompt_and_the_words() -> None:
    assert made("one two three four five", "six seven eight nine").hit("say six seven eight nine ten") == (
        "b1",
        "six seven eight nine",
    )


def test_wording_that_a_benchmark_repeats_is_not_its_content() -> None:
    benchmarks = made(*(f"complete the following python function {name}" for name in ("ant", "bee", "cat")))
    assert benchmarks.hit("complete the following python function dog") is None
    assert benchmarks.hit("the following python function bee") is not None


def test_a_problem_that_several_benchmarks_share_still_counts() -> None:
    benchmarks = Benchmarks(4)
    for name in ("a", "b", "c", "d"):
        benchmarks.add([(name, "reverse the given string")])
    assert benchmarks.hit("reverse the given string") is not None


def test_a_short_benchmark_prompt_only_matches_a_prompt_of_the_same_words() -> None:
    benchmarks = made("Sort it", length=10)
    assert benchmarks.hit("sort it!") is not None
    assert benchmarks.hit("Please sort it") is None


def test_without_benchmarks_nothing_is_hit() -> None:
    assert Benchmarks(4).hit("any text at all here") is None
